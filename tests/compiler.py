"""Shared libraries for tests, from C, by the compiler that the lock brings (ziglang)."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import tempfile
from importlib import metadata
from pathlib import Path

from builder.core import files


def compile_library(source: Path) -> Path:
    """Compile a C file into a shared library for this machine, once for each content."""
    version = metadata.version("ziglang")
    home = files.cache_home() / "compiled"
    library = home / f"{files.hash_of(source.read_text(), version)[:16]}.so"
    with files.locked(home / ".lock"):
        if not library.exists():
            with tempfile.TemporaryDirectory(dir=home) as scratch:
                made = Path(scratch, library.name)
                command = [sys.executable, "-m", "ziglang", "cc", "-shared", "-fPIC", "-O1", "-s"]
                command += ["-target", f"{platform.machine()}-linux-gnu.2.28"]
                environment = os.environ | {"ZIG_GLOBAL_CACHE_DIR": str(home / "zig")}
                environment |= {"ZIG_LOCAL_CACHE_DIR": str(home / "zig")}
                subprocess.run([*command, source, "-o", made], env=environment, check=True)
                made.replace(library)
    return library
