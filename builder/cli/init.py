"""`builder init`: a first target for a repository that is there."""

from pathlib import Path
from typing import Annotated

import typer

from builder.cli.common import Json, out, say, show


def init(
    target: Annotated[
        str, typer.Option(help="The accelerator: v100, t4, a100, l4, h100, tpu or cpu.")
    ] = "cpu",
    force: Annotated[
        bool, typer.Option("--force", help="Write files that are there already, too.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Make this repository a project: write builder.toml and images/TARGET/image.yaml.

    Looks at requirements.txt, pyproject.toml, uv.lock, environment.yml, cog.yaml, the Dockerfile
    and the packages here; says what it took over, and what it could not. Changes no file that is
    there, and a second run changes nothing.
    """
    from dataclasses import asdict

    from builder.config import init as proposals
    from builder.core import project
    from builder.core.errors import InputError

    try:
        root = project.find_root()
    except InputError:
        root = Path.cwd()
    proposal = proposals.propose(root, target, force)
    proposals.write(proposal)
    written = [path.relative_to(root).as_posix() for path in proposal.files]
    if as_json:
        out({"target": proposal.target, "written": written, **asdict(proposal.findings)})
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
