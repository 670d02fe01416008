"""Fetching locked packages from archives on loopback that behave, and that do not."""

import contextlib
import os
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from builder.bases import debs
from builder.core.errors import OutsideError, refusal
from builder.core.events import StepLog
from builder.core.retry import Retry
from tests.bases import packages
from tests.bases.packages import TIME, package, record
from tests.emulators.answers import Handler, Server, serving

ONE, TWO = package(("one", b"1" * 5000)), package(("two", b"2"))
A, B = record("a", ONE), record("b", TWO, "debian-security")
QUICK = Retry(attempts=2, first=0.01)
ON_MIRROR = {f"/debian/{A.path}": (200, {}, ONE), f"/debian-security/{B.path}": (200, {}, TWO)}


def left(cache: Path) -> list[str]:
    return sorted(path.name for path in (cache / "debs").glob("*")) if cache.exists() else []


def fetch(server: Server, cache: Path, **more: Any) -> dict[Any, Path]:
    return debs.fetch((A, B), packages.archives(server.address), cache=cache, retry=QUICK, **more)


def test_packages_come_from_the_mirror_once(tmp_path: Path) -> None:
    with serving(ON_MIRROR) as server:
        found = fetch(server, tmp_path)
        assert [found[A].read_bytes(), found[B].read_bytes()] == [ONE, TWO]
        assert len(server.seen) == 2
        assert fetch(server, tmp_path) == found
    assert len(server.seen) == 2


def test_what_the_mirror_no_longer_has_comes_from_the_snapshot_archive(tmp_path: Path) -> None:
    kept = {f"/snapshot/debian/{TIME}/{A.path}": (200, {}, ONE)}
    events: list[Any] = []
    with serving({**kept, f"/debian-security/{B.path}": (200, {}, TWO)}) as server:
        assert fetch(server, tmp_path, on_event=events.append)[A].read_bytes() == ONE
    assert any(isinstance(e, StepLog) and "no longer on the mirror" in e.line for e in events)


def test_a_snapshot_may_redirect_to_the_time_that_it_has(tmp_path: Path) -> None:
    asked, there = f"/snapshot/debian/{TIME}/{A.path}", f"/snapshot/debian/2026/{A.path}"
    with serving({asked: (302, {"Location": there}, b""), there: (200, {}, ONE)}) as server:
        found = debs.fetch((A,), packages.archives(server.address), cache=tmp_path)
    assert found[A].read_bytes() == ONE


def test_a_version_that_is_nowhere_is_one_line(tmp_path: Path) -> None:
    with serving({f"/debian/{A.path}": (200, {}, ONE)}) as server, pytest.raises(OutsideError) as e:
        fetch(server, tmp_path)
    assert e.value.message == (
        f"Debian has no b 1 any more: neither {server.address}/debian-security/{B.path} nor "
        f"{server.address}/snapshot/debian-security/{TIME}/{B.path}"
    )
    assert "builder lock --upgrade" in e.value.fix


def test_other_bytes_than_the_locks_are_refused_and_not_kept(tmp_path: Path) -> None:
    other = bytes(len(ONE))
    with serving({**ON_MIRROR, f"/debian/{A.path}": (200, {}, other)}) as server:
        with pytest.raises(OutsideError, match="not the bytes that are locked for a 1: sha256"):
            fetch(server, tmp_path)
        server.answers[f"/debian/{A.path}"] = (200, {}, ONE + b"more")
        with pytest.raises(OutsideError, match="not the bytes that are locked for a 1: sha256"):
            fetch(server, tmp_path)
    assert f"{A.sha256}.deb" not in left(tmp_path)


def test_a_short_file_is_asked_for_again_then_refused(tmp_path: Path) -> None:
    with (
        serving({**ON_MIRROR, f"/debian/{A.path}": (200, {}, ONE[:100])}) as server,
        pytest.raises(OutsideError, match=f"100 of {len(ONE)} arrived"),
    ):
        fetch(server, tmp_path)
    assert f"{A.sha256}.deb" not in left(tmp_path)


@contextlib.contextmanager
def torn(times: int, then: float = 0.0) -> Iterator[Server]:
    """A mirror that breaks off in the middle of a package, or waits there for `then` seconds."""
    left_over = [times]

    class Torn(Handler):
        def answer(self) -> None:
            if left_over[0] <= 0:
                super().answer()
                return
            left_over[0] -= 1
            self.send_response(200)
            self.send_header("Content-Length", str(len(ONE)))
            self.end_headers()
            self.wfile.write(ONE[: len(ONE) // 2])
            self.wfile.flush()
            time.sleep(then)
            self.close_connection = True

        do_GET = answer  # noqa: N815

    with serving({f"/debian/{A.path}": (200, {}, ONE)}) as server:
        server.RequestHandlerClass = Torn
        yield server


def test_a_torn_download_begins_again(tmp_path: Path) -> None:
    with torn(1) as server:
        where = packages.archives(server.address)
        assert debs.fetch((A,), where, cache=tmp_path, retry=QUICK)[A].read_bytes() == ONE


def test_a_download_that_is_always_torn_keeps_nothing(tmp_path: Path) -> None:
    with torn(9) as server, pytest.raises(OutsideError, match=r"connection failed|tried 2 times"):
        debs.fetch((A,), packages.archives(server.address), cache=tmp_path, retry=QUICK)
    assert left(tmp_path) == [] and not list((tmp_path / "debs").iterdir())


def test_no_network_is_one_line_that_names_the_setting(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with pytest.raises(OutsideError, match="Connection refused") as caught:
        debs.fetch((A,), packages.archives(f"http://127.0.0.1:{port}"), cache=tmp_path, retry=QUICK)
    assert "debian_mirror" in caught.value.fix


def test_a_full_disk_keeps_nothing_and_names_the_file(tmp_path: Path) -> None:
    # a limit of a file's size is refused like a full disk: in the middle of a write
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (64, hard))
    try:
        with serving(ON_MIRROR) as server, pytest.raises(OSError) as caught:
            fetch(server, tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    refused = refusal(caught.value)
    assert refused and ".deb: File too large" in refused.message
    assert not list((tmp_path / "debs").iterdir())


def test_a_killed_run_leaves_nothing_that_the_next_one_takes(tmp_path: Path) -> None:
    program = f"""
from pathlib import Path
from builder.bases import debs
from tests.bases.test_debs import A, packages
debs.fetch((A,), packages.archives("%s"), cache=Path({str(tmp_path)!r}))
"""
    with torn(1, then=2.0) as server:
        process = subprocess.Popen([sys.executable, "-c", program % server.address])
        half = tmp_path / "debs"
        while not list(half.glob(".*.deb.*")):
            assert process.poll() is None
            time.sleep(0.02)
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert not list(half.glob("[!.]*"))
        (file,) = half.glob(".*.deb.*")
        os.utime(file, (0, 0))  # long ago
        found = debs.fetch((A,), packages.archives(server.address), cache=tmp_path, retry=QUICK)
    assert found[A].read_bytes() == ONE
    assert [path.name for path in half.iterdir()] == [f"{A.sha256}.deb"]


def test_two_runs_at_once_do_not_disturb_each_other(tmp_path: Path) -> None:
    with serving(ON_MIRROR) as server:
        runs = [threading.Thread(target=fetch, args=(server, tmp_path)) for _ in range(4)]
        for run in runs:
            run.start()
        for run in runs:
            run.join()
    assert left(tmp_path) == sorted(f"{deb.sha256}.deb" for deb in (A, B))
