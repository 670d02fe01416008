"""`builder image`, `build`, `smoke` and `list`: make images, prove them, list them."""

from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from builder.cli import job_local
from builder.cli.common import (
    All,
    EngineChoice,
    Json,
    Registry,
    Targets,
    chosen,
    out,
    reporter,
    results,
    root,
    say,
    settings,
)
from builder.cli.console import duration, size
from builder.cli.job_sent import Program
from builder.cli.registry import show_push

if TYPE_CHECKING:
    from builder.engine import Engine
    from builder.pipeline.export import Exported
    from builder.pipeline.make import Base, BuildOptions
    from builder.pipeline.records import ImageRecord
    from builder.prove.receipts import Receipt


def image(
    targets: Targets = None,
    everything: All = False,
    push: Annotated[bool, typer.Option("--push", help="Push the proven images.")] = False,
    tag: Annotated[list[str] | None, typer.Option(help="An additional tag for the push.")] = None,
    registry: Registry = None,
    engine: EngineChoice = None,
    program: Program = None,
    as_json: Json = False,
) -> None:
    """Build and prove images, in one go.

    Locks what never was, builds the base and the training image, then runs the smoke test; its
    receipt allows the push. Does nothing if nothing changed. With --program, the image holds your
    own Python program instead of the target's.
    """
    if program is not None:
        job_local.image_of_package(
            chosen(targets, everything), program, push, settings(registry, engine), as_json
        )
        return
    from builder.engine.discovery import connect
    from builder.image.apt import ContainerApt
    from builder.pipeline import committed, make, proof
    from builder.pipeline.push import push_target

    names, where = chosen(targets, everything), settings(registry=registry, engine=engine)
    with reporter() as shown:
        docker = cache(lambda: connect(where, on_event=shown.on_event))
        committed.lock_new(
            root(), names, ContainerApt(root(), where, shown.on_event), shown.on_event
        )
        options = make.BuildOptions(where, shown.on_event)
        made = make.make(root(), names, options, docker, proof.prove_once)
        pushed = [
            push_target(root(), where, docker(), name, tag or (), shown.on_event)
            for name in (names if push else ())
        ]
    for proven in made:
        record, receipt = proven.record, proven.receipt
        if proven.unchanged:
            say(f"{record.target}: nothing to do, {record.reference} is up to date")
            digest = record.digest or record.image_id
            say(f"  {digest}, proven {receipt.made_at} on {receipt.device}")
        else:
            show_image(record)
            show_receipt(receipt)
    for image in pushed:
        show_push(image)
    if as_json:
        out([image_json(proven.record, proven.receipt) for proven in made])


ToRegistry = Annotated[
    bool,
    typer.Option(
        "--to-registry",
        help="Put the image onto its base in the registry, without pulling the base. With "
        "--base-only, put the base there. Neither needs an engine.",
    ),
]
DryRun = Annotated[
    bool,
    typer.Option(
        "--dry-run",
        help="Say what the bases would take: bytes to download, to make and to send to the "
        "engine. Build nothing.",
    ),
]


def build(
    targets: Targets = None,
    everything: All = False,
    no_cache: Annotated[bool, typer.Option("--no-cache", help="Rebuild every layer.")] = False,
    to_registry: ToRegistry = False,
    to_layout: Annotated[
        Path | None,
        typer.Option("--to-layout", help="Write an OCI image layout into this new folder."),
    ] = None,
    base_only: Annotated[bool, typer.Option("--base-only", help="Only the base.")] = False,
    dry_run: DryRun = False,
    registry: Registry = None,
    engine: EngineChoice = None,
    as_json: Json = False,
) -> None:
    """Build images; targets that share a base make it once.

    A base is assembled from locked packages, layer by layer. A layer that this machine or the
    registry has is taken from there.
    """
    from builder.core.errors import InputError
    from builder.engine.discovery import connect
    from builder.pipeline import make, records

    names, where = chosen(targets, everything), settings(registry, engine)
    if dry_run and (to_registry or to_layout):
        fix = "leave out --to-registry/--to-layout"
        raise InputError("--dry-run says what a build onto the engine takes", fix)
    with reporter() as shown:
        docker = cache(lambda: connect(where, on_event=shown.on_event))
        options = make.BuildOptions(where, shown.on_event, no_cache)
        if dry_run:
            prepared = [make.prepare(root(), name) for name in names]
            estimate = make.plan_load(prepared, options, docker()).estimate
        else:
            made = _make(names, options, docker, base_only, to_registry, to_layout)
    if dry_run:
        tags = list(dict.fromkeys(target.base.tag for target in prepared if target.base))
        plan = {"bases": tags, **asdict(estimate)}
        results(as_json, plan, [f"{', '.join(tags)}: {estimate}"])
        return
    for image in made:
        if isinstance(image, records.ImageRecord):
            show_image(image)
        else:
            say("  ".join(image.row.values()))
    if as_json:
        out([image_json(i) if isinstance(i, records.ImageRecord) else i.row for i in made])


