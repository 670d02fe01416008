"""One target from its files to a proven image; what is built and proven already is skipped."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from builder.bases import store
from builder.core import files
from builder.core.errors import InputError, OutsideError
from builder.core.events import OnEvent, ignore
from builder.core.settings import Settings
from builder.engine import Engine
from builder.pipeline import bases, build, records
from builder.pipeline.prepare import Prepared
from builder.pipeline.records import ImageRecord
from builder.prove import receipts
from builder.prove import smoke as smoking
from builder.prove.audit import judged, named
from builder.prove.bench import Subject
from builder.prove.receipts import Receipt
from builder.spec import catalogue
from builder.tensorflow import suite as suites


def up_to_date(root: Path, engine: Engine, item: Prepared) -> ImageRecord | None:
    """The record of the last build, if it was made from today's files and is on the engine."""
    record = records.read(root, item.target)
    if record is None or record.inputs != item.plan.inputs_hash:
        return None
    found = engine.image(record.reference)
    return record if found and found.image_id == record.image_id else None


@dataclass(frozen=True)
class Made:
    """A proven image. unchanged: it was built and proven before."""

    record: ImageRecord
    receipt: Receipt
    unchanged: bool


def make(
    root: Path,
    settings: Settings,
    engine: Engine,
    item: Prepared,
    on_event: OnEvent = ignore,
) -> Made:
    """Build and prove one target; skip what the last build and its receipt still hold for.

    Of two runs at once, the second waits and finds the target done. Raises CheckFailed,
    OutsideError.
    """
    with files.locked(records.folder(root, item.target) / ".lock"):
        record = up_to_date(root, engine, item)
        unchanged = record is not None
        if record is None:
            (record,) = build.build(root, settings, engine, [item], on_event=on_event)
        receipt = receipt_of(root, item.target)
        if receipt is None or not proof(receipt, record, item.spec):
            receipt, unchanged = prove(root, engine, item, record, on_event), False
        return Made(record, receipt, unchanged)


def make_all(
    root: Path,
    settings: Settings,
    engine: Engine,
    items: Sequence[Prepared],
    on_event: OnEvent = ignore,
) -> tuple[Made, ...]:
    """Build and prove these targets, one after the other. Raises what `make` raises."""
    due = [item for item in items if up_to_date(root, engine, item) is None]
    if len(due) > 1:  # what their bases share is then made once
        bases.on_engine(root, settings, engine, due, on_event=on_event)
    return tuple(make(root, settings, engine, item, on_event) for item in items)


def prove_built(root: Path, engine: Engine, item: Prepared, on_event: OnEvent = ignore) -> Receipt:
    """Prove the image that the last build made.

    Raises InputError where that was made from other files than today's, or is not on the engine.
    """
    record = up_to_date(root, engine, item)
    if record is None:
        raise InputError(
            f"{item.target}: no image on the engine is built from today's files",
            f"builder build {item.target}",
        )
    with files.locked(records.folder(root, item.target) / ".lock"):
        return prove(root, engine, item, record, on_event)


def overview(root: Path) -> list[dict[str, Any]]:
    """A row for each target: its accelerator, and what the last build and smoke run made."""
    rows = []
    for spec in catalogue.load_all(root):
        record = records.read(root, spec.name)
        state = "not built"
        if record:
            valid = proof(receipt_of(root, spec.name), record, spec)
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


def receipt_of(root: Path, target: str) -> Receipt | None:
    """The receipt that the last smoke run of a target left; None where there is none."""
    return receipts.read(records.folder(root, target) / receipts.FILE)


def proof(
    receipt: Receipt | None, record: ImageRecord, spec: catalogue.ImageSpec
) -> receipts.Validity:
    """Whether a receipt proves the image of this record."""
    names = (record.digest or record.image_id, record.image_id)
    return suites.of_image(spec.labels).holds(receipt, names)


def prove(
    root: Path, engine: Engine, item: Prepared, record: ImageRecord, on_event: OnEvent = ignore
) -> Receipt:
    """Smoke-test the image of this record and write its receipt.

    Raises CheckFailed; OutsideError, also on an engine that would run the image emulated.
    """
    if engine.architecture != "amd64":
        raise _not_here(root, engine, item)
    subject = Subject(
        record.image_id,
        item.spec,
        item.stack,
        {pin.name: pin.version for pin in item.lock.packages.values()},
        smoking.RECORDS,
        digest=record.digest,
        inputs=record.inputs,
        sizes=record,
        blobs=_blobs(record),
    )
    suite = suites.of_image(item.spec.labels)
    return smoking.smoke(engine, subject, suite, records.folder(root, item.target), on_event)


def _blobs(record: ImageRecord) -> dict[str, Path]:
    """The files of the layers that this machine has of an assembled image, by their diff ids."""
    kept = store.of_this_machine()
    image = kept.find_image((record.digest or "").removeprefix("sha256:"))
    return {one.diff_id: kept.path(one) for one in image.layers} if image else {}


def _not_here(root: Path, engine: Engine, item: Prepared) -> OutsideError:
    """Why this engine proves nothing: it would run the image emulated. The image is audited first.

    Raises CheckFailed where the accelerator does not run the image's device code.
    """
    read = "no device code to audit"
    if item.stack.accelerator.kind == "gpu":
        audited = named.audit(root, Settings(), lambda _: engine, [item.target])
        judged.require(audited)
        read = f"audited for {item.stack.accelerator.name}"
    return OutsideError(
        f"{item.target}: built, {read}, not proven here: the image is for linux/amd64, and this"
        f" engine is {engine.architecture}",
        f"builder cloud build {item.target}, or builder image {item.target} on a machine with"
        " amd64",
    )
