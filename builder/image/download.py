"""Locked packages from the network: wheels from the host's indexes, .debs from Debian's archives.

A file gets its name when it is whole and its checksum is the lock's. Until then it ends in `.part`,
and a later attempt or run goes on from there.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING, Final
from urllib.parse import unquote, urlsplit

from builder.config import network, sources, uv
from builder.config.sources import NotPlainError
from builder.core import files, parallel, web
from builder.core.display import masked
from builder.core.errors import OutsideError
from builder.core.events import OnEvent, ignore, step
from builder.core.retry import OnRetry, Retry, TransientError
from builder.image.tarball import pieces
from builder.registry.refusals import BUSY, broken

if TYPE_CHECKING:
    from builder.config.debian import Archives
    from builder.config.debian_packages import DebianPackage
    from builder.config.pins import Pin
    from builder.config.uv import Platform

KEPT: Final = 24 * 3600.0
"""Seconds after which a file that no run took is removed."""

_LARGEST: Final = 8 << 30
"""Bytes of a file whose size the lock does not know."""
_AT_ONCE: Final = 8
"""How many .debs are fetched at the same time."""
_RETRY: Final = Retry(attempts=5)

Progress = Callable[[int], object]
"""Gets how many bytes of a file are here, again and again."""


@dataclass(frozen=True)
class LockedFile:
    name: str
    sha256: str
    bytes: int | None
    """Its size; None where the lock does not know it."""
    path: Path
    """Where it lies when it is whole."""
    urls: tuple[str, ...]
    """Where it may be, in the order in which they are tried."""
    fix: str

    @property
    def part(self) -> Path:
        """What has come of the file so far."""
        return self.path.with_suffix(".part")


def _opened(file: LockedFile) -> IO[bytes] | None:
    """Return a file, open at its begin, where it is here with the bytes of the lock."""
    with contextlib.suppress(OSError), contextlib.ExitStack() as stack:
        content = stack.enter_context(files.opened(file.path))
        if hashlib.file_digest(content, "sha256").hexdigest() == file.sha256:
            content.seek(0)
            stack.pop_all()
            return content
    return None


def fetch(
    client: web.Client, file: LockedFile, retry: Retry, progress: Progress, log: OnRetry = ignore
) -> IO[bytes]:
    """Return a file, open for reading, downloaded if it is not here.

    It can be read even where another run removes the file meanwhile. Raises OutsideError where no
    address has it, or where its bytes are not the lock's.
    """
    with files.locked(file.path.with_suffix(".lock"), check=lambda: progress(0)):
        if (opened := _opened(file)) is None:
            if file.path.exists():
                log(f"{file.name}: the cache has other bytes than the lock says; fetched again")
                file.path.unlink()
            _download(client, file, retry, progress, log)
            opened = files.opened(file.path)
    progress(os.fstat(opened.fileno()).st_size)
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
    urls = f": neither {' nor '.join(map(masked, file.urls))} has it" if file.urls else ""
    raise OutsideError(f"{file.name}: it is not to be had any more{urls}", file.fix)


def _attempt(client: web.Client, file: LockedFile, url: str, progress: Progress) -> bool:
    """Download what is missing of a file from one address; return False where it is not there.

    Raises TransientError where a later attempt may succeed.
    """
    with file.part.open("ab+") as part, _content(client, file, url, part.tell()) as content:
        if content is None:
            return False
        begins, received = content
        part.truncate(begins)
        part.seek(0)
        digest = hashlib.file_digest(part, "sha256")
        size = begins
        for piece in received:
            part.write(piece)
            digest.update(piece)
            size += len(piece)
            progress(size)
            if size > (file.bytes or _LARGEST):
                break
    if digest.hexdigest() == file.sha256:
        file.part.replace(file.path)
        return True
    if file.bytes is not None and size < file.bytes:
        raise TransientError(
            f"{file.name}: {size} of {file.bytes} bytes arrived from {masked(url)}", file.fix
        )
    file.part.unlink()
    raise OutsideError(
        f"{file.name}: the bytes of {masked(url)} are not those of the lock: sha256 "
        f"{digest.hexdigest()[:16]}... instead of {file.sha256[:16]}...",
        "look whether something changes downloads on their way; where the file itself was changed, "
        "run builder lock --upgrade",
    )


@contextlib.contextmanager
def _content(
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
        with client.request("GET", url, headers=headers, follow=True) as answer:
            if answer.status in (404, 410):
                yield None
            elif answer.status in (200, 206):
                seconds = web.DEADLINE + (file.bytes or _LARGEST) / web.SLOWEST
                yield size if answer.status == 206 else 0, web.body_of(answer, url, seconds)
            else:
                reason = f"{file.name}: {masked(url)}: HTTP {answer.status} {answer.reason}"
                if answer.status == 416:  # a part of this size is not right
                    file.part.unlink(missing_ok=True)
                if answer.status in (416, *BUSY):
                    raise TransientError(reason, file.fix)
                raise OutsideError(reason, file.fix)
    except HTTPError as error:
        failure = broken(error, masked(url))
        if isinstance(failure, TransientError):
            failure = TransientError(f"{file.name}: {failure.why}", file.fix)
        raise failure from error


# --- wheels ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Wheels:
    """Wheels in a folder of this machine, for any number of threads and processes."""

    folder: Path
    client: web.Client
    addresses: Mapping[str, str]
    """Where each is, by its sha256."""
    retry: Retry = field(default_factory=lambda: _RETRY)

    def fetch(self, pin: Pin, progress: Progress) -> IO[bytes]:
        """Return a wheel, open for reading. Raises what `fetch` of this module raises, OutsideError
        also where the wheel that is made of a source is not the lock's."""
        address, what = self.addresses.get(pin.sha256), "source" if pin.source else "wheel"
        file = LockedFile(
            f"the {what} of {pin.name} {pin.version}",
            pin.source or pin.sha256,
            None if pin.source else pin.bytes,
            wheel_file(self.folder, pin),
            (address,) if address else (),
            "look whether the network and the index are up, and whether it needs a login; where it "
            "lacks the wheel, name one that has it in UV_DEFAULT_INDEX, or run builder lock "
            "--upgrade",
        )
        opened = fetch(self.client, file, self.retry, progress)
        return self._made(pin, opened) if pin.source else opened

    def _made(self, pin: Pin, source: IO[bytes]) -> IO[bytes]:
        with source:
            try:
                made = sources.wheel_of(pin.name, pin.version, source.read())
            except NotPlainError as error:
                raise OutsideError(f"{pin.name} {pin.version}: {error}", "lock again") from None
        if made.sha256 != pin.sha256:
            raise OutsideError(
                f"{pin.name} {pin.version}: what is made of its source is not what the lock has",
                "run builder lock with this version of the factory",
            )
        return io.BytesIO(made.content)

    def forget(self, pin: Pin) -> None:
        wheel_file(self.folder, pin).unlink(missing_ok=True)

    def tidy(self) -> None:
        """Remove what ended runs left long ago. Locks stay: another run may hold one."""
        left = (path for path in self.folder.glob("*") if path.suffix != ".lock")
        files.remove_older(left, KEPT)


