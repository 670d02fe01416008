"""The command line: each command parses, calls one function and prints. No logic stands here."""

import sys
from typing import Annotated, NoReturn

import typer

from builder.cli import audit, images, inputs, machine, registry, tensorboard
from builder.cli.cloud import cloud_app
from builder.cli.common import OPTIONS
from builder.cli.job import job_app
from builder.core.errors import FactoryError

HELP = """From one small file per accelerator to a proven TensorFlow training image.

The steps of an image, each a command:

\b
  images/v100/image.yaml     what you write, about ten lines    builder schema, explain
    -> lock                  every version and hash             builder lock
    -> render                two plain Dockerfiles, committed   builder render
    -> build                 base (reused by hash) and image    builder build
    -> smoke                 loader check, real training run    builder smoke
    -> push                  by digest, with its receipt        builder push, verify, promote

`builder image v100` builds and proves in one go. It does nothing when nothing changed.
"""

app = typer.Typer(
    name="builder",
    help=HELP,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback()
def options(
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Show every line of output.")
    ] = False,
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="Show results and errors only.")
    ] = False,
) -> None:
    OPTIONS.debug, OPTIONS.verbose, OPTIONS.quiet = debug, verbose, quiet


for command in (
    images.image,
    images.build,
    images.smoke,
    registry.push,
    registry.verify,
    registry.promote,
    inputs.lock,
    inputs.render,
    audit.audit,
    audit.report,
    inputs.explain,
    inputs.check,
    inputs.schema,
):
    app.command()(command)
app.command("list")(images.list_targets)
app.command()(tensorboard.tensorboard)
app.command()(machine.doctor)
app.add_typer(machine.engine_app, name="engine")
app.add_typer(cloud_app, name="cloud")
app.add_typer(job_app, name="job")


def main() -> NoReturn:
    """Run the command line. An error becomes two lines and an exit code."""
    try:
        app()
    except FactoryError as error:
        if OPTIONS.debug:
            raise
        for line in getattr(error, "log", ()):  # what a failed step of a build printed last
            sys.stderr.write(f"    {line}\n")
        sys.stderr.write(f"error: {error.message}\n")
        if error.fix:
            sys.stderr.write(f"fix:   {error.fix}\n")
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        sys.stderr.write("stopped\n")
        sys.exit(130)
    except BrokenPipeError:
        sys.exit(141)
    except Exception as error:
        if OPTIONS.debug:
            raise
        sys.stderr.write(f"error: {type(error).__name__}: {error}\n")
        sys.stderr.write("fix:   this is a bug in the factory; builder --debug shows where\n")
        sys.exit(1)
    sys.exit(0)
