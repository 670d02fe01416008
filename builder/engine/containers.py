"""Containers that the factory runs: whose they are, what a killed run left, what they print.

Every container, network, volume and temporary image carries two labels: one of its kind (a smoke
run, a job, a build) with the run's identity, and OWNER. By its owner, the next run knows what a
killed run left behind and removes it. What a run that is alive owns is never touched.
"""

from __future__ import annotations

import contextlib
import io
import os
import socket
import tarfile
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

LONGEST: Final = 1 << 16
"""Bytes of a line, after which the next one begins: a program may print no line break."""
TEMPORARY: Final = "training-rootfs"
"""The repository of the images that live as long as one run."""

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


_KINDS: Final[Mapping[str, Mapping[str, bool]]] = {
    "container": {"force": True, "v": True},
    "network": {},
    "volume": {"force": True},
    "image": {"force": True},
}
"""What carries labels, in the order of removal, with the options of its removal."""


def _labelled(api: Any, label: str) -> Iterator[tuple[str, str, Mapping[str, str]]]:
    """Yield kind, name and labels of what the factory gave a label.

    Each kind is listed when those before it were handled. A person's image may carry the same
    labels, and so do the containers that somebody starts from it: neither is ours.
    """
    for kind in _KINDS:
        every = {"all": True} if kind == "container" else {}
        listed = getattr(api, f"{kind}s")(filters={"label": [label]}, **every)
        for resource in (listed["Volumes"] or ()) if kind == "volume" else listed:
            labels = resource["Labels"] or {}
            if kind == "image" and not _is_temporary(resource):
                continue
            if kind == "container" and _inherits(api, resource["ImageID"], labels):
                continue
            yield kind, resource["Name" if kind == "volume" else "Id"], labels


def _is_temporary(image: Mapping[str, Any]) -> bool:
    """Return whether an image has no other name than the factory gives those for one run."""
    names = {*(image.get("RepoTags") or ()), *(image.get("RepoDigests") or ())}
    ours = (f"{TEMPORARY}:", f"{TEMPORARY}@", "<none>")
    return all(name.removeprefix("localhost/").startswith(ours) for name in names)


def _inherits(api: Any, image: str, labels: Mapping[str, str]) -> bool:
    """Return whether a container has its owner from a person's image."""
    from docker.errors import DockerException

    try:
        found = api.inspect_image(image)
    except DockerException:  # it is gone: so is whoever could tell
        return False
    own = (found.get("Config") or {}).get("Labels") or {}
    return own.get(OWNER) == labels.get(OWNER) and not _is_temporary(found)


def sweep(client: docker.DockerClient, kind: str) -> None:
    """Remove everything of a kind whose owner is gone."""
    owners = {labels.get(OWNER, "") for _, _, labels in _labelled(client.api, kind)}
    for owner in filter(is_gone, owners):
        remove(client, kind, f"{OWNER}={owner}")


def remove(client: docker.DockerClient, *filters: str) -> list[str]:
    """Remove the containers, networks, volumes and images that carry all of these labels.

    filters: each `LABEL` or `LABEL=VALUE`. The engine filters by the first alone: by two, Podman
    4.3.1 finds no image. Returns a line for each that stays. Containers of others on one of the
    networks are disconnected from it and go on running; they are listed, too.
    """
    from docker.errors import NotFound

    others: list[str] = []
    failed: list[str] = []
    for attempt in range(_REMOVALS):
        if attempt:
            time.sleep(_PAUSE)
        failed = []
        for kind, name, labels in _labelled(client.api, filters[0]):
            if not _carries(labels, filters):
                continue
            try:
                if kind == "network":
                    others += _disconnected(client.api, name)
                getattr(client.api, f"remove_{kind}")(name, **_KINDS[kind])
            except NotFound:
                pass  # another run may remove it at the same time
            except Exception as error:
                failed.append(f"{kind} {name}: {getattr(error, 'explanation', None) or error}")
        if not failed:
            break
    return [*others, *failed]


def _carries(labels: Mapping[str, str], filters: Iterable[str]) -> bool:
    pairs = (text.partition("=") for text in filters)
    return all(name in labels and (not is_ or labels[name] == value) for name, is_, value in pairs)


def _disconnected(api: Any, network: str) -> Iterator[str]:
    for container, details in (api.inspect_network(network)["Containers"] or {}).items():
        yield f"container {details['Name']} (not made by this run) still runs"
        with contextlib.suppress(Exception):
            api.disconnect_container_from_network(container, network, force=True)


# --- what they are given --------------------------------------------------------------------------


