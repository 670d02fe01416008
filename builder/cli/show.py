"""`builder show`: what a target is made of, its rules for scanners, the contract's file."""

import sys
from typing import Annotated

import typer

from builder.cli.common import Json, Registry, out, root, settings
from builder.cli.console import size

show_app = typer.Typer(
    help="Show a target's layers and accepted advisories, and the contract.",
    no_args_is_help=True,
)


@show_app.command("base")
def base(
    target: Annotated[str, typer.Argument(help="A folder of images/.")], as_json: Json = False
) -> None:
    """List the layers of a base: packages, bytes, key, and what each is for.

    "download" is what the lock says of the packages. "packed" is what a pull transfers; it is known
    of layers that this machine has made or taken before.
    """
    from builder.core.errors import InputError
    from builder.image.content_store import base_layers
    from builder.pipeline.make import prepare

    plan = prepare(root(), target).base
    if plan is None:
        raise InputError(f"{target}: its base is a published image", "skopeo inspect shows it")
    rows = base_layers(plan)
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


@show_app.command()
def contract() -> None:
    """Write training_contract.py, by which a program of any framework keeps to the contract.

    builder show contract > digits/training_contract.py
    """
    from pathlib import Path

    file = Path(__file__).parents[1] / "training_contract.py"
    sys.stdout.write(file.read_text(encoding="utf-8"))


@show_app.command()
def vex(
    target: Annotated[str, typer.Argument(help="A folder of images/.")],
    digest: Annotated[
        str | None, typer.Option(help="sha256:... of the image; else the last build's.")
    ] = None,
    registry: Registry = None,
) -> None:
    """Write which advisories image.yaml accepts, as OpenVEX for scanners.

    builder show vex v100 > vex.json; trivy image --vex vex.json REF
    """
    from datetime import UTC, datetime

    from builder.config import image_yaml, lockfile
    from builder.core.errors import InputError
    from builder.pipeline import records, repository
    from builder.trust import sbom
    from builder.trust import vex as openvex

    spec = image_yaml.load(root(), target)
    record = records.read(root(), target)
    digest = digest or (record.digest if record else None)
    if not digest:
        raise InputError(
            f"{target}: the digest of its image is not known here", "name it: --digest sha256:..."
        )
    purl = sbom.image_purl(repository.of(settings(registry=registry), "point"), digest)
    lock, now = lockfile.read(root(), target), datetime.now(UTC)
    made_at = now.isoformat(timespec="seconds")
    out(openvex.document(purl, spec.advisories, lock, made_at, now.date()))
