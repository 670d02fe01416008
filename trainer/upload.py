"""Carry a folder to a bucket, and know that it arrived: `python -m trainer.upload SRC DEST`.

DEST is gs://bucket/folder, any other fsspec address (s3://, az://, memory://, with its package
installed) or a folder. Can be run twice: only what differs is sent, and what was cut off is sent
again. A file counts as sent when the other side has its size and its checksum: the one that the
service itself computed (Google Cloud Storage: CRC-32C or MD5), or else that of what is read back.

dataset.json goes last: where it lies, everything that it names is there.

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

from trainer.records.tfrecord import checksum

TRIES = 4
"""Of each file."""
PARALLEL = 8
"""Files at a time, unless told otherwise."""
BLOCK = 1 << 20


class UploadError(Exception):
    """What cannot be sent, in one line. `usage`: for what was given, not for the other side."""

    def __init__(self, message: str, usage: bool = False) -> None:
        super().__init__(message)
        self.usage = usage


@dataclass(frozen=True)
class Sums:
    """What a file's content is known by."""

    size: int
    crc32c: int
    md5: str
    """In hex."""


@dataclass
class Progress:
    """What there is to tell while it runs."""

    files: int
    bytes: int
    checked: int = 0
    sent: int = 0
    sent_bytes: int = 0
    retries: int = 0


@dataclass(frozen=True)
class Result:
    """What was done."""

    files: int
    bytes: int
    sent: int
    sent_bytes: int
    extra: tuple[str, ...]
    """Files at DEST that SRC does not have; they are left alone, or removed if asked."""


Tell = Callable[[Progress], None]


