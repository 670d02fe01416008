"""The gaps in the compatibility tables: what a release, an accelerator or a target lacks there."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from packaging.version import Version

from builder.config.compatibility import resolve
from builder.config.image_yaml import ImageSpec
from builder.config.stack import OWN_PYTHON
from builder.core.errors import InputError
from builder.facts import accelerators
from builder.frameworks.tensorflow import releases
from builder.frameworks.tensorflow.releases import Tables


@dataclass(frozen=True)
class Gap:
    """A gap in the tables, or a target that they do not cover."""

    where: str
    what: str


def check_tables(specs: Sequence[ImageSpec] = (), tables: Tables | None = None) -> tuple[Gap, ...]:
    """Return every gap in the joined tables, and every target of `specs` that they lack."""
    tables = tables or releases.tables()
    gaps = [*_accelerator_gaps(), *_release_gaps(tables), *_tpu_gaps(tables)]
    for earlier, later in pairwise(tables.cudnn):
        if Version(earlier.since) >= Version(later.since):
            gaps.append(Gap(f"cuDNN {later.since}", f"stands after {earlier.since}"))
    default = ImageSpec.model_fields["tensorflow"].default
    if not any(default in release.versions for release in tables.releases):
        gaps.append(Gap("image.yaml", f"TensorFlow {default}, the default, is not known"))
    for spec in specs:
        try:
            resolve(spec)
        except InputError as error:
            gaps.append(Gap(spec.name, error.message))
    return tuple(gaps)


def _accelerator_gaps() -> Iterator[Gap]:
    known = accelerators.accelerators()
    for accelerator in known.values():
        if accelerator.kind == "gpu" and not accelerator.compute_capability:
            yield Gap(accelerator.name, "has no compute capability")
        if accelerator.kind == "gpu" and accelerator.architecture is None:
            yield Gap(accelerator.name, "has no architecture")
        if accelerator.refused and (
            accelerator.instead not in known or accelerator.refused_source is None
        ):
            yield Gap(accelerator.name, "is refused without an accelerator instead, or a source")


def _release_gaps(tables: Tables) -> Iterator[Gap]:
    for release in tables.releases:
        name = f"TensorFlow {release.minor}"
        if not all(version.startswith(f"{release.minor}.") for version in release.versions):
            yield Gap(name, f"lists {', '.join(release.versions)}")
        if not any(_major(row.cuda) == _major(release.cuda) for row in tables.drivers):
            yield Gap(name, f"no driver is known for CUDA {release.cuda}")
        if release.wheels is None:
            continue
        if not any(version in OWN_PYTHON for version in release.python):
            yield Gap(name, "has CUDA wheels, but no Python of our own base")
        cuda = tables.sets.get(release.wheels)
        if cuda is None:
            yield Gap(name, f"has no CUDA library set {release.wheels}")
            continue
        if cuda.cuda != release.cuda:
            yield Gap(name, f"was tested with CUDA {release.cuda}, its set is {cuda.cuda}")
        libraries = {**cuda.libraries, **release.pins}
        for library in sorted(libraries.keys() ^ tables.packages.keys()):
            yield Gap(name, f"{library} has no package, or is not in the set")
        cudnn = libraries.get("cudnn", "0")
        if not cudnn.startswith(f"{release.cudnn}."):
            yield Gap(name, f"was tested with cuDNN {release.cudnn}, its set has {cudnn}")
        if not any(Version(row.since) <= Version(cudnn) for row in tables.cudnn):
            yield Gap(name, f"what cuDNN {cudnn} carries is not known")


def _tpu_gaps(tables: Tables) -> Iterator[Gap]:
    for row in tables.tpu:
        if not any(row.version in release.versions for release in tables.releases):
            yield Gap(f"tensorflow-tpu {row.version}", "is no known release of TensorFlow")


def _major(version: str) -> int:
    return Version(version).major
