"""TensorFlow x Python x CUDA x cuDNN x accelerator: what works together.

Of what TensorFlow's open version ranges allow, the default is what a publisher who tests on GPUs
ships with it (builder/facts/cuda.yaml). The lower bound of a range is only the oldest version that
was meant to work: with cuDNN 9.3, TensorFlow 2.21's, no Keras convolution trains on a GPU.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from dataclasses import replace

from packaging.version import Version

from builder.config import compatibility
from builder.config.fields import PruneMode
from builder.config.image_yaml import ImageSpec
from builder.config.stack import Fact, Prune, RefusedError, Runs, Stack, runs_on
from builder.facts import Source, cuda
from builder.facts.accelerators import Accelerator
from builder.facts.frameworks import minor
from builder.frameworks.tensorflow import releases
from builder.frameworks.tensorflow.releases import TensorFlowRelease

NVIDIA_IMAGES = "nvcr.io/nvidia/tensorflow"
"""Images with a TensorFlow that NVIDIA builds; the tables are about the wheels on PyPI."""

_WRITTEN = Source("image.yaml", True)


def resolve(spec: ImageSpec) -> Stack:
    """Return the versions of an image with TensorFlow. Raises RefusedError for what cannot work."""
    accelerator, release = compatibility.accelerator_of(spec), releases.find(spec.release)
    tpu = accelerator.kind == "tpu"
    if tpu and not (release and release.libtpu):
        raise RefusedError(
            "tensorflow", f"TensorFlow {spec.release} has no TPU wheel that can be locked"
        )
    if release is None:
        raise RefusedError("tensorflow", f"no TensorFlow {spec.release} is known")
    facts = compatibility.facts(spec, accelerator, release.wheel)
    compatibility.check_for_gpus(spec, accelerator)
    if accelerator.kind == "gpu":
        return _for_gpu(spec, accelerator, release, facts)
    name = "tensorflow-tpu" if tpu else "tensorflow-cpu"
    libtpu = {"libtpu": release.libtpu} if tpu else {}
    for version in libtpu.values():
        takes = release.wheel.asks_for["libtpu"]
        facts += (Fact.of(f"libtpu ({name} takes {takes})", version, release.wheel.metadata),)
    return Stack(
        spec, accelerator, name, spec.release, spec.python, constraints=libtpu, facts=facts
    )


def _for_gpu(
    spec: ImageSpec, accelerator: Accelerator, release: TensorFlowRelease, facts: tuple[Fact, ...]
) -> Stack:
    """Return the stack of an image for a GPU; `facts` are those of any image.

    Raises RefusedError for what cannot work.
    """
    runs = _check_kernels(spec, accelerator, release)
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
        facts=(*facts, *_gpu_facts(spec, accelerator, release, runs)),
    )
    if spec.has_own_base:
        return _with_libraries(known, release)
    for name in spec.cuda:
        raise RefusedError(
            f"cuda.{name}",
            "a published base brings its own CUDA libraries",
            "remove cuda, or write base: own",
        )
    return known


def _with_libraries(known: Stack, release: TensorFlowRelease) -> Stack:
    """Return the stack with the CUDA libraries of our own base, and what is pruned there."""
    spec = known.spec
    chosen = _libraries(spec, release, known.compute_capability or "")
    libraries = {name: version for name, (version, _) in chosen.items()}
    packages = {_package(name, release): name for name in libraries}
    version = libraries["cudnn"]
    _check_cudnn(spec, known.accelerator, version)
    carries = cuda.cudnn(version)
    assert carries is not None
    capabilities = ", ".join(carries.capabilities)
    what = f"compute capabilities that cuDNN {version} has machine code for"
    facts = [*known.facts, Fact.of(what, capabilities, carries.source)]
    prune = _prune(spec.prune or spec.framework, known.compute_capability or "", release)
    if prune:
        what = f"device code that stays (prune: {prune.only}), for compute capability"
        stays = f"{prune.keep} and newer minors of {prune.keep.partition('.')[0]}"
        source = "image.yaml" if spec.prune else "the default of image.yaml"
        facts.append(Fact(what, stays, source, True))
    facts += [Fact.of(package, *chosen[name]) for package, name in packages.items()]
    return replace(
        known,
        cuda=minor(libraries["cudart"]),
        cudnn=version,
        constraints={package: libraries[name] for package, name in packages.items()},
        prune=prune,
        facts=tuple(facts),
    )


def _prune(mode: PruneMode, capability: str, release: TensorFlowRelease) -> Prune | None:
    """Return what is kept, None where nothing is taken out.

    TensorFlow's libraries hold the same code for a T4 as for a V100 (sm_70): with "tensorflow",
    both keep 7.0 and share a base. NVIDIA's libraries hold code for each.
    """
    if mode == "off":
        return None
    if mode == "all":
        return Prune(capability, "all")
    targets = (name[3:] for name in release.wheel.targets if name.startswith("sm_"))
    fitting = [own for n in targets if runs_on(own := f"{n[:-1]}.{n[-1]}", capability)]
    return Prune(max(fitting, default=capability), "tensorflow")


def _gpu_facts(
    spec: ImageSpec, accelerator: Accelerator, release: TensorFlowRelease, runs: Runs
) -> Iterator[Fact]:
    architecture = accelerator.architecture
    assert architecture is not None
    name, capability = accelerator.name, accelerator.compute_capability or ""
    matrix, title = architecture.source, f"TensorFlow {release.version}"
    yield Fact.of(
        f"{name}'s compute capability ({architecture.name})", capability, accelerator.source
    )
    last = f" to {architecture.last_cuda}" if architecture.last_cuda else " or later"
    yield Fact.of(f"CUDA that knows {architecture.name}", architecture.first_cuda + last, matrix)
    if architecture.last_driver:
        yield Fact.of(
            f"last driver branch that knows {architecture.name}", architecture.last_driver, matrix
        )
    yield Fact.of(f"CUDA that {title} was built for", release.cuda, release.source)
    yield Fact.of(f"cuDNN that {title} was built for", release.cudnn, release.source)
    if spec.base.startswith(NVIDIA_IMAGES):
        what = "kernels of NVIDIA's own TensorFlow"
        yield Fact(what, "read in the image", "the published base", False)
    else:
        carries = f"{title} carries {', '.join(release.wheel.targets)}; on {name}"
        kinds = {"native": "machine code", "ptx": "compiled from PTX at the first start: minutes"}
        yield Fact.of(carries, kinds.get(runs, runs), release.wheel.source)
    yield compatibility.driver_for(_major(release.cuda))


def _check_kernels(spec: ImageSpec, accelerator: Accelerator, release: TensorFlowRelease) -> Runs:
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
    if architecture.last_cuda and int(_major(release.cuda)) > int(architecture.last_cuda):
        raise RefusedError(
            "tensorflow",
            f"TensorFlow {spec.release} needs CUDA {release.cuda}, and CUDA "
            f"{architecture.last_cuda} is the last that knows {name}",
        )
    runs = compatibility.kernels(release.wheel, accelerator.compute_capability or "")
    older = Version(release.cuda) < Version(architecture.first_cuda)
    has = f"TensorFlow {spec.release} (CUDA {release.cuda}: {', '.join(release.wheel.targets)})"
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
    spec: ImageSpec, release: TensorFlowRelease, capability: str
) -> dict[str, tuple[str, Source]]:
    """Return short name -> version and why: the libraries that are known to work with TensorFlow on
    a GPU, and the user's pins."""
    if not release.libraries:
        raise RefusedError(
            "tensorflow",
            f"TensorFlow {spec.release} has no CUDA wheels to make our own base from",
            otherwise=f"base: docker.io/tensorflow/tensorflow:{spec.release}-gpu"
            "@sha256:<digest>, which brings its CUDA",
        )
    least = {name: release.libraries[_package(name, release)] for name in cuda.cuda().packages}
    metadata = release.wheel.metadata
    known = {name: (version, metadata) for name, version in least.items()}
    if release.ranges:
        known = _known_to_work(release, capability)
    for name, version in spec.cuda.items():
        _check_pin(name, version, spec, release, least, known)
    return {**known, **{name: (version, _WRITTEN) for name, version in spec.cuda.items()}}


