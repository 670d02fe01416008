"""Which release of a framework runs on which GPU: gpu-support.json, which scripts/gpu-support
computes from the wheels, and the document that shows it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import cache
from typing import Any

from builder.facts import DATA, Source, accelerators

FILE = DATA / "gpu-support.json"

HEAD = """# Which GPUs a wheel runs on

This table is computed: `scripts/gpu-support` downloads each wheel from the index, reads the device
code in it, and judges it as the driver would (docs/device-code.md). It writes
builder/facts/gpu-support.json, and this page from it. Nothing here is copied from release notes.

| a cell says | the driver would |
|---|---|
| native | run code compiled for this GPU, or for an older minor of its generation |
| PTX, 9 min | have to compile up to that many minutes of PTX first, on one core |
| - | find nothing that it can run |

The number is the oldest branch of Linux drivers: the highest of what the wheel's CUDA, the PTX and
the GPU itself ask for. A row judges the framework's own wheel. The CUDA libraries beside it have to
run, too: cuDNN from 9.11 on has nothing for a V100. `device-code-audit FOLDER --gpu V100` reads
everything that is installed. Programs that make code when they run (Triton, XLA, NVRTC) are not
judged by it.

99 cells were compared with what the projects publish, the compute capabilities in TensorFlow's
build_info.py and PyTorch's torch.cuda.get_arch_list(): they differ in ten, TensorFlow 2.16 to 2.20
on GPUs after Hopper, where 1,149 modules hold PTX for sm_90a alone (docs/device-code.md;
tests/devicecode/test_gpu_support.py has the lists).
"""


@dataclass(frozen=True)
class Wheel:
    """One wheel that was read; sha256 in hex."""

    package: str
    version: str
    sha256: str


@dataclass(frozen=True)
class Cell:
    """How a release runs on a GPU.

    support: the verdict's word ("native", "older minor", "PTX", "missing"). seconds: to compile PTX
    on one core. driver: the oldest branch ("525"), "" where it does not run.
    """

    support: str
    seconds: int
    driver: str

    def __str__(self) -> str:
        if not self.driver:
            return "-"
        if self.support == "PTX":
            return f"PTX, {max(1, round(self.seconds / 60))} min ({self.driver})"
        return f"native ({self.driver})"


@dataclass(frozen=True)
class Release:
    """One release of a framework: its wheels together, on each GPU.

    targets: what nvcc compiled its libraries for: machine code (sm_70), then PTX (compute_90).
    """

    framework: str
    version: str
    cuda: int
    wheels: tuple[Wheel, ...]
    targets: tuple[str, ...]
    cells: dict[str, Cell]

    @property
    def source(self) -> Source:
        wheels = ", ".join(f"{wheel.package} {wheel.version}" for wheel in self.wheels)
        return Source(f"device code read from the wheel of {wheels}", True)

    def support(self, capability: str) -> str:
        """Return the verdict's word for GPUs of a compute capability ("9.0")."""
        return next(
            cell.support
            for gpu, cell in self.cells.items()
            if accelerators.find(gpu).compute_capability == capability
        )


def parse(text: str) -> tuple[Release, ...]:
    """Return the releases of gpu-support.json."""
    return tuple(
        Release(
            row["framework"],
            row["version"],
            row["cuda"],
            tuple(Wheel(**wheel) for wheel in row["wheels"]),
            tuple(row["targets"]),
            {gpu: Cell(**cell) for gpu, cell in row["cells"].items()},
        )
        for row in json.loads(text)
    )


def read() -> tuple[Release, ...]:
    """Return the releases that were read, in the order of the table."""
    return parse(FILE.read_text(encoding="utf-8"))


@cache
def tensorflow(minor: str) -> Release:
    """Return what was read of a minor release of TensorFlow ("2.20")."""
    return next(
        release
        for release in read()
        if release.framework == "TensorFlow" and release.version.startswith(f"{minor}.")
    )


def dump(releases: tuple[Release, ...]) -> str:
    """Return the text of gpu-support.json: a release a line, so that a diff shows which changed."""
    rows: Iterator[Any] = (asdict(release) for release in releases)
    return "[\n" + ",\n".join(json.dumps(row) for row in rows) + "\n]\n"


def document(releases: tuple[Release, ...]) -> str:
    """Return the page that shows these releases."""
    gpus = list(releases[0].cells)
    lines = [HEAD]
    for framework in dict.fromkeys(release.framework for release in releases):
        lines += [f"## {framework}", "", f"| | CUDA | {' | '.join(gpus)} |"]
        lines.append("|---" * (len(gpus) + 2) + "|")
        lines += [
            f"| {release.version} | {release.cuda} | "
            + " | ".join(str(release.cells[gpu]) for gpu in gpus)
            + " |"
            for release in releases
            if release.framework == framework
        ]
        lines.append("")
    lines += ["## The wheels", ""]
    lines += ["Each is the one for Linux on x86-64, by the checksum that the index gives.", ""]
    lines += ["| wheel | sha256 |", "|---|---|"]
    for release in releases:
        lines += [f"| {each.package} {each.version} | `{each.sha256}` |" for each in release.wheels]
    return "\n".join(lines) + "\n"
