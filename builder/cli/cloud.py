"""`builder cloud`: parse, call one function, print. No logic."""

import typer

cloud_app = typer.Typer(
    help="Google Cloud Build: in the cloud, on every push to git, and on this machine.",
    no_args_is_help=True,
)
