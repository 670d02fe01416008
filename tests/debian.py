"""For tests: programs from Debian's packages, without installing any."""

from __future__ import annotations

import shlex
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

from builder.core import files
from builder.core.apt import host_suite
from builder.core.errors import OutsideError
from builder.engine.private.packages import Packages, unpack


def tool(program: str, packages: Sequence[str] = (), suite: str | None = None) -> Path:
    """Return the path of a program of Debian's, brought with its libraries into a private folder.

    `packages` defaults to the package of the same name, `suite` to the host's own.
    """
    suite, wanted = suite or host_suite(), packages or (program,)
    folder = files.cache_home() / "tools" / f"{program}-{suite}"
    run = folder / "bin" / program
    with (
        files.locked(folder.parent / f".{program}.lock"),
        tempfile.TemporaryDirectory() as scratch,
    ):
        if not run.exists():
            shutil.rmtree(folder, ignore_errors=True)
            fetched = Packages(suite, Path(scratch)).download(wanted, dependencies=True)
            unpack(fetched, folder / "root")
            files.write(run, launcher(folder / "root", _program(folder / "root", program)), 0o755)
    return run


def static(package: str, program: str) -> Path:
    """Return the path of a program that needs no library, brought into a private folder."""
    folder = files.cache_home() / "tools" / package
    with (
        files.locked(folder.parent / f".{package}.lock"),
        tempfile.TemporaryDirectory() as scratch,
    ):
        if not folder.exists():
            unpack(Packages(host_suite(), Path(scratch)).download([package]), folder)
    return _program(folder, program)


def _program(root: Path, name: str) -> Path:
    """Return where a program lies in an unpacked root: it differs between Debian's releases."""
    places = [root / folder / name for folder in ("usr/bin", "usr/sbin", "bin")]
    if path := next((path for path in places if path.exists()), None):
        return path
    raise OutsideError(f"{root}: has no {name}", "name the package that has it")


def launcher(root: Path, program: Path) -> str:
    """Return a shell script that runs a program of an unpacked root with the root's libraries.

    It calls the root's own loader, so that the host's libc does not matter. It calls a statically
    linked program directly.
    """
    loader = next(iter(sorted(root.glob("**/lib/*-linux-gnu*/ld-linux*.so.*"))), None)
    call = f"exec {shlex.quote(str(program))}"
    with program.open("rb") as file:
        dynamic = b"/ld-linux" in file.read(4096)
    if loader and dynamic:
        paths = sorted({str(path.parent) for path in root.glob("**/lib/*-linux-gnu*/*.so*")})
        call = (
            f"exec {shlex.quote(str(loader))} --argv0 {shlex.quote(program.name)}"
            f" --library-path {shlex.quote(':'.join(paths))} {shlex.quote(str(program))}"
        )
    return f'#!/bin/sh\n{call} "$@"\n'
