"""`builder audit` and `report`: which GPUs libraries have kernels for, and what an image holds."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from builder.cli.common import (
    EngineChoice,
    Json,
    Registry,
    out,
    reporter,
    root,
    say,
    settings,
    show,
)
from builder.cli.console import size

if TYPE_CHECKING:
    from builder.devicecode.inventory import Library
    from builder.prove.audit.table import PackageSize


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
    target: Annotated[
        str, typer.Argument(help="A folder of images/; with --html also an image in a registry.")
    ],
    html: Annotated[
        Path | None, typer.Option(help="Write one page of the image into this file instead.")
    ] = None,
    osv: Annotated[
        str | None, typer.Option(help="For --html: the address of OSV's API, or of a mirror.")
    ] = None,
    registry: Registry = None,
    engine: EngineChoice = None,
    as_json: Json = False,
) -> None:
    """List what an image holds, by package and library.

    With --html, write a page that you can send to a colleague: layers by bytes, proof, device code,
    signed statements, advisories, licences, cost. It needs no engine.
    """
    if html is not None:
        _page(target, html, osv, registry)
        return
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
    _show_libraries(rows)


def _show_libraries(rows: Sequence[tuple["PackageSize", "Library", int, tuple[str, ...]]]) -> None:
    """Each package with its large libraries. rows: the bytes of device code, and its targets."""
    told = None
    for package, library, kernels, held in rows:
        if package is not told:
            count = f"{len(package.libraries)} libraries"
            show(f"{package.name or 'no package'}: {size(package.size)} in {count}")
            told = package
        if library.size >= 1_000_000:
            what = f", {size(kernels)} device code: {', '.join(held)}" if kernels else ""
            show(f"    {size(library.size):>9}  {library.name}{what}")


def _page(target: str, file: Path, osv: str | None, registry: str | None) -> None:
    """`builder report --html`."""
    from datetime import UTC, datetime

    from builder.core import files
    from builder.jobs.cost import hour, prices
    from builder.pipeline import imagehtml, imagepage
    from builder.spec import catalogue
    from builder.trust import advisories

    where, today = settings(registry=registry), datetime.now(UTC).date()
    address = osv or advisories.ADDRESS
    with reporter() as shown:
        page = (
            imagepage.of_target(root(), target, address, today)
            if target in catalogue.targets(root())
            else imagepage.of_reference(target, where, address, today, shown.on_event)
        )
    costs = hour.costs(page.facts["accelerator"], page.size, prices.load(root()))
    files.write(file, imagehtml.html(page, costs))
    say(f"wrote {file}")
    if page.not_asked:
        say(f"advisories were not looked up: {page.not_asked}")