def _known_to_work(release: TensorFlowRelease, capability: str) -> dict[str, tuple[str, Source]]:
    """Return what is shipped with the release; of cuDNN, the newest up to that one that has kernels
    for the GPU. All are in the release's ranges, which tests/config/test_compatibility.py holds."""
    shipped = cuda.shipped_with("TensorFlow", minor(release.version), str(release.wheel.cuda))
    assert shipped is not None, f"nobody's row is for the CUDA of TensorFlow {release.version}"
    toolkit = cuda.toolkit(shipped.cuda)
    title = f"{shipped.publisher} ships it with TensorFlow {shipped.release}"
    of_cuda = _said(f"of CUDA {shipped.cuda}, as {title}", toolkit.source)
    said = _said(title, shipped.source)
    known = {name: (version, of_cuda) for name, version in toolkit.libraries.items()}
    known |= {"cudnn": (shipped.cudnn, said), "nccl": (shipped.nccl, said)}
    if not compatibility.cudnn_runs(shipped.cudnn, capability):
        older = [
            row
            for row in cuda.cuda().cudnn
            if Version(row.since) < Version(shipped.cudnn)
            and compatibility.cudnn_runs(row.since, capability)
        ]
        newest = max(older, key=lambda row: Version(row.since))
        why = f"the newest with kernels for {capability}"
        known["cudnn"] = (newest.since, _said(why, newest.source))
    return known


