"""Framework x Python x CUDA x cuDNN x accelerator: what works together, and the nearest that does.

The framework chooses (builder/frameworks/); what every framework asks of an image.yaml stands here.
"""

from __future__ import annotations

import bisect
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from packaging.version import Version

from builder.config import image_yaml
from builder.config.fields import NEWEST
from builder.config.image_yaml import ImageSpec
from builder.config.lockfile import Lock
from builder.config.stack import OWN_PYTHON, Fact, Prune, RefusedError, Runs, Stack, runs_on
from builder.core.errors import InputError
from builder.devicecode.gpu_support import Release
from builder.facts import Source, accelerators, cuda, frameworks, known_bad
from builder.facts.accelerators import Accelerator
from builder.facts.frameworks import Framework
from builder.facts.known_bad import FoundBad

READ = "what was read of its wheels: builder/facts/gpu-support.json"
"""The source of what a framework says of its releases."""


def resolve(spec: ImageSpec, offered: Collection[str] = ()) -> Stack:
    """Return the versions that an image.yaml resolves to.

    offered: the framework's versions that the index in use lists, where it lists builds by CUDA.

    A minor release stands for its newest patch, `newest` for the newest release that works. An
    image.yaml that names no Python has the default, or where a release does not run on that, the
    first of ours on which it does: who asks for JAX 0.12 wants it, and has not asked for a Python.
    Raises InputError for what cannot work, with the nearest that does.
    """
    framework = frameworks.of(spec.framework)
    refusals: dict[str, RefusedError] = {}
    for release in _meant(spec, framework, offered):
        stack, refused = _tried(spec, release, _pythons(spec))
        if stack:
            newer = (_why_not(framework, *each) for each in refusals.items())
            told = (
                Fact(f"known of {each.pair}", each.row.seen, each.row.source, True)
                for each in known_bad_of(stack)
            )
            index = (_of_an_index(stack),) if stack.release in offered else ()
            return replace(stack, facts=(*stack.facts, *index, *newer, *told))
        refusals[release] = refused[0]
    newest = next(iter(refusals.values()))
    where = image_yaml.where(spec, *newest.field.split("."))
    if spec.release == NEWEST:
        fix = newest.fix or "write another accelerator"
    else:
        fix = newest.fix or _nearest(spec, newest.otherwise)
    raise InputError(f"{where}: {newest.what}", fix)


def _meant(spec: ImageSpec, framework: Framework, offered: Collection[str]) -> tuple[str, ...]:
    """Return the releases that image.yaml's stands for, the newest first, each with its builds; as
    PyPI has them where none of these is offered."""
    known = framework.releases()[::-1]
    written, _, label = spec.release.partition("+")
    patches = (release for release in known if frameworks.minor(release) == written)
    meant = known if written == NEWEST else (next(patches, written),)
    if label:
        return (f"{meant[0]}+{label}",)
    built = tuple(build for release in meant for build in framework.builds(release, offered))
    return built or meant


def _pythons(spec: ImageSpec) -> tuple[str, ...]:
    """Return the versions of Python that an image may have, the preferred one first."""
    if "python" in spec.model_fields_set or not spec.has_own_base:
        return (spec.python,)
    return tuple(dict.fromkeys((spec.python, *OWN_PYTHON)))


def _tried(
    spec: ImageSpec, release: str, pythons: Iterable[str]
) -> tuple[Stack | None, list[RefusedError]]:
    """Return the versions with a release on the first Python that works, and what is refused before
    that."""
    framework, refusals = frameworks.of(spec.framework), []
    for python in pythons:
        chosen = {"release": release, "python": python}
        changed = {name: value for name, value in chosen.items() if getattr(spec, name) != value}
        try:
            stack = framework.resolve(spec.model_copy(update=changed) if changed else spec)
            _refuse_known_bad(stack)
        except RefusedError as refused:
            refusals.append(refused)
        else:
            return stack, refusals
    return None, refusals


