"""`builder image`, `build`, `smoke`, `list`, `show`: make images, prove them, show them."""

import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from builder.cli import options
from builder.cli.common import chosen, out, reporter, results, root, say, settings
from builder.cli.options import flag, option
from builder.cli.registry import show_push
from builder.core.display import columns, duration, size
from builder.core.errors import InputError

if TYPE_CHECKING:
    from builder.core.events import OnEvent
    from builder.core.settings import Settings
    from builder.engine import Engine
    from builder.pipeline.export import Exported
    from builder.pipeline.make import Base, BuildOptions, Target
    from builder.pipeline.records import ImageRecord
    from builder.prove.receipts import Receipt


def image(
    targets: list[str] | None = options.TARGETS,
    everything: bool = options.ALL,
    push: bool = flag("--push", "Push the proven images."),
    tag: list[str] | None = option("An additional tag for the push."),
    registry: str | None = options.REGISTRY,
    engine: str | None = options.ENGINE,
    program: str | None = options.PROGRAM,
    as_json: bool = options.JSON,
) -> None:
    """Build and prove images, in one go.

    Locks what never was, builds the base and the training image, then runs the smoke test; its
    receipt allows the push. Does nothing if nothing changed. With --program, the image holds your
    own Python program instead of the target's.
    """
    from builder.config import targets as projects
    from builder.engine.discovery import connect
    from builder.image.apt import ContainerApt
    from builder.pipeline import committed, make, proof

    names, configured = chosen(targets, everything), settings(registry=registry, engine=engine)
    if program is not None:
        from builder.pipeline import package

        found = package.find(program)
    with reporter() as progress:
        docker = cache(lambda: connect(configured, on_event=progress.on_event))
        apt = ContainerApt(root(), configured, progress.on_event)
        committed.lock_new(root(), names, apt, progress.on_event)
        files = projects.all_of(root(), names)
        if program is not None:
            files = tuple(package.locked(each, found, apt, progress.on_event) for each in files)
        build_options = _build_options(configured, progress.on_event)
        made = make.make(root(), files, build_options, docker, proof.prove_once)
        pushed = []
        if push:
            from builder.pipeline.push import push_target

            pushed = [
                push_target(target, configured, docker(), tag or (), progress.on_event)
                for target in files
            ]
    for proven in made:
        record, receipt = proven.record, proven.receipt
        if proven.unchanged:
            say(f"{record.target}: nothing to do, {record.reference} is up to date")
            digest = record.digest or record.image_id
            say(f"  {digest}, {receipt.made_at}: {receipt.verdict}")
        else:
            show_image(record)
            show_receipt(receipt)
    for image in pushed:
        show_push(image)
    if as_json:
        out([image_json(proven.record, proven.receipt) for proven in made])


def _build_options(
    configured: "Settings", on_event: "OnEvent", no_cache: bool = False
) -> "BuildOptions":
    """Return how images are built; what reads signatures is loaded where [trust] asks for it."""
    from builder.pipeline.make import BuildOptions

    if not configured.trust.layers:
        return BuildOptions(configured, on_event, no_cache)
    from builder.trust import rebuilders

    return BuildOptions(configured, on_event, no_cache, rebuilders.required)


def build(
    targets: list[str] | None = options.TARGETS,
    everything: bool = options.ALL,
    no_cache: bool = flag("--no-cache", "Rebuild every layer."),
    to_registry: bool = flag(
        "--to-registry",
        "Put the image onto its base in the registry, without pulling the base. With "
        "--base-only, put the base there. Neither needs an engine.",
    ),
    to_layout: Path | None = option(
        "Write an OCI image layout into this new folder.", "--to-layout"
    ),
    base_only: bool = flag("--base-only", "Only the base."),
    dry_run: bool = flag(
        "--dry-run",
        "Say what the bases would take: bytes to download, to make and to send to the "
        "engine. Build nothing.",
    ),
    registry: str | None = options.REGISTRY,
    engine: str | None = options.ENGINE,
    as_json: bool = options.JSON,
) -> None:
    """Build images; targets that share a base make it once.

    A base is assembled from locked packages, layer by layer. A layer that this machine or the
    registry has is taken from there.
    """
    from builder.engine.discovery import connect
    from builder.pipeline import make, records

    names, configured = chosen(targets, everything), settings(registry, engine)
    if dry_run and (to_registry or to_layout):
        fix = "leave out --to-registry/--to-layout"
        raise InputError("--dry-run says what a build onto the engine takes", fix)
    with reporter() as progress:
        docker = cache(lambda: connect(configured, on_event=progress.on_event))
        build_options = _build_options(configured, progress.on_event, no_cache)
        prepared = [make.prepare(root(), name) for name in names]
        if dry_run:
            estimate = make.plan_load(prepared, build_options, docker()).estimate
        else:
            made = _make(prepared, build_options, docker, base_only, to_registry, to_layout)
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
    targets: Sequence["Target"],
    build_options: "BuildOptions",
    engine: Callable[[], "Engine"],
    base_only: bool,
    to_registry: bool,
    folder: Path | None,
) -> "Sequence[Exported | Base | ImageRecord]":
    """Build on the engine, into the registry, or into a folder."""
    from builder.pipeline import export, make

    if folder:
        return export.to_layout(targets, build_options, engine, base_only, folder)
    if to_registry:
        send = export.bases_to_registry if base_only else export.to_registry
        return send(targets, build_options, engine)
    if base_only:
        return tuple(make.load_bases(targets, build_options, engine()).values())
    return make.build(root(), targets, build_options, engine())


