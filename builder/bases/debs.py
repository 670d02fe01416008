"""Fetching locked Debian packages into the user's cache: several at once, each compared with its
checksum while it arrives, from the mirror or from the archive that keeps every version."""

from __future__ import annotations

import contextlib
import hashlib
import threading
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Final

from builder.core import files, web
from builder.core.debian import Archives
from builder.core.display import masked
from builder.core.errors import OutsideError
from builder.core.events import OnEvent, RunningStep, ignore, step
from builder.core.retry import Passing, Retry
from builder.registry.refusals import broken

if TYPE_CHECKING:
    from builder.lock.debs import Deb

AT_ONCE: Final = 8
_LEFT_AFTER: Final = 3600.0
"""Seconds after which a file that is being written belongs to no run any more."""
_PIECE: Final = 1 << 18
_GONE: Final = frozenset({404, 410})
_BUSY: Final = frozenset({408, 425, 429, 500, 502, 503, 504})


def fetch(
    debs: Iterable[Deb],
    archives: Archives,
    on_event: OnEvent = ignore,
    cache: Path | None = None,
    retry: Retry | None = None,
) -> dict[Deb, Path]:
    """The .deb files of these packages, from the cache or from Debian's archives.

    Raises OutsideError for a package that neither the mirror nor the snapshot archive has, for
    bytes that are not the lock's, and for an archive that does not answer.
    """
    folder = _folder(cache)
    found = {deb: _path(folder, deb) for deb in debs}
    lacking = missing(found, cache)
    if not lacking:
        return found
    total = sum(deb.bytes for deb in lacking)
    _sweep(folder)
    with (
        step(f"Debian: {len(lacking)} packages", on_event) as fetching,
        web.Client() as client,
        ThreadPoolExecutor(AT_ONCE) as threads,
    ):
        download = _Download(client, archives, retry or Retry(attempts=4), fetching, total)
        # the largest first: the others fill the time that it takes
        tasks = [
            threads.submit(download.one, deb, found[deb])
            for deb in sorted(lacking, key=lambda deb: -deb.bytes)
        ]
        try:
            for task in tasks:
                task.result()
        except BaseException:
            download.ended.set()
            threads.shutdown(wait=False, cancel_futures=True)
            raise
        fetching.detail = f"{total / 1e6:.1f} MB"
    return found


def missing(debs: Iterable[Deb], cache: Path | None = None) -> list[Deb]:
    """The packages that `fetch` would download."""
    return [deb for deb in debs if not _whole(_path(_folder(cache), deb), deb)]


def _folder(cache: Path | None) -> Path:
    return (cache or files.cache_home()) / "debs"


def _path(folder: Path, deb: Deb) -> Path:
    return folder / f"{deb.sha256}.deb"


def _whole(path: Path, deb: Deb) -> bool:
    try:
        return path.stat().st_size == deb.bytes
    except FileNotFoundError:
        return False


def _sweep(folder: Path) -> None:
    """Remove what a killed run left behind."""
    for path in folder.glob(".*.deb.*"):
        with contextlib.suppress(FileNotFoundError):
            if time.time() - path.stat().st_mtime > _LEFT_AFTER:
                path.unlink()


class _Download:
    """The downloads of one call, which share connections and tell their progress together."""

    def __init__(
        self, client: web.Client, archives: Archives, retry: Retry, told: RunningStep, total: int
    ) -> None:
        self.client, self.archives, self.retry = client, archives, retry
        self.told, self.total = told, total
        self.ended = threading.Event()
        self._lock, self._arrived = threading.Lock(), 0

    def one(self, deb: Deb, path: Path) -> None:
        """Fetch one package from the first place that has it."""
        mirror, snapshot = self.archives.places(deb.archive, deb.time, deb.path)
        for url in (mirror, snapshot):
            if self.retry.run(lambda url=url: self._attempt(url, deb, path), self.told.log):  # type: ignore[misc]
                return
            if url == mirror:
                self.told.log(f"{deb.name} {deb.version}: no longer on the mirror")
        raise OutsideError(
            f"Debian has no {deb.name} {deb.version} any more: neither {masked(mirror)} nor "
            f"{masked(snapshot)}",
            "let debian_mirror in builder.toml name one that has it, or run builder lock --upgrade",
        )

    def _attempt(self, url: str, deb: Deb, path: Path) -> bool:
        """Fetch a package from here; False where it is not here.

        Raises Passing for what may pass, OutsideError for anything else.
        """
        from urllib3.exceptions import HTTPError

        fix = "check the network and the proxy; debian_mirror in builder.toml names another mirror"
        try:
            with self.client.request("GET", url, follow=True, stream=True) as answer:
                if answer.status in _GONE:
                    return False
                if answer.status != 200:
                    said = f"{masked(url)}: HTTP {answer.status} {answer.reason}"
                    raise Passing(said, fix) if answer.status in _BUSY else OutsideError(said, fix)
                with files.replacing(path) as file:
                    hashed, size = hashlib.sha256(), 0
                    while piece := answer.read(_PIECE):
                        size += len(piece)
                        if self.ended.is_set() or size > deb.bytes:
                            break
                        hashed.update(piece)
                        file.write(piece)
                        self._tell(len(piece))
                    if self.ended.is_set():
                        raise OutsideError("another download failed")
                    if hashed.hexdigest() != deb.sha256 or size != deb.bytes:
                        self._tell(-size)
                        raise _other_bytes(url, deb, size, hashed.hexdigest())
        except HTTPError as error:
            failed = broken(error, masked(url))
            if isinstance(failed, Passing):
                failed.fix = fix
            raise failed from error
        return True

    def _tell(self, more: int) -> None:
        with self._lock:
            self._arrived += more
            self.told.progress(self._arrived, self.total)


def _other_bytes(url: str, deb: Deb, size: int, sha256: str) -> Exception:
    said = f"{masked(url)}: not the bytes that are locked for {deb.name} {deb.version}"
    if size < deb.bytes:
        return Passing(f"{said}: {size} of {deb.bytes} arrived", "run this again")
    return OutsideError(
        f"{said}: sha256 {sha256[:16]}... instead of {deb.sha256[:16]}...",
        "look at what stands between this machine and Debian; debian_mirror names another mirror",
    )
