"""`builder image`, `build`, `smoke` and `list`: make images, prove them, list them."""

from dataclasses import asdict
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
    root,
    say,
    settings,
    show,
)
from builder.cli.console import duration, size
from builder.cli.job_local import Module, Package
from builder.cli.registry import show_push

if TYPE_CHECKING:
    from builder.core.settings import Settings
    from builder.engine import Engine
    from builder.pipeline.records import ImageRecord
    from builder.prove.receipts import Receipt


def image(
    targets: Targets = None,
    everything: All = False,
    push: Annotated[bool, typer.Option("--push", help="Push the proven images.")] = False,
    tag: Annotated[list[str] | None, typer.Option(help="An additional tag for the push.")] = None,
    registry: Registry = None,
    engine: EngineChoice = None,
    package: Package = None,
    module: Module = None,
    as_json: Json = False,
) -> None:
    """Build and prove images, in one go.

    Builds the base and the training image, then runs the smoke test; its receipt allows the push.
    Does nothing if nothing changed. With --package and --module, the image holds your own Python
    program instead of the trainer.
    """
    if package is not None:
        job_local.image_of_package(
            chosen(targets, everything), package, module, push, settings(registry, engine), as_json
        )
        return
    from builder.engine import connect
    from builder.pipeline import prepare, prove
    from builder.pipeline.push import push_target

    with reporter() as shown:
        where = settings(registry=registry, engine=engine)
        prepared = [prepare.prepare(root(), target) for target in chosen(targets, everything)]
        docker = connect(where, on_event=shown.on_event)
        made = prove.make_all(root(), where, docker, prepared, shown.on_event)
        pushed = [
            push_target(
                root(), where, docker, one.record.target, tag or (), on_event=shown.on_event
            )
            for one in made
            if push
        ]
    for one in made:
        if one.unchanged:
            say(f"{one.record.target}: nothing to do, {one.record.reference} is up to date")
            digest = one.record.digest or one.record.image_id
            say(f"  {digest}, proven {one.receipt.made_at} on {one.receipt.device}")
        else:
            show_image(one.record)
            show_receipt(one.receipt)
    for two in pushed:
        show_push(two)
    if as_json:
        out([image_json(one.record, one.receipt) for one in made])


def build(
    targets: Targets = None,
    everything: All = False,
    no_cache: Annotated[bool, typer.Option("--no-cache", help="Rebuild every layer.")] = False,
    to_registry: Annotated[
        bool,
        typer.Option(
            "--to-registry",
            help="Put the image onto its base in the registry, without pulling the base. With "
            "--base-only, put the base there. Neither needs an engine.",
        ),
    ] = False,
    to_layout: Annotated[
        Path | None,
        typer.Option("--to-layout", help="Write an OCI image layout into this new folder."),
    ] = None,
    base_only: Annotated[bool, typer.Option("--base-only", help="Only the base.")] = False,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run",
            help="Say what the bases would take: bytes to download, to make and to send to the "
            "engine. Build nothing.",
        ),
    ] = False,
    registry: Registry = None,
    engine: EngineChoice = None,
    as_json: Json = False,
) -> None:
    """Build images; targets that share a base make it once.

    A base is assembled from locked packages, layer by layer. A layer that this machine or the
    registry has is taken from there.
    """
    names, where = chosen(targets, everything), settings(registry, engine)
    if dry_run and (to_registry or to_layout):
        from builder.core.errors import InputError

        raise InputError(
            "--dry-run says what a build onto the engine takes",
            "leave out --to-registry/--to-layout",
        )
    if dry_run:
        show_plan(names, where, no_cache, as_json)
    elif to_registry or to_layout:
        build_elsewhere(names, where, base_only, to_layout, as_json)
    elif base_only:
        build_bases(names, where, no_cache, as_json)
    else:
        build_on_engine(names, where, no_cache, as_json)


def show_plan(names: tuple[str, ...], where: "Settings", no_cache: bool, as_json: bool) -> None:
    """`builder build --dry-run`."""
    from builder.engine import connect
    from builder.pipeline import bases
    from builder.pipeline.prepare import prepare

    with reporter() as shown:
        items = bases.by_hash([prepare(root(), target) for target in names])
        docker = connect(where, on_event=shown.on_event)
        seen = bases.outlook(where, docker, items, no_cache)
    tags = [f"base-{hash_}" for hash_ in items]
    if as_json:
        out({"bases": tags, **asdict(seen.forecast)})
    else:
        show(f"{', '.join(tags)}: {seen.forecast}")


