"""TensorFlow x Python x CUDA x cuDNN x accelerator: what works together, and the nearest that does.

The default is the set of libraries that TensorFlow was built and tested with, not the newest ones
that its open version ranges allow.
"""

from __future__ import annotations

import bisect
from collections.abc import Sequence

from packaging.version import Version

from builder.config import gpu_stack, image_yaml
from builder.config.image_yaml import ImageSpec
from builder.config.stack import OWN_PYTHON, Fact, RefusedError, Stack
from builder.core.errors import InputError
from builder.facts import accelerators
from builder.facts.accelerators import Accelerator
from builder.frameworks.tensorflow import releases
from builder.frameworks.tensorflow.releases import Release, Tables


def resolve(spec: ImageSpec) -> Stack:
    """Return the versions that an image.yaml resolves to.

    Raises InputError for what cannot work, with the nearest that does.
    """
    tables = releases.tables()
    try:
        return _stack(spec, tables)
    except RefusedError as refused:
        where = image_yaml.where(spec, *refused.field.split("."))
        fix = refused.fix or _nearest(spec, tables, refused.otherwise)
        raise InputError(f"{where}: {refused.what}", fix) from None


def explain(spec: ImageSpec) -> tuple[Fact, ...]:
    """Return why each version of `spec` is what it is. Raises InputError as `resolve` does."""
    return resolve(spec).facts


def _stack(spec: ImageSpec, tables: Tables) -> Stack:
    accelerator = _accelerator(spec)
    release = _release(spec, accelerator, tables)
    _check_python(spec, release)
    facts: tuple[Fact, ...] = (
        Fact.of("accelerator", accelerator.name, accelerator.source),
        Fact.of("TensorFlow", spec.tensorflow, release.source),
        Fact.of(
            f"Python (TensorFlow {release.minor} runs on {', '.join(release.python)})",
            spec.python,
            release.source,
        ),
    )
    if accelerator.precision != "float32":
        source = accelerator.precision_source
        facts += (Fact.of("mixed precision computes in", accelerator.precision, source),)
    if "prune" in spec.model_fields_set and spec.prune != "off":
        if accelerator.kind != "gpu":
            raise RefusedError("prune", f"{accelerator.name} runs no device code", "remove prune")
        if not spec.has_own_base:
            raise RefusedError(
                "prune", "a published base cannot be made smaller", "remove prune, or base"
            )
    if accelerator.kind == "gpu":
        return gpu_stack.resolve(spec, accelerator, release, tables, facts)
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
    if accelerator.kind == "tpu" and spec.tensorflow not in {row.version for row in tables.tpu}:
        raise RefusedError(
            "tensorflow", f"TensorFlow {spec.tensorflow} has no TPU wheel that can be locked"
        )
    for release in tables.releases:
        if spec.tensorflow in release.versions:
            return release
    raise RefusedError("tensorflow", f"no TensorFlow {spec.tensorflow} is known")


def _check_python(spec: ImageSpec, release: Release) -> None:
    can = [version for version in release.python if not spec.has_own_base or version in OWN_PYTHON]
    if spec.python in can:
        return
    if spec.python in release.python:
        what = f"our own base has no Python {spec.python}: it has {' and '.join(OWN_PYTHON)}"
    else:
        what = f"TensorFlow {spec.tensorflow} does not run on Python {spec.python}"
    fix = f"write python: {_closest(spec.python, can)}" if can else ""
    raise RefusedError("python", what, fix)


def _tpu(
    spec: ImageSpec, accelerator: Accelerator, tables: Tables, facts: tuple[Fact, ...]
) -> Stack:
    release = next(row for row in tables.tpu if row.version == spec.tensorflow)
    facts += (
        Fact.of(f"libtpu (tensorflow-tpu takes {release.accepts})", release.libtpu, release.source),
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
    """Return what to write instead: the nearest TensorFlow that works with all else of `spec`."""
    known = sorted((v for release in tables.releases for v in release.versions), key=Version)
    position = bisect.bisect_left(known, Version(spec.tensorflow), key=Version)
    for index in sorted(range(len(known)), key=lambda i: (abs(i - position), -i)):
        try:
            _stack(spec.model_copy(update={"tensorflow": known[index]}), tables)
        except RefusedError:
            continue
        base = "" if spec.has_own_base else " and a base that has it"
        nearest = f"write tensorflow: {known[index]}{base}"
        return f"{nearest}, or {otherwise}" if otherwise else nearest
    if otherwise:
        return f"no TensorFlow on PyPI does; write {otherwise}"
    return f"known: {', '.join(known)}"


def _closest(version: str, among: Sequence[str]) -> str:
    minor = Version(version).minor
    return min(among, key=lambda candidate: abs(Version(candidate).minor - minor))
