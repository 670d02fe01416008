"""The image of a job: a target's, any other one, or a program's folder made into one.

An image is sent by its digest. What it is proven for stands in its receipt, which lies beside it in
the registry.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from builder import registry
from builder.config import compatibility, device_code, image_yaml, lockfile
from builder.config.stack import RUNS_ON
from builder.core.errors import CheckFailed, FactoryError, InputError, OutsideError
from builder.core.events import OnEvent, ignore
from builder.core.settings import Settings
from builder.facts import accelerators
from builder.facts.cuda import OldestDriver
from builder.jobs.description import Job
from builder.jobs.ready import Image
from builder.prove import receipts

if TYPE_CHECKING:
    from builder.engine import Engine
    from builder.pipeline.verify import Verification

Notes = tuple[str, ...]
_REGISTRY = 'write registry = "REGION-docker.pkg.dev/PROJECT/REPOSITORY/NAME" in builder.toml'


@dataclass(frozen=True)
class ProgramFolder:
    """A program that becomes the job's image. name: FOLDER:MODULE; engine: connects to it."""

    name: str
    engine: Callable[[], Engine]


def targets(root: Path) -> dict[str, str]:
    """Return the accelerator of each target of a project that can be read."""
    readable = {}
    for name in image_yaml.targets(root):
        with contextlib.suppress(InputError):
            readable[name] = accelerators.find(image_yaml.load(root, name).accelerator).name
    return readable


def target_of(root: Path, name: str) -> str:
    """Return the target whose base a package uses. Raises InputError for an image that is none."""
    if name not in image_yaml.targets(root):
        raise InputError(
            f"--program: {name} is no target of images/",
            f"name a job whose image is one of {', '.join(image_yaml.targets(root))}",
        )
    return name


def local_image(root: Path, job: Job, settings: Settings) -> tuple[Image, Notes]:
    """Return the job's image as this machine knows it, and notes about what it does not know.

    Raises InputError for a name that is neither a target nor a reference.
    """
    name = job.image
    if name not in image_yaml.targets(root):
        tag = f"{name} is a tag: `builder job submit` sends its digest"
        return _reference(root, name), () if "@" in name else (tag,)
    image = _of_target(root, name, f"{settings.repository}:{name}", settings)
    receipt = receipts.read(root / "build" / name / "receipt.json")
    if receipt is None or receipt.digest is None or not receipt.passed:
        return image, (
            f"{name} has no valid receipt here: builder image {name} --push; `builder job submit` "
            "sends what the registry holds, by digest",
        )
    reference = f"{settings.repository}@{receipt.digest}"
    proven = replace(image, reference=reference, digest=receipt.digest, proven=True)
    return replace(proven, accelerator=receipt.accelerator), ()


def pushed_image(
    root: Path, job: Job, settings: Settings, on_event: OnEvent = ignore
) -> tuple[Image, Notes]:
    """Return the job's image by its digest in the registry, proven by its receipt; and notes.

    Where [trust] names keys, every image needs a receipt that one of them signed. Raises
    InputError, OutsideError for a missing image, CheckFailed for one that is not proven.
    """
    from builder.frameworks import suites
    from builder.pipeline import verify

    name = job.image
    if name in image_yaml.targets(root):
        if not settings.registry:
            raise InputError(
                f"{name} is on this machine only: no registry is named",
                f"{_REGISTRY}, then builder image {name} --push",
            )
        # the suite of this target, whatever image bears its name there
        judge = verify.judge_of(suites.of_spec(image_yaml.load(root, name)))
        verified = verify.verify(name, settings, judge=judge, on_event=on_event)
        image = _of_target(root, name, verified.reference, settings)
        made_for = verified.receipt.accelerator
        return replace(image, digest=verified.digest, accelerator=made_for, proven=True), ()
    if settings.trust.prove:
        return _verified(verify.verify(name, settings, on_event=on_event)), ()
    image = _reference(root, name)
    where = registry.parse(name)
    try:
        with registry.Registry(where.host) as client:
            manifest = client.manifest(where.repository, where.target)
            labels = _labels(client, where, manifest) if manifest else {}
    except OutsideError:
        if where.digest:  # this machine cannot ask; the service will
            return image, (f"{where.host} was not asked about {name}",)
        raise
    if manifest is None:
        raise OutsideError(f"{name}: {where.host} has no such image", "correct it, or push it")
    reference = str(where.at(manifest.digest))
    notes: Notes = () if where.digest else (f"{name} is {manifest.digest} now",)
    label = labels.get(verify.ACCELERATOR)
    image = Image(reference, manifest.digest, accelerator=label, pruned=RUNS_ON in labels)
    if label is not None:  # an image of ours under another name: its receipt lies beside it
        try:
            image = _verified(verify.verify(reference, settings, on_event=on_event))
        except CheckFailed as error:
            notes += (f"{error.message}: that it is for {label} is what its label says",)
    return image, notes


