"""The order of the rooms for one target: build its image, prove it, and skip what still holds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from builder.core import files
from builder.core.errors import InputError
from builder.core.events import OnEvent, ignore, step
from builder.core.settings import Settings
from builder.engine import Engine
from builder.facts import accelerators
from builder.pipeline import build, records
from builder.pipeline.prepare import Prepared
from builder.pipeline.records import ImageRecord
from builder.prove import audit, receipts
from builder.prove import smoke as smoking
from builder.prove.receipts import Check, Problem, Receipt
from builder.spec import catalogue

SMOKE_RECORDS = Path(__file__).parents[1] / "prove" / "records"


SIZE_CHECK = 1
"""The version of the check that an image is within its budget."""


def required(receipt: Receipt) -> Mapping[str, int]:
    """The checks that a receipt must hold before its image is pushed, each with its version."""
    gpu = accelerators.find(receipt.accelerator).kind == "gpu"
    device_code = {audit.CHECK: audit.CHECK_VERSION} if gpu else {}
    return {**smoking.CHECKS, "size": SIZE_CHECK, **device_code}


def up_to_date(root: Path, engine: Engine, item: Prepared) -> ImageRecord | None:
    """The record of an image that was made from these very inputs and is still on the engine."""
    record = records.read(root, item.target)
    if record is None or record.inputs != item.plan.inputs_hash:
        return None
    found = engine.image(record.reference)
    return record if found and found.image_id == record.image_id else None


@dataclass(frozen=True)
class Made:
    """A proven image; `unchanged` where it was there already."""

    record: ImageRecord
    receipt: Receipt
    unchanged: bool


def make(
    root: Path,
    settings: Settings,
    engine: Engine,
    item: Prepared,
    *,
    locked: bool = False,
    on_event: OnEvent = ignore,
) -> Made:
    """Build and prove one target, as far as it is not built and proven already.

    A second run at the same time waits, and finds it done. Raises CheckFailed, OutsideError.
    """
    with files.locked(records.folder(root, item.target) / ".lock"):
        record = up_to_date(root, engine, item)
        unchanged = record is not None
        if record is None:
            (record,) = build.build(
                root, settings, engine, [item], locked=locked, on_event=on_event
            )
        receipt = receipts.read(records.folder(root, item.target) / smoking.RECEIPT)
        if receipt is None or not proof(root, record):
            receipt, unchanged = prove(root, engine, item, record, on_event), False
        return Made(record, receipt, unchanged)


def prove_built(root: Path, engine: Engine, item: Prepared, on_event: OnEvent = ignore) -> Receipt:
    """Prove the image that the last build made. Raises InputError where it is not of
    today's files."""
    record = up_to_date(root, engine, item)
    if record is None:
        raise InputError(
            f"{item.target}: no image on the engine is built from today's files",
            f"builder build {item.target}",
        )
    with files.locked(records.folder(root, item.target) / ".lock"):
        return prove(root, engine, item, record, on_event)


def overview(root: Path) -> list[dict[str, Any]]:
    """A row for each target: what it is for, and what the last build and smoke run left."""
    rows = []
    for spec in catalogue.load_all(root):
        record = records.read(root, spec.name)
        state = "not built"
        if record:
            valid = proof(root, record)
            state = "built and proven" if valid else "built, not proven"
        rows.append(
            {
                "target": spec.name,
                "accelerator": spec.accelerator,
                "tensorflow": spec.tensorflow,
                "state": state,
                "digest": record.digest if record else None,
                "compressed_bytes": record.compressed_bytes if record else None,
            }
        )
    return rows


def proof(root: Path, record: ImageRecord) -> receipts.Validity:
    """Whether the receipt in build/<target>/ proves this very image."""
    held = receipts.read(records.folder(root, record.target) / smoking.RECEIPT)
    return receipts.valid_for(
        held, (record.digest or record.image_id, record.image_id), required(held) if held else {}
    )


def prove(
    root: Path, engine: Engine, item: Prepared, record: ImageRecord, on_event: OnEvent = ignore
) -> Receipt:
    """Smoke-test the image of this record and write its receipt.

    Raises CheckFailed, OutsideError.
    """
    return smoking.smoke(
        engine,
        record.image_id,
        item.spec,
        item.stack,
        {pin.name: pin.version for pin in item.lock.packages.values()},
        SMOKE_RECORDS,
        records.folder(root, item.target),
        inputs=record.inputs,
        digest=record.digest,
        others=(_size_check(record), *_device_code_check(engine, item, record, on_event)),
        on_event=on_event,
    )


def _size_check(record: ImageRecord) -> Check:
    """Whether a pull stays within the budget; an engine that cannot say is taken at its word."""
    names = ", ".join(f"{name} ({size / 1e6:.0f} MB)" for name, size in record.packages[:3])
    problem = Problem(
        message=f"{(record.compressed_bytes or 0) / 1e9:.2f} GB to pull are over the budget of "
        f"{record.budget_bytes / 1e9:.2f} GB; the largest packages: {names}",
        fix=f"raise size_budget in images/{record.target}/image.yaml, or drop a requirement",
    )
    return Check(
        name="size",
        version=SIZE_CHECK,
        passed=not record.over_budget,
        seconds=0.0,
        problems=(problem,) if record.over_budget else (),
        seen={
            "compressed_bytes": record.compressed_bytes,
            "unpacked_bytes": record.unpacked_bytes,
            "budget_bytes": record.budget_bytes,
            "drift": list(record.drift),
        },
    )


def _device_code_check(
    engine: Engine, item: Prepared, record: ImageRecord, on_event: OnEvent
) -> tuple[Check, ...]:
    """Whether every library has kernels for the target's GPU; none for a target without one."""
    if item.stack.accelerator.kind != "gpu":
        return ()
    with step(f"{item.target}: device code", on_event) as reading:
        found = audit.of_image(engine.client, record.image_id)
        check = audit.check(found, item.stack, item.target, reading.seconds)
        reading.error = check.problems[0].message if check.problems else None
    return (check,)
