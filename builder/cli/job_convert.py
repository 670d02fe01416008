"""`builder job convert`: a job of AI Platform, its file and its flags, as a job of today."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from builder.cli.common import root, say

if TYPE_CHECKING:
    from builder.jobs.ledger import Imported

Output = Annotated[
    Path | None, typer.Option("--output", "-o", help="Write to a file instead of stdout.")
]
_PANEL = "Flags of gcloud ai-platform jobs submit training"
Old = Annotated[str | None, typer.Option(rich_help_panel=_PANEL)]
OldSwitch = Annotated[bool, typer.Option("--enable-web-access", rich_help_panel=_PANEL)]


def write(text: str, output: Path | None) -> None:
    """Write to a file, or to stdout."""
    from builder.core.files import write

    if output is None:
        sys.stdout.write(text)
    else:
        write(output, text)
        say(f"wrote {output}")


def tell(found: "Imported") -> None:
    """Say what became of each field that is not as it was, and how many are kept."""
    for fate in ("changed", "dropped", "added"):
        for line in found.having(fate):
            say(f"{fate}: {line.field}: {line.why}")
    for line in found.having("kept"):
        if line.why:
            say(f"kept: {line.field}: {line.why}")
    for note in found.notes:
        say(f"note: {note}")
    say(f"kept: {len(found.having('kept'))} of {len(found.ledger)} fields")


def convert(
    config: Annotated[
        Path | None, typer.Argument(help="AI Platform's config.yaml; none: flags alone.")
    ] = None,
    arguments: Annotated[
        list[str] | None, typer.Argument(metavar="[-- ARGS]", help="For the trainer, after --.")
    ] = None,
    image: Annotated[str | None, typer.Option(help="A target, or an image.")] = None,
    output: Output = None,
    scale_tier: Old = None,
    region: Old = None,
    job_dir: Old = None,
    labels: Old = None,
    master_machine_type: Old = None,
    master_accelerator: Old = None,
    master_image_uri: Old = None,
    worker_count: Old = None,
    worker_machine_type: Old = None,
    worker_accelerator: Old = None,
    worker_image_uri: Old = None,
    parameter_server_count: Old = None,
    parameter_server_machine_type: Old = None,
    parameter_server_accelerator: Old = None,
    parameter_server_image_uri: Old = None,
    runtime_version: Old = None,
    python_version: Old = None,
    module_name: Old = None,
    package_path: Old = None,
    packages: Old = None,
    service_account: Old = None,
    kms_key: Old = None,
    use_chief_in_tf_config: Old = None,
    enable_web_access: OldSwitch = False,
) -> None:
    """Turn a job of AI Platform, its config.yaml and its flags, into a job of today.

    \b
    builder job convert config.yaml --region us-central1 -o jobs/cats.yaml -- --epochs 10
    builder job convert --scale-tier CUSTOM --master-machine-type n1-standard-8 \\
        --master-accelerator count=2,type=nvidia-tesla-v100 --region us-central1

    It ends with a ledger: what became of each field that is not as it was, and why.
    """
    flags = {name: value for name, value in locals().items() if name not in _OWN and value}
    found = _converted(config, image, labels, flags, arguments or [])
    tell(found)
    write(found.text, output)


_OWN = ("config", "arguments", "image", "output", "labels")
"""The parameters of `convert` that are no flags of gcloud for a field of trainingInput."""


def _converted(
    config: Path | None,
    image: str | None,
    labels: str | None,
    given: dict[str, Any],
    arguments: list[str],
) -> "Imported":
    from builder.jobs import images
    from builder.jobs.aiplatform.convert import Beside, convert_file

    if config is not None and str(config).startswith("-"):  # what stands after --, without a file
        config, arguments = None, [str(config), *arguments]
    flags = {
        name.replace("_", "-"): "true" if value is True else value for name, value in given.items()
    }
    beside = Beside(image, flags, labels, tuple(arguments), images.targets(root()))
    return convert_file(config, beside)
