"""`builder audit` and `report`: which GPUs libraries have kernels for, and what an image holds."""

from pathlib import Path
from typing import Annotated

import typer

from builder.cli.common import EngineChoice, Json, Registry, out, reporter, root, settings, show
from builder.cli.console import size


def audit(
    sources: Annotated[
        list[str] | None,
        typer.Argument(
            help="Targets, images (engine or registry), folders, wheels.", metavar="SOURCE"
        ),
    ] = None,
    everything: Annotated[
        bool, typer.Option("--all", help="Every GPU target, as one table.")
    ] = False,
    gpu: Annotated[
        list[str] | None,
        typer.Option(help="A GPU such as V100, or a compute capability such as 7.0."),
    ] = None,
    registry: Registry = None,
    engine: EngineChoice = None,
    as_json: Json = False,
) -> None:
    """Say which GPUs the libraries have kernels for.

    A target is judged for its own GPU; exit code 4 says that it does not run there. Anything else
    is judged for every known GPU, or for those of --gpu.
    """
    from functools import cache

    from builder import engine as engines
    from builder.core.errors import InputError
    from builder.core.settings import load
    from builder.prove import audit as auditing

    project: Path | None = None
    try:
        project = root()
    except InputError:  # folders, wheels and images can be read outside of a project
        if everything:
            raise
    where = load(project or Path.cwd(), registry=registry, engine=engine)
    with reporter() as shown:
        found = auditing.audit(
            project,
            where,
            cache(lambda start: engines.connect(where, start, shown.on_event)),
            sources or (),
            everything,
            gpu or (),
            shown.on_event,
        )
    if as_json:
        out([one.as_dict() for one in found])
    else:
        for line in auditing.table(found):
            show(f"{line}")
    auditing.require(found)


def report(
    target: Annotated[str, typer.Argument(help="A folder of images/.")],
    engine: EngineChoice = None,
    as_json: Json = False,
) -> None:
    """List what an image holds, by package and library."""
    from builder.devicecode.verdict import carries
    from builder.engine import connect
    from builder.prove import audit as auditing

    with reporter() as shown:
        where = settings(engine=engine)
        (found,) = auditing.audit(
            root(),
            where,
            lambda start: connect(where, start, shown.on_event),
            [target],
            gpus=["V100"],  # libraries are listed, nothing is judged
            on_event=shown.on_event,
        )
    packages = auditing.left(found.found)
    rows = [
        (package, library, auditing.device_code(library), carries(library))
        for package in packages
        for library in package.libraries
    ]
    if as_json:
        out(
            [
                {
                    "package": package.name,
                    "library": library.path,
                    "bytes": library.size,
                    "device_code_bytes": kernels,
                    "carries": held,
                }
                for package, library, kernels, held in rows
            ]
        )
        return
    told = None
    for package, library, kernels, held in rows:
        if package is not told:
            count = f"{len(package.libraries)} libraries"
            show(f"{package.name or 'no package'}: {size(package.size)} in {count}")
            told = package
        if library.size >= 1_000_000:
            what = f", {size(kernels)} device code: {', '.join(held)}" if kernels else ""
            show(f"    {size(library.size):>9}  {library.name}{what}")
