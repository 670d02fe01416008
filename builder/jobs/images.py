"""The image of a described job: a target's, any other one, or a program's folder made into one.

It is sent by its digest. What it is proven for stands in its receipt, which lies beside it in the
registry.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from builder import registry
from builder.audit.audited import passes
from builder.config import device_code, image_yaml
from builder.config import targets as projects
from builder.core import filemodel, project
from builder.core.errors import CheckFailed, FactoryError, InputError, OutsideError
from builder.core.events import OnEvent, ignore
from builder.core.settings import LOCAL_REPOSITORY, Settings
from builder.engine.discovery import connect
from builder.facts import accelerators, frameworks
from builder.facts.cuda import OldestDriver
from builder.jobs import description
from builder.jobs.description.job import Job
from builder.jobs.ready import JobImage
from builder.prove.image import ACCELERATOR

if TYPE_CHECKING:
    from builder.config.targets import TargetFiles
    from builder.pipeline.asked import Asked
    from builder.pipeline.verify import Verification
    from builder.prove.receipts import Receipt

Notes = tuple[str, ...]
_REGISTRY = 'write registry = "REGION-docker.pkg.dev/PROJECT/REPOSITORY/NAME" in builder.toml'


def targets(root: Path) -> dict[str, str]:
    """Return the accelerator of each target that can be read."""
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


def local_image(root: Path, job: Job, settings: Settings) -> tuple[JobImage, Notes]:
    """Return the job's image by its tag, as this project describes it, and notes; nobody is asked.
    Raises InputError for a name that is neither a target nor a reference."""
    name = job.image
    if name in image_yaml.targets(root):
        here = f"{LOCAL_REPOSITORY}:{project.tag_of(root, name)}"
        tag = f"{settings.registry}:{name}" if settings.registry else here
        image = _of_target(root, name, tag, settings)
        push = "" if image.in_registry else f"; builder image {name} --push puts it there"
        return image, (
            f"{name} is a tag: `builder job submit` sends what the registry holds{push}",
        )
    if not re.search(r"[/:@.]", name):
        known = ", ".join(image_yaml.targets(root))
        refusal = InputError(
            f"{name!r} is neither a target nor the reference of an image",
            f"write one of {known}, or HOST/PATH@sha256:<digest>" if known else "write HOST/PATH",
        )
        where = description.shown(job.source)
        raise filemodel.error(where, [description.mistake(job, refusal, "image")])
    parsed = registry.parse(name)
    note = f"{name} is a tag: `builder job submit` sends its digest"
    return JobImage(str(parsed), parsed.digest), () if parsed.digest else (note,)


def pushed_image(
    root: Path, job: Job, settings: Settings, on_event: OnEvent = ignore
) -> tuple[JobImage, Notes]:
    """Return the job's image by its digest in the registry, proven by its receipt; and notes.

    Where [trust] names keys, every image needs a receipt that one of them signed. Raises
    InputError, OutsideError for a missing image, CheckFailed for one that is not proven.
    """
    from builder.pipeline import asked, verify

    name, is_target = job.image, job.image in image_yaml.targets(root)
    if is_target and not settings.registry:
        raise InputError(
            f"{name} is on this machine only: no registry is named",
            f"{_REGISTRY}, then builder image {name} --push",
        )
    image, _ = local_image(root, job, settings)
    wanted = asked.of(root, image.reference, settings)
    named = wanted.reference
    if is_target or settings.trust.asks:
        verified = verify.proof(wanted, settings, on_event=on_event)
        return _verified(image, verified), _moved(wanted)
    try:
        with registry.Registry(named.host) as client:
            manifest = client.manifest(named.repository, named.target)
            labels = _labels(client, named, manifest) if manifest else {}
    except OutsideError:
        if named.digest:  # this machine cannot ask; the service will
            return image, (f"{named.host} was not asked about {name}",)
        raise
    if manifest is None:
        raise OutsideError(f"{name}: {named.host} has no such image", "correct it, or push it")
    wanted.check(manifest.digest)
    reference = str(named.at(manifest.digest))
    notes: Notes = () if named.digest else (f"{name} is {manifest.digest} now",)
    image, label = JobImage(reference, manifest.digest), labels.get(ACCELERATOR)
    if label is not None:  # an image of ours under another name: its receipt lies beside it
        framework = labels.get(frameworks.LABEL, frameworks.DEFAULT)
        one_host = frameworks.is_known(framework) and frameworks.of(framework).one_host
        image = replace(image, accelerator=label, one_host=one_host)
        try:
            proof = verify.proof(wanted.at(manifest.digest), settings, on_event=on_event)
            image = _verified(image, proof)
        except CheckFailed as error:
            notes += (f"{error.message}: that it is for {label} is what its label says",)
    return image, (*notes, *_moved(wanted))


def _moved(wanted: Asked) -> Notes:
    """Say where the registry's tag leads, if git leads it elsewhere: git's image is sent."""
    if not wanted.locked:
        return ()
    with registry.Registry(wanted.named.host) as client:
        there = wanted.moved(client)
    what = f"{wanted.named} leads to {there} now; images/pushed.lock names what is sent"
    return (what,) if there else ()


def packaged_image(
    root: Path, job: Job, settings: Settings, program: str, on_event: OnEvent = ignore
) -> JobImage:
    """Lock, build, prove and push a program, FOLDER:MODULE, as an image on the job's target. Raises
    InputError for a job whose image is no target, CheckFailed, OutsideError."""
    from builder.pipeline import package, verify
    from builder.pipeline.push import push_target

    python, target = package.find(program), target_of(root, job.image)
    if not settings.registry:
        what = "a program is pushed before it is sent, and no registry is named"
        raise InputError(what, _REGISTRY)
    engine = connect(settings, on_event=on_event)
    files, built = package.build(root, target, python, settings, engine, on_event)
    pushed = push_target(files, settings, engine, on_event=on_event)
    if settings.trust.asks:
        verify.verify(pushed.reference, settings, on_event=on_event)
    image = _of_target(root, target, pushed.reference, settings)
    image = replace(image, digest=pushed.digest, entrypoint=("python", "-m", python.module))
    return _proven(image, built.receipt, built.receipt.image_id)


def _of_target(root: Path, name: str, reference: str, settings: Settings) -> JobImage:
    target = projects.of(root, name)
    spec, driver, serves = target.spec, None, dict[str, OldestDriver | None]()
    with contextlib.suppress(InputError):  # versions that do not fit; builder lock says so
        driver = target.driver
        if target.is_locked:
            serves = _served(target)
    return JobImage(
        reference,
        target=name,
        accelerator=spec.accelerator,
        driver=driver,
        in_registry=settings.registry is not None,
        one_host=frameworks.of(spec.framework).one_host,
        serves=serves,
        entrypoint=("python" if spec.has_own_base else "python3", "-m", spec.program.module),
    )


def _served(target: TargetFiles) -> dict[str, OldestDriver | None]:
    """Return the other GPUs on which a lock's libraries run, with the oldest driver for each."""
    root, stack, lock = target.root, target.stack, target.lock
    libraries = device_code.locked(root, lock)
    return {
        gpu.name: device_code.driver(root, replace(stack, compute_capability=capability), lock)
        for gpu in accelerators.accelerators().values()
        if (capability := gpu.compute_capability)
        and capability != stack.compute_capability
        and (stack.prune is None or stack.prune.keeps(capability))
        and passes(libraries.verdict(capability), target.spec.allow_ptx)
    }


def _verified(image: JobImage, verified: Verification) -> JobImage:
    seen: Any = verified.receipt.seen("device-code").get("driver")
    if image.target is None and isinstance(seen, dict) and str(seen.get("driver", "")).isdigit():
        driver = OldestDriver(str(seen["driver"]), str(seen.get("cuda", "")))
        image = replace(image, driver=driver)
    image = replace(image, reference=verified.reference, digest=verified.digest)
    return _proven(image, verified.receipt, verified.image_id)


def _proven(image: JobImage, receipt: Receipt, image_id: str) -> JobImage:
    return replace(
        image,
        accelerator=receipt.accelerator,
        proven=True,
        image_id=image_id,
        compiled=receipt.result("compile"),
    )


def _labels(
    client: registry.Registry, reference: registry.Reference, image: registry.Manifest
) -> Mapping[str, str]:
    """Return an image's labels; none for an index, or where its configuration cannot be read."""
    with contextlib.suppress(FactoryError):
        return client.labels(reference.repository, image)
    return {}
