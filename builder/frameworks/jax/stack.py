"""JAX x accelerator: the newest CUDA that its wheels have for a GPU, and a cuDNN with its kernels.

A release has wheels for several CUDAs, and takes a range of cuDNNs. Which there are, and where the
kernels of each run, is computed from the wheels (builder/facts/gpu-support.json, cuda.yaml). On a
TPU the release itself names its libtpu.
"""

from __future__ import annotations

from collections.abc import Iterator

from packaging.specifiers import SpecifierSet
from packaging.version import Version

from builder.config import compatibility
from builder.config.image_yaml import ImageSpec
from builder.config.stack import Fact, RefusedError, Stack
from builder.devicecode import gpu_support
from builder.devicecode.gpu_support import Release
from builder.facts import cuda
from builder.facts.accelerators import Accelerator
from builder.facts.frameworks import minor

_LIBTPU = "libtpu"


def resolve(spec: ImageSpec) -> Stack:
    """Return the versions of an image with JAX. Raises RefusedError for what cannot work."""
    accelerator = compatibility.accelerator_of(spec)
    of_release = gpu_support.of("JAX", spec.release)
    if not of_release:
        raise RefusedError("jax", f"no JAX {spec.release} is known")
    compatibility.require_own_base(spec)
    for name in set(spec.cuda) - {"cudnn"}:
        raise RefusedError(f"cuda.{name}", "of JAX's CUDA only cuDNN can be chosen", "remove it")
    row = of_release[0]
    facts = compatibility.facts(spec, accelerator, row)
    compatibility.check_for_gpus(spec, accelerator)
    if accelerator.kind == "gpu":
        return _gpu(spec, accelerator, of_release, facts)
    extra = "[tpu]" if accelerator.kind == "tpu" else ""
    if extra:
        wanted = f"{_LIBTPU} that JAX {spec.release} asks for, beside the jaxlib of its own release"
        facts += (Fact.of(wanted, row.asks_for[_LIBTPU], row.metadata),)
    return Stack(spec, accelerator, "jax", spec.release, spec.python, facts=facts, extra=extra)


def _gpu(
    spec: ImageSpec,
    accelerator: Accelerator,
    of_release: tuple[Release, ...],
    facts: tuple[Fact, ...],
) -> Stack:
    capability = accelerator.compute_capability or ""
    native = (row for row in of_release if compatibility.kernels(row, capability) == "native")
    row = next(native, None)
    if row is None:
        name = f"{accelerator.name} ({capability})"
        raise RefusedError("jax", f"JAX {spec.release} has no kernels for {name}")
    name, takes = _cudnn(row)
    runs = [
        known.since
        for known in cuda.cuda().cudnn
        if compatibility.cudnn_runs(known.since, capability)
    ]
    cudnn = spec.cuda.get("cudnn") or max(
        (since for since in runs if since in takes), key=Version, default=""
    )
    _check_cudnn(spec, accelerator, cudnn, takes)
    libraries = {each: version for each, version in row.asks_for.items() if version[0].isdigit()}
    toolkit = next(version for each, version in libraries.items() if "cuda-runtime" in each)
    return Stack(
        spec,
        accelerator,
        "jax",
        spec.release,
        spec.python,
        minor(toolkit),
        cudnn,
        capability,
        constraints={**libraries, name: cudnn},
        prune=compatibility.pruned(spec, capability),
        facts=(*facts, *_facts(accelerator, row, of_release, toolkit, cudnn)),
        extra=f"[cuda{row.cuda}]",
    )


def _cudnn(row: Release) -> tuple[str, SpecifierSet]:
    """Return cuDNN's package for a release, and the versions that the release takes."""
    name = f"nvidia-cudnn-cu{row.cuda}"
    return name, SpecifierSet(row.asks_for[name])


def _check_cudnn(
    spec: ImageSpec, accelerator: Accelerator, cudnn: str, takes: SpecifierSet
) -> None:
    """Raise RefusedError for a cuDNN that JAX does not take, or that has no kernels for a GPU."""
    field = "cuda.cudnn" if spec.cuda else "jax"
    gpu = f"{accelerator.name} ({accelerator.compute_capability})"
    fix = "remove it: `builder explain` names the cuDNN that works" if spec.cuda else ""
    if not cudnn:
        raise RefusedError(field, f"JAX {spec.release} takes no cuDNN with kernels for {gpu}")
    if cudnn not in takes:
        raise RefusedError(field, f"JAX {spec.release} takes cuDNN {takes}, not {cudnn}", fix)
    if not compatibility.cudnn_runs(cudnn, accelerator.compute_capability or ""):
        what = f"cuDNN {cudnn} has no kernels for {gpu}: the first layer would fail there"
        raise RefusedError(field, what, fix)


def _facts(
    accelerator: Accelerator,
    row: Release,
    of_release: tuple[Release, ...],
    toolkit: str,
    cudnn: str,
) -> Iterator[Fact]:
    capability = accelerator.compute_capability or ""
    title, name = f"JAX {row.version}", accelerator.name
    yield Fact.of(f"{name}'s compute capability", capability, accelerator.source)
    for newer in of_release[: of_release.index(row)]:
        what = f"no kernels for {capability}"
        yield Fact.of(f"{title}, CUDA {newer.cuda}, on {name}", what, newer.source)
    yield Fact.of(f"{title}, CUDA {row.cuda}, on {name}", "machine code", row.source)
    index = "the versions on PyPI when the wheels were read"
    yield Fact(f"CUDA, within what {title} takes", toolkit, index, True)
    _, takes = _cudnn(row)
    chosen = cuda.cudnn(cudnn)
    assert chosen is not None
    yield Fact.of(
        f"cuDNN with kernels for {capability} ({title} takes {takes})", cudnn, chosen.source
    )
    for without in cuda.cuda().cudnn:
        if Version(without.since) > Version(cudnn) and not compatibility.cudnn_runs(
            without.since, capability
        ):
            what = f"no kernels for {capability}"
            yield Fact.of(f"cuDNN {without.since} and newer on {name}", what, without.source)
            break
    yield compatibility.driver_for(str(row.cuda))
