"""Whose a container is, what a killed run left, and what containers print."""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from docker.errors import NotFound

from builder.engine import BuildRequest, Engine, buildx, containers


def test_an_owner_is_a_process_of_this_machine_and_gone_when_it_ended() -> None:
    mine = containers.owner(os.getpid())
    assert mine == containers.owner(os.getpid())
    assert mine.split(":")[1:] != containers.owner(os.getppid()).split(":")[1:]
    assert containers.owner(2**22 + 1).endswith(":0"), "no such process"
    process = subprocess.Popen(["sleep", "60"])
    label = containers.owner(process.pid)
    assert not containers.is_gone(mine) and not containers.is_gone(label)
    process.kill()
    process.wait()
    assert containers.is_gone(label)
    later = f"{socket.gethostname()}:{os.getpid()}:1"
    assert containers.is_gone(later), "a later process of the same number"
    for other in (f"not-{label}", "", "somebody"):  # another machine's, nobody's
        assert not containers.is_gone(other)


def test_what_a_container_prints_is_read_and_the_connection_closed() -> None:
    """Else Python 3.13 complains about it when the program ends."""
    here, there = socket.socketpair()
    for side, text in ((1, b"one\n"), (2, b"two\n")):
        there.sendall(struct.pack(">BxxxL", side, len(text)) + text)
    there.close()
    closed, ended = list[bool](), threading.Event()
    connection: Any = here.makefile("rb", buffering=0)
    connection._response = SimpleNamespace(close=lambda: closed.append(True))
    api = SimpleNamespace(attach_socket=lambda container, wanted: connection)
    container: Any = SimpleNamespace(id="c", client=SimpleNamespace(api=api))
    lines: list[str] = []
    containers.follow(container, lines.append, ended.set)
    assert ended.wait(60)
    assert lines == ["one", "two"] and closed == [True]
    here.close()


Pairs = list[tuple[bytes | None, bytes | None]]


@pytest.mark.parametrize(
    ("pairs", "lines"),
    [
        ([(b"one\ntwo\n", None)], ["one", "two"]),
        ([(b"o", None), (None, b"x\n"), (b"ne\n", None)], ["x", "one"]),
        ([(b"no end", b"none here")], ["no end", "none here"]),
        ([(b"10 %\r20 %\r30 %\n", None)], ["30 %"]),
        ([(b"done\r\n\n", None)], ["done", ""]),
        ([(b"\xff\n", None)], ["\ufffd"]),
        ([(b"a" * 2**16, None), (b"b\n", None)], ["a" * 2**16, "b"]),
        ([(b"a" * 2**17 + b"b\n", None)], ["a" * 2**16, "a" * 2**16, "b"]),
    ],
)
def test_lines_are_whole_and_as_a_terminal_shows_them(pairs: Pairs, lines: list[str]) -> None:
    assert list(containers.lines(pairs)) == lines


def test_a_stream_that_breaks_off_gives_its_last_words_first() -> None:
    def torn() -> Iterator[tuple[bytes | None, bytes | None]]:
        yield b"whole\nha", None
        raise OSError("torn")

    seen = containers.lines(torn())
    assert [next(seen), next(seen)] == ["whole", "ha"]
    with pytest.raises(OSError, match="torn"):
        next(seen)


def test_what_carries_both_labels_is_removed_and_nothing_else() -> None:
    """The engine is asked for one: by two, Podman 4.3.1 finds no image."""
    left = {"a": {"run": "1", "owner": "me"}, "b": {"run": "2", "owner": "you"}}

    def images(filters: dict[str, list[str]]) -> list[dict[str, Any]]:
        assert filters == {"label": ["run"]}
        return [{"Id": name, "Labels": labels} for name, labels in left.items()]

    def remove_image(name: str, force: bool) -> None:
        del left[name]

    api = SimpleNamespace(images=images, remove_image=remove_image)
    api.containers = api.networks = lambda **_: []
    api.volumes = lambda **_: {"Volumes": None}
    client: Any = SimpleNamespace(api=api)
    assert containers.remove(client, "run", "owner=me") == []
    assert list(left) == ["b"]


