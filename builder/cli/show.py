"""`builder show`: what a target is made of, and the contract's file."""

import sys

import typer

from builder.cli.common import Json, Target, out, root
from builder.cli.console import size

show_app = typer.Typer(help="Show a target's layers, and the contract.", no_args_is_help=True)


@show_app.command("base")
def base(target: Target, as_json: Json = False) -> None:
    """List the layers of a base: packages, bytes, key, and what each is for.

    "download" is what the lock says of the packages, "packed" what a pull transfers, "unpacked" the
    bytes of the files. The last two are known of layers that stand in images/layers.lock.
    """
    from builder.core.errors import InputError
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
    from pathlib import Path

    file = Path(__file__).parents[1] / "training_contract.py"
    sys.stdout.write(file.read_text(encoding="utf-8"))
