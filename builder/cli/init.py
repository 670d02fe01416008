"""`builder init`: a first target for a repository that is there."""

from pathlib import Path
from typing import Annotated

import typer

from builder.cli.common import Json, out, project, say, show


def init(
    target: Annotated[
        str,
        typer.Option(
            help="An accelerator (v100, b200, tpu-v6e, cpu ...), or one and its framework: b200-jax"
        ),
    ] = "cpu",
    force: Annotated[
        bool, typer.Option("--force", help="Write files that are there already, too.")
    ] = False,
    cloud_build: Annotated[
        bool,
        typer.Option(
            "--cloud-build",
            help="Let Cloud Build run this factory: put its wheel, and a lock of what it needs,"
            " into requirements/; `builder render` then writes cloudbuild.yaml.",
        ),
    ] = False,
    as_json: Json = False,
) -> None:
    """Make this repository a project: write builder.toml and images/TARGET/image.yaml.

    Looks at requirements.txt, pyproject.toml, uv.lock, environment.yml, cog.yaml, the Dockerfile
    and the packages here; says what it took over, and what it could not. Changes no file that is
    there, and a second run changes nothing.
    """
    from builder.config import init as proposals

    root = project() or Path.cwd()
    proposal = proposals.propose(root, target, force)
    paths = [*proposal.files]
    if cloud_build:  # first, because it may fail: then nothing is written
        from builder.image import factory_wheel

        paths += factory_wheel.bring(root, proposal.findings, force)
    proposals.write(proposal)
    written = [path.relative_to(root).as_posix() for path in paths]
    if as_json:
        findings = proposal.findings
        shown = {"image": proposal.values, "taken": findings.taken, "left": findings.left}
        out({"target": proposal.target, "written": written, **shown})
        return
    for heading, lines in (
        ("wrote", written),
        ("took", proposal.findings.taken),
        ("did not take", proposal.findings.left),
    ):
        for line in lines:
            show(f"{heading:<12} {line}")
    if not written:
        show("nothing to write: the files are there (--force writes them anew)")
    say(f"now: builder image {proposal.target}")
