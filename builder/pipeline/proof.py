"""The proof of an image on the engine: its smoke run, its receipt, and what is proven here."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from builder.config import image_yaml
from builder.core import files
from builder.core.errors import CheckFailed, InputError, OutsideError
from builder.core.events import OnEvent, ignore
from builder.facts import frameworks
from builder.image import content_store, program
from builder.pipeline import records
from builder.pipeline.records import ImageRecord
from builder.prove import receipts, suites
from builder.prove import smoke as smoking
from builder.prove.image import Subject
from builder.prove.receipts import Receipt, Validity

if TYPE_CHECKING:
    from builder.config.image_yaml import ImageSpec
    from builder.engine import Engine
    from builder.image.layer import AssembledImage
    from builder.pipeline.make import Target


def receipt_of(root: Path, target: str) -> Receipt | None:
    """Return the receipt that the last smoke run of a target left; None where there is none."""
    return receipts.read(records.folder(root, target) / receipts.FILE)


def validity(receipt: Receipt | None, record: ImageRecord, spec: ImageSpec) -> Validity:
    names = (record.digest or record.image_id, record.image_id)
    return suites.of_spec(spec).holds(receipt, names)


def prove_once(
    root: Path, engine: Engine, target: Target, record: ImageRecord, on_event: OnEvent = ignore
) -> tuple[Receipt, bool]:
    """Return the receipt of the image of this record, and whether it was written now.

    The image is proven where no receipt holds. Raises what `prove` raises.
    """
    receipt = receipt_of(root, target.name)
    if receipt and validity(receipt, record, target.spec):
        return receipt, False
    return prove(root, engine, target, record, on_event), True


def prove(
    root: Path, engine: Engine, target: Target, record: ImageRecord, on_event: OnEvent = ignore
) -> Receipt:
    """Smoke-test the image of this record and write its receipt.

    Raises CheckFailed; OutsideError, also on an engine that would run the image emulated.
    """
    if engine.architecture != "amd64":
        raise OutsideError(
            f"{target.name}: built, not proven here: the image is for linux/amd64, and this engine"
            f" is {engine.architecture}",
            f"builder cloud build {target.name}, or builder image {target.name} on a machine with"
            " amd64",
        )
    store = content_store.of_this_machine()
    base = target.committed_base
    if base and isinstance(target.image, program.AssembledPlan):
        _account(program.assemble(target.image, base, store), record)
    image = store.find_image((record.digest or "").removeprefix("sha256:"))
    subject = Subject(
        record.image_id,
        target.spec,
        target.stack,
        {pin.name: pin.version for pin in target.lock.packages.values()},
        smoking.RECORDS,
        digest=record.digest,
        inputs=record.inputs,
        compressed_bytes=record.compressed_bytes,
        largest=record.packages,
        layers=store.paths(image.layers if image else ()),
        base_layers=frozenset(layer.diff_id for layer in base.layers) if base else frozenset(),
    )
    suite = suites.of_spec(target.spec)
    return smoking.smoke(engine, subject, suite, records.folder(root, target.name), on_event)


def _account(known: AssembledImage, record: ImageRecord) -> None:
    """Raise CheckFailed for an image with a layer that nobody accounts for.

    The layers of the base are those of images/layers.lock, the one above holds the program's files.
    So every file of the image is known. What BuildKit made of a Dockerfile is not compared.
    """
    for name in {record.digest, record.image_id} - {known.digest, known.config_digest}:
        raise CheckFailed(
            f"{record.target}: {name} is not what the locks and the program give: {known.digest}",
            f"build it again: builder build {record.target} --no-cache",
        )


def prove_built(root: Path, engine: Engine, target: Target, on_event: OnEvent = ignore) -> Receipt:
    """Prove the image that the last build made.

    Raises InputError where that was made from other files than today's, or is not on the engine.
    """
    record = records.up_to_date(root, engine, target.name, target.inputs)
    if record is None:
        raise InputError(
            f"{target.name}: no image on the engine is built from today's files",
            f"builder build {target.name}",
        )
    with files.locked(records.folder(root, target.name) / ".lock"):
        return prove(root, engine, target, record, on_event)


def overview(root: Path) -> list[dict[str, Any]]:
    """Return a row for each target: its accelerator, and what is built and proven of it."""
    rows = []
    for spec in image_yaml.load_all(root):
        record = records.read(root, spec.name)
        state = "not built"
        if record:
            receipt = receipt_of(root, spec.name)
            proven = receipt and validity(receipt, record, spec) and not receipt.ended
            state = "built and proven" if proven else "built, not proven"
        rows.append(
            {
                "target": spec.name,
                "accelerator": spec.accelerator,
                "framework": frameworks.of(spec.framework).title,
                "release": record.release if record else spec.release,
                "state": state,
                "digest": record.digest if record else None,
                "compressed_bytes": record.compressed_bytes if record else None,
            }
        )
    return rows
