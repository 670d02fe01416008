"""What changed in a target's base since a commit: the layers that are made anew, and why."""

from __future__ import annotations

import json
import tempfile
from dataclasses import dataclass
from pathlib import Path

from builder.bases import plan
from builder.bases.layer import LayerPlan
from builder.bases.plan import BasePlan
from builder.core import files
from builder.core.errors import InputError
from builder.lock import model, pins
from builder.render.changes import commit, text_at
from builder.spec import catalogue, compatibility


@dataclass(frozen=True)
class LayerChange:
    """A layer of a base that was added, removed or changed.

    change: "added", "removed" or "changed". detail: a line for each package whose version changed.
    download: the bytes of the packages that it is made of now, None where that is not known.
    """

    name: str
    change: str
    detail: tuple[str, ...]
    download: int | None


def changes(root: Path, target: str, since: str = "HEAD") -> tuple[LayerChange, ...]:
    """The layers of a target's base that differ from those of a commit.

    Raises what `changes.commit` raises.
    """
    at = commit(root / catalogue.IMAGES / target, since)
    old, new = _at(root, target, at), _now(root, target)
    before = {_packages(layer): layer for layer in old.layers} if old else {}
    found = []
    for layer in new.layers if new else ():
        other = before.pop(_packages(layer), None)
        if other is None:
            found.append(LayerChange(layer.name, "added", (), layer.download))
        elif other.key != layer.key:
            detail = _detail(other, layer)
            found.append(LayerChange(layer.name, "changed", detail, layer.download))
    found += [LayerChange(layer.name, "removed", (), None) for layer in before.values()]
    return tuple(found)


def _now(root: Path, target: str) -> BasePlan | None:
    spec = catalogue.load(root, target)
    held = model.read(root, target)
    return plan.plan(spec, compatibility.resolve(spec), held) if held.root else None


def _at(root: Path, target: str, since: str | None) -> BasePlan | None:
    """The base as it was at a commit; None where it had none, or none that this code can read."""
    images = root / catalogue.IMAGES
    folder = images / target
    with tempfile.TemporaryDirectory(prefix="builder-since-") as scratch:
        then = Path(scratch)
        names = [catalogue.FILE, model.FILE, *model.WHEELS, model.APT, model.APT_EXTRA]
        locks = [path.name for path in images.glob("os-*.lock")]
        paths = [*(folder / name for name in names), *(images / name for name in locks)]
        for path in paths:
            if (text := text_at(path, since)) is not None:
                files.write(then / path.relative_to(root), text)
        try:
            spec = catalogue.parse(
                (then / (folder / catalogue.FILE).relative_to(root)).read_text(encoding="utf-8"),
                folder / catalogue.FILE,
            )
            held = model.read(then, target)
            return plan.plan(spec, compatibility.resolve(spec), held) if held.root else None
        except (InputError, OSError, json.JSONDecodeError):
            return None


def _packages(layer: LayerPlan) -> tuple[str, ...] | str:
    """What tells a layer from the others, whatever its versions are: its names, or its own name."""
    names = tuple(package.partition(" ")[0] for package in layer.packages)
    return names if len(names) == 1 else layer.name


def _detail(before: LayerPlan, after: LayerPlan) -> tuple[str, ...]:
    old, new = (dict(one.split(" ", 1) for one in layer.packages) for layer in (before, after))
    return pins.moves(old, new)
