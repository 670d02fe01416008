"""`builder job convert`: a job of AI Platform as a job of today."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from builder.cli.common import root, say

Output = Annotated[
    Path | None, typer.Option("--output", "-o", help="Write to a file instead of stdout.")
]


def write(text: str, output: Path | None) -> None:
    """Write to a file, or to stdout."""
    from builder.core.files import write

    if output is None:
        sys.stdout.write(text)
    else:
        write(output, text)
        say(f"wrote {output}")


def convert(
    config: Annotated[
        Path | None, typer.Argument(help="AI Platform's config.yaml; none: a command alone.")
    ] = None,
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[-- WORDS]",
            help="The gcloud command that sent it, or the trainer's arguments.",
        ),
    ] = None,
    image: Annotated[str | None, typer.Option(help="A target, or an image.")] = None,
    region: Annotated[str | None, typer.Option(help="Such as us-central1.")] = None,
    output: Output = None,
) -> None:
    """Turn a job of AI Platform, its config.yaml and its gcloud command, into a job of today.

    \b
    builder job convert config.yaml --region us-central1 -o jobs/cats.yaml -- --epochs 10
    builder job convert -o jobs/cats.yaml -- gcloud ai-platform jobs submit training cats \\
        --config config.yaml --region us-central1 -- --epochs 10

    It ends with what is not as it was, and with each field and flag that is not taken over.
    """
    from builder.jobs import images
    from builder.jobs.convert import convert as converted

    rest = list(words or ())
    if config is not None and (config.name == "gcloud" or str(config).startswith("-")):
        config, rest = None, [str(config), *rest]  # what stands after --, without a file
    name = output.stem if output is not None else "job"
    targets = images.targets(root())
    job = converted(config, rest, image=image, region=region, name=name, targets=targets)
    for line in job.changes:
        say(line)
    for line in job.left_out:
        say(f"not taken over: {line}")
    write(job.text, output)
