"""The stack of a GPU image: CUDA's libraries, how TensorFlow's kernels run, what is pruned."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from dataclasses import replace

from packaging.version import Version

from builder.config.fields import PruneMode
from builder.config.image_yaml import ImageSpec
from builder.config.stack import Fact, Prune, RefusedError, Runs, Stack, runs_on
from builder.facts import Source, gpu_support
from builder.facts.accelerators import Accelerator
from builder.facts.cuda import Cudnn, Driver
from builder.frameworks.tensorflow.releases import Release, Tables

NVIDIA_IMAGES = "nvcr.io/nvidia/tensorflow"
"""Images with a TensorFlow that NVIDIA builds; the tables are about the wheels on PyPI."""

TOOLKIT = frozenset({"cudart", "cublas", "cupti", "nvcc", "nvrtc", "nvjitlink"})
"""The libraries that carry the toolkit's own version."""

_WRITTEN = Source("image.yaml", True)

_RUNS: Mapping[str, Runs] = {
    "native": "native",
    "older minor": "native",
    "PTX": "ptx",
    "missing": "none",
}
"""How kernels run, by the verdict's word."""


def resolve(
    spec: ImageSpec,
    accelerator: Accelerator,
    release: Release,
    tables: Tables,
    facts: tuple[Fact, ...],
) -> Stack:
    """Return the stack of an image for a GPU; `facts` are those of any image.

    Raises RefusedError for what cannot work.
    """
    runs = _check_kernels(spec, accelerator, release)
    driver = next(row for row in tables.drivers if _major(row.cuda) == _major(release.cuda))
    known = Stack(
        spec,
        accelerator,
        "tensorflow",
        spec.release,
        spec.python,
        release.cuda,
        release.cudnn,
        accelerator.compute_capability or "",
        runs=runs,
        extra="[and-cuda]",
        facts=(*facts, *_gpu_facts(spec, accelerator, release, runs, driver)),
    )
    if spec.has_own_base:
        return _with_libraries(known, release, tables)
    for name in spec.cuda:
        raise RefusedError(
            f"cuda.{name}",
            "a published base brings its own CUDA libraries",
            "remove cuda, or write base: own",
        )
    return known


def _with_libraries(known: Stack, release: Release, tables: Tables) -> Stack:
    """Return the stack with the CUDA libraries of our own base, and what is pruned there."""
    spec = known.spec
    libraries = _libraries(spec, known.accelerator, release, tables)
    version = libraries["cudnn"]
    cudnn = _check_cudnn(spec, known.accelerator, version, tables)
    facts = [
        *known.facts,
        Fact.of(
            f"compute capabilities that cuDNN {version} has machine code for",
            ", ".join(cudnn.capabilities),
            cudnn.source,
        ),
    ]
    prune = _prune(spec.prune or spec.framework, known.compute_capability or "", release)
    if prune:
        facts.append(
            Fact(
                f"device code that stays (prune: {prune.only}), for compute capability",
                f"{prune.keep} and newer minors of {prune.keep.partition('.')[0]}",
                "image.yaml" if spec.prune else "the default of image.yaml",
                True,
            )
        )
    tested = tables.sets[release.wheels or ""].source
    packages = {_package(name, release, tables): name for name in libraries}
    for package, name in packages.items():
        source = release.pins_source if name in release.pins else tested
        source = _WRITTEN if name in spec.cuda else source
        facts.append(Fact.of(package, libraries[name], source))
    return replace(
        known,
        cudnn=version,
        constraints={package: libraries[name] for package, name in packages.items()},
        prune=prune,
        facts=tuple(facts),
    )


def _prune(mode: PruneMode, capability: str, release: Release) -> Prune | None:
    """Return what is kept, None where nothing is taken out.

    TensorFlow's libraries hold the same code for a T4 as for a V100 (sm_70): with "tensorflow",
    both keep 7.0 and share a base. NVIDIA's libraries hold code for each.
    """
    if mode == "off":
        return None
    if mode == "all":
        return Prune(capability, "all")
    code = gpu_support.tensorflow(release.minor).targets
    targets = (name.removeprefix("sm_") for name in code if name.startswith("sm_"))
    fitting = [own for n in targets if runs_on(own := f"{n[:-1]}.{n[-1]}", capability)]
    return Prune(max(fitting, default=capability), "tensorflow")


def _gpu_facts(
    spec: ImageSpec, accelerator: Accelerator, release: Release, runs: Runs, driver: Driver
) -> Iterator[Fact]:
    architecture = accelerator.architecture
    assert architecture is not None
    name, capability = accelerator.name, accelerator.compute_capability or ""
    matrix = architecture.source
    yield Fact.of(
        f"{name}'s compute capability ({architecture.name})", capability, accelerator.source
    )
    last = f" to {architecture.last_cuda}" if architecture.last_cuda else " or later"
    yield Fact.of(f"CUDA that knows {architecture.name}", architecture.first_cuda + last, matrix)
    if architecture.last_driver:
        yield Fact.of(
            f"last driver branch that knows {architecture.name}", architecture.last_driver, matrix
        )
    tested = release.source
    yield Fact.of(f"CUDA that TensorFlow {release.minor} was tested with", release.cuda, tested)
    yield Fact.of(f"cuDNN that TensorFlow {release.minor} was tested with", release.cudnn, tested)
    if spec.base.startswith(NVIDIA_IMAGES):
        yield Fact(
            "kernels of NVIDIA's own TensorFlow", "read in the image", "the published base", False
        )
    else:
        how = {"native": "machine code", "ptx": "compiled from PTX at the first start: minutes"}
        wheels = gpu_support.tensorflow(release.minor)
        yield Fact.of(
            f"TensorFlow {release.minor} carries {', '.join(wheels.targets)}; on {name}",
            how.get(runs, runs),
            wheels.source,
        )
    yield Fact.of(f"oldest driver for CUDA {_major(release.cuda)}", driver.driver, driver.source)


