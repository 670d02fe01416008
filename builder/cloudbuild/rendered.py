"""cloudbuild.yaml of a project, and the Dockerfile of the image that its steps run in."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from pathlib import Path

from builder.core.files import hash_of
from builder.core.project import templates_of
from builder.image.dockerfile import Rendered, fill, load_all

CLOUDBUILD = "cloudbuild.yaml"
BUILDER_DOCKERFILE = "builder.Dockerfile"
BUILDER_SUITE = "trixie"
"""The Debian that the builder image starts from: the first one that has docker with buildx."""
BUILDER_REQUIREMENTS = "requirements/build.txt"
WHEEL = "training_image_factory-*.whl"
FIRST_DISK_GB, BASE_DISK_GB, PUBLISHED_DISK_GB = 40, 6, 30
"""The disk of a build. FIRST: the worker's own system, the builder image, and a base that is made
and proven (18.7 GB at most for v100 on a worker's engine). BASE: what each base keeps beyond what
it shares, packed and unpacked. PUBLISHED: an image on a published base."""
MACHINE = "E2_HIGHCPU_8"


def has_cloud(root: Path) -> bool:
    """Return whether a project holds what the steps of a build run from: the factory's source, or
    its wheel, with the locked packages that it needs."""
    source = (root / "builder").is_dir() or _wheel(root)
    return (root / BUILDER_REQUIREMENTS).is_file() and bool(source)


def _wheel(root: Path) -> Path | None:
    wheels = sorted((root / BUILDER_REQUIREMENTS).parent.glob(WHEEL))
    return wheels[-1] if wheels and not (root / "builder").is_dir() else None


def cloud_files(root: Path, targets: Sequence[Rendered] | None = None) -> dict[str, str]:
    """Return cloudbuild.yaml and the Dockerfile of the image that its steps run in, by name.

    targets: all of the project, where they are rendered already. Raises InputError for a target or
    a setting that is wrong.
    """
    from builder.core.settings import load, load_cloud

    templates = templates_of(root)
    wheel = _wheel(root)
    dockerfile = fill(
        f"cloud/{BUILDER_DOCKERFILE}",
        templates,
        suite=BUILDER_SUITE,
        wheel=wheel.name if wheel else "",
    )
    targets = load_all(root) if targets is None else targets
    hashes = [target.base.hash if target.base else "" for target in targets]
    bases, published = len({*hashes} - {""}), hashes.count("")
    without_gpu = [t.spec.name for t in targets if t.stack.accelerator.kind != "gpu"]
    cloud, settings = load_cloud(root, environ={}), load(root, environ={})
    account = cloud.service_account
    if account:
        from builder.googleapi import account_name  # slow

        account = account_name(account)
    text = fill(
        f"cloud/{CLOUDBUILD}",
        templates,
        builder="${_REGISTRY}:" + builder_tag(root, dockerfile),
        for_no_gpu="|".join(without_gpu).replace(".", "[.]"),
        region=cloud.region if cloud.region != "global" else "us-central1",
        registry=settings.registry or "${_REGION}-docker.pkg.dev/${PROJECT_ID}/training/images",
        root_image=f"debian:{BUILDER_SUITE}-slim",
        timeout=min(86400, 1800 + 900 * (bases + published) + 300 * len(targets)),
        machine_type=cloud.machine_type or MACHINE,
        disk_gb=disk_gb(bases, published),
        service_account=account,
    )
    return {BUILDER_DOCKERFILE: dockerfile, CLOUDBUILD: text}


def texts(root: Path, targets: Sequence[Rendered]) -> dict[Path, str]:
    """Return Cloud Build's files by the paths under which they are committed.

    targets: all of the project. A project without the factory's source or wheel has no such file.
    """
    if not has_cloud(root):
        return {}
    return {root / name: text for name, text in cloud_files(root, targets).items()}


def builder_tag(root: Path, dockerfile: str) -> str:
    """Return the tag of the builder image: a hash of all that it is made from."""
    parts = [dockerfile, (root / BUILDER_REQUIREMENTS).read_text(encoding="utf-8")]
    if wheel := _wheel(root):
        parts.append(hashlib.sha256(wheel.read_bytes()).hexdigest())
    return f"builder-{hash_of(*parts)[:16]}"


def disk_gb(bases: int, published: int) -> int:
    """Return the GB of disk that a build of so many bases, and images on published ones, gets."""
    used = FIRST_DISK_GB + BASE_DISK_GB * bases + PUBLISHED_DISK_GB * published
    return min(4000, max(100, math.ceil(used / 50) * 50))
