"""TensorFlow x Python x CUDA x cuDNN x accelerator: what goes together, why, and what does instead.

The default is the set of libraries that TensorFlow was built and tested with, not the newest that
its open ranges let in this month.
"""

from __future__ import annotations

import bisect
import difflib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Literal

from packaging.version import Version

from builder.core.errors import CheckFailed, InputError
from builder.devicecode.pruning.fatbin import ELF, PTX, Target
from builder.devicecode.pruning.rule import choose, compute_capability
from builder.facts import accelerators
from builder.facts.accelerators import Accelerator
from builder.facts.cuda import Cudnn, Driver
from builder.facts.table import Source
from builder.spec import catalogue
from builder.spec.catalogue import OWN, ImageSpec
from builder.tensorflow import releases
from builder.tensorflow.releases import Release, Tables

# Our own base takes its Python from Debian, and each suite has one.
OWN_PYTHON: Mapping[str, str] = {"3.11": "bookworm", "3.13": "trixie"}
# NVIDIA builds a TensorFlow of its own into these images; the tables speak of the wheels on PyPI.
NVIDIA_IMAGES = "nvcr.io/nvidia/tensorflow"
# Libraries that carry the toolkit's own version.
TOOLKIT = frozenset({"cudart", "cublas", "cupti", "nvcc", "nvrtc", "nvjitlink"})
RUNS_ON = "training-image-factory.runs-on"
"""Label of a pruned image: the compute capability whose code it kept."""
_WRITTEN = Source("image.yaml", True)

Package = Literal["tensorflow", "tensorflow-cpu", "tensorflow-tpu"]
Runs = Literal["native", "ptx", "none"]


@dataclass(frozen=True)
class Fact:
    """One reason for a version. `verified`: read or tried by us at `source`, not only heard."""

    statement: str
    value: str
    source: str
    verified: bool


@dataclass(frozen=True)
class Prune:
    """Which device code stays: what a GPU of compute capability `keep` runs, in the libraries of
    `only`. The image then runs on that capability and on newer minors of its major."""

    keep: str
    only: Literal["tensorflow", "all"]

    def runs_on(self, capability: str) -> bool:
        """Whether a GPU of this compute capability is one of those."""
        return _runs_on(self.keep, capability)


@dataclass(frozen=True)
class Stack:
    """What an image is made of. What does not apply (CUDA on a TPU) is None.

    tensorflow_package: the name on PyPI; a GPU's needs its extra, see `tensorflow_requirement`.
    constraints: package -> exact version that a lock must not move away from.
    runs: how TensorFlow's kernels run here; "ptx" compiles them at the first start, for minutes.
    """

    spec: ImageSpec
    accelerator: Accelerator
    tensorflow_package: Package
    tensorflow: str
    python: str
    cuda: str | None = None
    cudnn: str | None = None
    compute_capability: str | None = None
    constraints: Mapping[str, str] = field(default_factory=dict)
    runs: Runs = "native"
    prune: Prune | None = None
    facts: tuple[Fact, ...] = ()

    @property
    def tensorflow_requirement(self) -> str:
        """`tensorflow[and-cuda]==2.21.0`: what a resolver is asked for."""
        extra = "[and-cuda]" if self.tensorflow_package == "tensorflow" else ""
        return f"{self.tensorflow_package}{extra}=={self.tensorflow}"


@dataclass(frozen=True)
class Problem:
    """A hole in the tables, or a target that they do not cover."""

    where: str
    what: str


class RefusedError(Exception):
    """A combination that cannot work. Without a `fix`, the nearest TensorFlow that does is one."""

    def __init__(self, field: str, what: str, fix: str = "", *, otherwise: str = "") -> None:
        super().__init__(what)
        self.field, self.what, self.fix, self.otherwise = field, what, fix, otherwise


def resolve(spec: ImageSpec) -> Stack:
    """The versions that `spec` comes to.

    Raises InputError for what cannot work, with the nearest that does.
    """
    tables = releases.tables()
    try:
        return _stack(spec, tables)
    except RefusedError as refused:
        where = catalogue.where(spec, *refused.field.split("."))
        fix = refused.fix or _nearest(spec, tables, refused.otherwise)
        raise InputError(f"{where}: {refused.what}", fix) from None


