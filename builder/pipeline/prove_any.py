"""The proof of an image that anybody made: from its name to what the checks say, and its receipt.

The receipt lies beside the image in its registry.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from builder import registry
from builder.audit.audited import Gpu
from builder.core.errors import CheckFailed, InputError
from builder.core.events import OnEvent, ignore
from builder.core.settings import Settings
from builder.engine import Engine
from builder.engine.discovery import connect
from builder.pipeline import records, repository, signing, verify
from builder.prove import audit, fleet, own_loader, receipts, suites, waste
from builder.prove.checks import compile as compiling
from builder.prove.checks import gpu as on_gpu
from builder.prove.checks import start
from builder.prove.image import Image, NotThereError
from builder.prove.receipts import CheckResult
from builder.prove.session import JOB
from builder.prove.waste import Waste
from builder.reading.images import find_image
from builder.registry import Manifest, Reference, Registry


@dataclass(frozen=True)
class ProofRequest:
    """An image that somebody wants to have proven."""

    root: Path | None
    """The project's folder; None outside of one."""
    image: str
    """In a registry, on the engine, an archive or an OCI layout; or a target."""
    settings: Settings
    gpu: str | None = None
    """The GPU to judge it for; by default that of the target, or of the first machine."""
    machines: str | None = None
    """A fleet: T4:535,H100:550."""
    topology: str = ""
    """The slice of a TPU to compile it for."""
    command: str | None = None
    """What is started in a shell of it, in place of its own command."""
    on_gpu: bool = False
    """Whether its program runs on this machine's GPU as well."""
    in_registry: bool = False
    """Whether it is taken from its registry, by digest, so that a receipt can lie beside it."""


@dataclass(frozen=True)
class Judgement:
    name: str
    """As it was asked for; by digest where it was taken from a registry."""
    image: Image
    gpu: Gpu | None
    checks: tuple[CheckResult, ...]
    fleet: tuple[CheckResult, ...]
    """On the machines of the request, where it names any."""
    waste: tuple[Waste, ...]
    manifest: Manifest | None
    """Of the image in its registry; None where it was not taken from there."""

    @property
    def results(self) -> tuple[CheckResult, ...]:
        return (*self.checks, *self.fleet)

    def require(self) -> None:
        """Raise CheckFailed where a check refused the image."""
        if problems := [problem for result in self.results for problem in result.problems]:
            raise receipts.failure(self.name, problems)

    def push_receipt(self, settings: Settings) -> str:
        """Attach the receipt of what was asked of the image, and sign it where the settings name a
        key; say so. Raises CheckFailed where a check could not look into all of it: nothing was
        proven then."""
        assert self.manifest
        reference = registry.parse(self.name)
        receipt = receipts.of(
            suites.IMAGE.name,
            self.checks,
            target=reference.repository,
            accelerator=self.gpu.name if self.gpu else "CPU",
            device=self.image.ran.device if self.image.ran else "CPU",
            reference=self.name,
            digest=self.manifest.digest,
            image_id=self.manifest.config.digest,
            inputs="",
            ledger=tuple(self.image.spent),
        )
        validity = suites.IMAGE.holds(receipt, self.manifest.digest)
        if not validity:
            fix = 'see docs/any-image.md, "How the loader is followed"'
            raise CheckFailed(f"{self.name}: no receipt is attached: {validity.reason}", fix)
        key = signing.key_of(settings.trust)
        with Registry(reference.host) as client:
            attached = verify.attach(client, reference, self.manifest, receipt)
            signed = signing.attest(
                client, reference, self.manifest, receipt, None, settings.trust, key
            )
        return f"{self.name}: its receipt {attached} is attached{' and signed' if signed else ''}"


def prove_any(request: ProofRequest, on_event: OnEvent = ignore) -> Judgement:
    """Read an image, start it where the engine has it, and ask every check.

    Raises InputError, OutsideError. What a check refuses is no error: `Judgement.require`.
    """
    machines = fleet.parse(request.machines) if request.machines else ()
    gpu = audit.gpu_of(request.root, request.image, request.gpu)
    gpu = gpu or next((machine.gpu for machine in machines), None)
    engine = functools.cache(lambda begin: connect(request.settings, begin, on_event))
    here = on_gpu.device(lambda: engine(False).client, gpu) if request.on_gpu else None
    name, manifest = request.image, None
    if request.in_registry:
        reference, manifest = _in_registry(name, on_event)
        name = str(reference)
    image = _read(request, name, gpu, engine, on_event)
    if here and gpu:
        ran = on_gpu.GpuRun(image, name, gpu, here, request.command).start(engine(False), on_event)
        image = replace(image, ran=ran)
        if image.started and request.command is not None and ran.run.exit_code == 0:
            # a command may want a GPU, and fail without
            image = replace(image, started=replace(image.started, run=ran.run))
    return Judgement(
        name,
        image,
        gpu,
        checks=(suites.ON_GPU if request.on_gpu else suites.IMAGE).judge(image),
        fleet=(fleet.judge(image, machines),) if machines else (),
        waste=waste.of_image(image.content, gpu.capability if gpu else None),
        manifest=manifest,
    )


def _in_registry(name: str, on_event: OnEvent) -> tuple[Reference, Manifest]:
    """Return the image for linux/amd64 that a name leads to, by its digest, so that what is read
    is what the receipt is about. Raises InputError for a name without a registry, OutsideError."""
    reference = registry.parse(name) if "/" in name else None
    if reference is None:
        raise InputError(f"{name}: is in no registry", "name it as HOST/REPOSITORY:TAG")
    with repository.opened(reference, on_event, f"find {name}") as client:
        get = functools.partial(client.manifest, reference.repository)
        manifest = find_image(reference, get, reference.target)
    return reference.at(manifest.digest), manifest


def _read(
    request: ProofRequest,
    name: str,
    gpu: Gpu | None,
    engine: Callable[[bool], Engine],
    on_event: OnEvent,
) -> Image:
    """Read an image, and start it if the engine has it."""
    targets = records.image_ids(request.root) if request.root else {}
    content = audit.image_content(request.settings, engine, name, on_event, targets)
    image = Image(content, gpu)
    if request.on_gpu and request.command is None and not image.is_ours:
        what = f"--on-gpu: nobody knows which command of {name} trains, and ends"
        raise InputError(what, 'name one: --run "python train.py --steps 20"')
    if content.image_id:
        target, arguments = None, compiling.arguments_of(JOB) if image.is_ours else ()
        with contextlib.suppress(NotThereError):
            target = compiling.target_of(image, request.topology)
        started = start.start(
            engine(False), content.image_id, name, request.command, on_event, target, arguments
        )
        image = replace(image, started=started)
        return replace(image, probed=own_loader.ask_all(engine(False), image, name, on_event))
    what = "--run" if request.command is not None else "--topology" if request.topology else ""
    if what := "--on-gpu" if request.on_gpu else what:
        fix = "docker pull or docker load it, and name it as the engine does"
        raise InputError(f"{what}: {name} is not in the engine, not started", fix)
    return image
