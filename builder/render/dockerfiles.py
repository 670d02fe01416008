"""The two Dockerfiles of a target, rendered from templates/ and committed beside its locks.

They are a pure function of image.yaml, its stack and its lock, and so the same bytes on every
machine. `builder render --check` compares them with the committed files.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from builder.bases.wheel import VENV, site_packages
from builder.core.files import hash_of
from builder.core.templates import (
    BASE_DOCKERFILE,
    DOCKERFILE,
    EPOCH,
    folder_of,
)
from builder.devicecode.program import pruning_program
from builder.lock import model
from builder.render.jinja import fill
from builder.spec import catalogue, compatibility
from builder.spec.kernels import RUNS_ON

if TYPE_CHECKING:
    from builder.lock.model import Lock
    from builder.spec.catalogue import ImageSpec
    from builder.spec.stack import Stack

LABELS = "training-image-factory"
"""The prefix of the labels that say what an image is made of."""

# Images that gcloud treats specially (command_lib/ai/docker/build.py).
_VERTEX = re.compile(
    r"(us|europe|asia)-docker\.pkg\.dev/vertex-ai/training/(tf|scikit-learn|pytorch|xgboost)-.+"
)


@dataclass(frozen=True)
class Rendered:
    """The two Dockerfiles of a target. A published base has no base Dockerfile and no hash.

    base_hash: 16 hex digits over all that the base is made of; its tag is `base-<base_hash>`.
    """

    base_dockerfile: str | None
    base_hash: str | None
    dockerfile: str

    @property
    def files(self) -> dict[str, str]:
        """File name -> text, as they lie in images/<target>/."""
        base = {BASE_DOCKERFILE: self.base_dockerfile} if self.base_dockerfile else {}
        return {**base, DOCKERFILE: self.dockerfile}


def render(spec: ImageSpec, stack: Stack, lock: Lock, templates: Path | None = None) -> Rendered:
    """The Dockerfiles of a target.

    templates: the folder of a project's own templates, which win over the factory's. Raises
    InputError for a template that cannot be rendered.
    """
    base_dockerfile = base_hash = None
    if lock.root:
        base_dockerfile = fill(
            BASE_DOCKERFILE,
            templates,
            root=lock.root,
            files=lock.files.keys(),
            user=spec.user,
            python=lock.python,
            tensorflow=lock.tensorflow,
            tpu="libtpu" in lock.packages,
            cuda=lock.cuda,
            cudnn=lock.cudnn,
            prune=stack.prune,
            **_places(lock),
        )
        parts = [base_dockerfile, lock.root.identity, *map(str, _items(lock.files))]
        if stack.prune:  # the program that runs in the step that installs
            parts += [f"{name} {text!r}" for name, text in pruning_program().items()]
        base_hash = hash_of(*parts)[:16]
    dockerfile = fill(
        DOCKERFILE,
        templates,
        base=spec.base,
        base_hash=base_hash,
        expired_family=bool(_VERTEX.match(spec.base)),
        files=lock.files.keys(),
        apt_names=sorted(spec.apt),
        environment=spec.environment,
        user=spec.user,
        module=spec.trainer.module,
        labels=_labels(spec, stack),
        **_places(lock),
    )
    return Rendered(base_dockerfile, base_hash, dockerfile)


def _items(files: Mapping[str, str]) -> list[tuple[str, str]]:
    return sorted(files.items())


def _places(lock: Lock) -> dict[str, object]:
    return {"venv": VENV, "site": site_packages(lock.python), "epoch": EPOCH}


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
    """A target: what a person wrote, what it resolves to, and its Dockerfiles."""

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