def explain(spec: ImageSpec) -> tuple[Fact, ...]:
    """Why each version of `spec` is what it is. Raises InputError as `resolve` does."""
    return resolve(spec).facts


def _stack(spec: ImageSpec, tables: Tables) -> Stack:
    accelerator = _accelerator(spec)
    release = _release(spec, accelerator, tables)
    _check_python(spec, release)
    facts: tuple[Fact, ...] = (
        Fact("accelerator", accelerator.name, *_of(accelerator.source)),
        Fact("TensorFlow", spec.tensorflow, *_of(release.source)),
        Fact(
            f"Python (TensorFlow {release.minor} runs on {', '.join(release.python)})",
            spec.python,
            *_of(release.source),
        ),
    )
    if accelerator.precision != "float32":
        source = _of(accelerator.precision_source)
        facts += (Fact("mixed precision computes in", accelerator.precision, *source),)
    if "prune" in spec.model_fields_set and spec.prune != "off":
        if accelerator.kind != "gpu":
            raise RefusedError("prune", f"{accelerator.name} runs no device code", "remove prune")
        if spec.base != OWN:
            raise RefusedError(
                "prune", "a published base cannot be made smaller", "remove prune, or base"
            )
    if accelerator.kind == "gpu":
        return _gpu(spec, accelerator, release, tables, facts)
    for name in spec.cuda:
        raise RefusedError(
            f"cuda.{name}", f"a {accelerator.kind.upper()} has no CUDA libraries", "remove cuda"
        )
    if accelerator.kind == "tpu":
        return _tpu(spec, accelerator, tables, facts)
    return Stack(spec, accelerator, "tensorflow-cpu", spec.tensorflow, spec.python, facts=facts)


def _accelerator(spec: ImageSpec) -> Accelerator:
    try:
        accelerator = accelerators.find(spec.accelerator)
    except InputError as error:
        raise RefusedError("accelerator", error.message, error.fix) from None
    if accelerator.refused:
        raise RefusedError(
            "accelerator",
            f"{accelerator.name} {accelerator.refused}",
            f"write accelerator: {accelerator.instead}",
        )
    return accelerator


def _release(spec: ImageSpec, accelerator: Accelerator, tables: Tables) -> Release:
    if accelerator.kind == "tpu" and spec.tensorflow not in {one.version for one in tables.tpu}:
        raise RefusedError(
            "tensorflow", f"TensorFlow {spec.tensorflow} has no TPU wheel that can be locked"
        )
    for release in tables.releases:
        if spec.tensorflow in release.versions:
            return release
    raise RefusedError("tensorflow", f"no TensorFlow {spec.tensorflow} is known")


def _check_python(spec: ImageSpec, release: Release) -> None:
    can = [version for version in release.python if spec.base != OWN or version in OWN_PYTHON]
    if spec.python in can:
        return
    if spec.python in release.python:
        what = f"our own base has no Python {spec.python}: it has {' and '.join(OWN_PYTHON)}"
    else:
        what = f"TensorFlow {spec.tensorflow} does not run on Python {spec.python}"
    fix = f"write python: {_closest(spec.python, can)}" if can else ""
    raise RefusedError("python", what, fix)


