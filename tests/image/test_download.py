"""Locked files from a network: whole and of the lock's checksum, or not there at all."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from builder.config.network import BuildNetwork
from builder.config.uv import Platform
from builder.core import files, web
from builder.core.errors import InputError, OutsideError
from builder.core.events import Event, StepLog
from builder.core.retry import Retry
from builder.image.download import KEPT, Wheels, fetch_debs, wheels_of
from tests.emulators.answers import serving
from tests.emulators.index import Files
from tests.image.layers import TIME, archives, package, pin, record

CONTENT = bytes(range(256)) * 20_000
PIN = pin(CONTENT)
QUICK = Retry(attempts=3, first=0.01)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return files.cache_home()


@pytest.fixture
def wheels(index: Files, cache: Path) -> Iterator[Wheels]:
    index.content["/one.whl"] = CONTENT
    with web.Client(proxied=False) as client:
        yield Wheels(cache / "wheels", client, {PIN.sha256: index.url("/one.whl")}, QUICK)


def fetched(wheels: Wheels) -> bytes:
    with wheels.fetch(PIN, lambda _: None) as file:
        return file.read()


def kinds(folder: Path) -> set[str]:
    """The kinds of files in a folder, without the locks."""
    return {path.suffix for path in folder.iterdir()} - {".lock"}


def test_a_file_is_downloaded_once(wheels: Wheels, index: Files) -> None:
    counts: list[int] = []
    for _ in range(2):
        with wheels.fetch(PIN, counts.append) as file:
            assert file.read() == CONTENT
    assert index.requests == [("/one.whl", "")]
    assert counts[-1] == len(CONTENT) and counts == sorted(counts)
    (wheels.folder / f"{PIN.sha256}.whl").write_bytes(bytes(len(CONTENT)))
    with wheels.fetch(PIN, counts.append) as file:
        assert file.read() == CONTENT
    wheels.forget(PIN)
    assert kinds(wheels.folder) == set()


@pytest.mark.parametrize("ranges", [True, False])
def test_a_torn_download_goes_on_also_in_the_next_run(
    ranges: bool, wheels: Wheels, index: Files
) -> None:
    index.torn, index.ranges = 2, ranges
    assert fetched(wheels) == CONTENT
    assert len(index.requests) == 3 and all(begins for _, begins in index.requests[1:])
    wheels.forget(PIN)
    index.torn = 3
    with pytest.raises(OutsideError, match=r"the wheel of one 1\.0: .*tried 3 times") as caught:
        fetched(wheels)
    assert "the index" in caught.value.fix
    assert kinds(wheels.folder) == {".part"}
    assert fetched(wheels) == CONTENT
    assert kinds(wheels.folder) == {".whl"}


@pytest.mark.parametrize("part", [CONTENT[:1000], CONTENT, CONTENT + b"more", b"x" * 1000])
def test_other_bytes_than_the_locks_leave_nothing_and_a_part_is_gone_on_from(
    part: Any, wheels: Wheels, index: Files
) -> None:
    for sent in (CONTENT[:-1] + b"x", CONTENT + b"x" * 5_000_000):
        index.content["/one.whl"] = sent
        with pytest.raises(OutsideError, match=r"one 1\.0: .* not those of the lock") as caught:
            fetched(wheels)
        assert "builder lock" in caught.value.fix
        assert kinds(wheels.folder) == set()
    index.content["/one.whl"] = CONTENT
    files.write(wheels.folder / f"{PIN.sha256}.part", part)
    if part[:10] != CONTENT[:10]:
        with pytest.raises(OutsideError):  # the bytes that were there were damaged
            fetched(wheels)
    assert fetched(wheels) == CONTENT
    assert kinds(wheels.folder) == {".whl"}
    wheels.forget(PIN)


def test_a_busy_server_is_asked_again_and_another_refusal_is_an_error(
    wheels: Wheels, index: Files
) -> None:
    index.statuses = [503, 429]
    assert fetched(wheels) == CONTENT
    wheels.forget(PIN)
    index.statuses = [403]
    with pytest.raises(OutsideError, match="HTTP 403"):
        fetched(wheels)
    assert len(index.requests) == 4
    with pytest.raises(OutsideError, match=r"two 2\.0: it is not to be had any more"):
        wheels.fetch(pin(b"two", "two", "2.0"), lambda _: None)


def test_an_index_that_is_no_address_or_redirects_in_a_circle_is_one_line(
    wheels: Wheels, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving({"/one.whl": (302, {"Location": "/one.whl"}, b"")}) as server:
        circle = replace(wheels, addresses={PIN.sha256: f"{server.address}/one.whl"})
        with pytest.raises(OutsideError, match="more than 5 redirects"):
            fetched(circle)
    monkeypatch.setenv("UV_DEFAULT_INDEX", "http://bob:pw@[::1/simple")
    with pytest.raises(InputError, match="is no address"), wheels_of([PIN], Platform("3.11", 36)):
        pass


def test_two_at_once_download_once_and_one_may_remove_it_from_the_other(
    wheels: Wheels, index: Files
) -> None:
    index.between = lambda: time.sleep(0.05)
    both = threading.Barrier(2)

    def fetch() -> bytes:
        both.wait()
        with wheels.fetch(PIN, lambda _: None) as file:
            wheels.forget(PIN)
            return file.read()

    with ThreadPoolExecutor(2) as pool:
        futures = [pool.submit(fetch) for _ in range(2)]
        assert [future.result() for future in futures] == [CONTENT, CONTENT]


def test_what_ended_runs_left_goes_after_a_day_but_no_lock(wheels: Wheels) -> None:
    names = ("old.part", "new.part", "old.lock", "pruning-x/library.so")
    old, new, lock, library = (wheels.folder / name for name in names)
    for path in (old, new, lock, library):
        files.write(path, "")
    for path in (old, lock, library.parent):
        os.utime(path, (time.time() - KEPT - 9, time.time() - KEPT - 9))
    wheels.tidy()
    assert set(wheels.folder.iterdir()) == {new, lock}


@pytest.mark.parametrize(
    "address", ["https://a.example:8443/x", "http://a.example/x", "https://b.example/x"]
)
def test_a_login_is_sent_to_its_own_host_and_not_shown(
    address: str, wheels: Wheels, index: Files
) -> None:
    url = index.url("/one.whl").replace("//", "//me:secret@")
    secretly = Wheels(wheels.folder, wheels.client, {PIN.sha256: url}, QUICK)
    assert fetched(secretly) == CONTENT
    assert index.logins[0].startswith("Basic ")
    secretly.forget(PIN)
    index.content.clear()
    with pytest.raises(OutsideError) as caught:
        fetched(secretly)
    assert "secret" not in caught.value.message
    indexes = ("https://c.example/s", "https://me:p%40ss@a.example/s")
    host = BuildNetwork(extra_indexes=indexes)
    with_it = host.with_login("https://a.example/x.whl")
    assert with_it == "https://me:p%40ss@a.example/x.whl"
    assert host.with_login(address) == address


# --- Debian packages ------------------------------------------------------------------------------

ONE, TWO = package(("one", b"1" * 5000)), package(("two", b"2"))
A, B = record("a", ONE), record("b", TWO, "debian-security")


def test_packages_come_from_the_mirror_once_and_otherwise_from_the_snapshot_archive(
    index: Files,
) -> None:
    index.content = {
        f"/snapshot/debian/{TIME}/{A.path}": ONE,
        f"/debian-security/{B.path}": TWO,
    }
    events: list[Event] = []
    sources = archives(index.url(""))
    paths = fetch_debs((A, B), sources, events.append, QUICK)
    assert [paths[deb].read_bytes() for deb in (A, B)] == [ONE, TWO]
    assert any(isinstance(e, StepLog) and "a 1: no longer at" in e.line for e in events)
    index.requests.clear()
    assert fetch_debs((A, B), sources) == paths
    assert index.requests == []
    (paths[A].parent / "b").symlink_to(paths[B])
    for damage in (
        lambda: paths[A].write_bytes(ONE[:-1] + b"?"),  # as large as before
        lambda: (paths[A].parent / "b").replace(paths[A]),
    ):
        damage()
        fetch_debs((A, B), sources, events.append, QUICK)
        assert paths[A].read_bytes() == ONE
    assert sum("the cache has other bytes than" in str(event) for event in events) == 2
    index.content = {f"/debian/{A.path}": ONE[:-1] + b"?"}
    paths[A].unlink()
    with pytest.raises(OutsideError, match="not those of the lock"):
        fetch_debs((A,), sources, retry=QUICK)
    assert not paths[A].exists()


def test_a_version_that_is_nowhere_and_a_mirror_that_is_not_there_are_one_line(
    index: Files, cache: Path
) -> None:
    index.content = {f"/debian/{A.path}": ONE}
    with pytest.raises(OutsideError) as caught:
        fetch_debs((A, B), archives(index.url("")), retry=QUICK)
    assert caught.value.message == (
        "b 1: it is not to be had any more: neither "
        f"{index.url('')}/debian-security/{B.path} nor "
        f"{index.url('')}/snapshot/debian-security/{TIME}/{B.path} has it"
    )
    assert "builder lock --upgrade" in caught.value.fix
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with pytest.raises(OutsideError, match="Connection refused") as caught:
        fetch_debs((B,), archives(f"http://127.0.0.1:{port}"), retry=QUICK)
    assert "debian_mirror" in caught.value.fix
