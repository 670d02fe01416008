"""The step of a job, compiled for what the job is paid for, before anything is sent.

The image runs on this machine's engine as the check `compile` runs it, with the job's own command
and arguments. Its data are the proof's, and it takes three steps.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from builder import contract
from builder.config import targets
from builder.core.errors import CheckFailed, InputError, OutsideError
from builder.core.events import OnEvent, ignore
from builder.core.settings import Settings
from builder.engine.discovery import connect
from builder.facts import accelerators, devices, frameworks
from builder.facts.devices import Device
from builder.jobs.description.job import Job
from builder.jobs.machines import Placement
from builder.jobs.ready import Ready
from builder.pipeline import records
from builder.prove import receipts, smoke, suites
from builder.prove.checks import compile as compiling
from builder.prove.image import NotThereError
from builder.prove.session import JOB
from builder.prove.suite import Answer

_DECIDES: Final = re.compile(
    r"(XLA|JAX|LIBTPU|TPU|TF|KERAS|TORCH\w*|PYTORCH|TRITON|CUBLAS|CUDNN|NVIDIA_TF32)_(?!CPP_)\w+"
)
"""Variables by which a compiler or a framework makes another program; not the level of a log."""
_ELSEWHERE: Final = re.compile(
    r"JAX_PLATFORM(S|_NAME)|JAX_COMPILATION_CACHE_DIR|(JAX|TF)_DUMP_\w+|TPU_LOG_DIR"
    r"|(CUDA|NVIDIA|HIP|ROCR)_VISIBLE_DEVICES"
)
"""Variables that choose a device, which is not here, or where something is written."""
_FLAGS: Final = ("XLA_FLAGS", "TF_XLA_FLAGS", "LIBTPU_INIT_ARGS")
_BATCHES: Final = (contract.BATCH_SIZE, contract.BATCH)
"""The options that name the examples of a step."""
_FLAG_ELSEWHERE: Final = re.compile(r"--\w*(dump|autotune|cache|profile)\w*(=\S*)?")
"""Flags that measure on a device, or read and write files."""


def topology_of(placement: Placement) -> str:
    """Return libtpu's name of a slice, "v5e:4x4"; "" where a job names none."""
    series = _device(placement).topology.partition(":")[0] if placement.topology else ""
    return f"{series}:{placement.topology}" if series else ""


def check(root: Path, ready: Ready, settings: Settings, on_event: OnEvent = ignore) -> str:
    """Return what is known of the step on a job's GPUs, or on the slice of a TPU that it names; ""
    for neither, and for an image that is none of ours.

    For a slice it is compiled, unless the image's receipt holds the answer: that is of the image's
    variables alone. Raises CheckFailed where it does not compile or fit, and where it should be
    compiled and cannot be here.
    """
    image, topology = ready.image, topology_of(ready.placements[0])
    if image.accelerator is None:
        return ""
    if not topology:
        return _on_gpus(ready)
    said = None if _decides(ready.job) else image.compiled
    if said and said.not_there:
        return f"its step on {topology}: {said.not_there}"
    if said and said.seen.get("topology") == topology:
        return str(said.seen.get("note", ""))
    try:
        defects, seen = compiled(root, ready, settings, on_event)
    except NotThereError as nothing:
        return f"its step on {topology}: {nothing}"
    except OutsideError as error:
        what = f"{ready.job.id}: its step has to be compiled for {topology}"
        bring = (
            f"builder build {image.target}" if image.target else f"docker pull {image.reference}"
        )
        raise CheckFailed(f"{what}: {error.message}", f"{bring}; then the same again") from error
    if defects:
        raise receipts.failure(ready.job.id, defects)
    return str(seen["note"])


def _on_gpus(ready: Ready) -> str:
    """Return what the image's receipt says of the step on a job's GPUs: it is not compiled again.
    Raises CheckFailed where the receipt refuses it."""
    said, placement = ready.image.compiled, ready.placements[0]
    if placement.device is None or placement.on_tpu:
        return ""
    where = f"its step on {_devices(ready)} x {placement.device.name}"
    asks = f"builder job cost {ready.job.id} compiles it"
    if said is None:
        return f"{where}: not asked: no receipt of the image is at hand; {asks}"
    if said.not_there:
        return f"{where}: {said.not_there}"
    if other := _other(ready, said.seen):
        return f"{where}: not asked: {other}; {asks}"
    if not said.passed:
        raise receipts.failure(ready.job.id, said.problems)
    return "; ".join(each.message for each in said.findings) or str(said.seen.get("note", ""))


