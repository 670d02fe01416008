"""Wheels from the host's indexes: found by uv, verified against the lock while they come.

A wheel has its name only when it is whole and its checksum is the lock's. Until then it has
another name, from which a later run goes on. What a killed run left is removed after KEPT.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING, Final
from urllib.parse import unquote, urlsplit

from builder.core import files, network
from builder.core.display import masked
from builder.core.errors import OutsideError
from builder.core.retry import Passing, Retry
from builder.lock import python

if TYPE_CHECKING:
    from urllib3 import BaseHTTPResponse

    from builder.core.web import Client
    from builder.lock.pins import Pin
    from builder.lock.python import Platform

KEPT: Final = 24 * 3600.0
"""Seconds after which a file that no run took is removed."""

_BLOCK: Final = 1 << 20
_NETWORK: Final = "look whether the network and the index are up, and run this again"

Told = Callable[[int], None]
"""Gets how many bytes of a wheel are here, again and again."""


@dataclass(frozen=True)
class Wheels:
    """Wheels in a folder of this machine, for any number of threads and processes.

    addresses: where each is, by its sha256.
    """

    folder: Path
    client: Client
    addresses: Mapping[str, str]
    retry: Retry = field(default_factory=lambda: Retry(attempts=5))

    def fetch(self, pin: Pin, told: Told) -> IO[bytes]:
        """A wheel, open for reading, downloaded if it is not here.

        It can be read even where another run removes the file meanwhile.
        Raises OutsideError where no index has it, or where its bytes are not the lock's.
        """
        whole, part = _whole(self.folder, pin), _part(self.folder, pin)
        with files.locked(self.folder / f"{pin.sha256}.lock"):
            if whole.is_file():
                told(whole.stat().st_size)
                return whole.open("rb")
            address = self.addresses.get(pin.sha256)
            if not address:
                raise OutsideError(
                    f"{pin.name} {pin.version}: no index has the wheel of the lock",
                    "run builder lock --upgrade, or name an index that has it in UV_DEFAULT_INDEX",
                )
            try:
                self.retry.run(lambda: self._attempt(pin, address, part, told))
            except OSError:
                part.unlink(missing_ok=True)  # a full disk gets its space back
                raise
            part.replace(whole)
            return whole.open("rb")

    def forget(self, pin: Pin) -> None:
        """Remove a wheel that no layer needs any more."""
        _whole(self.folder, pin).unlink(missing_ok=True)

    def tidy(self) -> None:
        """Remove what ended runs left long ago. Locks stay: another run may hold one."""
        left = (path for path in self.folder.glob("*") if path.suffix != ".lock")
        files.remove_older(left, KEPT)

    def _attempt(self, pin: Pin, address: str, part: Path, told: Told) -> None:
        """Download what is missing of a wheel. Raises Passing where that may work later."""
        with part.open("ab+") as file:
            file.seek(0)
            seen = hashlib.file_digest(file, "sha256")
            here = file.seek(0, os.SEEK_END)
            if here and here == pin.bytes and seen.hexdigest() == pin.sha256:
                return
            at, pieces = self._open(pin, address, here)
            if at == 0:
                file.truncate(0)
                seen = hashlib.sha256()
            for piece in pieces:
                file.write(piece)
                seen.update(piece)
                at += len(piece)
                told(at)
                if pin.bytes is not None and at > pin.bytes:
                    break
        if seen.hexdigest() != pin.sha256:
            part.unlink(missing_ok=True)
            raise OutsideError(
                f"{pin.name} {pin.version}: what the index sent has the sha256 "
                f"{seen.hexdigest()[:16]}..., the lock says {pin.sha256[:16]}...",
                "look whether something changes downloads on their way; where the index itself "
                "changed the file, run builder lock --upgrade",
            )

    def _open(self, pin: Pin, address: str, at: int) -> tuple[int, Iterator[bytes]]:
        """Where the pieces begin that come, `at` or 0, and the pieces."""
        if address.startswith("file:"):
            return 0, _read(Path(unquote(urlsplit(address).path)))
        headers = {"Accept-Encoding": "identity", **({"Range": f"bytes={at}-"} if at else {})}
        with _passing(pin):
            answer = self.client.request("GET", address, headers=headers, follow=True, stream=True)
        if answer.status in (200, 206):
            begins = at if answer.status == 206 else 0
            return begins, _pieces(pin, answer)
        answer.close()
        why = f"{pin.name} {pin.version}: the index answers {answer.status} for its wheel"
        if answer.status == 416:  # more is here than the index has: none of it is right
            _part(self.folder, pin).unlink(missing_ok=True)
        if answer.status in (408, 416, 429) or answer.status >= 500:
            raise Passing(why, _NETWORK)
        raise OutsideError(why, "look whether the index needs a login, and still has this version")


@contextlib.contextmanager
def wheels_of(
    pins: Iterable[Pin], platform: Platform, folder: Path | None = None
) -> Iterator[Wheels]:
    """The wheels of these pins, from the indexes that this host is configured for.

    folder: where they lie meanwhile; by default in the user's cache. Raises OutsideError where
    an index cannot be reached, InputError for a configuration that cannot be read.
    """
    host = network.discover()
    found = python.addresses(pins, platform, host.host_environment())
    indexes = [one for one in (host.index, *host.extra_indexes) if one]
    addresses = {sha256: with_login(address, indexes) for sha256, address in found.items()}
    with host.client() as client:
        yield Wheels(_folder(folder), client, addresses)


def left(pin: Pin, folder: Path | None = None) -> int | None:
    """The bytes of a wheel that are still to come; None where the lock does not know its size.

    What a run that ended has left of it is here already.
    """
    place = _folder(folder)
    if _whole(place, pin).is_file():
        return 0
    if pin.bytes is None:
        return None
    part = _part(place, pin)
    return max(0, pin.bytes - (part.stat().st_size if part.is_file() else 0))


def _whole(folder: Path, pin: Pin) -> Path:
    return folder / f"{pin.sha256}.whl"


def _part(folder: Path, pin: Pin) -> Path:
    """What has come of a wheel so far."""
    return folder / f"{pin.sha256}.part"


def _folder(folder: Path | None) -> Path:
    return folder or files.cache_home() / "wheels"


def with_login(address: str, indexes: Iterable[str]) -> str:
    """An address with the user and password of the index on the same host, where it has them.

    uv leaves them out of what it writes.
    """
    parts = urlsplit(address)
    for index in map(urlsplit, indexes):
        login = index.netloc.rpartition("@")[0]
        if login and (index.scheme, index.hostname, index.port) == (
            parts.scheme,
            parts.hostname,
            parts.port,
        ):
            return parts._replace(netloc=f"{login}@{parts.netloc.rpartition('@')[2]}").geturl()
    return address


def _pieces(pin: Pin, answer: BaseHTTPResponse) -> Iterator[bytes]:
    with _passing(pin), answer:
        yield from answer.stream(_BLOCK, decode_content=False)


def _read(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while piece := file.read(_BLOCK):
            yield piece


@contextlib.contextmanager
def _passing(pin: Pin) -> Iterator[None]:
    """Turns a connection that failed into a failure that may pass."""
    from urllib3.exceptions import HTTPError

    try:
        yield
    except HTTPError as error:
        why = masked(str(error).splitlines()[0])
        raise Passing(f"{pin.name} {pin.version}: the download broke: {why}", _NETWORK) from None
