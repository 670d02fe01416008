"""What the last build of a target made: `build/<target>/image.json`, written and read back."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from builder.config import image_yaml
from builder.config.fields import PruneMode
from builder.core import files, project
from builder.core.errors import InputError

if TYPE_CHECKING:
    from builder.engine import Engine

RECORD = "image.json"


@dataclass(frozen=True)
class ImageRecord:
    """What a build made. Sizes in bytes, times in seconds."""

    target: str
    reference: str
    digest: str | None
    """Of the manifest; None where an engine built the image whose store makes a manifest only at
    the push."""
    image_id: str
    inputs: str
    """Hash over everything that decided the image's content."""
    base: str | None
    base_digest: str | None
    base_origin: str
    root: str
    compressed_bytes: int | None
    unpacked_bytes: int | None
    budget_bytes: int | None
    packages: tuple[tuple[str, int], ...]
    """The largest downloads in it."""
    phases: Mapping[str, float]
    engine: str
    framework: str
    release: str
    prune: PruneMode = "off"

    @property
    def over_budget(self) -> bool:
        """Whether a pull transfers more than the budget allows."""
        return (self.compressed_bytes or 0) > (self.budget_bytes or math.inf)


def folder(root: Path, target: str) -> Path:
    """Return where a target's image.json, receipt and logs go."""
    return root / project.BUILD / target


def write(root: Path, record: ImageRecord) -> None:
    content = {**asdict(record), "over_budget": record.over_budget}
    files.write(folder(root, record.target) / RECORD, json.dumps(content, indent=2) + "\n")


def read(root: Path, target: str) -> ImageRecord | None:
    """Return what the last build of a target made; None for none, or where its file is damaged."""
    try:
        text = (folder(root, target) / RECORD).read_text(encoding="utf-8")
        content = files.parsed(json.loads, text)
        content.pop("over_budget")
        content["packages"] = tuple((name, size) for name, size in content["packages"])
        return ImageRecord(**content)
    except (FileNotFoundError, ValueError, KeyError, TypeError, AttributeError):
        return None


def up_to_date(root: Path, engine: Engine, target: str, inputs: str) -> ImageRecord | None:
    """Return the record of the last build, if it is of these inputs and on the engine."""
    record = read(root, target)
    if record is None or record.inputs != inputs:
        return None
    image = engine.image(record.reference)
    return record if image and image.image_id == record.image_id else None


def image_ids(root: Path) -> dict[str, str]:
    """Return the ID of the image that the last build of each target made; "" for none."""
    last = {target: read(root, target) for target in image_yaml.targets(root)}
    return {target: record.image_id if record else "" for target, record in last.items()}


def built_targets(root: Path) -> tuple[str, ...]:
    """Return every target that was built here. Raises InputError for none."""
    built = tuple(target for target in image_yaml.targets(root) if read(root, target))
    if not built:
        raise InputError("nothing is built yet", "builder image v100")
    return built