def _why_not(framework: Framework, release: str, refused: RefusedError) -> Fact:
    """Return why a newer release was not taken, and what to write if it is to be."""
    why = f"{refused.what}: {refused.fix}" if refused.fix else refused.what
    return Fact(f"why not {framework.title} {release}", why, READ, True)


def _of_an_index(stack: Stack) -> Fact:
    """Return why a release is the one of an index with builds by CUDA."""
    title = frameworks.of(stack.spec.framework).title
    return Fact(
        f"why {title} {stack.release}",
        "of the builds in the index that was in use at the lock, the newest that runs there; "
        f"builder lock --upgrade {stack.spec.name} asks the index of today",
        image_yaml.shown(stack.spec.source.with_name("image.lock")),
        True,
    )


def known_bad_of(stack: Stack) -> tuple[FoundBad, ...]:
    """Return what is known to fail of versions. A published base is judged when it is read."""
    if not stack.spec.has_own_base:
        return ()
    packages = {stack.distribution: stack.release, **stack.constraints}
    return known_bad.find(packages, stack.compute_capability)


def known_bad_of_lock(spec: ImageSpec, lock: Lock) -> tuple[FoundBad, ...]:
    """Return what is known to fail of the versions that a lock holds."""
    packages = {name: pin.version for name, pin in lock.packages.items()}
    return known_bad.find(packages, accelerators.find(spec.accelerator).compute_capability)


def require_lock(spec: ImageSpec, lock: Lock) -> None:
    """Raise InputError for a lock with versions that a plain program fails with."""
    for found in known_bad_of_lock(spec, lock):
        if found.row.fails:
            raise InputError(f"{image_yaml.where(spec, spec.framework)}: {found}", found.row.fix)


def _refuse_known_bad(stack: Stack) -> None:
    """Raise RefusedError for versions that a plain program fails with."""
    for found in known_bad_of(stack):
        if found.row.fails:
            pinned = [name for name in found.row.libraries if name in stack.spec.cuda]
            if pinned:
                fix = f"{found.row.fix}, or leave it out"
                raise RefusedError(f"cuda.{pinned[0]}", str(found), fix)
            raise RefusedError(stack.spec.framework, str(found), otherwise=found.row.fix)


# --- what a framework asks ------------------------------------------------------------------------


def accelerator_of(spec: ImageSpec) -> Accelerator:
    """Return the accelerator of an image. Raises RefusedError for one that no image is made for."""
    try:
        accelerator = accelerators.find(spec.accelerator)
    except InputError as error:
        raise RefusedError("accelerator", error.message, error.fix) from None
    if accelerator.refused and spec.framework not in accelerator.only:
        raise RefusedError(
            "accelerator",
            f"{accelerator.name} {accelerator.refused}",
            f"write accelerator: {accelerator.instead}",
        )
    return accelerator


def facts(
    spec: ImageSpec, accelerator: Accelerator, wheel: Release, source: Source | None = None
) -> tuple[Fact, ...]:
    """Return the facts about any image. wheel: what was read of the framework's; source: of another
    build of it. Raises RefusedError for another Python than its own."""
    title = frameworks.of(spec.framework).title
    name, pythons = f"{title} {spec.release}", ", ".join(wheel.python)
    _check_python(spec, name, wheel.python)
    known: tuple[Fact, ...] = (
        Fact.of("accelerator", accelerator.name, accelerator.source),
        Fact.of(title, spec.release, source or wheel.source),
        Fact.of(f"Python ({name} runs on {pythons})", spec.python, wheel.metadata),
    )
    if accelerator.precision != "float32":
        precision = accelerator.precision_source
        known += (Fact.of("mixed precision computes in", accelerator.precision, precision),)
    return known


def _check_python(spec: ImageSpec, name: str, pythons: Sequence[str]) -> None:
    can = [version for version in pythons if not spec.has_own_base or version in OWN_PYTHON]
    if spec.python in can:
        return
    if spec.python in pythons:
        what = f"our own base has no Python {spec.python}: it has {' and '.join(OWN_PYTHON)}"
    else:
        what = f"{name} does not run on Python {spec.python}"
    fix = f"write python: {_closest(spec.python, can)}" if can else ""
    raise RefusedError("python", what, fix)


