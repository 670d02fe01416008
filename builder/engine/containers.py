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
from typing import TYPE_CHECKING, Any, Final, Protocol

from builder.core import system

if TYPE_CHECKING:
    import docker
    from docker.models.containers import Container

OWNER: Final = "training-image-factory.owner"
"""The label that names the process a thing belongs to: `HOST:PID:START`."""

_REMOVALS: Final = 3
"""How often a removal is tried: the engine refuses some while another one is under way."""
_PAUSE: Final = 0.2


class ContainerEngine(Protocol):
    """The part of an engine that running containers needs."""

    @property
    def client(self) -> docker.DockerClient: ...

    @property
    def host(self) -> str: ...


# --- owners ---------------------------------------------------------------------------------------


def owner(pid: int) -> str:
    """Return the label of a process of this machine: `HOST:PID:START`.

    START is the time the process started, because a system gives the number of an ended process to
    a later one. It is 0 for a process that does not exist.
    """
    return f"{socket.gethostname()}:{pid}:{system.started(pid)}"


def is_gone(label: str) -> bool:
    """Return whether an owner was a process of this machine that has ended.

    False for processes of other machines and for labels that are no owner.
    """
    host, _, rest = label.partition(":")
    pid = rest.partition(":")[0]
    return host == socket.gethostname() and pid.isdigit() and label != owner(int(pid))


def labels(kind: str, identity: str) -> dict[str, str]:
    """Return the labels of everything that one run makes; the owner is this process."""
    return {kind: identity, OWNER: owner(os.getpid())}


# --- removal --------------------------------------------------------------------------------------


def sweep(client: docker.DockerClient, kind: str) -> list[dict[str, str]]:
    """Remove everything of a kind whose owner is gone. Return the labels of each thing removed."""
    things = [thing for _, listed, _ in _kinds(client.api, kind) for thing in listed()]
    left = [thing["Labels"] for thing in things if is_gone(thing["Labels"].get(OWNER, ""))]
    for gone in {labels[OWNER] for labels in left}:
        remove(client, kind, f"{OWNER}={gone}")
    return left


def remove(client: docker.DockerClient, *filters: str) -> list[str]:
    """Remove the containers, networks, volumes and images that carry all of these labels.

    filters: each `LABEL` or `LABEL=VALUE`. The engine filters by the first alone: by two, Podman
    4.3.1 finds no image. Returns a line for each thing that stays. Containers of others on one of
    the networks are disconnected from it and go on running; they are listed, too.
    """
    others: list[str] = []
    failed: list[str] = []
    for attempt in range(_REMOVALS):
        if attempt:
            time.sleep(_PAUSE)
        failed.clear()
        for name, listed, remove_ in _kinds(client.api, filters[0]):
            for thing in listed():
                if not _carries(thing["Labels"] or {}, filters):
                    continue
                identity = str(thing.get("Name") or thing.get("Id"))
                with _noted(failed, f"{name} {identity}"):
                    if name == "network":
                        others += _disconnected(client.api, thing["Id"])
                    remove_(thing)
        if not failed:
            break
    return [*others, *failed]


_Thing = dict[str, Any]


def _kinds(
    api: Any, label: str
) -> tuple[tuple[str, Callable[[], list[_Thing]], Callable[[_Thing], object]], ...]:
    """Return for each kind of thing how those with a label are listed, and how one is removed."""
    by_label = {"filters": {"label": [label]}}
    return (
        (
            "container",
            lambda: api.containers(all=True, **by_label),
            lambda thing: api.remove_container(thing["Id"], force=True, v=True),
        ),
        (
            "network",
            lambda: api.networks(**by_label),
            lambda thing: api.remove_network(thing["Id"]),
        ),
        (
            "volume",
            lambda: api.volumes(**by_label).get("Volumes") or [],
            lambda thing: api.remove_volume(thing["Name"], force=True),
        ),
        (
            "image",
            lambda: api.images(**by_label),
            lambda thing: api.remove_image(thing["Id"], force=True),
        ),
    )


def _carries(labels: Mapping[str, str], filters: Iterable[str]) -> bool:
    """Return whether all of these labels are there."""
    pairs = (text.partition("=") for text in filters)
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
        streams = {"stdout": 1, "stderr": 1, "stream": 1, "logs": 1}
        self._socket = api.attach_socket(container, streams)

    def __iter__(self) -> Iterator[tuple[bytes | None, bytes | None]]:
        from docker.utils import socket as frames

        read: Any = frames.frames_iter
        return (frames.demux_adaptor(*frame) for frame in read(self._socket, tty=False))

    def close(self) -> None:
        """Give the connection up."""
        self._socket._response.close()


def lines(stream: Iterable[tuple[bytes | None, bytes | None]]) -> Iterator[str]:
    """Yield the lines of stdout and stderr of an attached container as they come, each whole.

    A line is what a terminal would show: of a progress bar, its last state. Where the engine breaks
    the stream off, the unfinished lines come first and then the engine's error is raised.
    """
    rest = [b"", b""]
    try:
        for pair in stream:
            for side, chunk in enumerate(pair):
                *whole, rest[side] = (rest[side] + (chunk or b"")).split(b"\n")
                yield from map(_shown, whole)
    except Exception:
        yield from map(_shown, filter(None, rest))
        raise
    yield from map(_shown, filter(None, rest))


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
