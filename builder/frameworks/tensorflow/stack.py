"""TensorFlow x Python x CUDA x cuDNN x accelerator: what works together.

The default is the set of libraries that TensorFlow was built and tested with, not the newest ones
that its open version ranges allow.
"""

from __future__ import annotations

from builder.config import compatibility
from builder.config.image_yaml import ImageSpec
from builder.config.stack import Fact, RefusedError, Stack
from builder.facts.accelerators import Accelerator
from builder.frameworks.tensorflow import gpu_stack, releases
from builder.frameworks.tensorflow.releases import Release, Tables


def resolve(spec: ImageSpec) -> Stack:
    """Return the versions of an image with TensorFlow. Raises RefusedError for what cannot work."""
    tables = releases.tables()
    accelerator = compatibility.accelerator_of(spec)
    release = _release(spec, accelerator, tables)
    facts = compatibility.facts(
        spec, accelerator, f"TensorFlow {release.minor}", release.python, release.source
    )
    compatibility.check_for_gpus(spec, accelerator)
    if accelerator.kind == "gpu":
        return gpu_stack.resolve(spec, accelerator, release, tables, facts)
    if accelerator.kind == "tpu":
        return _tpu(spec, accelerator, tables, facts)
    return Stack(spec, accelerator, "tensorflow-cpu", spec.release, spec.python, facts=facts)


def _release(spec: ImageSpec, accelerator: Accelerator, tables: Tables) -> Release:
    if accelerator.kind == "tpu" and spec.release not in {row.version for row in tables.tpu}:
        raise RefusedError(
            "tensorflow", f"TensorFlow {spec.release} has no TPU wheel that can be locked"
        )
    for release in tables.releases:
        if spec.release in release.versions:
            return release
    raise RefusedError("tensorflow", f"no TensorFlow {spec.release} is known")


def _tpu(
    spec: ImageSpec, accelerator: Accelerator, tables: Tables, facts: tuple[Fact, ...]
) -> Stack:
    release = next(row for row in tables.tpu if row.version == spec.release)
    facts += (
        Fact.of(f"libtpu (tensorflow-tpu takes {release.accepts})", release.libtpu, release.source),
    )
    return Stack(
        spec,
        accelerator,
        "tensorflow-tpu",
        spec.release,
        spec.python,
        constraints={"libtpu": release.libtpu},
        facts=facts,
    )