def smoke(
    targets: list[str] | None = options.TARGETS,
    everything: bool = options.ALL,
    engine: str | None = options.ENGINE,
    as_json: bool = options.JSON,
) -> None:
    """Prove images with a real training run.

    Runs in a container without network. Checks that the loader finds every library, that the
    image holds nothing it should not, that a training run learns, survives a kill and resumes, and
    that its outputs can be read.
    """
    from builder.engine.discovery import connect
    from builder.pipeline import make, proof

    with reporter() as progress:
        docker = connect(settings(engine=engine), on_event=progress.on_event)
        receipts = [
            proof.prove_built(root(), docker, make.prepare(root(), name), progress.on_event)
            for name in chosen(targets, everything)
        ]
    for receipt in receipts:
        show_receipt(receipt)
    if as_json:
        out([receipt.model_dump(mode="json") for receipt in receipts])


def list_targets(as_json: bool = options.JSON) -> None:
    """List the targets; say which are built and proven."""
    from builder.pipeline import proof

    settings()  # a mistake in builder.toml is told here, too
    rows = proof.overview(root())
    lines = (
        (
            row["target"],
            row["accelerator"],
            f"{row['framework']} {row['release']}",
            row["state"],
            size(row["compressed_bytes"]) if row["digest"] else "",
        )
        for row in rows
    )
    results(as_json, rows, columns(lines))


def show_image(record: "ImageRecord") -> None:
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
    """Show what a receipt proves, and what stands beside it."""
    from builder.prove import suites

    took = sum(check.seconds for check in receipt.checks)
    checks = ", ".join(check.name for check in receipt.checks)
    say(f"{receipt.target}: {receipt.verdict} in {duration(took)}: {checks}")
    for line in suites.beside(receipt):
        say(f"  {line}")


def image_json(record: "ImageRecord", receipt: "Receipt | None" = None) -> dict[str, Any]:
    """Return what build/<target>/image.json holds, with the receipt."""
    content: dict[str, Any] = {**asdict(record), "over_budget": record.over_budget}
    if receipt is not None:
        content["receipt"] = receipt.model_dump(mode="json")
    return content


# --- what a target is made of ---------------------------------------------------------------------

show_app = typer.Typer(help="Show a target's layers, and the contract.", no_args_is_help=True)


@show_app.command("base")
def base(target: str = options.TARGET, as_json: bool = options.JSON) -> None:
    """List the layers of a base: packages, bytes, key, and what each is for.

    "download" is what the lock says of the packages, "packed" what a pull transfers, "unpacked" the
    bytes of the files. The last two are known of layers that stand in images/layers.lock.
    """
    from builder.image.content_store import base_layers
    from builder.pipeline.make import prepare

    prepared = prepare(root(), target)
    if prepared.base is None:
        raise InputError(f"{target}: its base is a published image", "skopeo inspect shows it")
    rows = base_layers(prepared.base, prepared.layers.layers)
    if as_json:
        out(rows)
        return
    for row in rows:
        sizes = ", ".join(
            f"{word} {size(row[f'{word}_bytes']) if row[f'{word}_bytes'] is not None else '-'}"
            for word in ("download", "packed", "unpacked")
        )
        sys.stdout.write(f"{row['name']}\n    {row['why']}\n    {sizes}, key {row['key'][:16]}\n")
        if len(row["packages"]) > 1:
            sys.stdout.write(f"    {', '.join(row['packages'])}\n")
    if all(row["packed_bytes"] is not None for row in rows):
        packed, unpacked = (
            size(sum(row[name] for row in rows)) for name in ("packed_bytes", "unpacked_bytes")
        )
        sys.stdout.write(f"{len(rows)} layers: {packed} to pull, {unpacked} unpacked\n")


@show_app.command()
def contract() -> None:
    """Write training_contract.py, by which a program of any framework keeps to the contract.

    builder show contract > digits/training_contract.py
    """
    file = Path(__file__).parents[1] / "image/start/training_contract.py"
    sys.stdout.write(file.read_text(encoding="utf-8"))
