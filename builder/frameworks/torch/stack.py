"""PyTorch x accelerator: the CUDA libraries are those that its wheel asks for, each exactly.

So a GPU decides the release: PyPI has one wheel of each for Linux, with one CUDA. Which releases
there are, what each asks for and where its kernels run is computed from the wheels
(builder/facts/gpu-support.json). Other indexes have builds for other CUDAs, by a label: builds.py.
"""

from __future__ import annotations

from collections.abc import Iterator

from builder.config import compatibility
from builder.config.image_yaml import ImageSpec
from builder.config.stack import Fact, RefusedError, Stack
from builder.facts import cuda, frameworks
from builder.facts.accelerators import Accelerator
from builder.frameworks.torch import builds
from builder.frameworks.torch.builds import CudaBuild


def resolve(spec: ImageSpec) -> Stack:
    """Return the versions of an image with PyTorch. Raises RefusedError for what cannot work."""
    accelerator = compatibility.accelerator_of(spec)
    if accelerator.kind != "gpu":
        what = "PyPI's wheel of PyTorch for Linux is for NVIDIA's GPUs"
        raise RefusedError("torch", f"{accelerator.name}: {what}", "leave torch out: TensorFlow")
    capability, build = accelerator.compute_capability or "", builds.find(spec.release)
    if build is None:
        other = _other(capability, None) if "+" in spec.release else ""
        raise RefusedError("torch", f"no PyTorch {spec.release} is known", otherwise=other)
    compatibility.require_own_base(spec)
    for name in spec.cuda:
        raise RefusedError(
            f"cuda.{name}", f"PyTorch {spec.release} asks for its CUDA exactly", "remove cuda"
        )
    facts = compatibility.facts(spec, accelerator, build.release, build.source)
    runs = build.runs(capability)
    if runs == "none" or (runs == "ptx" and not spec.allow_ptx):
        how = "only PTX" if runs == "ptx" else "no kernels"
        raise RefusedError(
            "torch",
            f"PyTorch {spec.release} (CUDA {build.cuda}, cuDNN {build.cudnn}) has {how} for "
            f"{accelerator.name} ({capability})",
            otherwise=_other(capability, build),
        )
    return Stack(
        spec,
        accelerator,
        "torch",
        spec.release,
        spec.python,
        build.cuda,
        build.cudnn,
        capability,
        constraints={f"nvidia-cudnn-cu{build.major}": build.cudnn},
        runs=runs,
        prune=compatibility.pruned(spec, capability),
        facts=(*facts, *_facts(accelerator, build)),
    )


def _other(capability: str, refused: CudaBuild | None) -> str:
    """Return what to write for a build that goes further than PyPI's wheels: that of the refused
    release, else the newest; "" where there is none."""
    of_release = (b for b in builds.every() if refused and b.release is refused.release)
    same = next((b for b in of_release if b.runs(capability) == "native"), None)
    build = same or builds.further(capability, None)
    return f"torch: {_written(build)}" if build and build.label else ""


def _written(build: CudaBuild) -> str:
    """Return a build and how an index that has it is named."""
    (index,) = frameworks.of("torch").indexes
    return f"{build.version} with an index that has it, as UV_INDEX={index}/{build.label}"


def _facts(accelerator: Accelerator, build: CudaBuild) -> Iterator[Fact]:
    capability, name = accelerator.compute_capability or "", accelerator.name
    index = build.source if build.capabilities else build.release.metadata
    title = f"PyTorch {build.version}"
    yield Fact.of(f"{name}'s compute capability", capability, accelerator.source)
    yield Fact.of(f"CUDA that {title} asks for", build.cuda, index)
    yield Fact.of(f"cuDNN that {title} asks for", build.cudnn, index)
    kinds = {"native": "machine code", "ptx": "compiled from PTX at the first start: minutes"}
    yield Fact.of(f"{title} on {name}", kinds[build.runs(capability)], build.source)
    yield compatibility.driver_for(build.major)
    if newer := builds.further(capability, build):
        yield Fact.of(f"newer for {name} than PyPI has", _written(newer), newer.source)
    if older := builds.for_older_drivers(capability, build):
        oldest = cuda.oldest_driver(older.major)
        assert oldest
        yield Fact.of(f"for drivers from {oldest.driver} on", _written(older), older.source)
