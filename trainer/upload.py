"""Copy a folder to a bucket and verify the copy: `python -m trainer.upload SRC DEST`.

DEST is gs://bucket/folder, any other fsspec address (s3://, az://, memory://, with its package
installed) or a folder. A second run sends only what differs or was cut off. A file counts as sent
when DEST has the same size and checksum. The checksum is the one that the service computed (Google
Cloud Storage: CRC-32C or MD5); elsewhere the file is read back.

dataset.json is sent last: where it lies, all files that it names are there.

Exit codes: 0 all is there; 2 what was given cannot be right; 3 something could not be sent.
"""

import argparse
import base64
import hashlib
import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainer.records.statusline import StatusLine

TRIES = 4
"""Most tries for each file."""
PARALLEL = 8
"""Files that are sent at once."""
BLOCK = 1 << 20


class UploadError(Exception):
    """What cannot be sent, in one line. `usage`: because of what was given, not of the service."""

    def __init__(self, message: str, usage: bool = False) -> None:
        super().__init__(message)
        self.usage = usage


@dataclass(frozen=True)
class Sums:
    """What identifies a file's content."""

    size: int
    crc32c: int
    md5: str
    """In hex."""


@dataclass
class Transfer:
    """How far an upload is, and at its end what it did."""

    files: int
    bytes: int
    there: int = 0
    """Files that DEST has."""
    sent: int = 0
    sent_bytes: int = 0
    extra: tuple[str, ...] = ()
    """Files at DEST that SRC does not have; they are left alone."""

    def words(self, seconds: float) -> str:
        """Return how far it is after so many seconds."""
        sent = self.sent_bytes / 1e6
        rate = sent / seconds
        return f"{self.there} of {self.files} files there, {sent:,.0f} MB sent, {rate:,.1f} MB/s"


Tell = Callable[[Transfer], None]


def upload(
    source: Path,
    target: str,
    tell: Tell = lambda _: None,
    wait: float = 1.0,
    **options: Any,
) -> Transfer:
    """Send the files of `source` that `target` lacks or has otherwise. Raises UploadError.

    `options` go to the file system of `target`; `wait` is the seconds before the second try of a
    file, doubled for each further try.
    """
    if not source.is_dir():
        raise UploadError(f"{source}: there is no such folder", usage=True)
    paths = sorted(path for path in source.rglob("*") if path.is_file())
    names = [path.relative_to(source).as_posix() for path in paths]
    if not names:
        raise UploadError(f"{source}: has no files", usage=True)
    temporary = [name for name in names if ".tmp-" in name]
    if temporary or source.name.endswith(".partial"):
        half = temporary[0] if temporary else source.name
        raise UploadError(f"{source}: is being written ({half}): finish that first", usage=True)
    filesystem, root = _open(target, options)
    present = _listing(filesystem, root, target)
    progress = Transfer(len(names), sum(path.stat().st_size for path in paths))
    lock = threading.Lock()

    def one(path: Path, name: str) -> None:
        _one(path, filesystem, f"{root}/{name}", present.get(name), progress, lock, wait)
        tell(progress)

    # dataset.json goes last: it says that the others are there.
    last = [(p, n) for p, n in zip(paths, names, strict=True) if n == "dataset.json"]
    rest = [(p, n) for p, n in zip(paths, names, strict=True) if n != "dataset.json"]
    for batch in (rest, last):
        with ThreadPoolExecutor(PARALLEL) as pool:
            futures = [pool.submit(one, *file) for file in batch]
            try:
                for future in as_completed(futures):
                    future.result()
            except BaseException:
                pool.shutdown(cancel_futures=True)
                raise
    progress.extra = tuple(sorted(present.keys() - set(names)))
    return progress


def _open(target: str, options: dict[str, Any]) -> tuple[Any, str]:
    """Return the file system and the path in it. Raises UploadError."""
    # Otherwise gcsfs asks a second service, over gRPC, what kind of bucket it is.
    os.environ.setdefault("GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT", "false")
    try:
        import fsspec
    except ImportError as error:
        raise UploadError("needs fsspec: pip install fsspec gcsfs", usage=True) from error
    try:
        filesystem, root = fsspec.core.url_to_fs(target, use_listings_cache=False, **options)
    except (ImportError, ValueError) as error:
        raise UploadError(f"{target}: {' '.join(str(error).split())}", usage=True) from error
    except Exception as error:
        raise UploadError(f"{target}: {_reason(error)}") from error
    return filesystem, root.rstrip("/")


