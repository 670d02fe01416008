"""cloudbuild.yaml of a project, and the Dockerfile of the image that its steps run in."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from builder.core.files import hash_of
from builder.core.project import templates_of
from builder.facts.workers import MACHINES, SYSTEM_GB
from builder.googleapi import account_name
from builder.image.dockerfile import Rendered, fill, load_all

if TYPE_CHECKING:
    from builder.config.stack import Stack

CLOUDBUILD = "cloudbuild.yaml"
BUILDER_DOCKERFILE = "builder.Dockerfile"
BUILDER_SUITE = "trixie"
"""The Debian that the builder image starts from: the first one that has docker with buildx."""
BUILDER_REQUIREMENTS = "requirements/build.txt"
KEPT, MEANWHILE = 3, 4
"""Bytes of disk for each byte of a base's packages. KEPT: as long as the build lasts, packed in the
store and unpacked on the engine (0.7 and 1.8 of v100). MEANWHILE: while the base is made, loaded
and proven, downloads and copies. A run on a worker's engine saw 18.7 GB at most for v100, of whose
packages there are 2.6 GB, and 4.9 GB for cpu (0.4 GB)."""
SYSTEM_DISK_GB = 20
"""The worker's own system, which is part of the disk that a build asks for, and the builder image.
"""
MACHINE = "E2_HIGHCPU_8"
UNKNOWN_SIZE = 4_000_000_000
"""Bytes that stand in for an image whose size nothing tells."""
SMOKE_GB = 4
"""What a smoke run may use (builder/prove/session.py); a base needs no more while it is built."""


def has_cloud(root: Path) -> bool:
    """Return whether a project holds the factory's source, which the steps of a build run from."""
    return (root / BUILDER_REQUIREMENTS).is_file() and (root / "builder").is_dir()


def cloud_files(root: Path, targets: Sequence[Rendered] | None = None) -> dict[str, str]:
    """Return cloudbuild.yaml and the Dockerfile of the image that its steps run in, by name.

    targets: all of the project, where they are rendered already. Raises InputError for a target or
    a setting that is wrong.
    """
    from builder.core.settings import load, load_cloud

    templates = templates_of(root)
    dockerfile = fill(f"cloud/{BUILDER_DOCKERFILE}", templates, suite=BUILDER_SUITE)
    targets = load_all(root) if targets is None else targets
    bases, published = _bases(targets)
    cloud, settings = load_cloud(root, environ={}), load(root, environ={})
    account = cloud.service_account
    machine = cloud.machine_type or MACHINE
    lanes = side_by_side(machine)
    stacks = {target.spec.name: target.stack for target in targets}
    text = fill(
        f"cloud/{CLOUDBUILD}",
        templates,
        builder="${_REGISTRY}:" + builder_tag(root, dockerfile),
        groups=_groups(stacks, bases, published, lanes),
        side_by_side="One smoke run" if lanes == 1 else f"At most {lanes} smoke runs",
        region=cloud.region if cloud.region != "global" else "us-central1",
        registry=settings.registry or "${_REGION}-docker.pkg.dev/${PROJECT_ID}/training/images",
        root_image=f"debian:{BUILDER_SUITE}-slim",
        timeout=min(86400, 1800 + 900 * (len(bases) + len(published)) + 300 * len(targets)),
        machine_type=machine,
        disk_gb=min(4000, max(100, math.ceil(disk_gb(targets, lanes) / 50) * 50)),
        logging=cloud.logging or "CLOUD_LOGGING_ONLY",
        logs_bucket=cloud.logs_bucket,
        service_account=account and account_name(account),
    )
    return {BUILDER_DOCKERFILE: dockerfile, CLOUDBUILD: text}


def texts(root: Path, targets: Sequence[Rendered]) -> dict[Path, str]:
    """Return Cloud Build's files by the paths under which they are committed.

    targets: all of the project. A project without the factory's source has no such file.
    """
    if not has_cloud(root):
        return {}
    return {root / name: text for name, text in cloud_files(root, targets).items()}


def builder_tag(root: Path, dockerfile: str) -> str:
    """Return the tag of the builder image: a hash of all that it is made from."""
    requirements = (root / BUILDER_REQUIREMENTS).read_text(encoding="utf-8")
    return f"builder-{hash_of(dockerfile, requirements)[:16]}"


def side_by_side(machine: str) -> int:
    """Return how many smoke runs fit into a machine's memory; one for an unknown machine."""
    known = MACHINES.get(machine)
    return max(1, int((known.memory - SYSTEM_GB) // SMOKE_GB)) if known else 1


def disk_gb(targets: Iterable[Rendered], lanes: int = 1) -> float:
    """Return the GB of disk that a build of these targets uses at most, from their bases' plans.

    lanes: how many bases are made side by side. What bases share counts once: their lowest layers.
    """
    layers: dict[tuple[str, ...], int] = {}
    bases: dict[str, int] = {}
    for target in targets:
        sizes = _sizes(target)
        keys = tuple(sizes)
        layers |= {keys[: n + 1]: size for n, size in enumerate(sizes.values())}
        bases[keys[-1]] = sum(sizes.values())
    largest = sum(sorted(bases.values(), reverse=True)[:lanes])
    return SYSTEM_DISK_GB + (KEPT * sum(layers.values()) + MEANWHILE * largest) / 1e9


def _bases(targets: Iterable[Rendered]) -> tuple[list[list[str]], list[str]]:
    """Return the targets of each base that is built, and the targets on a published base."""
    bases: dict[str, list[str]] = {}
    for target in targets:
        bases.setdefault(target.base.hash if target.base else "", []).append(target.spec.name)
    published = bases.pop("", [])
    return list(bases.values()), published


def _groups(
    stacks: Mapping[str, Stack], bases: Sequence[list[str]], published: Sequence[str], lanes: int
) -> list[dict[str, object]]:
    """Return the steps as the template takes them: for each base, its own step and its targets.

    lanes: how many groups go on side by side. In a lane, what needs memory (a base, a smoke run)
    waits for the one before it.
    """
    groups: list[dict[str, object]] = []
    last: dict[int, str] = {}  # what each lane waits for
    for number, names in enumerate([*bases, *([name] for name in published)]):
        lane = number % lanes
        base = f"base-{'-'.join(names)}" if number < len(bases) else ""
        after = last.get(lane, "changed")
        last[lane] = base or after
        targets = []
        for name in names:
            targets.append(_target(stacks[name], last[lane]))
            last[lane] = f"smoke-{name}"
        groups.append({"base": base, "names": names, "after": after, "targets": targets})
    return groups


def _target(stack: Stack, after: str) -> Mapping[str, object]:
    """Return a target as the template takes it. after: the step that its first step waits for."""
    name = stack.spec.name
    proofs = ["audit", "smoke"] if stack.accelerator.kind == "gpu" else ["smoke"]
    return {
        "name": name,
        "accelerator": stack.spec.accelerator,
        "after": after,
        "proofs": proofs,
        "proven": [f"{proof}-{name}" for proof in proofs],
    }


def _sizes(target: Rendered) -> dict[str, int]:
    """Return the bytes of the packages of each layer of a base, by its key, the lowest first.

    For a published base, and where an index did not tell a size, the image's budget stands in.
    """
    layers = target.base.layers if target.base else ()
    sizes = {layer.key: layer.download for layer in layers if layer.download is not None}
    if layers and len(sizes) == len(layers):
        return sizes
    return {f"budget {target.spec.name}": target.spec.size_budget or UNKNOWN_SIZE}