def _gpu(
    spec: ImageSpec,
    accelerator: Accelerator,
    release: Release,
    tables: Tables,
    facts: tuple[Fact, ...],
) -> Stack:
    capability = accelerator.compute_capability or ""
    runs = _check_kernels(spec, accelerator, release)
    driver = _driver(tables, release.cuda)
    facts += tuple(_gpu_facts(spec, accelerator, release, runs, driver))
    if spec.base != OWN:
        for name in spec.cuda:
            raise RefusedError(
                f"cuda.{name}",
                "a published base brings its own CUDA libraries",
                "remove cuda, or write base: own",
            )
        return Stack(
            spec,
            accelerator,
            "tensorflow",
            spec.tensorflow,
            spec.python,
            release.cuda,
            release.cudnn,
            capability,
            runs=runs,
            facts=facts,
        )
    libraries = _libraries(spec, accelerator, release, tables)
    cudnn = _check_cudnn(spec, accelerator, libraries["cudnn"], tables)
    facts += (
        Fact(
            f"compute capabilities that cuDNN {libraries['cudnn']} has machine code for",
            ", ".join(cudnn.capabilities),
            *_of(cudnn.source),
        ),
    )
    tested = tables.sets[release.wheels or ""].source
    prune = _prune(spec.prune, capability, release)
    if prune:
        facts += (
            Fact(
                f"device code that stays (prune: {prune.only}), for compute capability",
                f"{prune.keep} and newer minors of {prune.keep.partition('.')[0]}",
                "image.yaml" if "prune" in spec.model_fields_set else "the default of image.yaml",
                True,
            ),
        )
    for name, version in libraries.items():
        source = release.pins_source if name in release.pins else tested
        source = _WRITTEN if name in spec.cuda else source
        facts += (Fact(_package(name, release, tables), version, *_of(source)),)
    return Stack(
        spec,
        accelerator,
        "tensorflow",
        spec.tensorflow,
        spec.python,
        release.cuda,
        libraries["cudnn"],
        capability,
        {_package(name, release, tables): version for name, version in libraries.items()},
        runs,
        prune,
        facts,
    )


def _prune(mode: str, capability: str, release: Release) -> Prune | None:
    """What is kept. TensorFlow's libraries hold the same for a T4 as for a V100 (sm_70), so both
    keep 7.0 and share a base; NVIDIA's do not."""
    if mode == "off":
        return None
    if mode == "all":
        return Prune(capability, "all")
    held = (one.partition("_")[2] for one in release.capabilities)
    fitting = [own for n in held if _runs_on(own := f"{n[:-1]}.{n[-1]}", capability)]
    return Prune(max(fitting, default=capability), "tensorflow")


def _runs_on(code: str, capability: str) -> bool:
    """Whether machine code for one compute capability runs on another."""
    device = compute_capability(capability)
    return choose([Target(ELF, compute_capability(code).architecture, "")], device) is not None


def check_runs_on(labels: Mapping[str, str], capability: str | None, target: str) -> None:
    """Raise CheckFailed where an image's label says that it was pruned for another accelerator."""
    kept = labels.get(RUNS_ON)
    if kept and not (capability and _runs_on(kept, capability)):
        raise CheckFailed(
            f"{target}: its image has device code for compute capability {kept} only, and "
            f"{target} is now for {capability or 'no GPU'}",
            f"builder image {target}",
        )


def _gpu_facts(
    spec: ImageSpec, accelerator: Accelerator, release: Release, runs: Runs, driver: Driver
) -> Iterator[Fact]:
    architecture = accelerator.architecture
    assert architecture is not None  # check_tables sees to it
    name, capability = accelerator.name, accelerator.compute_capability or ""
    matrix = _of(architecture.source)
    yield Fact(
        f"{name}'s compute capability ({architecture.name})", capability, *_of(accelerator.source)
    )
    last = f" to {architecture.last_cuda}" if architecture.last_cuda else " or later"
    yield Fact(f"CUDA that knows {architecture.name}", architecture.first_cuda + last, *matrix)
    if architecture.last_driver:
        yield Fact(
            f"last driver branch that knows {architecture.name}", architecture.last_driver, *matrix
        )
    tested = _of(release.source)
    yield Fact(f"CUDA that TensorFlow {release.minor} was tested with", release.cuda, *tested)
    yield Fact(f"cuDNN that TensorFlow {release.minor} was tested with", release.cudnn, *tested)
    if spec.base.startswith(NVIDIA_IMAGES):
        yield Fact(
            "kernels of NVIDIA's own TensorFlow", "read in the image", "the published base", False
        )
    else:
        how = {"native": "machine code", "ptx": "compiled from PTX at the first start: minutes"}
        yield Fact(
            f"TensorFlow {release.minor} carries {', '.join(release.capabilities)}; on {name}",
            how.get(runs, runs),
            *_of(release.capabilities_source),
        )
    yield Fact(f"oldest driver for CUDA {_major(release.cuda)}", driver.driver, *_of(driver.source))


