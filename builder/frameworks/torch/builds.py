"""PyTorch's builds by CUDA: the wheel on PyPI, and those of builds.yaml."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from builder.config import compatibility
from builder.config.stack import Runs, runs_on
from builder.devicecode import gpu_support
from builder.devicecode.gpu_support import Release
from builder.facts import Source, read_table, sources_of
from builder.facts.frameworks import minor


@dataclass(frozen=True)
class CudaBuild:
    """A wheel of a release, for one CUDA."""

    version: str
    """With its label: "2.14.1+cu126"; PyPI's has none."""
    release: Release
    cuda: str
    cudnn: str
    """What it asks for."""
    source: Source
    capabilities: tuple[str, ...] = ()
    """What there is machine code for; () where that is what PyPI's wheel carries."""

    @property
    def label(self) -> str:
        return self.version.partition("+")[2]

    @property
    def major(self) -> str:
        """The CUDA whose libraries it asks for: "12"."""
        return self.cuda.partition(".")[0]

    def runs(self, capability: str) -> Runs:
        """Return how its kernels, and those of the cuDNN that it asks for, run on a GPU."""
        if not compatibility.cudnn_runs(self.cudnn, capability):
            return "none"
        if not self.capabilities:
            return compatibility.kernels(self.release, capability)
        return "native" if any(runs_on(each, capability) for each in self.capabilities) else "none"


@cache
def every() -> tuple[CudaBuild, ...]:
    """Return all that are known: the newest release first, and of each the one on PyPI, the same
    with a label, then the newest CUDA."""
    table = read_table(Path(__file__).with_name("builds.yaml"))
    rows, sources = table["builds"], sources_of(table)
    return tuple(
        build
        for release in reversed(gpu_support.of("PyTorch"))
        for build in _of(release, rows, sources)
    )


def _of(
    release: Release, rows: list[dict[str, Any]], sources: dict[str, Source]
) -> Iterator[CudaBuild]:
    version, major = release.version, release.cuda
    toolkit = release.asks_for.get("cuda-toolkit")
    cuda = minor(toolkit or release.asks_for[f"nvidia-cuda-runtime-cu{major}"])
    cudnn = release.asks_for[f"nvidia-cudnn-cu{major}"]
    yield CudaBuild(version, release, cuda, cudnn, release.source)
    same = Source(f"taken for the same as {release.source.text}", False)
    yield CudaBuild(_labelled(version, cuda), release, cuda, cudnn, same)
    for row in reversed(rows):
        if minor(version) in row["releases"]:
            yield CudaBuild(
                _labelled(version, row["cuda"]),
                release,
                row["cuda"],
                row["cudnn"],
                sources[row["source"]],
                tuple(row["capabilities"]),
            )


def _labelled(version: str, cuda: str) -> str:
    return f"{version}+cu{cuda.replace('.', '')}"


def find(version: str) -> CudaBuild | None:
    """Return a build by its version, None where it is not known."""
    return next((build for build in every() if build.version == version), None)


def further(capability: str, than: CudaBuild | None) -> CudaBuild | None:
    """Return the newest build that runs on a GPU and is newer than what PyPI has for it, None where
    PyPI has the newest, or `than` is no older."""
    first = next(build for build in every() if build.runs(capability) == "native")
    known = gpu_support.versions("PyTorch")
    newer = than is None or known.index(first.release.version) > known.index(than.release.version)
    return first if first.label and newer else None


def for_older_drivers(capability: str, than: CudaBuild) -> CudaBuild | None:
    """Return the newest build that runs on a GPU with an older CUDA, and so with older drivers; of
    the releases that PyPI has for a newer CUDA."""
    older = (b for b in every() if int(b.major) < int(than.major))
    first = next((build for build in older if build.runs(capability) == "native"), None)
    return first if first and first.label else None
