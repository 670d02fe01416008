"""`builder sign`: keys that sign attestations."""

import os
from pathlib import Path
from typing import Annotated

import typer

from builder.cli.common import root, say

sign_app = typer.Typer(help="Make keys that sign images.", no_args_is_help=True)


@sign_app.command()
def key(
    path: Annotated[Path, typer.Argument(help="The private key; the public one is FILE.pub.")],
    no_password: Annotated[
        bool, typer.Option("--no-password", help="Seal it with the empty password.")
    ] = False,
) -> None:
    """Make a key pair (ECDSA P-256) that cosign reads, too.

    COSIGN_PASSWORD of the environment becomes the password of the private key. A private key is
    never written into the project.

    builder sign key ~/keys/prover.key
    """
    from builder.core.errors import InputError
    from builder.core.settings import outside
    from builder.trust import keys

    password = os.environ.get(keys.PASSWORD, "")
    if not password and not no_password:
        raise InputError(
            f"{path}: {keys.PASSWORD} is not set, and whoever reads this file could sign",
            f"set {keys.PASSWORD}, or say --no-password",
        )
    made = keys.create(outside(root(), path, "FILE"), password)
    say(f"wrote {path}, which stays secret")
    say(f"wrote {made.source}, which whoever verifies needs: commit it")