def _check_kernels(spec: ImageSpec, accelerator: Accelerator, release: Release) -> Runs:
    """How TensorFlow's own kernels run on the accelerator. Raises RefusedError where they do not.

    A toolkit older than the architecture is not refused where machine code of the same major runs
    (an L4 runs an A100's), but has to be asked for like PTX: no library in it was tested there.
    """
    architecture = accelerator.architecture
    assert architecture is not None  # check_tables sees to it
    name = f"{accelerator.name} ({accelerator.compute_capability})"
    if spec.base.startswith(NVIDIA_IMAGES):
        return "native"
    if architecture.last_cuda and _major(release.cuda) > int(architecture.last_cuda):
        raise RefusedError(
            "tensorflow",
            f"TensorFlow {spec.tensorflow} needs CUDA {release.cuda}, and CUDA "
            f"{architecture.last_cuda} is the last that knows {name}",
        )
    runs = kernels_run(accelerator.compute_capability or "", release.capabilities)
    older = Version(release.cuda) < Version(architecture.first_cuda)
    has = f"TensorFlow {spec.tensorflow} (CUDA {release.cuda}: {', '.join(release.capabilities)})"
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


def kernels_run(capability: str, carried: Sequence[str]) -> Runs:
    """How a container with code for `carried` (sm_70, compute_90 ...) runs on a device ("7.5").

    compute_90 is both: machine code for 9.0, and PTX that any later device compiles.
    """
    targets = []
    for one in carried:
        kind, _, digits = one.partition("_")
        targets.append(Target(ELF, int(digits), ""))
        if kind == "compute":
            targets.append(Target(PTX, int(digits), ""))
    chosen = choose(targets, compute_capability(capability))
    if chosen is None:
        return "none"
    return "native" if chosen.kind == ELF else "ptx"


def _libraries(
    spec: ImageSpec, accelerator: Accelerator, release: Release, tables: Tables
) -> dict[str, str]:
    """The CUDA libraries by short name: those TensorFlow was tested with, and the user's pins."""
    if release.wheels is None:
        raise RefusedError(
            "tensorflow",
            f"TensorFlow {spec.tensorflow} has no CUDA wheels to make our own base from",
            otherwise=f"base: docker.io/tensorflow/tensorflow:{spec.tensorflow}-gpu"
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
    remove = f"remove it: TensorFlow {spec.tensorflow} was tested with {tested[name]}"
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
            where, f"TensorFlow {spec.tensorflow} takes {name} {tested[name]} only", remove
        )
    if not first <= Version(version) < Version(str(end)):
        raise RefusedError(
            where,
            f"TensorFlow {spec.tensorflow} takes {name} from {tested[name]} to below {end}, "
            f"not {version}",
            remove,
        )


def _check_cudnn(spec: ImageSpec, accelerator: Accelerator, version: str, tables: Tables) -> Cudnn:
    """What cuDNN `version` carries. Raises RefusedError where that does not run on the device."""
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
    carried = [f"sm_{one.replace('.', '')}" for one in row.capabilities]
    return kernels_run(capability, carried) == "native"


def _tpu(
    spec: ImageSpec, accelerator: Accelerator, tables: Tables, facts: tuple[Fact, ...]
) -> Stack:
    release = next(one for one in tables.tpu if one.version == spec.tensorflow)
    facts += (
        Fact(
            f"libtpu (tensorflow-tpu takes {release.accepts})", release.libtpu, *_of(release.source)
        ),
    )
    return Stack(
        spec,
        accelerator,
        "tensorflow-tpu",
        spec.tensorflow,
        spec.python,
        constraints={"libtpu": release.libtpu},
        facts=facts,
    )


def _nearest(spec: ImageSpec, tables: Tables, otherwise: str) -> str:
    """What to write instead: the nearest TensorFlow with which all else of `spec` works."""
    known = sorted((v for release in tables.releases for v in release.versions), key=Version)
    asked = bisect.bisect_left(known, Version(spec.tensorflow), key=Version)
    for index in sorted(range(len(known)), key=lambda i: (abs(i - asked), -i)):
        try:
            _stack(spec.model_copy(update={"tensorflow": known[index]}), tables)
        except RefusedError:
            continue
        base = "" if spec.base == OWN else " and a base that has it"
        found = f"write tensorflow: {known[index]}{base}"
        return f"{found}, or {otherwise}" if otherwise else found
    if otherwise:
        return f"no TensorFlow on PyPI does; write {otherwise}"
    return f"known: {', '.join(known)}"


