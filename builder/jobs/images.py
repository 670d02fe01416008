"""The image of a job: a target's, any other one, or a program's folder made into one.

An image is sent by its digest. What it is proven for stands in its receipt, which lies beside it in
the registry.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from builder import registry
from builder.core.errors import CheckFailed, FactoryError, InputError, OutsideError
from builder.core.events import OnEvent, ignore
from builder.core.settings import Settings
from builder.facts import accelerators
from builder.jobs.description import Job
from builder.jobs.ready import Image
from builder.prove import receipts
from builder.spec import catalogue, compatibility
from builder.spec.kernels import RUNS_ON

if TYPE_CHECKING:
    from builder.engine import Engine
    from builder.jobs.package import PythonProgram


@dataclass(frozen=True)
class ProgramFolder:
    """A program's folder that becomes the job's image. engine: connects to the engine for it."""

    folder: Path
    module: str | None
    engine: Callable[[], Engine]

    def job(self, job: Job) -> Job:
        """The job as it is sent with the program: it passes its folder, as AI Platform did."""
        return job.model_copy(update={"pass_job_dir": True})


def find(
    root: Path,
    job: Job,
    settings: Settings,
    *,
    pushed: bool,
    package: ProgramFolder | None,
    check: Callable[[Image], object],
    on_event: OnEvent = ignore,
) -> tuple[Image, tuple[str, ...]]:
    """The image of a job that is sent, and notes about it.

    pushed: take it from its registry. package: make it of that program's folder; that takes
    minutes, so `check` looks at the job with what is known of the image before. Raises InputError,
    OutsideError, CheckFailed.
    """
    if package is not None:
        from builder.jobs import package as packages

        program = packages.program(package.folder, package.module)
        check(planned_image(root, job, settings))
        return packaged_image(root, job, settings, program, package.engine(), on_event), ()
    if pushed:
        return pushed_image(root, job, settings, on_event)
    return local_image(root, job, settings)


def of_roles(
    root: Path, job: Job, settings: Settings, *, pushed: bool, on_event: OnEvent = ignore
) -> tuple[dict[str, Image], tuple[str, ...]]:
    """The images of the roles that have one of their own, and notes about them.

    pushed: take them from their registries. Raises InputError, OutsideError, CheckFailed.
    """
    found, notes = dict[str, Image](), dict[str, None]()
    for role in (pool.role for pool in job.pools):
        one = job.of(role)
        if one.image == job.image:
            continue
        if pushed:
            found[role], told = pushed_image(root, one, settings, on_event)
        else:
            found[role], told = local_image(root, one, settings)
        notes |= dict.fromkeys(told)
    return found, tuple(notes)


def targets(root: Path) -> dict[str, str]:
    """The accelerator of each target of a project, without targets that cannot be read."""
    found = {}
    for name in catalogue.targets(root):
        try:
            found[name] = accelerators.find(catalogue.load(root, name).accelerator).name
        except InputError:
            continue
    return found


def target_of(root: Path, name: str) -> str:
    """The target whose base a package uses. Raises InputError for an image that is no target."""
    if name not in catalogue.targets(root):
        raise InputError(
            f"--package: {name} is no target of images/",
            f"name a job whose image is one of {', '.join(catalogue.targets(root))}",
        )
    return name


def local_image(root: Path, job: Job, settings: Settings) -> tuple[Image, tuple[str, ...]]:
    """The job's image as this machine knows it, and notes about what it does not know.

    Raises InputError for a name that is neither a target nor a reference.
    """
    name = job.image
    if name not in catalogue.targets(root):
        return _foreign(root, name), () if "@" in name else (_by_tag(name),)
    spec = catalogue.load(root, name)
    receipt = receipts.read(root / "build" / name / "receipt.json")
    pruned = _pruned(spec)
    if receipt is None or receipt.digest is None or not receipt.passed:
        tag = f"{settings.repository}:{name}"
        return Image(tag, None, name, spec.accelerator, False, pruned, _cuda(spec)), (
            f"{name} has no valid receipt here: builder image {name} --push; `builder job submit` "
            "sends what the registry holds, by digest",
        )
    reference = f"{settings.repository}@{receipt.digest}"
    notes = () if settings.registry else (_NO_REGISTRY,)
    return (
        Image(reference, receipt.digest, name, receipt.accelerator, True, pruned, cuda=_cuda(spec)),
        notes,
    )


def pushed_image(
    root: Path, job: Job, settings: Settings, on_event: OnEvent = ignore
) -> tuple[Image, tuple[str, ...]]:
    """The job's image by its digest in the registry, proven by its receipt; and notes.

    Where [trust] names keys, every image needs a receipt that one of them signed. Raises
    InputError, OutsideError for a missing image, CheckFailed for one that is not proven.
    """
    from builder.pipeline import verify
    from builder.tensorflow import suite as suites

    name = job.image
    if name in catalogue.targets(root):
        if not settings.registry:
            raise InputError(
                f"{name} is on this machine only: no registry is named",
                'write registry = "REGION-docker.pkg.dev/PROJECT/REPOSITORY/NAME" in builder.toml, '
                f"then builder image {name} --push",
            )
        spec = catalogue.load(root, name)
        suite = suites.of_image(spec.labels)  # of this target, whatever image bears its name there
        found = verify.verify(name, settings, suite=suite, on_event=on_event)
        return Image(
            found.reference,
            found.digest,
            name,
            found.receipt.accelerator,
            True,
            _pruned(spec),
            _cuda(spec),
        ), ()
    image = _foreign(root, name)
    if settings.trust.prove:
        found = verify.verify(name, settings, on_event=on_event)
        of, pruned = found.receipt.accelerator, RUNS_ON in found.labels
        return Image(found.reference, found.digest, None, of, True, pruned), ()
    where = registry.parse(name)
    try:
        with registry.Registry(where.host) as there:
            manifest = there.manifest(where.repository, where.target)
            labels = _labels(there, where, manifest) if manifest else {}
    except OutsideError:
        if where.digest:  # this machine cannot ask; the service will
            return image, (f"{where.host} was not asked about {name}",)
        raise
    if manifest is None:
        raise OutsideError(f"{name}: {where.host} has no such image", "correct it, or push it")
    held = where.at(manifest.digest)
    notes: tuple[str, ...] = () if where.digest else (f"{name} is {manifest.digest} now",)
    made_for, proven = labels.get(verify.ACCELERATOR), False
    if made_for is not None:  # an image of ours under another name: its receipt lies beside it
        try:
            found = verify.verify(str(held), settings, on_event=on_event)
            made_for, proven = found.receipt.accelerator, True
        except CheckFailed as error:
            notes += (f"{error.message}: that it is for {made_for} is what its label says",)
    pruned = RUNS_ON in labels
    return Image(str(held), manifest.digest, None, made_for, proven, pruned), notes


def _labels(
    there: registry.Registry, where: registry.Reference, image: registry.Manifest
) -> Mapping[str, str]:
    """An image's labels; none for an index, or where its configuration cannot be read."""
    try:
        return there.labels(where.repository, image)
    except FactoryError:
        return {}


