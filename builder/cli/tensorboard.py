"""`builder tensorboard`: TensorBoard over jobs of this machine and of buckets."""

from typing import Annotated

import typer

from builder.cli.common import root, say


def tensorboard(
    jobs: Annotated[
        list[str] | None,
        typer.Argument(metavar="JOB", help="Jobs, folders, gs:// addresses (default: all here)."),
    ] = None,
    port: Annotated[int, typer.Option(help="0: any that is free.")] = 6006,
    host: Annotated[str, typer.Option(help="0.0.0.0 shows it to the network.")] = "localhost",
) -> None:
    """TensorBoard over jobs, several in one view."""
    from builder.jobs import tensorboard as board

    found = board.sources(root(), jobs or ())
    raise typer.Exit(board.serve(found, host=host, port=port, on_line=say))