def check_tables(
    specs: Sequence[ImageSpec] = (), tables: Tables | None = None
) -> tuple[Problem, ...]:
    """Every hole in the joined tables, and every target of `specs` that they do not cover."""
    tables = tables or releases.tables()
    problems = [*_accelerator_holes(), *_release_holes(tables), *_tpu_holes(tables)]
    for earlier, later in pairwise(tables.cudnn):
        if Version(earlier.since) >= Version(later.since):
            problems.append(Problem(f"cuDNN {later.since}", f"stands after {earlier.since}"))
    default = ImageSpec.model_fields["tensorflow"].default
    if not any(default in release.versions for release in tables.releases):
        problems.append(Problem("image.yaml", f"TensorFlow {default}, the default, is not known"))
    for spec in specs:
        try:
            resolve(spec)
        except InputError as error:
            problems.append(Problem(spec.name, error.message))
    return tuple(problems)


def _accelerator_holes() -> Iterator[Problem]:
    known = accelerators.accelerators()
    for one in known.values():
        if one.kind == "gpu" and not one.compute_capability:
            yield Problem(one.name, "has no compute capability")
        if one.kind == "gpu" and one.architecture is None:
            yield Problem(one.name, "has no architecture")
        if one.refused and (one.instead not in known or one.refused_source is None):
            yield Problem(one.name, "is refused without an accelerator instead, or a source")


def _release_holes(tables: Tables) -> Iterator[Problem]:
    for release in tables.releases:
        name = f"TensorFlow {release.minor}"
        if not all(version.startswith(f"{release.minor}.") for version in release.versions):
            yield Problem(name, f"lists {', '.join(release.versions)}")
        if not any(_major(row.cuda) == _major(release.cuda) for row in tables.drivers):
            yield Problem(name, f"no driver is known for CUDA {release.cuda}")
        if release.wheels is None:
            continue
        if not any(version in OWN_PYTHON for version in release.python):
            yield Problem(name, "has CUDA wheels, but no Python of our own base")
        cuda = tables.sets.get(release.wheels)
        if cuda is None:
            yield Problem(name, f"has no CUDA library set {release.wheels}")
            continue
        if cuda.cuda != release.cuda:
            yield Problem(name, f"was tested with CUDA {release.cuda}, its set is {cuda.cuda}")
        libraries = {**cuda.libraries, **release.pins}
        for library in sorted(libraries.keys() ^ tables.packages.keys()):
            yield Problem(name, f"{library} has no package, or is not in the set")
        cudnn = libraries.get("cudnn", "0")
        if not cudnn.startswith(f"{release.cudnn}."):
            yield Problem(name, f"was tested with cuDNN {release.cudnn}, its set has {cudnn}")
        if not any(Version(row.since) <= Version(cudnn) for row in tables.cudnn):
            yield Problem(name, f"what cuDNN {cudnn} carries is not known")


def _tpu_holes(tables: Tables) -> Iterator[Problem]:
    for one in tables.tpu:
        if not any(one.version in release.versions for release in tables.releases):
            yield Problem(f"tensorflow-tpu {one.version}", "is no known release of TensorFlow")


def _driver(tables: Tables, cuda: str) -> Driver:
    return next(row for row in tables.drivers if _major(row.cuda) == _major(cuda))


def _package(name: str, release: Release, tables: Tables) -> str:
    return f"nvidia-{tables.packages[name]}-cu{_major(release.cuda)}"


def _closest(version: str, among: Sequence[str]) -> str:
    minor = Version(version).minor
    return min(among, key=lambda one: abs(Version(one).minor - minor))


def _major(version: str) -> int:
    return Version(version).major


def _of(source: Source) -> tuple[str, bool]:
    return source.text, source.verified
