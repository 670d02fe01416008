"""`builder job`: parse, call one function, print. No logic."""

import typer

from builder.cli import job_local

job_app = typer.Typer(
    help="Training jobs: on this machine as a cluster, or on Vertex AI.",
    no_args_is_help=True,
)
job_local.register(job_app)