def planned_image(root: Path, job: Job, settings: Settings) -> Image:
    """What is known of a program's image before it is built.

    Raises InputError for a job whose image is no target, or where no registry is named.
    """
    if not settings.registry:
        raise InputError(
            "a program is pushed before it is sent, and no registry is named",
            'write registry = "REGION-docker.pkg.dev/PROJECT/REPOSITORY/NAME" in builder.toml',
        )
    target = target_of(root, job.image)
    spec = catalogue.load(root, target)
    made_for = accelerators.find(spec.accelerator).name
    return Image(settings.registry, None, target, made_for, False, _pruned(spec), _cuda(spec))


def _pruned(spec: catalogue.ImageSpec) -> bool:
    """Whether the device code of other GPUs is taken out; only an image for a GPU has any."""
    return spec.prune != "off" and accelerators.find(spec.accelerator).kind == "gpu"


def _cuda(spec: catalogue.ImageSpec) -> str | None:
    """The version of CUDA in a target's image; None for one without, or that cannot be made."""
    try:
        return compatibility.resolve(spec).cuda
    except InputError:
        return None


def packaged_image(
    root: Path,
    job: Job,
    settings: Settings,
    program: PythonProgram,
    engine: Engine,
    on_event: OnEvent = ignore,
) -> Image:
    """Lock, build, prove and push a program's folder as an image on the job's target.

    Raises InputError for a job whose image is no target, CheckFailed, OutsideError.
    """
    from builder.jobs import package
    from builder.pipeline import verify

    planned = planned_image(root, job, settings)
    target = target_of(root, job.image)
    made = package.build(root, settings, engine, target, program, on_event)
    pushed = package.push_built(settings, engine, made, on_event)
    if settings.trust.prove:
        verify.verify(pushed.reference, settings, on_event=on_event)
    return replace(
        planned,
        reference=pushed.reference,
        digest=pushed.digest,
        accelerator=made.receipt.accelerator,
        proven=True,
    )


_NO_REGISTRY = (
    "no registry is named in builder.toml: the image has a name on this machine only, and cannot "
    "be sent"
)


def _by_tag(name: str) -> str:
    return f"{name} is a tag: `builder job submit` sends its digest"


def _foreign(root: Path, name: str) -> Image:
    if not re.search(r"[/:@.]", name):
        known = ", ".join(catalogue.targets(root))
        raise InputError(
            f"image: {name!r} is neither a target nor the reference of an image",
            f"write one of {known}, or HOST/PATH@sha256:<digest>" if known else "write HOST/PATH",
        )
    where = registry.parse(name)
    return Image(str(where), where.digest)