def _check_kernels(spec: ImageSpec, accelerator: Accelerator, release: Release) -> Runs:
    """Return how TensorFlow's own kernels run on the accelerator.

    Raises RefusedError where they do not.

    A toolkit older than the architecture may still run, with machine code of the same major (an L4
    runs an A100's). Like PTX it has to be asked for, as none of its libraries was tested there.
    """
    architecture = accelerator.architecture
    assert architecture is not None
    name = f"{accelerator.name} ({accelerator.compute_capability})"
    if spec.base.startswith(NVIDIA_IMAGES):
        return "native"
    if architecture.last_cuda and _major(release.cuda) > int(architecture.last_cuda):
        raise RefusedError(
            "tensorflow",
            f"TensorFlow {spec.release} needs CUDA {release.cuda}, and CUDA "
            f"{architecture.last_cuda} is the last that knows {name}",
        )
    wheels = gpu_support.tensorflow(release.minor)
    runs = _RUNS[wheels.support(accelerator.compute_capability or "")]
    older = Version(release.cuda) < Version(architecture.first_cuda)
    has = f"TensorFlow {spec.release} (CUDA {release.cuda}: {', '.join(wheels.targets)})"
    if runs == "none" or (runs == "ptx" and older):
        raise RefusedError(
            "tensorflow",
            f"{has} is older than {architecture.name}: it has no kernels for {name}, which needs "
            f"CUDA {architecture.first_cuda}",
            otherwise=f"a base that was built for it, such as base: {NVIDIA_IMAGES}"
            f":25.02-tf2-py3@sha256:<digest> with tensorflow: 2.17.0 and python: 3.12",
        )
    if (runs == "ptx" or older) and not spec.allow_ptx:
        slow = "only PTX, compiled at the first start, which takes minutes"
        untested = f"libraries from before {architecture.name} (CUDA {architecture.first_cuda})"
        raise RefusedError(
            "tensorflow",
            f"{has} has {slow if runs == 'ptx' else untested}, for {name}",
            otherwise="allow_ptx: true to take it as it is "
            + ("(PTX, slow start)" if runs == "ptx" else "(untested there)"),
        )
    return runs


def _libraries(
    spec: ImageSpec, accelerator: Accelerator, release: Release, tables: Tables
) -> dict[str, str]:
    """Return short name -> version: the libraries that TensorFlow was tested with, and the user's
    pins.
    """
    if release.wheels is None:
        raise RefusedError(
            "tensorflow",
            f"TensorFlow {spec.release} has no CUDA wheels to make our own base from",
            otherwise=f"base: docker.io/tensorflow/tensorflow:{spec.release}-gpu"
            "@sha256:<digest>, which brings its CUDA",
        )
    libraries = {**tables.sets[release.wheels].libraries, **release.pins}
    for name, version in spec.cuda.items():
        _check_pin(name, version, spec, accelerator, release, libraries)
    return {**libraries, **spec.cuda}


def _check_pin(
    name: str,
    version: str,
    spec: ImageSpec,
    accelerator: Accelerator,
    release: Release,
    tested: Mapping[str, str],
) -> None:
    where = f"cuda.{name}"
    if name not in tested:
        near = difflib.get_close_matches(name, tested, n=1)
        known = f"known: {', '.join(tested)}"
        raise RefusedError(
            where,
            f"no CUDA library is called {name!r}",
            f"write {near[0]}; {known}" if near else known,
        )
    architecture = accelerator.architecture
    last = architecture.last_cuda if architecture else None
    remove = f"remove it: TensorFlow {spec.release} was tested with {tested[name]}"
    if name in TOOLKIT and last and _major(version) > int(last):
        raise RefusedError(
            where,
            f"CUDA {_major(version)} has nothing for {accelerator.name} "
            f"({accelerator.compute_capability}): CUDA {last} is the last that does",
            remove,
        )
    first, end = Version(tested[name]), _major(tested[name]) + 1
    if not release.ranges and Version(version) != first:
        raise RefusedError(
            where, f"TensorFlow {spec.release} takes {name} {tested[name]} only", remove
        )
    if not first <= Version(version) < Version(str(end)):
        raise RefusedError(
            where,
            f"TensorFlow {spec.release} takes {name} from {tested[name]} to below {end}, "
            f"not {version}",
            remove,
        )


def _check_cudnn(spec: ImageSpec, accelerator: Accelerator, version: str, tables: Tables) -> Cudnn:
    """Return the code that cuDNN `version` carries.

    Raises RefusedError where it does not run there.
    """
    capability = accelerator.compute_capability or ""
    rows = [row for row in tables.cudnn if Version(row.since) <= Version(version)]
    field = "cuda.cudnn" if "cudnn" in spec.cuda else "tensorflow"
    if not rows:
        raise RefusedError(field, f"what cuDNN {version} carries is not known")
    if _cudnn_runs(rows[-1], capability):
        return rows[-1]
    good = [row.since for row in tables.cudnn if _cudnn_runs(row, capability)]
    raise RefusedError(
        field,
        f"cuDNN {version} has no machine code for {accelerator.name} ({capability}): "
        f"its first layer would fail there",
        f"write {good[-1]}, or leave it out" if good and field == "cuda.cudnn" else "",
    )


def _cudnn_runs(row: Cudnn, capability: str) -> bool:
    return any(runs_on(code, capability) for code in row.capabilities)


def _package(name: str, release: Release, tables: Tables) -> str:
    return f"nvidia-{tables.packages[name]}-cu{_major(release.cuda)}"


def _major(version: str) -> int:
    return Version(version).major
