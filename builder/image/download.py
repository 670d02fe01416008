"""Locked packages from the network: wheels from the host's indexes, .debs from Debian's archives.

A file gets its name when it is whole and its checksum is the lock's. Until then it ends in `.part`,
and a later run goes on from there.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final
from urllib.parse import unquote, urlsplit

from builder.config import network, uv
from builder.core import files, parallel, web
from builder.core.display import masked
from builder.core.errors import OutsideError
from builder.core.events import OnEvent, ignore, step
from builder.core.retry import OnRetry, Retry, TransientError
from builder.core.retry import ignore as ignore_retry
from builder.image.tarball import PIECE, pieces
from builder.registry.refusals import BUSY, broken

if TYPE_CHECKING:
    from builder.config.debian import Archives
    from builder.config.debian_packages import DebianPackage
    from builder.config.pins import Pin
    from builder.config.uv import Platform

KEPT: Final = 24 * 3600.0
"""Seconds after which a file that no run took is removed."""

_AT_ONCE: Final = 8
"""How many .debs are fetched at the same time."""
_RETRY: Final = Retry(attempts=4)

Progress = Callable[[int], object]
"""Gets how many bytes of a file are here, again and again."""


@dataclass(frozen=True)
class LockedFile:
    """A file that a lock names.

    bytes: its size; None where the lock does not know it. path: where it lies when it is whole.
    urls: where it may be, in the order in which they are tried. gone, broken: what to do where no
    address has it, and where one does not answer.
    """

    name: str
    sha256: str
    bytes: int | None
    path: Path
    urls: tuple[str, ...]
    gone: str
    broken: str

    @property
    def part(self) -> Path:
        """What has come of the file so far."""
        return self.path.with_suffix(".part")

    @property
    def is_whole(self) -> bool:
        """Whether the file is here, in its full size."""
        with contextlib.suppress(OSError):
            return self.path.stat().st_size == self.bytes or self.bytes is None
        return False


def download(
    client: web.Client,
    file: LockedFile,
    retry: Retry,
    progress: Progress,
    log: OnRetry = ignore_retry,
) -> IO[bytes]:
    """Return a file, open for reading, downloaded if it is not here.

    It can be read even where another run removes the file meanwhile. Raises OutsideError where no
    address has it, or where its bytes are not the lock's.
    """
    with files.locked(file.path.with_suffix(".lock")):
        if not file.is_whole:
            _download(client, file, retry, progress, log)
        opened = file.path.open("rb")
        progress(opened.seek(0, os.SEEK_END))
        opened.seek(0)
        return opened


def _download(
    client: web.Client, file: LockedFile, retry: Retry, progress: Progress, log: OnRetry
) -> None:
    for url in file.urls:
        try:
            if retry.run(lambda url=url: _attempt(client, file, url, progress), log):  # type: ignore[misc]
                return
        except OSError as error:
            file.part.unlink(missing_ok=True)  # a full disk gets its space back
            error.filename = error.filename or str(file.path)
            raise
        log(f"{file.name}: no longer at {masked(url)}")
    places = f": neither {' nor '.join(map(masked, file.urls))} has it" if file.urls else ""
    raise OutsideError(f"{file.name}: it is not to be had any more{places}", file.gone)


def _attempt(client: web.Client, file: LockedFile, url: str, progress: Progress) -> bool:
    """Download what is missing of a file from one address; return False where it is not there.

    Raises TransientError where a later attempt may succeed.
    """
    with file.part.open("ab+") as out:
        out.seek(0)
        digest = hashlib.file_digest(out, "sha256")
        size = out.seek(0, os.SEEK_END)
        if size == 0 or (size, digest.hexdigest()) != (file.bytes, file.sha256):
            with _response(client, file, url, size) as response:
                if response is None:
                    return False
                begins, content = response
                if begins == 0:
                    out.truncate(0)
                    digest, size = hashlib.sha256(), 0
                for piece in content:
                    out.write(piece)
                    digest.update(piece)
                    size += len(piece)
                    progress(size)
                    if file.bytes is not None and size > file.bytes:
                        break
    if digest.hexdigest() == file.sha256:
        file.part.replace(file.path)
        return True
    if file.bytes is not None and size < file.bytes:
        raise TransientError(
            f"{file.name}: {size} of {file.bytes} bytes arrived from {masked(url)}", file.broken
        )
    file.part.unlink()
    raise OutsideError(
        f"{file.name}: the bytes of {masked(url)} are not those of the lock: sha256 "
        f"{digest.hexdigest()[:16]}... instead of {file.sha256[:16]}...",
        "look whether something changes downloads on their way; where the file itself was changed, "
        "run builder lock --upgrade",
    )


@contextlib.contextmanager
def _response(
    client: web.Client, file: LockedFile, url: str, size: int
) -> Iterator[tuple[int, Iterable[bytes]] | None]:
    """Yield where the answer's bytes begin, at 0 or at `size`, and the bytes; None for no file."""
    if url.startswith("file:"):
        with Path(unquote(urlsplit(url).path)).open("rb") as local:
            yield 0, pieces(local)
        return
    from urllib3.exceptions import HTTPError

    headers = {"Accept-Encoding": "identity", **({"Range": f"bytes={size}-"} if size else {})}
    try:
        with client.request("GET", url, headers=headers, follow=True, stream=True) as answer:
            if answer.status in (404, 410):
                yield None
            elif answer.status in (200, 206):
                begins = size if answer.status == 206 else 0
                yield begins, answer.stream(PIECE, decode_content=False)
            else:
                why = f"{file.name}: {masked(url)}: HTTP {answer.status} {answer.reason}"
                if answer.status == 416:  # more is here than there: none of it is right
                    file.part.unlink(missing_ok=True)
                if answer.status in (416, *BUSY):
                    raise TransientError(why, file.broken)
                raise OutsideError(why, file.broken)
    except HTTPError as error:
        failure: Any = broken(error, masked(url))
        if isinstance(failure, TransientError):
            failure = TransientError(f"{file.name}: {failure.why}", file.broken)
        raise failure from error


