"""`builder show`: what a target is made of."""

import sys
from typing import Annotated

import typer

from builder.cli.common import Json, out, root
from builder.cli.console import size

show_app = typer.Typer(help="Show what a target is made of.", no_args_is_help=True)


@show_app.command("base")
def base(
    target: Annotated[str, typer.Argument(help="A folder of images/.")], as_json: Json = False
) -> None:
    """List the layers of a base: packages, bytes, key, and what each is for.

    "download" is what the lock says of the packages. "packed" is what a pull transfers; it is known
    of layers that this machine has made or taken before.
    """
    from builder.pipeline import bases

    rows = bases.rows(root(), target)
    if as_json:
        out(rows)
        return
    for row in rows:
        packed = size(row["packed_bytes"]) if row["packed_bytes"] is not None else "-"
        sys.stdout.write(
            f"{row['name']}\n    {row['why']}\n"
            f"    download {size(row['download_bytes'])}, packed {packed}, key {row['key'][:16]}\n"
        )
        if len(row["packages"]) > 1:
            sys.stdout.write(f"    {', '.join(row['packages'])}\n")