def home() -> Path:
    return files.cache_home() / "wheels"


def wheel_file(folder: Path, pin: Pin) -> Path:
    return folder / f"{pin.sha256}.whl"


@contextlib.contextmanager
def wheels_of(pins: Iterable[Pin], platform: Platform) -> Iterator[Wheels]:
    """Yield the wheels of these pins, from the indexes that this host is configured for.

    They lie in the user's cache meanwhile. Raises OutsideError where an index cannot be reached,
    InputError for a configuration that cannot be read.
    """
    host = network.discover()
    addresses = {
        sha256: host.with_login(address)
        for sha256, address in uv.addresses(pins, platform, host.host_environment()).items()
    }
    with host.client() as client:
        yield Wheels(home(), client, addresses)


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
    locked = {
        deb: LockedFile(
            f"{deb.name} {deb.version}",
            deb.sha256,
            deb.bytes,
            files.cache_home() / "debs" / f"{deb.sha256}.deb",
            archives.urls(deb.archive, deb.time, deb.path),
            "check the network and the proxy; debian_mirror in builder.toml names another mirror; "
            "where none has this version any more, run builder lock --upgrade",
        )
        for deb in debs
    }
    lacking = []
    for file in locked.values():
        if opened := _opened(file):
            opened.close()
        else:
            lacking.append((file, file.bytes or 0))
    lacking.sort(key=lambda item: -item[1])  # the others fill the time that the largest takes
    if lacking:
        with step(f"Debian: {len(lacking)} packages", on_event) as run, web.Client() as client:
            count = parallel.transfer(
                lacking,
                lambda file, progress: fetch(client, file, retry, progress, run.log).close(),
                _AT_ONCE,
                run.progress,
            )
            run.detail = f"{count / 1e6:.1f} MB"
    return {deb: file.path for deb, file in locked.items()}
