"""PyTorch x accelerator: the CUDA libraries are those that its wheel asks for, each exactly.

So a GPU decides the release: PyPI has one wheel of each for Linux, with one CUDA.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from packaging.version import Version

from builder.config import compatibility
from builder.config.image_yaml import ImageSpec
from builder.config.stack import Fact, Prune, RefusedError, Runs, Stack, runs_on
from builder.facts import Source, cuda, gpu_support, read_table, sources_of
from builder.facts.accelerators import Accelerator

_RUNS: dict[str, Runs] = {"native": "native", "older minor": "native", "PTX": "ptx"}
"""How kernels run, by the verdict's word."""


@dataclass(frozen=True)
class Release:
    """A release of PyTorch on PyPI. cuda, cudnn: those that its wheel for Linux asks for."""

    version: str
    python: tuple[str, ...]
    cuda: str
    cudnn: str
    source: Source


@cache
def releases() -> tuple[Release, ...]:
    """Return the releases of releases.yaml, oldest first."""
    table = read_table(Path(__file__).with_name("releases.yaml"))
    source = sources_of(table)["wheel"]
    return tuple(
        Release(row["version"], tuple(row["python"]), row["cuda"], row["cudnn"], source)
        for row in table["releases"]
    )


def resolve(spec: ImageSpec) -> Stack:
    """Return the versions of an image with PyTorch. Raises RefusedError for what cannot work."""
    accelerator = compatibility.accelerator_of(spec)
    release = next((row for row in releases() if row.version == spec.release), None)
    if release is None:
        raise RefusedError("torch", f"no PyTorch {spec.release} is known")
    if accelerator.kind != "gpu":
        what = "PyPI's wheel of PyTorch for Linux is for NVIDIA's GPUs"
        raise RefusedError("torch", f"{accelerator.name}: {what}", "leave torch out: TensorFlow")
    if not spec.has_own_base:
        raise RefusedError("base", "an image with PyTorch has a base of its own", "remove base")
    for name in spec.cuda:
        raise RefusedError(
            f"cuda.{name}", f"PyTorch {spec.release} asks for its CUDA exactly", "remove cuda"
        )
    known = compatibility.facts(
        spec, accelerator, f"PyTorch {release.version}", release.python, release.source
    )
    runs = _runs(accelerator, release)
    if runs == "none" or (runs == "ptx" and not spec.allow_ptx):
        how = "only PTX" if runs == "ptx" else "no kernels"
        raise RefusedError(
            "torch",
            f"PyTorch {spec.release} (CUDA {release.cuda}, cuDNN {release.cudnn}) has {how} for "
            f"{accelerator.name} ({accelerator.compute_capability})",
        )
    capability = accelerator.compute_capability or ""
    mode = spec.prune or spec.framework
    return Stack(
        spec,
        accelerator,
        "torch",
        spec.release,
        spec.python,
        release.cuda,
        release.cudnn,
        capability,
        constraints={f"nvidia-cudnn-cu{Version(release.cuda).major}": release.cudnn},
        runs=runs,
        prune=None if mode == "off" else Prune(capability, mode),
        facts=(*known, *_facts(accelerator, release, runs)),
    )


def _runs(accelerator: Accelerator, release: Release) -> Runs:
    """Return how the kernels of PyTorch, and of the cuDNN that it asks for, run on a GPU."""
    capability = accelerator.compute_capability or ""
    rows = [row for row in cuda.cuda().cudnn if Version(row.since) <= Version(release.cudnn)]
    if not any(runs_on(code, capability) for code in rows[-1].capabilities):
        return "none"
    read = next(
        row
        for row in gpu_support.read()
        if (row.framework, row.version) == ("PyTorch", release.version)
    )
    return _RUNS.get(read.support(capability), "none")


def _facts(accelerator: Accelerator, release: Release, runs: Runs) -> Iterator[Fact]:
    capability = accelerator.compute_capability or ""
    name, source = accelerator.name, release.source
    yield Fact.of(f"{name}'s compute capability", capability, accelerator.source)
    yield Fact.of(f"CUDA that PyTorch {release.version} asks for", release.cuda, source)
    yield Fact.of(f"cuDNN that PyTorch {release.version} asks for", release.cudnn, source)
    how = {"native": "machine code", "ptx": "compiled from PTX at the first start: minutes"}
    computed = "device code read from the wheel (docs/gpu-support.md)"
    yield Fact(f"PyTorch {release.version} on {name}", how[runs], computed, True)
    for row in releases()[releases().index(release) + 1 :]:
        works = _runs(accelerator, row) == "native"
        what = "machine code" if works else f"no kernels for {capability}"
        yield Fact(f"PyTorch {row.version}, CUDA {row.cuda}, on {name}", what, computed, True)
    major = release.cuda.partition(".")[0]
    driver = next(row for row in cuda.cuda().drivers if row.cuda == major)
    yield Fact.of(f"oldest driver for CUDA {major}", driver.driver, driver.source)
