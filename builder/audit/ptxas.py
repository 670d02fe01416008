"""Whether the PTX that a GPU has to use compiles for it: NVIDIA's compiler is asked.

The driver compiles PTX when it is first used; `ptxas` does the same without a GPU. It comes as a
wheel of its own, so that neither CUDA nor an image is needed.
"""

from __future__ import annotations

import mmap
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final, Literal

from builder.core import parallel
from builder.core.display import masked
from builder.core.errors import CheckFailed, InputError, OutsideError, fix_of
from builder.core.events import OnEvent, ignore, step
from builder.devicecode import ptx
from builder.devicecode.pruning.elf import LIBRARY_NAME, MAGIC, Buffer
from builder.devicecode.pruning.fatbin import LINK_INPUT, PTX, Container, Entry, containers
from builder.devicecode.pruning.rule import ComputeCapability, choose
from builder.devicecode.ptx import Directives

VERSION: Final = "12.9.86"
"""The last ptxas that compiles for every GPU from compute capability 5.0 to 12.1."""
_WHEEL: Final = (
    f"nvidia-cuda-nvcc-cu12=={VERSION}"
    " --hash=sha256:5d6a0d32fdc7ea39917c20065614ae93add6f577d840233237ff08e9a38f58f0"
)

Modules = Literal["kinds", "all"]
"""What is compiled: a module of each version and target in a library, or every module."""

_SECONDS = 600.0
"""How long one module may take; the slowest of TensorFlow 2.21 takes 3 s."""


@dataclass(frozen=True)
class Compiled:
    """The modules of one library with the same directives, compiled for one device."""

    library: str
    directives: Directives
    device: ComputeCapability
    modules: int
    """How many there are."""
    compiled: int
    """How many were tried."""
    words: str
    """What ptxas said of the first that does not compile, "" where all do."""

    def __str__(self) -> str:
        what = f"{self.library}: {self.directives}: {self.modules:,} modules"
        if self.words:
            return f"{what}: ptxas does not compile them for {self.device}: {self.words}"
        return f"{what}, {self.compiled:,} of them compiled for {self.device} by ptxas {VERSION}"


def compile_paths(
    paths: Iterable[Path],
    devices: Iterable[ComputeCapability],
    which: Modules,
    on_event: OnEvent = ignore,
    environment: Mapping[str, str] | None = None,
) -> tuple[Compiled, ...]:
    """Compile the PTX that devices have to use of the libraries below these paths.

    environment: see `compiler`. Raises InputError for an image in files, OutsideError where the
    compiler is not to be had.
    """
    devices = tuple(devices)
    with compiler(on_event, environment) as ptxas, step("compile PTX", on_event) as running:
        results: list[Compiled] = []
        for name, data in _libraries(paths):
            running.log(name)
            for device in devices:
                results += compile_library(ptxas, name, data, device, which)
    return tuple(results)


def require(results: Iterable[Compiled]) -> None:
    """Raise CheckFailed where ptxas does not compile something."""
    if failed := next((result for result in results if result.words), None):
        raise CheckFailed(str(failed), "take a release whose wheels hold code for this GPU")


def compile_library(
    ptxas: Path, name: str, data: Buffer, device: ComputeCapability, which: Modules
) -> Iterator[Compiled]:
    """Compile the PTX that a device has to use of one library, in groups of the same directives."""
    groups: dict[Directives, list[Entry]] = {}
    for entry in _used(containers(data), device):
        if text := ptx.directives(data, entry):
            groups.setdefault(text, []).append(entry)
    for directives, entries in groups.items():
        chosen = entries if which == "all" else [min(entries, key=lambda entry: entry.code_size)]

        def attempt(entry: Entry, directives: Directives = directives) -> str:
            return _compile(ptxas, ptx.text(data, entry), _architecture(directives, device))

        failures = filter(None, parallel.each(attempt, chosen))
        yield Compiled(name, directives, device, len(entries), len(chosen), next(failures, ""))