def _make(
    names: Sequence[str],
    options: "BuildOptions",
    engine: Callable[[], "Engine"],
    base_only: bool,
    to_registry: bool,
    folder: Path | None,
) -> "Sequence[Exported | Base | ImageRecord]":
    """Build on the engine, into the registry, or into a folder."""
    from builder.pipeline import export, make

    if folder:
        return export.to_layout(root(), names, options, engine, base_only, folder)
    if to_registry:
        send = export.bases_to_registry if base_only else export.to_registry
        return send(root(), names, options, engine)
    targets = [make.prepare(root(), name) for name in names]
    if base_only:
        return tuple(make.load_bases(targets, options, engine()).values())
    return make.build(root(), targets, options, engine())


def smoke(
    targets: Targets = None,
    everything: All = False,
    engine: EngineChoice = None,
    as_json: Json = False,
) -> None:
    """Prove images with a real training run.

    Runs in a container without network. Checks that the loader finds every library, that the
    image holds nothing it should not, that a training run learns, survives a kill and resumes, and
    that its outputs can be read.
    """
    from builder.engine.discovery import connect
    from builder.pipeline import make, proof

    with reporter() as shown:
        docker = connect(settings(engine=engine), on_event=shown.on_event)
        receipts = [
            proof.prove_built(root(), docker, make.prepare(root(), name), shown.on_event)
            for name in chosen(targets, everything)
        ]
    for receipt in receipts:
        show_receipt(receipt)
    if as_json:
        out([receipt.model_dump(mode="json") for receipt in receipts])


def list_targets(as_json: Json = False) -> None:
    """List the targets; say which are built and proven."""
    from builder.pipeline import proof

    rows = proof.overview(root())
    lines = (
        f"{row['target']:<8} {row['accelerator']:<10} {row['framework']} {row['release']:<8} "
        f"{row['state']:<18} {size(row['compressed_bytes']) if row['digest'] else ''}"
        for row in rows
    )
    results(as_json, rows, lines)


def show_image(record: "ImageRecord") -> None:
    """Show what a build made."""
    budget = f"budget {size(record.budget_bytes)}" if record.budget_bytes else "no size_budget"
    over = "  OVER BUDGET" if record.over_budget else ""
    say(f"{record.target}: {record.reference}")
    say(f"  image     {record.digest or record.image_id}")
    say(
        f"  size      {size(record.compressed_bytes)} to pull ({budget}){over}, "
        f"{size(record.unpacked_bytes)} unpacked"
    )
    say("  largest   " + ", ".join(f"{name} {size(count)}" for name, count in record.packages[:4]))
    say(f"  base      {record.base} ({record.base_origin})")
    say(f"  rootfs    {record.root}")
    if record.prune == "all":
        from builder.devicecode.pruning.prune import EULA

        say(f"  EULA      {EULA}")
    say("  time      " + ", ".join(f"{name} {duration(s)}" for name, s in record.phases.items()))


def show_receipt(receipt: "Receipt") -> None:
    """Show what a receipt proves, and what its suite did not ask."""
    from builder.frameworks import suites

    took = sum(check.seconds for check in receipt.checks)
    checks = ", ".join(check.name for check in receipt.checks)
    say(f"{receipt.target}: proven on {receipt.device} in {duration(took)}: {checks}")
    if beside := suites.unproven(receipt.suite):
        say(f"  {beside}")


def image_json(record: "ImageRecord", receipt: "Receipt | None" = None) -> dict[str, Any]:
    """Return what build/<target>/image.json holds, with the receipt."""
    content: dict[str, Any] = {**asdict(record), "over_budget": record.over_budget}
    if receipt is not None:
        content["receipt"] = receipt.model_dump(mode="json")
    return content
