"""Containers that tests run to their end."""

from __future__ import annotations

from typing import Any

import docker


def output(client: docker.DockerClient, image: str, command: Any = None, **options: Any) -> bytes:
    """Run a container to its end, remove it, and return its standard output.

    `containers.run(remove=True)` of the Docker SDK removes the container before it has read the log
    to the end, and so may return less.
    """
    container = client.containers.run(image, command, detach=True, **options)
    try:
        status = container.wait()["StatusCode"]
        assert status == 0, container.logs().decode()
        return bytes(container.logs(stderr=False))
    finally:
        container.remove(force=True)
