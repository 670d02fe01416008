"""PyTorch x accelerator: the CUDA libraries are those that its wheel asks for, each exactly.

So a GPU decides the release: PyPI has one wheel of each for Linux, with one CUDA. Which releases
there are, what each asks for and where its kernels run is computed from the wheels
(builder/facts/gpu-support.json).
"""

from __future__ import annotations

from collections.abc import Iterator

from builder.config import compatibility
from builder.config.image_yaml import ImageSpec
from builder.config.stack import Fact, RefusedError, Runs, Stack
from builder.devicecode import gpu_support
from builder.devicecode.gpu_support import Release
from builder.facts.accelerators import Accelerator
from builder.facts.frameworks import minor


def cuda_of(release: Release) -> str:
    """Return the CUDA that a release asks for: "12.8"."""
    toolkit, major = release.asks_for.get("cuda-toolkit"), release.cuda
    return minor(toolkit or release.asks_for[f"nvidia-cuda-runtime-cu{major}"])


def cudnn_of(release: Release) -> str:
    """Return the cuDNN that a release asks for."""
    return release.asks_for[f"nvidia-cudnn-cu{release.cuda}"]


def resolve(spec: ImageSpec) -> Stack:
    """Return the versions of an image with PyTorch. Raises RefusedError for what cannot work."""
    accelerator = compatibility.accelerator_of(spec)
    release = next((row for row in gpu_support.of("PyTorch") if row.version == spec.release), None)
    if release is None:
        raise RefusedError("torch", f"no PyTorch {spec.release} is known")
    if accelerator.kind != "gpu":
        what = "PyPI's wheel of PyTorch for Linux is for NVIDIA's GPUs"
        raise RefusedError("torch", f"{accelerator.name}: {what}", "leave torch out: TensorFlow")
    compatibility.require_own_base(spec)
    for name in spec.cuda:
        raise RefusedError(
            f"cuda.{name}", f"PyTorch {spec.release} asks for its CUDA exactly", "remove cuda"
        )
    facts = compatibility.facts(spec, accelerator, release)
    runs, toolkit, cudnn = _runs(accelerator, release), cuda_of(release), cudnn_of(release)
    if runs == "none" or (runs == "ptx" and not spec.allow_ptx):
        how = "only PTX" if runs == "ptx" else "no kernels"
        raise RefusedError(
            "torch",
            f"PyTorch {spec.release} (CUDA {toolkit}, cuDNN {cudnn}) has {how} for "
            f"{accelerator.name} ({accelerator.compute_capability})",
        )
    capability = accelerator.compute_capability or ""
    return Stack(
        spec,
        accelerator,
        "torch",
        spec.release,
        spec.python,
        toolkit,
        cudnn,
        capability,
        constraints={f"nvidia-cudnn-cu{release.cuda}": cudnn},
        runs=runs,
        prune=compatibility.pruned(spec, capability),
        facts=(*facts, *_facts(accelerator, release, runs)),
    )


def _runs(accelerator: Accelerator, release: Release) -> Runs:
    """Return how the kernels of PyTorch, and of the cuDNN that it asks for, run on a GPU."""
    capability = accelerator.compute_capability or ""
    if not compatibility.cudnn_runs(cudnn_of(release), capability):
        return "none"
    return compatibility.kernels(release, capability)


def _facts(accelerator: Accelerator, release: Release, runs: Runs) -> Iterator[Fact]:
    capability, index = accelerator.compute_capability or "", release.metadata
    name, title = accelerator.name, f"PyTorch {release.version}"
    yield Fact.of(f"{name}'s compute capability", capability, accelerator.source)
    yield Fact.of(f"CUDA that {title} asks for", cuda_of(release), index)
    yield Fact.of(f"cuDNN that {title} asks for", cudnn_of(release), index)
    kinds = {"native": "machine code", "ptx": "compiled from PTX at the first start: minutes"}
    yield Fact.of(f"{title} on {name}", kinds[runs], release.source)
    yield compatibility.driver_for(str(release.cuda))