@pytest.mark.engine
def test_a_sweep_removes_what_an_ended_process_owned_and_nothing_else(engine: Engine) -> None:
    kind = f"training-image-factory.test-{os.getpid()}"
    process = subprocess.Popen(["sleep", "60"])
    alive = containers.labels(kind, "alive")
    ended = {kind: "ended", containers.OWNER: containers.owner(process.pid)}
    other = {f"{kind}-other": "ended", containers.OWNER: containers.owner(process.pid)}
    api: Any = engine.client.api
    names = {}
    for name, labels in (("alive", alive), ("ended", ended), ("other", other)):
        names[name] = f"test-containers-{os.getpid()}-{name}"
        api.create_volume(names[name], labels=labels)
        api.create_network(names[name], labels=labels)
    try:
        containers.sweep(engine.client, kind)
        listed = api.networks(filters={"label": kind})
        assert len(listed) == 2, "both processes are alive"
        process.kill()
        process.wait()
        containers.sweep(engine.client, kind)
        left = {resource["Name"] for resource in api.networks()} & set(names.values())
        left_volumes = {resource["Name"] for resource in api.volumes()["Volumes"]} & set(
            names.values()
        )
        assert left == left_volumes == {names["alive"], names["other"]}
    finally:
        process.kill()
        process.wait()
        for resource in (kind, f"{kind}-other"):
            assert containers.remove(engine.client, resource) == []


@pytest.mark.engine
def test_labels_that_a_persons_image_carries_make_nothing_ours(
    engine: Engine, tmp_path: Path
) -> None:
    """Somebody pulls an image whose author wrote our labels into it, and starts it."""
    kind = f"training-image-factory.test-{os.getpid()}-image"
    process = subprocess.Popen(["true"])
    process.wait()
    gone = {kind: "x", containers.OWNER: f"{socket.gethostname()}:{process.pid}:1"}
    api, name = engine.client.api, f"persons-{os.getpid()}:1"
    lines = [f'LABEL {label}="{value}"' for label, value in gone.items()]
    (tmp_path / "file").write_text("x")
    (tmp_path / "Dockerfile").write_text("\n".join(["FROM scratch", "COPY file /file", *lines]))
    temporary = f"{containers.TEMPORARY}:{os.getpid()}"
    buildx.build(engine, BuildRequest(tmp_path / "Dockerfile", tmp_path, (name,)))
    theirs = api.create_container(name, ["/file"])["Id"]
    made = api.create_container(name, ["/file"], labels=containers.labels(kind, "alive"))["Id"]
    left = api.create_container(
        name,
        ["/file"],
        labels={**gone, kind: "y"} | {containers.OWNER: f"{socket.gethostname()}:{process.pid}:2"},
    )["Id"]
    try:
        containers.sweep(engine.client, kind)
        there = {each["Id"] for each in api.containers(all=True)}
        assert {theirs, made} <= there and left not in there
        assert engine.image(name), "nor is the image removed"
        api.remove_container(theirs)
        api.remove_container(made)
        api.tag(name, containers.TEMPORARY, str(os.getpid()))
        api.remove_image(name)
        containers.sweep(engine.client, kind)
        assert engine.image(temporary) is None, "one that only we name so is ours"
    finally:
        for image in (name, temporary):
            with contextlib.suppress(NotFound):
                api.remove_image(image, force=True)


def test_what_a_sample_says_is_what_docker_stats_shows() -> None:
    """moby's statistics of one second, on cgroup v2; v1 calls the cache total_inactive_file."""
    sample = {
        "precpu_stats": {"cpu_usage": {"total_usage": 10**9}, "system_cpu_usage": 10**10},
        "cpu_stats": {
            "cpu_usage": {"total_usage": 10**9 + 15 * 10**8},
            "system_cpu_usage": 10**10 + 2 * 10**9,
            "online_cpus": 2,
        },
        "memory_stats": {"usage": 1000, "stats": {"inactive_file": 300}},
    }
    assert containers.used_of(sample) == (1.5, 700)
    older = {"usage": 1000, "stats": {"total_inactive_file": 400, "inactive_file": 1}}
    assert containers.used_of({**sample, "memory_stats": older}) == (1.5, 600)
    assert containers.used_of({**sample, "precpu_stats": {"cpu_usage": {}}}) is None
    assert containers.used_of({**sample, "memory_stats": {}}) is None