@contextmanager
def compiler(
    on_event: OnEvent = ignore, environment: Mapping[str, str] | None = None
) -> Iterator[Path]:
    """Yield ptxas, from its wheel. environment: variables for uv, which fetches it, beside those of
    this process. Raises OutsideError where no index has it."""
    import uv

    with (
        tempfile.TemporaryDirectory(prefix="ptxas-") as folder,
        step(f"fetch ptxas {VERSION}", on_event),
    ):
        wanted = Path(folder, "wanted.txt")
        wanted.write_text(f"{_WHEEL}\n")
        command = [uv.find_uv_bin(), "pip", "install", "--requirements", str(wanted)]
        command += ["--target", folder, "--no-deps", "--only-binary", ":all:", "--require-hashes"]
        command += ["--python-version", "3.11", "--python-platform", "x86_64-manylinux_2_28"]
        command += ["--python", sys.executable, "--quiet"]
        variables = {**os.environ, **(environment or {}), "NO_COLOR": "1"}
        done = subprocess.run(command, env=variables, capture_output=True, text=True)
        if done.returncode:
            found = re.search(r"Failed to fetch: .*", done.stderr)
            why = masked(found[0] if found else " ".join(done.stderr.split()))
            fix = "check the network, or name an index that is reachable in UV_DEFAULT_INDEX"
            raise OutsideError(
                f"ptxas {VERSION} cannot be fetched: {why}", fix_of(done.stderr, fix)
            )
        yield Path(folder, "nvidia/cuda_nvcc/bin/ptxas")


def _used(present: Iterable[Container], device: ComputeCapability) -> Iterator[Entry]:
    """Yield the PTX entries that the driver chooses for a device."""
    for container in present:
        targets = [entry.target for entry in container.entries]
        picked = choose(targets, device) if container.section != LINK_INPUT else None
        if picked and picked.kind == PTX:
            yield container.entries[targets.index(picked)]


def _architecture(directives: Directives, device: ComputeCapability) -> str:
    """Return what the driver would compile for: sm_90, or sm_90a for PTX of that very target."""
    same = directives.target.architecture == device.architecture
    return f"sm_{device.architecture}{directives.target.suffix if same else ''}"


def _compile(ptxas: Path, text: bytes, architecture: str) -> str:
    """Return what ptxas says of a text that it does not compile, "" where it does."""
    with tempfile.NamedTemporaryFile(suffix=".ptx") as file:
        file.write(text.rstrip(b"\0"))
        file.flush()
        command = [str(ptxas), f"-arch={architecture}", "-o", os.devnull, file.name]
        try:
            run = subprocess.run(
                command, capture_output=True, text=True, errors="replace", timeout=_SECONDS
            )
        except subprocess.TimeoutExpired:
            return f"it did not end in {_SECONDS:.0f} s"
    if run.returncode == 0:
        return ""
    lines = (run.stderr + run.stdout).strip().splitlines() or [f"exit code {run.returncode}"]
    return lines[0].replace(f"{file.name}, ", "").replace(file.name, "").strip()


def _libraries(paths: Iterable[Path]) -> Iterator[tuple[str, Buffer]]:
    """Yield each library below these paths by its name, memory-mapped while it is looked at."""
    for path in paths:
        if path.is_dir() or LIBRARY_NAME.search(path.name):
            for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
                if LIBRARY_NAME.search(file.name) and file.is_file() and not file.is_symlink():
                    with file.open("rb") as opened:
                        yield from _mapped(file.name, opened)
        elif path.suffix == ".whl":
            with zipfile.ZipFile(path) as archive:
                for member in archive.infolist():
                    if LIBRARY_NAME.search(member.filename):
                        with tempfile.TemporaryFile() as unpacked, archive.open(member) as packed:
                            shutil.copyfileobj(packed, unpacked, 1 << 20)
                            yield from _mapped(Path(member.filename).name, unpacked)
        else:
            raise InputError(
                f"{path}: PTX is compiled of wheels, folders and libraries",
                "leave out --ptx, or name the wheels that the image was made from",
            )


def _mapped(name: str, file: IO[bytes]) -> Iterator[tuple[str, Buffer]]:
    file.seek(0)
    if file.read(4) == MAGIC:
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            yield name, data
