"""All that is known of a target before a build: its image.yaml, stack, lock and plan."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from builder.core import templates
from builder.core.errors import CheckFailed
from builder.lock import check, model
from builder.pipeline import plan
from builder.render import dockerfiles as render
from builder.spec import catalogue, compatibility


@dataclass(frozen=True)
class Prepared:
    """All that is known of a target before anything is built."""

    spec: catalogue.ImageSpec
    stack: compatibility.Stack
    lock: model.Lock
    plan: plan.Plan

    @property
    def target(self) -> str:
        return self.spec.name


def prepare(root: Path, target: str) -> Prepared:
    """Load, resolve, read the lock, render and plan; pure, nothing is built.

    Raises InputError for what image.yaml cannot mean, CheckFailed where the lock or a Dockerfile no
    longer says what image.yaml does.
    """
    spec = catalogue.load(root, target)
    stack = compatibility.resolve(spec)
    if stale := check.stale(root, spec, stack):
        first = stale[0]
        raise CheckFailed(f"{first.file}: {first.why}", first.fix)
    if drifted := render.check(root, [target]):
        raise CheckFailed(
            f"{drifted[0].file} is not what image.yaml and the templates give",
            f"builder render {target}",
        )
    held = model.read(root, target)
    rendered = render.render(spec, stack, held, templates.folder_of(root))
    return Prepared(spec, stack, held, plan.plan(root, spec, held, rendered))
