"""Wheels from an index: whole and of the lock's checksum, or not there at all."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from builder.bases.download import KEPT, Wheels, with_login
from builder.core import web
from builder.core.errors import OutsideError
from builder.core.retry import Retry
from tests.bases.built import pin
from tests.emulators.index import Files, serving

CONTENT = bytes(range(256)) * 20_000
PIN = pin(CONTENT)


@pytest.fixture
def index() -> Iterator[Files]:
    with serving() as server:
        server.content["/one.whl"] = CONTENT
        yield server


@pytest.fixture
def wheels(index: Files, tmp_path: Path) -> Iterator[Wheels]:
    with web.Client(proxied=False) as client:
        addresses = {PIN.sha256: index.url("/one.whl")}
        yield Wheels(tmp_path, client, addresses, Retry(attempts=3, first=0.01))


def left(wheels: Wheels) -> set[str]:
    """The kinds of files in the folder, without the locks."""
    return {path.suffix for path in wheels.folder.iterdir()} - {".lock"}


def test_a_wheel_is_downloaded_once(wheels: Wheels, index: Files) -> None:
    told: list[int] = []
    for _ in range(2):
        with wheels.fetch(PIN, told.append) as file:
            assert file.read() == CONTENT
    assert index.asked == [("/one.whl", "")]
    assert told[-1] == len(CONTENT) and told == sorted(told)
    wheels.forget(PIN)
    assert left(wheels) == set()


@pytest.mark.parametrize("ranges", [True, False])
def test_a_torn_download_goes_on(ranges: bool, wheels: Wheels, index: Files) -> None:
    index.torn, index.ranges = 2, ranges
    with wheels.fetch(PIN, lambda _: None) as file:
        assert file.read() == CONTENT
    begins = [asked for _, asked in index.asked]
    assert len(begins) == 3 and all(begins[1:])


def test_a_download_that_stays_torn_is_an_error_and_the_next_run_goes_on(
    wheels: Wheels, index: Files
) -> None:
    index.torn = 3
    with pytest.raises(OutsideError, match=r"one 1\.0: the download broke: .*tried 3 times"):
        wheels.fetch(PIN, lambda _: None)
    assert left(wheels) == {".part"}
    wheels.fetch(PIN, lambda _: None).close()
    assert left(wheels) == {".whl"}


@pytest.mark.parametrize(
    "sent", [CONTENT[:-1] + b"x", CONTENT[:-1], CONTENT + b"x" * 5_000_000, b""]
)
def test_a_wheel_that_is_not_the_locks_leaves_nothing(
    sent: bytes, wheels: Wheels, index: Files
) -> None:
    index.content["/one.whl"] = sent
    with pytest.raises(
        OutsideError, match=r"one 1\.0: what the index sent has the sha256"
    ) as caught:
        wheels.fetch(PIN, lambda _: None)
    assert "builder lock" in caught.value.fix
    assert left(wheels) == set()


@pytest.mark.parametrize("part", [CONTENT[:1000], CONTENT, CONTENT + b"more", b"x" * 1000])
def test_what_a_killed_run_left_is_gone_on_from(part: bytes, wheels: Wheels, index: Files) -> None:
    (wheels.folder / f"{PIN.sha256}.part").write_bytes(part)
    if part[:10] != CONTENT[:10]:
        with pytest.raises(OutsideError):  # the bytes that were there were damaged
            wheels.fetch(PIN, lambda _: None)
    with wheels.fetch(PIN, lambda _: None) as file:
        assert file.read() == CONTENT
    assert left(wheels) == {".whl"}


def test_a_busy_index_is_asked_again_and_another_refusal_is_told(
    wheels: Wheels, index: Files
) -> None:
    index.statuses = [503, 429]
    wheels.fetch(PIN, lambda _: None).close()
    wheels.forget(PIN)
    index.statuses = [403]
    with pytest.raises(OutsideError, match="the index answers 403"):
        wheels.fetch(PIN, lambda _: None)
    assert len(index.asked) == 4


def test_a_wheel_that_no_index_has(wheels: Wheels) -> None:
    with pytest.raises(OutsideError, match=r"two 2\.0: no index has the wheel of the lock"):
        wheels.fetch(pin(b"two", "two", "2.0"), lambda _: None)


def test_a_wheel_of_a_folder_is_verified_too(tmp_path: Path) -> None:
    source = tmp_path / "a b.whl"
    source.write_bytes(CONTENT)
    with web.Client() as client:
        wheels = Wheels(tmp_path / "cache", client, {PIN.sha256: source.as_uri()})
        wheels.folder.mkdir()
        wheels.fetch(PIN, lambda _: None).close()
        wheels.forget(PIN)
        source.write_bytes(CONTENT[1:])
        with pytest.raises(OutsideError, match="what the index sent"):
            wheels.fetch(PIN, lambda _: None)


def test_two_at_once_download_once_and_one_may_remove_it_from_the_other(
    wheels: Wheels, index: Files
) -> None:
    index.between = lambda: time.sleep(0.1)
    both = threading.Barrier(2)

    def fetch() -> bytes:
        both.wait()
        with wheels.fetch(PIN, lambda _: None) as file:
            wheels.forget(PIN)
            return file.read()

    with ThreadPoolExecutor(2) as pool:
        assert [future.result() for future in [pool.submit(fetch) for _ in range(2)]] == [
            CONTENT
        ] * 2


def test_what_ended_runs_left_goes_after_a_day_but_no_lock(wheels: Wheels) -> None:
    old, new, lock = (wheels.folder / name for name in ("old.part", "new.part", "old.lock"))
    folder = wheels.folder / "pruning-x"
    folder.mkdir()
    for path in (old, new, lock, folder / "library.so"):
        path.touch()
    for path in (old, lock, folder):
        os.utime(path, (time.time() - KEPT - 9, time.time() - KEPT - 9))
    wheels.tidy()
    assert set(wheels.folder.iterdir()) == {new, lock}


@pytest.mark.parametrize(
    ("address", "becomes"),
    [
        ("https://a.example/x.whl", "https://me:p%40ss@a.example/x.whl"),
        ("https://a.example:8443/x.whl", "https://a.example:8443/x.whl"),
        ("http://a.example/x.whl", "http://a.example/x.whl"),
        ("https://b.example/x.whl", "https://b.example/x.whl"),
    ],
)
def test_a_login_of_an_index_goes_to_its_own_host_alone(address: str, becomes: str) -> None:
    assert with_login(address, ["https://c.example/s", "https://me:p%40ss@a.example/s"]) == becomes


def test_a_login_is_sent(wheels: Wheels, index: Files) -> None:
    url = index.url("/one.whl").replace("//", "//me:secret@")
    with web.Client(proxied=False) as client:
        Wheels(wheels.folder, client, {PIN.sha256: url}).fetch(PIN, lambda _: None).close()
    assert index.logins[0].startswith("Basic ")