def _said(why: str, source: Source) -> Source:
    return Source(f"{why}: {source.text}", source.verified)


def _check_pin(
    name: str,
    version: str,
    spec: ImageSpec,
    release: TensorFlowRelease,
    least: Mapping[str, str],
    known: Mapping[str, tuple[str, Source]],
) -> None:
    where = f"cuda.{name}"
    if name not in least:
        near = difflib.get_close_matches(name, least, n=1)
        names = f"known: {', '.join(least)}"
        raise RefusedError(
            where,
            f"no CUDA library is called {name!r}",
            f"write {near[0]}; {names}" if near else names,
        )
    first, end = least[name], int(_major(least[name])) + 1
    newer = release.ranges and Version(first) <= Version(version) < Version(str(end))
    if version != first and not newer:
        takes = f"from {first} to below {end}, not {version}" if release.ranges else f"{first} only"
        raise RefusedError(
            where,
            f"TensorFlow {spec.release} takes {name} {takes}",
            f"remove it: {known[name][0]} is taken then",
        )


def _check_cudnn(spec: ImageSpec, accelerator: Accelerator, version: str) -> None:
    """Raise RefusedError where a cuDNN has nothing for the accelerator."""
    capability = accelerator.compute_capability or ""
    field = "cuda.cudnn" if "cudnn" in spec.cuda else "tensorflow"
    if cuda.cudnn(version) is None:
        raise RefusedError(field, f"what cuDNN {version} carries is not known")
    if compatibility.cudnn_runs(version, capability):
        return
    known = (row.since for row in cuda.cuda().cudnn)
    good = [since for since in known if compatibility.cudnn_runs(since, capability)]
    raise RefusedError(
        field,
        f"cuDNN {version} has no machine code for {accelerator.name} ({capability}): "
        f"its first layer would fail there",
        f"write {good[-1]}, or leave it out" if good and field == "cuda.cudnn" else "",
    )


def _package(name: str, release: TensorFlowRelease) -> str:
    """Return the package of a CUDA library that image.yaml calls by a short name."""
    return f"nvidia-{cuda.cuda().packages[name]}-cu{release.wheel.cuda}"


def _major(version: str) -> str:
    return version.partition(".")[0]