def planned_image(root: Path, job: Job, settings: Settings) -> Image:
    """Return what is known of a program's image before it is built.

    Raises InputError for a job whose image is no target, or where no registry is named.
    """
    if not settings.registry:
        raise InputError(
            "a program is pushed before it is sent, and no registry is named", _REGISTRY
        )
    target = target_of(root, job.image)
    image = _of_target(root, target, settings.registry, settings)
    return replace(image, accelerator=accelerators.find(str(image.accelerator)).name)


def packaged_image(
    root: Path, job: Job, settings: Settings, program: ProgramFolder, on_event: OnEvent = ignore
) -> Image:
    """Lock, build, prove and push a program's folder as an image on the job's target.

    Raises InputError for a job whose image is no target, CheckFailed, OutsideError.
    """
    from builder.jobs import package
    from builder.pipeline import verify

    python = package.find(program.name)
    engine, target = program.engine(), target_of(root, job.image)
    built = package.build(root, settings, engine, target, python, on_event)
    pushed = package.push_built(settings, engine, built, on_event)
    if settings.trust.prove:
        verify.verify(pushed.reference, settings, on_event=on_event)
    return replace(
        planned_image(root, job, settings),
        reference=pushed.reference,
        digest=pushed.digest,
        accelerator=built.receipt.accelerator,
        proven=True,
        entrypoint=("python", "-m", python.module),
    )


def _of_target(root: Path, name: str, reference: str, settings: Settings) -> Image:
    """Return the image of a target as its image.yaml describes it."""
    spec = image_yaml.load(root, name)
    kind = accelerators.find(spec.accelerator).kind
    try:
        stack = compatibility.resolve(spec)
        locked = (root / image_yaml.IMAGES / name / lockfile.FILE).is_file()
        driver = device_code.driver(root, stack, lockfile.read(root, name) if locked else None)
    except InputError:  # versions that do not fit; builder lock says so
        driver = None
    return Image(
        reference,
        target=name,
        accelerator=spec.accelerator,
        pruned=spec.prune != "off" and kind == "gpu",
        driver=driver,
        in_registry=settings.registry is not None,
        entrypoint=("python" if spec.has_own_base else "python3", "-m", spec.program.module),
    )


def _verified(verified: Verification) -> Image:
    """Return the image that a receipt is about."""
    driver = verified.receipt.seen("device-code").get("driver")
    return Image(
        verified.reference,
        verified.digest,
        accelerator=verified.receipt.accelerator,
        proven=True,
        pruned=RUNS_ON in verified.labels,
        driver=_driver(driver),
    )


def _driver(seen: object) -> OldestDriver | None:
    """Return the oldest driver that a check of device code saw."""
    if not isinstance(seen, dict) or not str(seen.get("driver", "")).isdigit():
        return None
    return OldestDriver(str(seen["driver"]), str(seen.get("cuda", "")))


def _labels(
    client: registry.Registry, where: registry.Reference, image: registry.Manifest
) -> Mapping[str, str]:
    """Return an image's labels; none for an index, or where its configuration cannot be read."""
    try:
        return client.labels(where.repository, image)
    except FactoryError:
        return {}


def _reference(root: Path, name: str) -> Image:
    """Return the image of a reference. Raises InputError for a name that is none."""
    if not re.search(r"[/:@.]", name):
        known = ", ".join(image_yaml.targets(root))
        raise InputError(
            f"image: {name!r} is neither a target nor the reference of an image",
            f"write one of {known}, or HOST/PATH@sha256:<digest>" if known else "write HOST/PATH",
        )
    where = registry.parse(name)
    return Image(str(where), where.digest)