def upload(
    source: Path,
    target: str,
    parallel: int = PARALLEL,
    delete: bool = False,
    tell: Tell = lambda _: None,
    wait: float = 1.0,
    **options: Any,
) -> Result:
    """Make `target` have all files of `source`. Raises UploadError.

    `options` go to the file system of `target`; `wait`: seconds before a second try, doubled for
    each further one.
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
    progress = Progress(len(names), sum(path.stat().st_size for path in paths))
    lock = threading.Lock()

    def one(path: Path, name: str) -> None:
        _one(path, filesystem, f"{root}/{name}", present.get(name), progress, lock, wait)
        tell(progress)

    # What vouches for the others goes last.
    last = [(p, n) for p, n in zip(paths, names, strict=True) if n == "dataset.json"]
    rest = [(p, n) for p, n in zip(paths, names, strict=True) if n != "dataset.json"]
    for batch in (rest, last):
        with ThreadPoolExecutor(max(1, parallel)) as pool:
            futures = [pool.submit(one, *file) for file in batch]
            try:
                for future in as_completed(futures):
                    future.result()
            except BaseException:
                pool.shutdown(cancel_futures=True)
                raise
    extra = tuple(sorted(present.keys() - set(names)))
    if delete:
        for name in extra:
            filesystem.rm_file(f"{root}/{name}")
    return Result(len(names), progress.bytes, progress.sent, progress.sent_bytes, extra)


def _open(target: str, options: dict[str, Any]) -> tuple[Any, str]:
    """The file system and the path in it. Raises UploadError."""
    # gcsfs else asks a second service, over gRPC, what kind of bucket it is: not needed here.
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
    """What is at the target already: names below it, each with what the listing tells."""
    try:
        found = filesystem.find(root, detail=True)
    except FileNotFoundError:
        return {}
    except Exception as error:
        raise UploadError(f"{target}: {_reason(error)}") from error
    prefix = f"{root}/"
    return {
        path[len(prefix) :]: info
        for path, info in found.items()
        if path.startswith(prefix) and info.get("type") == "file"
    }


def _one(
    path: Path,
    filesystem: Any,
    to: str,
    present: dict[str, Any] | None,
    progress: Progress,
    lock: threading.Lock,
    wait: float,
) -> None:
    """See to it that one file is there. Raises UploadError."""
    sums = sums_of(path)
    first = 0 if present is None else 1  # The attempt that is no second one.
    problem: BaseException | str = ""
    for attempt in range(TRIES):
        if attempt:
            time.sleep(wait * 2 ** (attempt - 1))
        try:
            if attempt or present is None:
                _put(filesystem, path, to)
                present = filesystem.info(to)
                sent = True
            else:
                sent = False
            if is_there(filesystem, to, present, sums):
                with lock:
                    progress.checked += 1
                    progress.retries += max(0, attempt - first)
                    if sent:
                        progress.sent += 1
                        progress.sent_bytes += sums.size
                return
            problem = "arrived with another content"
        except (PermissionError, TypeError, NotImplementedError) as error:
            raise UploadError(f"{to}: {_reason(error)}") from error
        except Exception as error:
            problem = error
    text = problem if isinstance(problem, str) else _reason(problem)
    raise UploadError(f"{to}: {text} ({TRIES} tries)")


def _put(filesystem: Any, path: Path, to: str) -> None:
    """Send a file. A bucket shows an object when it is complete; a folder gets it in one move."""
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
    """Has the other side this very content?"""
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
    """Size and checksums of a file, read once."""
    digest = hashlib.md5(usedforsecurity=False)
    crc, size = _Crc(), 0
    with path.open("rb") as file:
        while block := file.read(BLOCK):
            digest.update(block)
            crc.update(block)
            size += len(block)
    return Sums(size, crc.value, digest.hexdigest())


class _Crc:
    """CRC-32C of what comes in blocks."""

    def __init__(self) -> None:
        try:
            from google_crc32c import extend

            self._extend: Callable[[int, bytes], int] | None = extend
        except ImportError:
            self._extend = None
        self._content = bytearray()
        self._value = 0

    def update(self, block: bytes) -> None:
        if self._extend is None:
            self._content += block
        else:
            self._value = self._extend(self._value, block)

    @property
    def value(self) -> int:
        return self._value if self._extend else checksum()(bytes(self._content))


def _protocols(filesystem: Any) -> set[str]:
    protocol = filesystem.protocol
    return {protocol} if isinstance(protocol, str) else set(protocol)


def _base64(content: bytes) -> str:
    return base64.b64encode(content).decode()


def _reason(error: BaseException) -> str:
    text = " ".join(str(error).split())[:200]
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


class Line:
    """Progress on stderr: one line that is written over on a terminal, else one every 10 s."""

    def __init__(self) -> None:
        self._began = self._last = time.monotonic()
        self._lock = threading.Lock()

    def __call__(self, progress: Progress) -> None:
        with self._lock:
            now, terminal = time.monotonic(), sys.stderr.isatty()
            if now - self._last < (0.1 if terminal else 10):
                return
            self._last = now
            rate = progress.sent_bytes / max(now - self._began, 1e-9) / 1e6
            text = (
                f"{progress.checked} of {progress.files} files there, "
                f"{progress.sent_bytes / 1e6:,.0f} MB sent, {rate:,.1f} MB/s"
            )
            sys.stderr.write(f"\r{text:<70}" if terminal else f"{text}\n")
            sys.stderr.flush()


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m trainer.upload", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("source", type=Path, metavar="SRC", help="folder")
    parser.add_argument("target", metavar="DEST", help="gs://bucket/folder, or another address")
    parser.add_argument(
        "--parallel", type=int, default=PARALLEL, help=f"files at once ({PARALLEL})"
    )
    parser.add_argument("--delete", action="store_true", help="remove from DEST what SRC has not")
    given = parser.parse_args(arguments)
    if given.parallel < 1:
        parser.error("--parallel is 1 or more")
    try:
        result = upload(given.source, given.target, given.parallel, given.delete, Line())
    except UploadError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2 if error.usage else 3
    except KeyboardInterrupt:
        print("stopped: the same command goes on where it was", file=sys.stderr)
        return 130
    verb = "removed" if given.delete else "not in SRC, left alone"
    for name in result.extra:
        print(f"{verb}: {given.target.rstrip('/')}/{name}", file=sys.stderr)
    there = result.files - result.sent
    print(
        f"{result.files} files, {result.bytes / 1e6:,.1f} MB in {given.target}, all verified: "
        f"{result.sent} sent ({result.sent_bytes / 1e6:,.1f} MB), {there} there already"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
