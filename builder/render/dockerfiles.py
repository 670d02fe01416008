"""The Dockerfile of a target, rendered from templates/ and committed beside its locks.

It is a pure function of image.yaml, its stack and its lock, and so the same bytes on every machine.
`builder render --check` compares it with the committed file.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from builder.bases import plan as bases
from builder.bases.plan import BasePlan
from builder.bases.settings import LABELS
from builder.core.templates import DOCKERFILE, folder_of
from builder.lock import model
from builder.render import start
from builder.render.jinja import fill
from builder.spec import catalogue, compatibility
from builder.spec.kernels import RUNS_ON

if TYPE_CHECKING:
    from builder.lock.model import Lock
    from builder.spec.catalogue import ImageSpec
    from builder.spec.stack import Stack

# Images that gcloud treats specially (command_lib/ai/docker/build.py).
_VERTEX = re.compile(
    r"(us|europe|asia)-docker\.pkg\.dev/vertex-ai/training/(tf|scikit-learn|pytorch|xgboost)-.+"
)


@dataclass(frozen=True)
class Rendered:
    """The Dockerfile of a target, and the base that it names; None for a published base."""

    base: BasePlan | None
    dockerfile: str


def render(spec: ImageSpec, stack: Stack, lock: Lock, templates: Path | None = None) -> Rendered:
    """The Dockerfile of a target.

    templates: the folder of a project's own templates, which win over the factory's. Raises
    InputError for a template that cannot be rendered.
    """
    base = bases.plan(spec, stack, lock) if lock.root else None
    dockerfile = fill(
        DOCKERFILE,
        templates,
        base=spec.base,
        base_tag=base.tag if base else None,
        expired_family=bool(_VERTEX.match(spec.base)),
        files=lock.files.keys(),
        apt_names=sorted(spec.apt),
        environment={**start.environment(spec, stack), **spec.environment},
        user=spec.user,
        module=spec.trainer.module,
        labels=_labels(spec, stack),
    )
    return Rendered(base, dockerfile)


def _labels(spec: ImageSpec, stack: Stack) -> dict[str, str]:
    found = {
        "org.opencontainers.image.title": spec.name,
        f"{LABELS}.accelerator": spec.accelerator,
        f"{LABELS}.compute-capability": stack.compute_capability,
        f"{LABELS}.kernels": stack.runs,
        f"{LABELS}.tensorflow": stack.tensorflow,
    }
    if stack.prune:
        whose = "TensorFlow's" if stack.prune.only == "tensorflow" else "TensorFlow's and NVIDIA's"
        found[f"{LABELS}.prune"] = stack.prune.only
        found[RUNS_ON] = stack.prune.keep
        found[f"{LABELS}.modified"] = f"{whose} libraries: hashes in RECORD no longer match"
    return {name: value for name, value in found.items() if value} | spec.labels


@dataclass(frozen=True)
class RenderedTarget:
    """A target: what a person wrote, what it resolves to, and its Dockerfile."""

    spec: ImageSpec
    stack: Stack
    rendered: Rendered


def load(root: Path, target: str) -> RenderedTarget:
    """A target from the files in its folder.

    Raises InputError for mistakes in image.yaml, and for a target that is not locked.
    """
    spec = catalogue.load(root, target)
    stack = compatibility.resolve(spec)
    return RenderedTarget(
        spec, stack, render(spec, stack, model.read(root, target), folder_of(root))
    )


def load_all(root: Path, targets: Iterable[str] | None = None) -> tuple[RenderedTarget, ...]:
    """These targets, or all of a project. Raises what `load` raises."""
    names = targets if targets is not None else catalogue.targets(root)
    return tuple(load(root, name) for name in names)


def render_target(root: Path, target: str) -> Rendered:
    """The Dockerfiles of a target. Raises what `load` raises."""
    return load(root, target).rendered
