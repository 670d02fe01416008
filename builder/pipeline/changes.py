"""Which targets a build has to make: those that the registry does not have as they are here.

`touching` names the files that can change a target, for triggers, which see only names of files.
A trigger that starts a build for nothing costs a minute: the build itself compares.

The comparison is by content, not by history. A target has a hash of everything that decides its
image. The receipt of the image in the registry names the hash that the image was made from. So the
comparison works in a shallow clone and in a staged folder without git. After a failed build, the
next one makes what is missing. A commit that only touches documents builds nothing.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from builder import registry
from builder.config import image_yaml
from builder.config.image_yaml import ImageSpec
from builder.core.errors import CheckFailed, FactoryError
from builder.core.retry import Retry
from builder.core.settings import Settings
from builder.image import program
from builder.pipeline import make, verify


@dataclass(frozen=True)
class TargetChange:
    target: str
    changed: bool
    why: str


def changed(root: Path, settings: Settings, targets: Sequence[str]) -> tuple[TargetChange, ...]:
    """Return a Change for each target (`all`: every one).

    A target counts as changed where the registry cannot tell. Raises InputError for a target that
    the project does not have.
    """
    known = image_yaml.targets(root)
    names = known if "all" in targets else image_yaml.named(root, targets)
    return tuple(_change(root, settings, name) for name in names)


def _change(root: Path, settings: Settings, target: str) -> TargetChange:
    if not settings.registry:
        return TargetChange(target, True, "no registry to compare with")
    try:
        inputs = make.prepare(root, target).inputs
    except FactoryError as error:  # the build says what is wrong, and where
        return TargetChange(target, True, f"cannot be prepared: {error.message}")
    image = registry.parse(settings.registry).tagged(target)
    try:
        with registry.Registry(image.host, Retry(attempts=2)) as client:
            if client.head(image.repository, target) is None:
                return TargetChange(target, True, "not in the registry yet")
        receipt = verify.verify(str(image), settings).receipt
    except CheckFailed as error:
        return TargetChange(target, True, f"not proven in the registry: {error.message}")
    except FactoryError as error:
        return TargetChange(target, True, f"the registry cannot say: {error.message}")
    if receipt.inputs != inputs:
        return TargetChange(target, True, "made from other files than these")
    return TargetChange(target, False, f"the registry has it, {receipt.made_at}: {receipt.verdict}")


_OF_ALL = (
    "images/*.lock", "builder.toml", "builder/**", "templates/**", "requirements/**",
    "builder.Dockerfile", "cloudbuild.yaml",
)  # fmt: skip
"""The files that can change every target, as globs: the locks that targets share, the settings, the
factory, and what a build in the cloud does."""


def touching(root: Path) -> dict[str, tuple[str, ...]]:
    """Return the targets, each with globs of the files that can change its image.

    In a glob, * stands for a part of a name, and ** for any number of folders. Raises InputError.
    """
    return {
        spec.name: (f"{image_yaml.IMAGES}/{spec.name}/**", *_of_program(root, spec), *_OF_ALL)
        for spec in image_yaml.load_all(root)
    }


def _of_program(root: Path, spec: ImageSpec) -> list[str]:
    """Return globs of a program's folder, and of the folders that links lead to. The packaged
    trainer is part of the factory."""
    if spec.program.is_packaged(root):
        return []
    real, own = root.resolve(), Path(spec.program.folder)
    files = [path.resolve() for path in program.walk(root / own)]
    folders = {file.parent.relative_to(real) for file in files if file.is_relative_to(real)}
    return [_below(own), *sorted(_below(f) for f in folders if not f.is_relative_to(own))]


def _below(folder: Path) -> str:
    name = re.sub(r"[][*?\\]", "?", folder.as_posix())
    return "**" if name == "." else f"{name}/**"
