"""Containers that tests run to their end."""

from __future__ import annotations

from typing import Any

import docker


def output(client: docker.DockerClient, image: str, command: Any = None, **options: Any) -> bytes:
    """Run a container to its end, remove it, and return its standard output.

    `containers.run(remove=True)` of the Docker SDK removes the container before it has read the log
    to the end, and so may return less. One that printed nothing runs again: the engine may have
    lost it (builder/engine/containers.py, `follow`).
    """
    for _ in range(3):
        container = client.containers.run(image, command, detach=True, **options)
        try:
            status = container.wait()["StatusCode"]
            assert status == 0, container.logs().decode()
            if printed := bytes(container.logs(stderr=False)):
                return printed
        finally:
            container.remove(force=True)
    return b""
