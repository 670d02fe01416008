"""Bytecode of the files that wheels install, made by the very Python of the image.

Files get hashes of their sources instead of dates and are never checked: `import tensorflow` takes
a third of the time, for 1 % of the image. The compiler runs as a process for every BATCH files,
with nothing of this machine in its environment: what one process compiles depends on what it
compiled before, so the number of processors must not decide it.

The program speaks one protocol wherever it runs: on this machine from unpacked packages, without
being installed, or in a container.
"""

from __future__ import annotations

import contextlib
import os
import platform
import struct
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from builder.core.errors import OutsideError
from builder.image import deb

BATCH: Final = 200
"""Files that one process compiles."""

ENVIRONMENT: Final = {"PYTHONHASHSEED": "0", "PYTHONUTF8": "1", "LC_ALL": "C.UTF-8"}

PROGRAM: Final = """\
import marshal, sys
from _frozen_importlib_external import MAGIC_NUMBER
from _imp import source_hash
read, write = sys.stdin.buffer.read, sys.stdout.buffer.write
key = int.from_bytes(MAGIC_NUMBER, "little")
while sizes := read(8):
    name = read(int.from_bytes(sizes[:4], "little")).decode()
    source = read(int.from_bytes(sizes[4:], "little"))
    try:
        code = marshal.dumps(compile(source, name, "exec", dont_inherit=True))
        made = MAGIC_NUMBER + (1).to_bytes(4, "little") + source_hash(key, source) + code
    except Exception:  # a file that is not meant for this Python
        made = b""
    write(len(made).to_bytes(4, "little") + made)
"""
"""Reads files (two sizes, path, source) and writes for each its size and its bytecode, or nothing
for a file that does not compile. What it imports is built into Python: nothing is loaded first."""

_SIZE: Final = struct.Struct("<I")


@dataclass(frozen=True)
class BytecodeCompiler:
    """A command that runs the image's Python; the options of Python are appended to it."""

    command: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)

    def compile(
        self, sources: Mapping[str, bytes], check: Callable[[], object] = lambda: None
    ) -> dict[str, bytes]:
        """Return the bytecode of sources, both by their path in the image.

        Those that do not compile are left out. check: called before each batch; what it raises ends
        the rest. Raises OutsideError where the compiler cannot run.
        """
        names = sorted(sources)
        batches = [names[at : at + BATCH] for at in range(0, len(names), BATCH)]

        def run(batch: Sequence[str]) -> list[bytes]:
            check()
            return self._run([(name, sources[name]) for name in batch])

        with ThreadPoolExecutor(os.cpu_count()) as pool:
            compiled = pool.map(run, batches)
            codes = [code for batch in compiled for code in batch]
        return {name: code for name, code in zip(names, codes, strict=True) if code}

    def _run(self, batch: Sequence[tuple[str, bytes]]) -> list[bytes]:
        request = bytearray()
        for name, source in batch:
            path = name.encode()
            request += _SIZE.pack(len(path)) + _SIZE.pack(len(source)) + path + source
        try:
            done = subprocess.run(
                # S: no module but its own. W: a warning in a package is its author's matter
                [*self.command, "-S", "-s", "-B", "-W", "ignore", "-c", PROGRAM],
                input=bytes(request),
                capture_output=True,
                env={**self.environment, **ENVIRONMENT},
            )
        except OSError as error:
            raise _failed(f"{self.command[0]}: {error.strerror}") from None
        codes = list(_split(done.stdout))
        if done.returncode or len(codes) != len(batch):
            lines = done.stderr.decode(errors="replace").strip().splitlines() or ["no message"]
            raise _failed(f"exit code {done.returncode}: {lines[-1]}")
        return codes


@contextlib.contextmanager
def unpacked(debs: Iterable[Path], python: str) -> Iterator[BytecodeCompiler]:
    """Yield the compiler of fetched Debian packages, unpacked into a temporary folder.

    debs: BasePlan.compiler. It needs no root, and nothing of this machine but a kernel of Linux on
    x86-64.
    """
    with tempfile.TemporaryDirectory(prefix="compiler-") as home:
        root = Path(home)
        for path in debs:
            _unpack(path, root)
        # run by the loader that lies there
        folders = (root / "lib/x86_64-linux-gnu", root / "usr/lib/x86_64-linux-gnu")
        loaders = (folder / "ld-linux-x86-64.so.2" for folder in folders)
        loader = next(path for path in loaders if path.is_file())
        command = (str(loader), "--library-path", ":".join(map(str, folders)))
        program = str(root / f"usr/bin/python{python}")
        yield BytecodeCompiler((*command, program), {"PYTHONHOME": str(root / "usr")})


def _unpack(package: Path, root: Path) -> None:
    for info, pieces in deb.files(package):
        at = root / info.name
        if info.isreg() and not info.name.startswith(("usr/share/", "etc/")):
            at.parent.mkdir(parents=True, exist_ok=True)
            with at.open("wb") as file:
                file.writelines(pieces)
            at.chmod(info.mode)
        elif info.issym() and "/" not in info.linkname:
            at.parent.mkdir(parents=True, exist_ok=True)
            at.symlink_to(info.linkname)


def in_container(image: str, python: str, docker: Sequence[str]) -> BytecodeCompiler:
    """Return the compiler in containers of an image that has this Python.

    It serves hosts of another kind. docker: the command of the engine's client.
    """
    command = [*docker, "run", "--rm", "--interactive", "--network=none", "--platform=linux/amd64"]
    command += [f"--env={name}={value}" for name, value in ENVIRONMENT.items()]
    return BytecodeCompiler((*command, f"--entrypoint=/usr/bin/python{python}", image), os.environ)


def runs_here() -> bool:
    return platform.system() == "Linux" and platform.machine() in ("x86_64", "AMD64")


def path_of(source: str, python: str) -> str:
    """Return the path of a source's bytecode: beside it in __pycache__."""
    folder, _, name = source.rpartition("/")
    tag = f"cpython-{python.replace('.', '')}"
    return f"{folder}/__pycache__/{name.removesuffix('.py')}.{tag}.pyc"


def _split(data: bytes) -> Iterator[bytes]:
    at = 0
    while at + _SIZE.size <= len(data):
        (size,) = _SIZE.unpack_from(data, at)
        at += _SIZE.size
        yield data[at : at + size]
        at += size


def _failed(why: str) -> OutsideError:
    return OutsideError(
        f"the image's Python cannot compile bytecode here: {why}",
        "look whether this machine runs programs of Linux on x86-64, or an engine does",
    )