def check_for_gpus(spec: ImageSpec, accelerator: Accelerator) -> None:
    """Raise RefusedError for fields that only an image for a GPU may have."""
    gpu = accelerator.kind == "gpu"
    if spec.prune not in (None, "off"):
        if not gpu:
            raise RefusedError("prune", f"{accelerator.name} runs no device code", "remove prune")
        if not spec.has_own_base:
            raise RefusedError(
                "prune", "a published base cannot be made smaller", "remove prune, or base"
            )
    for name in () if gpu else spec.cuda:
        raise RefusedError(
            f"cuda.{name}", f"a {accelerator.kind.upper()} has no CUDA libraries", "remove cuda"
        )


def require_own_base(spec: ImageSpec) -> None:
    """Raise RefusedError for a published base, which the tables know of one framework alone."""
    if not spec.has_own_base:
        title = frameworks.of(spec.framework).title
        raise RefusedError("base", f"an image with {title} has a base of its own", "remove base")


def pruned(spec: ImageSpec, capability: str) -> Prune | None:
    """Return what device code stays of a GPU's, None where all of it does."""
    mode = spec.prune or spec.framework
    return None if mode == "off" else Prune(capability, mode)


def kernels(release: Release, capability: str) -> Runs:
    """Return how the kernels of a release run on a GPU, by the verdict's word."""
    words: Mapping[str, Runs] = {"native": "native", "older minor": "native", "PTX": "ptx"}
    return words.get(release.support(capability), "none")


def cudnn_runs(version: str, capability: str) -> bool:
    """Return whether a cuDNN has machine code for a GPU."""
    row = cuda.cudnn(version)
    return row is not None and any(runs_on(code, capability) for code in row.capabilities)


def driver_for(major: str) -> Fact:
    """Return the oldest driver for a CUDA ("12")."""
    row = next(row for row in cuda.cuda().drivers if row.cuda == major)
    return Fact.of(f"oldest driver for CUDA {major}", row.driver, row.source)


# --- the nearest that works -----------------------------------------------------------------------


def working(spec: ImageSpec, pythons: Sequence[str]) -> tuple[dict[str, str], dict[str, str]]:
    """Return the releases that work with the rest of `spec`, the newest first, each with the first
    of these versions of Python that it runs on; and why a release does not work, or not with the
    first one."""
    works, refusals = dict[str, str](), dict[str, str]()
    for release in frameworks.of(spec.framework).releases()[::-1]:
        stack, refused = _tried(spec, release, pythons)
        if refused:
            refusals[release] = refused[0].what
        if stack:
            works[release] = stack.python
    return works, refusals


def nearest(framework: Framework, wanted: str, among: Iterable[str]) -> str:
    """Return which of these releases is the nearest to another one, counted in releases."""
    known = framework.releases()
    position = bisect.bisect_left(known, Version(wanted.partition("+")[0]), key=Version)
    return min(among, key=lambda each: (abs(known.index(each) - position), -known.index(each)))


def _nearest(spec: ImageSpec, otherwise: str) -> str:
    """Return what to write instead: the nearest release that works with all else of `spec`."""
    framework = frameworks.of(spec.framework)
    if works := working(spec, _pythons(spec))[0]:
        base = "" if spec.has_own_base else " and a base that has it"
        fix = f"write {framework.name}: {nearest(framework, spec.release, works)}{base}"
        return f"{fix}, or {otherwise}" if otherwise else fix
    if otherwise:
        return f"no {framework.title} on PyPI does; write {otherwise}"
    return f"known: {', '.join(framework.releases())}"


def _closest(version: str, among: Sequence[str]) -> str:
    minor = Version(version).minor
    return min(among, key=lambda candidate: abs(Version(candidate).minor - minor))