def build_on_engine(
    names: tuple[str, ...], where: "Settings", no_cache: bool, as_json: bool
) -> None:
    """`builder build`."""
    from builder.engine import connect
    from builder.pipeline import build as building
    from builder.pipeline.prepare import prepare

    with reporter() as shown:
        prepared = [prepare(root(), target) for target in names]
        docker = connect(where, on_event=shown.on_event)
        records = building.build(
            root(), where, docker, prepared, no_cache=no_cache, on_event=shown.on_event
        )
    for record in records:
        show_image(record)
    if as_json:
        out([image_json(record) for record in records])


def build_bases(names: tuple[str, ...], where: "Settings", no_cache: bool, as_json: bool) -> None:
    """`builder build --base-only`."""
    from builder.engine import connect
    from builder.pipeline import bases
    from builder.pipeline.prepare import prepare

    with reporter() as shown:
        prepared = [prepare(root(), target) for target in names]
        docker = connect(where, on_event=shown.on_event)
        made = bases.on_engine(
            root(), where, docker, prepared, no_cache=no_cache, on_event=shown.on_event
        )
    for base in made.values():
        say(f"{base.reference}  {base.image.digest}  ({base.origin})")
    if as_json:
        out(
            [
                {"reference": one.reference, "digest": one.image.digest, "origin": one.origin}
                for one in made.values()
            ]
        )


def build_elsewhere(
    names: tuple[str, ...],
    where: "Settings",
    base_only: bool,
    folder: Path | None,
    as_json: bool,
) -> None:
    """`builder build --to-registry` and `--to-layout`. folder: of the layout."""
    from builder.pipeline import to_layout, to_registry

    def engine() -> "Engine":
        from builder.engine import connect

        return connect(where, on_event=shown.on_event)

    with reporter() as shown:
        if folder:
            sent = to_layout.write(root(), where, names, base_only, folder, engine, shown.on_event)
        elif base_only:
            sent = to_registry.build_bases(root(), where, names, engine, shown.on_event)
        else:
            sent = to_registry.build(root(), where, names, engine, shown.on_event)
    for one in sent:
        say(f"{one.reference}  {one.digest}")
    if as_json:
        out([{"reference": one.reference, "digest": one.digest} for one in sent])


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
    from builder.engine import connect
    from builder.pipeline import prepare, prove

    with reporter() as shown:
        docker = connect(settings(engine=engine), on_event=shown.on_event)
        receipts = []
        for target in chosen(targets, everything):
            item = prepare.prepare(root(), target)
            receipts.append(prove.prove_built(root(), docker, item, shown.on_event))
    for receipt in receipts:
        show_receipt(receipt)
    if as_json:
        out([receipt.model_dump(mode="json") for receipt in receipts])


def list_targets(as_json: Json = False) -> None:
    """List the targets; say which are built and proven."""
    from builder.pipeline import prove

    rows = prove.overview(root())
    if as_json:
        out(rows)
        return
    for row in rows:
        show(
            f"{row['target']:<8} {row['accelerator']:<10} TensorFlow {row['tensorflow']:<8} "
            f"{row['state']:<18} {size(row['compressed_bytes']) if row['digest'] else ''}"
        )


def show_image(record: "ImageRecord") -> None:
    """What a build made, for a person."""
    budget = size(record.budget_bytes)
    over = "  OVER BUDGET" if record.over_budget else ""
    say(f"{record.target}: {record.reference}")
    say(f"  image     {record.digest or record.image_id}")
    say(
        f"  size      {size(record.compressed_bytes)} to pull (budget {budget}){over}, "
        f"{size(record.unpacked_bytes)} unpacked"
    )
    say("  largest   " + ", ".join(f"{name} {size(count)}" for name, count in record.packages[:4]))
    say(f"  base      {record.base} ({record.base_origin})")
    say(f"  OS root   {record.root}")
    if record.prune == "all":
        from builder.devicecode.pruning.prune import EULA

        say(f"  EULA      {EULA}")
    say("  time      " + ", ".join(f"{name} {duration(s)}" for name, s in record.phases.items()))


def show_receipt(receipt: "Receipt") -> None:
    """What a receipt says, for a person."""
    took = sum(check.seconds for check in receipt.checks)
    checks = ", ".join(check.name for check in receipt.checks)
    say(f"{receipt.target}: proven on {receipt.device} in {duration(took)}: {checks}")


def image_json(record: "ImageRecord", receipt: "Receipt | None" = None) -> dict[str, Any]:
    """What build/<target>/image.json holds, with the receipt."""
    found: dict[str, Any] = {**asdict(record), "over_budget": record.over_budget}
    if receipt is not None:
        found["receipt"] = receipt.model_dump(mode="json")
    return found
