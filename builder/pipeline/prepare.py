"""All that is known of a target before a build: its image.yaml, stack, lock and plan."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from builder.core import templates
from builder.core.errors import CheckFailed
from builder.lock import check, model
from builder.pipeline import plan
from builder.render import committed
from builder.render import dockerfiles as render
from builder.spec import catalogue, compatibility
from builder.spec.stack import Stack


@dataclass(frozen=True)
class Prepared:
    """All that is known of a target before anything is built."""

    spec: catalogue.ImageSpec
    stack: Stack
    lock: model.Lock
    plan: plan.Plan

    @property
    def target(self) -> str:
        return self.spec.name


def prepare(root: Path, target: str, spec: catalogue.ImageSpec | None = None) -> Prepared:
    """Load, resolve, read the lock, render and plan a target; each happens once.

    It reads files and writes none. spec: the target's image.yaml, where it is loaded already.
    Raises InputError for what image.yaml cannot mean, CheckFailed where the lock or a Dockerfile no
    longer says what image.yaml does.
    """
    spec = spec or catalogue.load(root, target)
    stack = compatibility.resolve(spec)
    held, stale = check.read(root, spec, stack)
    if stale:
        raise CheckFailed(f"{stale[0].file}: {stale[0].why}", stale[0].fix)
    assert held is not None, "a lock that cannot be read is stale"
    rendered = render.render(spec, stack, held, templates.folder_of(root))
    if drifted := committed.differences(root, target, rendered):
        raise CheckFailed(
            f"{drifted[0].file} is not what image.yaml and the templates give",
            f"builder render {target}",
        )
    return Prepared(spec, stack, held, plan.plan(root, spec, held, rendered))