def _listing(filesystem: Any, root: str, target: str) -> dict[str, dict[str, Any]]:
    """Return the files at the target: names below it, each with its entry of the listing."""
    try:
        entries = filesystem.find(root, detail=True)
    except FileNotFoundError:
        return {}
    except Exception as error:
        raise UploadError(f"{target}: {_reason(error)}") from error
    prefix = f"{root}/"
    return {
        path[len(prefix) :]: info
        for path, info in entries.items()
        if path.startswith(prefix) and info.get("type") == "file"
    }


def _one(
    path: Path,
    filesystem: Any,
    to: str,
    present: dict[str, Any] | None,
    progress: Transfer,
    lock: threading.Lock,
    wait: float,
) -> None:
    """Send one file unless it is there. Raises UploadError."""
    sums = sums_of(path)
    first = 0 if present is None else 1  # The attempt that is not a retry.
    problem: BaseException | str = ""
    for attempt in range(TRIES):
        if attempt > first:
            time.sleep(wait * 2 ** (attempt - first - 1))
        try:
            if attempt or present is None:
                _put(filesystem, path, to)
                present = filesystem.info(to)
                sent = True
            else:
                sent = False
            if is_there(filesystem, to, present, sums):
                with lock:
                    progress.there += 1
                    if sent:
                        progress.sent += 1
                        progress.sent_bytes += sums.size
                return
            problem = "arrived with other content"
        except (PermissionError, TypeError, NotImplementedError) as error:
            raise UploadError(f"{to}: {_reason(error)}") from error
        except Exception as error:
            problem = error
    text = problem if isinstance(problem, str) else _reason(problem)
    raise UploadError(f"{to}: {text} ({TRIES} tries)")


def _put(filesystem: Any, path: Path, to: str) -> None:
    """Send a file. A bucket shows only whole objects; in a folder, the file is renamed last."""
    if "file" in _protocols(filesystem):
        target = Path(to)
        target.parent.mkdir(parents=True, exist_ok=True)
        temporary = target.with_name(f".{target.name}.tmp-{os.getpid()}")
        try:
            filesystem.put_file(str(path), str(temporary))
            temporary.rename(target)
        finally:
            temporary.unlink(missing_ok=True)
        return
    filesystem.put_file(str(path), to)


def is_there(filesystem: Any, path: str, info: dict[str, Any], sums: Sums) -> bool:
    """Does the target have this content?"""
    if info.get("size") != sums.size:
        return False
    if "gs" in _protocols(filesystem):
        # What Google computed over what it stored; a composed object has no MD5.
        if "crc32c" in info:
            return bool(info["crc32c"] == _base64(sums.crc32c.to_bytes(4, "big")))
        if "md5Hash" in info:
            return bool(info["md5Hash"] == _base64(bytes.fromhex(sums.md5)))
    digest = hashlib.md5(usedforsecurity=False)
    with filesystem.open(path, "rb") as file:
        while block := file.read(BLOCK):
            digest.update(block)
    return digest.hexdigest() == sums.md5


def sums_of(path: Path) -> Sums:
    """Size and checksums of a file, read once. Raises UploadError."""
    try:
        from google_crc32c import extend
    except ImportError as error:
        raise UploadError("needs google-crc32c: pip install google-crc32c", usage=True) from error
    digest = hashlib.md5(usedforsecurity=False)
    crc = size = 0
    with path.open("rb") as file:
        while block := file.read(BLOCK):
            digest.update(block)
            crc = extend(crc, block)
            size += len(block)
    return Sums(size, crc, digest.hexdigest())


def _protocols(filesystem: Any) -> set[str]:
    protocol = filesystem.protocol
    return {protocol} if isinstance(protocol, str) else set(protocol)


def _base64(content: bytes) -> str:
    return base64.b64encode(content).decode()


def _reason(error: BaseException) -> str:
    text = " ".join(str(error).split())[:200]
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m trainer.upload", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("source", type=Path, metavar="SRC", help="folder")
    parser.add_argument("target", metavar="DEST", help="gs://bucket/folder, or another address")
    given = parser.parse_args(arguments)
    line = StatusLine()
    try:
        result = upload(given.source, given.target, tell=lambda progress: line.show(progress.words))
    except UploadError as error:
        line.end()
        print(f"error: {error}", file=sys.stderr)
        return 2 if error.usage else 3
    except KeyboardInterrupt:
        print("stopped: the same command goes on where it was", file=sys.stderr)
        return 130
    line.end()
    for name in result.extra:
        print(f"not in SRC, left alone: {given.target.rstrip('/')}/{name}", file=sys.stderr)
    there = result.files - result.sent
    print(
        f"{result.files} files, {result.bytes / 1e6:,.1f} MB in {given.target}, all verified: "
        f"{result.sent} sent ({result.sent_bytes / 1e6:,.1f} MB), {there} there already"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
