"""The holes in the compatibility tables: what a release, an accelerator or a target lacks there."""

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
class Hole:
    """A hole in the tables, or a target that they do not cover."""

    where: str
    what: str


def check_tables(specs: Sequence[ImageSpec] = (), tables: Tables | None = None) -> tuple[Hole, ...]:
    """Every hole in the joined tables, and every target of `specs` that they do not cover."""
    tables = tables or releases.tables()
    holes = [*_accelerator_holes(), *_release_holes(tables), *_tpu_holes(tables)]
    for earlier, later in pairwise(tables.cudnn):
        if Version(earlier.since) >= Version(later.since):
            holes.append(Hole(f"cuDNN {later.since}", f"stands after {earlier.since}"))
    default = ImageSpec.model_fields["tensorflow"].default
    if not any(default in release.versions for release in tables.releases):
        holes.append(Hole("image.yaml", f"TensorFlow {default}, the default, is not known"))
    for spec in specs:
        try:
            resolve(spec)
        except InputError as error:
            holes.append(Hole(spec.name, error.message))
    return tuple(holes)


def _accelerator_holes() -> Iterator[Hole]:
    known = accelerators.accelerators()
    for one in known.values():
        if one.kind == "gpu" and not one.compute_capability:
            yield Hole(one.name, "has no compute capability")
        if one.kind == "gpu" and one.architecture is None:
            yield Hole(one.name, "has no architecture")
        if one.refused and (one.instead not in known or one.refused_source is None):
            yield Hole(one.name, "is refused without an accelerator instead, or a source")


def _release_holes(tables: Tables) -> Iterator[Hole]:
    for release in tables.releases:
        name = f"TensorFlow {release.minor}"
        if not all(version.startswith(f"{release.minor}.") for version in release.versions):
            yield Hole(name, f"lists {', '.join(release.versions)}")
        if not any(_major(row.cuda) == _major(release.cuda) for row in tables.drivers):
            yield Hole(name, f"no driver is known for CUDA {release.cuda}")
        if release.wheels is None:
            continue
        if not any(version in OWN_PYTHON for version in release.python):
            yield Hole(name, "has CUDA wheels, but no Python of our own base")
        cuda = tables.sets.get(release.wheels)
        if cuda is None:
            yield Hole(name, f"has no CUDA library set {release.wheels}")
            continue
        if cuda.cuda != release.cuda:
            yield Hole(name, f"was tested with CUDA {release.cuda}, its set is {cuda.cuda}")
        libraries = {**cuda.libraries, **release.pins}
        for library in sorted(libraries.keys() ^ tables.packages.keys()):
            yield Hole(name, f"{library} has no package, or is not in the set")
        cudnn = libraries.get("cudnn", "0")
        if not cudnn.startswith(f"{release.cudnn}."):
            yield Hole(name, f"was tested with cuDNN {release.cudnn}, its set has {cudnn}")
        if not any(Version(row.since) <= Version(cudnn) for row in tables.cudnn):
            yield Hole(name, f"what cuDNN {cudnn} carries is not known")


def _tpu_holes(tables: Tables) -> Iterator[Hole]:
    for one in tables.tpu:
        if not any(one.version in release.versions for release in tables.releases):
            yield Hole(f"tensorflow-tpu {one.version}", "is no known release of TensorFlow")


def _major(version: str) -> int:
    return Version(version).major
