"""On which GPUs do CUDA libraries run? `builder audit` of the training image factory, by itself."""

from __future__ import annotations

import sys
from pathlib import Path

__version__ = "0.1.0"


def main() -> None:
    """Run the program. The parts of the factory that it needs lie in this package."""
    if sys.argv[1:] == ["--version"]:
        sys.stdout.write(f"{__version__}\n")
        return
    sys.path.insert(0, str(Path(__file__).parent / "factory"))
    import typer

    from builder import cli
    from builder.cli.audit import audit

    program = typer.Typer(
        rich_markup_mode=None, pretty_exceptions_enable=False, add_completion=False
    )
    program.command(context_settings={"help_option_names": ["-h", "--help"]})(audit)
    cli.main(program)