# --- wheels ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Wheels:
    """Wheels in a folder of this machine, for any number of threads and processes.

    addresses: where each is, by its sha256.
    """

    folder: Path
    client: web.Client
    addresses: Mapping[str, str]
    retry: Retry = field(default_factory=lambda: Retry(attempts=5))

    def fetch(self, pin: Pin, progress: Progress) -> IO[bytes]:
        """Return a wheel, open for reading. Raises what `download` raises."""
        return download(self.client, self._file(pin), self.retry, progress)

    def forget(self, pin: Pin) -> None:
        """Remove a wheel that no layer needs any more."""
        self._file(pin).path.unlink(missing_ok=True)

    def tidy(self) -> None:
        """Remove what ended runs left long ago. Locks stay: another run may hold one."""
        left = (path for path in self.folder.glob("*") if path.suffix != ".lock")
        files.remove_older(left, KEPT)

    def _file(self, pin: Pin) -> LockedFile:
        address = self.addresses.get(pin.sha256)
        return LockedFile(
            f"the wheel of {pin.name} {pin.version}",
            pin.sha256,
            pin.bytes,
            self.folder / f"{pin.sha256}.whl",
            (address,) if address else (),
            gone="run builder lock --upgrade, or name an index that has it in UV_DEFAULT_INDEX",
            broken="look whether the network and the index are up, and whether it needs a login",
        )


@contextlib.contextmanager
def wheels_of(pins: Iterable[Pin], platform: Platform) -> Iterator[Wheels]:
    """Yield the wheels of these pins, from the indexes that this host is configured for.

    They lie in the user's cache meanwhile. Raises OutsideError where an index cannot be reached,
    InputError for a configuration that cannot be read.
    """
    host = network.discover()
    indexes = [index for index in (host.index, *host.extra_indexes) if index]
    addresses = {
        sha256: with_login(address, indexes)
        for sha256, address in uv.addresses(pins, platform, host.host_environment()).items()
    }
    with host.client() as client:
        yield Wheels(files.cache_home() / "wheels", client, addresses)


def with_login(address: str, indexes: Iterable[str]) -> str:
    """Return an address with the user and password of the index on the same host, if it has them.

    uv leaves them out of what it writes.
    """
    parts = urlsplit(address)
    for index in map(urlsplit, indexes):
        login = index.netloc.rpartition("@")[0]
        same = (index.scheme, index.hostname, index.port)
        if login and same == (parts.scheme, parts.hostname, parts.port):
            return parts._replace(netloc=f"{login}@{parts.netloc.rpartition('@')[2]}").geturl()
    return address


# --- Debian packages ------------------------------------------------------------------------------


def fetch_debs(
    debs: Iterable[DebianPackage],
    archives: Archives,
    on_event: OnEvent = ignore,
    retry: Retry = _RETRY,
) -> dict[DebianPackage, Path]:
    """Return the .deb files of these packages, from the cache or from Debian's archives.

    Each comes from the mirror, or from the archive that keeps every version. Raises OutsideError
    for a package that neither has, for bytes that are not the lock's, and for an archive that does
    not answer.
    """
    locked = {deb: _deb(deb, archives) for deb in debs}
    lacking = [(file, file.bytes or 0) for file in locked.values() if not file.is_whole]
    if lacking:
        with (
            step(f"Debian: {len(lacking)} packages", on_event) as fetching,
            web.Client() as client,
        ):

            def fetch(file: LockedFile, progress: Progress) -> None:
                download(client, file, retry, progress, fetching.log).close()

            # the largest first: the others fill the time that it takes
            largest_first = sorted(lacking, key=lambda item: -item[1])
            count = parallel.transfer(largest_first, fetch, _AT_ONCE, fetching.progress)
            fetching.detail = f"{count / 1e6:.1f} MB"
    return {deb: file.path for deb, file in locked.items()}


def _deb(deb: DebianPackage, archives: Archives) -> LockedFile:
    return LockedFile(
        f"{deb.name} {deb.version}",
        deb.sha256,
        deb.bytes,
        files.cache_home() / "debs" / f"{deb.sha256}.deb",
        archives.places(deb.archive, deb.time, deb.path),
        gone="let debian_mirror in builder.toml name one that has it, or run builder lock "
        "--upgrade",
        broken="check the network and the proxy; debian_mirror in builder.toml names another "
        "mirror",
    )