def _other(ready: Ready, seen: Mapping[str, Any]) -> str:
    """Return why what a receipt has seen is not the step of a job on GPUs; "" where it is."""
    try:
        here = _device(ready.placements[0]).name
    except NotThereError:
        here = ""
    if seen.get("device") != here or _devices(ready) > 1:
        return f"the receipt is for one {seen.get('device')}"
    if _decides(ready.job):
        return "the job's variables make another program"
    asked = _number(ready.job, *_BATCHES)
    fits = max(int(seen.get(name) or 0) for name in ("batch", "largest_batch"))
    return f"the receipt has a batch of {fits:,}, the job {asked:,}" if asked > fits > 0 else ""


def least(
    root: Path, ready: Ready, settings: Settings, on_event: OnEvent = ignore
) -> tuple[float, str]:
    """Return the seconds that a job runs at least, by its steps and the rates of its devices, and
    where they are from. Raises InputError where they are not known, OutsideError."""
    job, steps = ready.job, _number(ready.job, contract.STEPS)
    fix = "--for 22m says how long it runs"
    if not steps:
        raise InputError(f"{job.id}: its arguments name no number of steps", fix)
    try:
        defects, seen = compiled(root, ready, settings, on_event)
    except NotThereError as nothing:
        raise InputError(f"{job.id}: the time of a step is {nothing}", fix) from None
    if "least_seconds" not in seen:
        raise receipts.failure(job.id, defects)
    if seen["least_seconds"] < compiling.SHOWN_SECONDS:
        raise InputError(f"{job.id}: its step is too small for a bound of its time", fix)
    counted = 1 if ready.placements[0].on_tpu else int(seen.get("devices", 1))
    each = float(seen["least_seconds"]) * counted / _devices(ready)
    batch = _number(job, *_BATCHES)
    of = f" of {batch:,} examples" if batch else ""
    return each * steps, f"{steps:,} steps{of}, each at least {each * 1e3:.2g} ms"


def compiled(root: Path, ready: Ready, settings: Settings, on_event: OnEvent = ignore) -> Answer:
    """Return what the compiler says of a job's step, on the chief's accelerators.

    Raises NotThereError where nobody can find out, OutsideError without an engine, or where it
    does not have the image.
    """
    placement, image = ready.placements[0], ready.image
    device, topology = _device(placement), topology_of(placement)
    engine, called = connect(settings, False, on_event), image.target or image.reference
    built = "" if image.digest else records.image_ids(root).get(image.target or "", "")
    names = filter(None, (image.digest, image.image_id, built, image.reference))
    found = next((there for name in names if (there := engine.image(name))), None)
    if found is None:
        raise OutsideError(f"the engine has no image {called}", f"builder build {image.target}")
    cudnn = targets.of(root, image.target).stack.cudnn if image.target and device.is_gpu else None
    with smoke.sandbox(engine, found.image_id, called, "compile the step of", on_event) as sandbox:
        labels, arguments = sandbox.config.get("Labels") or {}, list(ready.job.arguments)
        target = compiling.CompileTarget(
            device,
            frameworks.of_image(labels).name,
            topology,
            cudnn or "",
            _number(ready.job, *_BATCHES) or compiling.BATCH,
            _devices(ready) if device.is_gpu else 0,
        )
        if labels.get(suites.LABEL, receipts.TRAINER) == receipts.TRAINER:
            arguments += compiling.arguments_of(f"{JOB}/{compiling.NAME}", target.batch)
        run = target.compile(sandbox, arguments, ready.job.command, variables(ready.job))
    return compiling.judge(run, device, topology)


def variables(job: Job) -> dict[str, str]:
    """Return the variables of a job that its compile gets, too: but secrets, which stand elsewhere,
    and what needs a device or a place outside of the container."""
    kept = {name: text for name, text in job.variables.items() if not _ELSEWHERE.fullmatch(name)}
    flags = {name: _FLAG_ELSEWHERE.sub("", kept[name]) for name in _FLAGS if name in kept}
    return kept | {name: " ".join(text.split()) for name, text in flags.items()}


def _decides(job: Job) -> bool:
    """Tell whether a job's variables make another program than the image's alone."""
    return any(map(_DECIDES.fullmatch, variables(job)))


def _devices(ready: Ready) -> int:
    """Return the GPUs that share a step; of a TPU, whose chips the compiler counts, the slices."""
    return sum(
        pool.count * (1 if placement.on_tpu else placement.count)
        for pool, placement in ready.pools
        if placement.device and pool.role in ("chief", "worker")
    )


def _device(placement: Placement) -> Device:
    """Return what a program sees as a device. Raises NotThereError for none."""
    if placement.device is None:
        raise NotThereError("not asked: the job has no accelerator")
    name = placement.device.name
    known = devices.devices().get(name) or devices.of(accelerators.find(name))
    if known is None:
        raise NotThereError(f"not asked: nothing is known of {name}'s memory and speed")
    return known


def _number(job: Job, *names: str) -> int:
    """Return the number that a job's arguments give to an option, by any of its names; else 0."""
    given = contract.options(job.arguments)
    return next((int(given[name]) for name in names if given.get(name, "").isdigit()), 0)
