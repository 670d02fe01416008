"""Containers that the factory runs: whose they are, what a killed run left, what they print.

Every container, network, volume and temporary image carries two labels: one of its kind (a smoke
run, a job, a build) with the run's identity, and OWNER. By its owner, the next run knows what a
killed run left behind and removes it. What a run that is alive owns is never touched.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from builder.core import system

if TYPE_CHECKING:
    import docker
    from docker.models.containers import Container

OWNER = "training-image-factory.owner"
"""The label that names the process a thing belongs to: `HOST:PID:START`."""

_REMOVALS = 3
"""How often a removal is tried: the engine refuses some while another one is under way."""
_PAUSE = 0.2


class ContainerEngine(Protocol):
    """The part of an engine that running containers needs."""

    @property
    def client(self) -> docker.DockerClient: ...

    @property
    def host(self) -> str: ...


# --- owners ---------------------------------------------------------------------------------------


def owner(pid: int) -> str:
    """The label of a process of this machine: `HOST:PID:START`.

    START is the time the process started, because a system gives the number of an ended process to
    a later one. It is 0 for a process that does not exist.
    """
    return f"{socket.gethostname()}:{pid}:{system.started(pid)}"


def is_gone(label: str) -> bool:
    """Whether an owner was a process of this machine that has ended.

    False for processes of other machines and for labels that are no owner.
    """
    host, _, rest = label.partition(":")
    pid = rest.partition(":")[0]
    return host == socket.gethostname() and pid.isdigit() and label != owner(int(pid))


def labels(kind: str, identity: str) -> dict[str, str]:
    """The labels of everything that one run makes; the owner is this process."""
    return {kind: identity, OWNER: owner(os.getpid())}


# --- removal --------------------------------------------------------------------------------------


def sweep(client: docker.DockerClient, kind: str) -> list[dict[str, str]]:
    """Remove everything of a kind whose owner is gone. Returns the labels of each thing removed."""
    api: Any = client.api
    filters = {"label": [kind]}
    found = api.containers(all=True, filters=filters) + api.networks(filters=filters)
    found += api.volumes(filters=filters).get("Volumes") or []
    found += api.images(filters=filters)
    left = [one["Labels"] for one in found if is_gone(one["Labels"].get(OWNER, ""))]
    for gone in {one[OWNER] for one in left}:
        remove(client, kind, f"{OWNER}={gone}")
    return left


def remove(client: docker.DockerClient, *filters: str) -> list[str]:
    """Remove the containers, networks, volumes and images that carry all of these labels.

    filters: each `LABEL` or `LABEL=VALUE`. The engine is asked by the first alone: by two, Podman
    4.3.1 finds no image. Returns a line for each thing that stays. Containers of others on one of
    the networks are disconnected from it and go on running; they are listed, too.
    """
    api: Any = client.api

    def having(found: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
        return [one for one in found if _carries(one["Labels"] or {}, filters)]

    first = {"label": [filters[0]]}
    others: list[str] = []
    failed: list[str] = []
    for attempt in range(_REMOVALS):
        if attempt:
            time.sleep(_PAUSE)
        failed.clear()
        for one in having(api.containers(all=True, filters=first)):
            with _noted(failed, f"container {one['Id'][:12]}"):
                api.remove_container(one["Id"], force=True, v=True)
        for network in having(api.networks(filters=first)):
            with _noted(failed, f"network {network['Name']}"):
                others += _disconnected(api, network["Id"])
                api.remove_network(network["Id"])
        for volume in having(api.volumes(filters=first).get("Volumes") or []):
            with _noted(failed, f"volume {volume['Name']}"):
                api.remove_volume(volume["Name"], force=True)
        for image in having(api.images(filters=first)):
            with _noted(failed, f"image {image['Id']}"):
                api.remove_image(image["Id"], force=True)
        if not failed:
            break
    return [*others, *failed]


def _carries(labels: Mapping[str, str], filters: Iterable[str]) -> bool:
    """Whether all of these labels are there."""
    pairs = (one.partition("=") for one in filters)
    return all(name in labels and (not is_ or labels[name] == value) for name, is_, value in pairs)


@contextlib.contextmanager
def _noted(failed: list[str], what: str) -> Iterator[None]:
    """Note a refusal instead of raising it. A thing that is gone already is none: another run may
    remove it at the same time."""
    from docker.errors import NotFound

    try:
        yield
    except NotFound:
        pass
    except Exception as error:
        failed.append(f"{what}: {getattr(error, 'explanation', None) or error}")


def _disconnected(api: Any, network: str) -> Iterator[str]:
    """Disconnect the containers that are still on a network."""
    for container, details in (api.inspect_network(network)["Containers"] or {}).items():
        yield f"container {details['Name']} (not made by this run) still runs"
        with contextlib.suppress(Exception):
            api.disconnect_container_from_network(container, network, force=True)


# --- what they print ------------------------------------------------------------------------------


class Attached:
    """What a container prints from now on, as (stdout, stderr) pairs of bytes.

    docker-py leaves the connection to the caller, and Python 3.13 complains where nobody closes it.
    Source: docker-py, APIClient._read_from_socket.
    """

    def __init__(self, api: Any, container: str) -> None:
        wanted = {"stdout": 1, "stderr": 1, "stream": 1, "logs": 1}
        self._socket = api.attach_socket(container, wanted)

    def __iter__(self) -> Iterator[tuple[bytes | None, bytes | None]]:
        from docker.utils import socket as frames

        read: Any = frames.frames_iter
        return (frames.demux_adaptor(*frame) for frame in read(self._socket, tty=False))

    def close(self) -> None:
        """Give the connection up."""
        self._socket._response.close()


def lines(stream: Iterable[tuple[bytes | None, bytes | None]]) -> Iterator[str]:
    """The lines of stdout and stderr of an attached container as they come, each whole.

    A line is what a terminal would show: of a progress bar, its last state. Where the engine breaks
    the stream off, the unfinished lines come first and then the engine's error is raised.
    """
    rest = [b"", b""]
    broken: Exception | None = None
    try:
        for pair in stream:
            for side, chunk in enumerate(pair):
                *whole, rest[side] = (rest[side] + (chunk or b"")).split(b"\n")
                for line in whole:
                    yield _shown(line)
    except Exception as error:
        broken = error
    for line in rest:
        if line:
            yield _shown(line)
    if broken is not None:
        raise broken


def follow(
    container: Container,
    on_line: Callable[[str], None],
    on_end: Callable[[], None],
) -> None:
    """Attach to a container that was not started yet, and hand over its lines in a thread.

    `on_end` is called after the last line, whatever ended the stream.
    """
    api: Any = container.client.api  # type: ignore[union-attr]
    stream = Attached(api, container.id or "")

    def read() -> None:
        try:
            with contextlib.closing(stream):
                for line in lines(stream):
                    on_line(line)
        except Exception as error:
            on_line(f"the engine's stream of lines broke off: {error}")
        finally:
            on_end()

    threading.Thread(target=read, daemon=True).start()


def _shown(line: bytes) -> str:
    return line.decode(errors="replace").rstrip("\r").rpartition("\r")[2]