def archive(
    files: Mapping[str, bytes], mode: int = 0o644, folders: Mapping[str, int] | None = None
) -> bytes:
    """Return a tar archive of folders (path -> mode) and of files, for `put_archive`."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as made:
        for path, rights in (folders or {}).items():
            entry = tarfile.TarInfo(path)
            entry.type, entry.mode = tarfile.DIRTYPE, rights
            made.addfile(entry)
        for path, content in files.items():
            entry = tarfile.TarInfo(path)
            entry.size, entry.mode = len(content), mode
            made.addfile(entry, io.BytesIO(content))
    return buffer.getvalue()


def held(container: Container) -> int:
    """Return the bytes that a container's volumes hold: those it was given, and its image's own.

    0 where the engine does not tell (GET /system/df of the Engine API).
    """
    api: Any = container.client.api  # type: ignore[union-attr]
    names = {mount.get("Name") for mount in container.attrs.get("Mounts") or ()}
    answer = api._get(api._url("/system/df"), params={"type": "volume"})
    volumes = api._result(answer, json=True).get("Volumes") or ()
    ours = (each.get("UsageData") or {} for each in volumes if each["Name"] in names)
    return sum(max(0, usage.get("Size", 0)) for usage in ours)


# --- what they print ------------------------------------------------------------------------------


class Attached:
    """What a container prints from now on, as (stdout, stderr) pairs of bytes.

    docker-py leaves the connection to the caller, and Python 3.13 complains where nobody closes it.
    Source: docker-py, APIClient._read_from_socket.
    """

    def __init__(self, api: Any, container: str) -> None:
        # without "logs": what a quick container prints while the engine reads its log for that
        # would come twice (moby, daemon/attach.go subscribes before it answers)
        streams = {"stdout": 1, "stderr": 1, "stream": 1}
        self._socket = api.attach_socket(container, streams)

    def __iter__(self) -> Iterator[tuple[bytes | None, bytes | None]]:
        from docker.utils import socket as frames

        read: Any = frames.frames_iter
        return (frames.demux_adaptor(*frame) for frame in read(self._socket, tty=False))

    def close(self) -> None:
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
                for line in whole:
                    yield from map(_shown, _pieces(line))
                if len(rest[side]) > LONGEST:
                    *pieces, rest[side] = _pieces(rest[side])
                    yield from map(_shown, pieces)
    except Exception:
        yield from map(_shown, filter(None, rest))
        raise
    yield from map(_shown, filter(None, rest))


def follow(
    container: Container, on_line: Callable[[str], None], on_end: Callable[[], None]
) -> None:
    """Attach to a container that was not started yet, and hand over its lines in a thread.

    `on_end` is called after the last line, whatever ended the stream.

    A busy engine may lose all of stdout or stderr of a container that ends at once; its log then
    lacks the same. Source: containerd, client/task.go: `Delete` cancels the opening of a pipe that
    the engine's thread has not returned from yet (seen with Docker 28.5.2).
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


def send(container: Container, signal: str) -> bool:
    """Send a container's first process a signal; False where it has ended already."""
    from docker.errors import APIError

    try:
        container.kill(signal)
    except APIError:
        return False
    return True


def measure(container: Container, on_sample: Callable[[float, int], bool]) -> None:
    """Hand over what a running container uses, once a second, in a thread: processors and bytes of
    memory. It ends with the container, or where `on_sample` returns False."""

    def read() -> None:
        with contextlib.suppress(Exception):  # the numbers are no part of a run
            samples: Any = container.stats(stream=True, decode=True)
            for used in filter(None, map(used_of, samples)):
                if not on_sample(*used):
                    return

    threading.Thread(target=read, daemon=True).start()


def used_of(sample: Mapping[str, Any]) -> tuple[float, int] | None:
    """Return the processors and the bytes of a sample of the engine's statistics, as `docker stats`
    shows them; None for the first, which has nothing to compare with, and after the end.

    Source: docker/cli, cli/command/container/stats_helpers.go.
    """
    now, before = sample.get("cpu_stats") or {}, sample.get("precpu_stats") or {}
    memory = sample.get("memory_stats") or {}
    if not (before.get("system_cpu_usage") and memory.get("usage")):
        return None
    busy = now["cpu_usage"]["total_usage"] - before["cpu_usage"]["total_usage"]
    system = now["system_cpu_usage"] - before["system_cpu_usage"]
    each = now.get("online_cpus") or len(now["cpu_usage"].get("percpu_usage") or ()) or 1
    files = memory.get("stats") or {}
    cached = files.get("total_inactive_file", files.get("inactive_file", 0))
    return (busy / system * each if system > 0 else 0.0), max(memory["usage"] - cached, 0)


def _pieces(line: bytes) -> list[bytes]:
    return [line[at : at + LONGEST] for at in range(0, len(line), LONGEST)] or [b""]


def _shown(line: bytes) -> str:
    return line.decode(errors="replace").rstrip("\r").rpartition("\r")[2]
