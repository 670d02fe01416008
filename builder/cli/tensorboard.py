"""`builder tensorboard`: show jobs of this machine and of buckets in TensorBoard."""

from typing import Annotated

import typer

from builder.cli.common import root


def tensorboard(
    jobs: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="JOB", help="Jobs, folders, gs:// addresses (default: every job in build/jobs)."
        ),
    ] = None,
    port: Annotated[int, typer.Option(help="The port; 0 takes a free one.")] = 6006,
    host: Annotated[
        str, typer.Option(help="The address to listen on; 0.0.0.0 opens it to the network.")
    ] = "localhost",
) -> None:
    """Show jobs in TensorBoard, several in one view."""
    from builder.jobs import tensorboard as board

    board.serve(board.sources(root(), jobs or ()), host, port)
