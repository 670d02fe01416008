"""Framework x Python x CUDA x cuDNN x accelerator: what works together, and the nearest that does.

The framework chooses (builder/frameworks/); what every framework asks of an image.yaml stands here.
"""

from __future__ import annotations

import bisect
from collections.abc import Sequence

from packaging.version import Version

from builder import frameworks
from builder.config import image_yaml
from builder.config.image_yaml import ImageSpec
from builder.config.stack import OWN_PYTHON, Fact, RefusedError, Stack
from builder.core.errors import InputError
from builder.facts import Source, accelerators
from builder.facts.accelerators import Accelerator


def resolve(spec: ImageSpec) -> Stack:
    """Return the versions that an image.yaml resolves to.

    Raises InputError for what cannot work, with the nearest that does.
    """
    try:
        return frameworks.of(spec.framework).resolve(spec)
    except RefusedError as refused:
        where = image_yaml.where(spec, *refused.field.split("."))
        fix = refused.fix or _nearest(spec, refused.otherwise)
        raise InputError(f"{where}: {refused.what}", fix) from None


def explain(spec: ImageSpec) -> tuple[Fact, ...]:
    """Return why each version of `spec` is what it is. Raises InputError as `resolve` does."""
    return resolve(spec).facts


# --- what a framework asks ------------------------------------------------------------------------


def accelerator_of(spec: ImageSpec) -> Accelerator:
    """Return the accelerator of an image. Raises RefusedError for one that no image is made for."""
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


def facts(
    spec: ImageSpec, accelerator: Accelerator, name: str, pythons: Sequence[str], source: Source
) -> tuple[Fact, ...]:
    """Return the facts about any image. name: of the framework's minor release; pythons: those that
    it runs on, by `source`. Raises RefusedError for another Python."""
    title = frameworks.of(spec.framework).title
    _check_python(spec, f"{title} {spec.release}", pythons)
    known: tuple[Fact, ...] = (
        Fact.of("accelerator", accelerator.name, accelerator.source),
        Fact.of(title, spec.release, source),
        Fact.of(f"Python ({name} runs on {', '.join(pythons)})", spec.python, source),
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


# --- the nearest that works -----------------------------------------------------------------------


def _nearest(spec: ImageSpec, otherwise: str) -> str:
    """Return what to write instead: the nearest release that works with all else of `spec`."""
    framework = frameworks.of(spec.framework)
    known = sorted(framework.releases(), key=Version)
    position = bisect.bisect_left(known, Version(spec.release), key=Version)
    for index in sorted(range(len(known)), key=lambda i: (abs(i - position), -i)):
        try:
            framework.resolve(spec.model_copy(update={"release": known[index]}))
        except RefusedError:
            continue
        base = "" if spec.has_own_base else " and a base that has it"
        nearest = f"write {framework.name}: {known[index]}{base}"
        return f"{nearest}, or {otherwise}" if otherwise else nearest
    if otherwise:
        return f"no {framework.title} on PyPI does; write {otherwise}"
    return f"known: {', '.join(known)}"


def _closest(version: str, among: Sequence[str]) -> str:
    minor = Version(version).minor
    return min(among, key=lambda candidate: abs(Version(candidate).minor - minor))
