"""`builder audit` and `report`: which GPUs libraries have kernels for, and what an image holds.

The package device-code-audit installs `builder audit` as a program of its own (`main`).
"""

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, NoReturn

import typer

from builder.cli.common import (
    EngineChoice,
    Json,
    Registry,
    out,
    reporter,
    results,
    root,
    say,
    settings,
    show,
)
from builder.cli.console import size

if TYPE_CHECKING:
    from builder.core.events import OnEvent
    from builder.core.settings import Settings
    from builder.devicecode.images import ImageContent
    from builder.pipeline.any_image import Answer
    from builder.prove.report import PackageSize
    from builder.prove.waste import Waste


def _show_version(wanted: bool) -> None:
    if wanted:
        from builder import __version__

        show(__version__)
        raise typer.Exit


Sources = Annotated[
    list[str] | None,
    typer.Argument(
        help="Folders, wheels, libraries, images (registry, engine, archive), targets.",
        metavar="SOURCE",
    ),
]
Gpus = Annotated[
    list[str] | None,
    typer.Option(help="A GPU such as V100, or a compute capability such as 7.0."),
]
Ptx = Annotated[
    Literal["kinds", "all"] | None,
    typer.Option(help="Compile the PTX that they use: a module of each kind, or all."),
]
Github = Annotated[
    bool, typer.Option("--github", help="Write annotations for GitHub instead of a table.")
]
Version = Annotated[
    bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Say which.")
]


def audit(
    sources: Sources = None,
    everything: Annotated[bool, typer.Option("--all", help="Every GPU target, a table.")] = False,
    gpu: Gpus = None,
    ptx: Ptx = None,
    registry: Registry = None,
    engine: EngineChoice = None,
    github: Github = False,
    as_json: Json = False,
    _version: Version = False,
) -> None:
    """Say which GPUs the libraries have kernels for.

    It reads the files alone, without a GPU and without CUDA. Sources are judged for the GPUs of
    --gpu, or for every known one; a target is judged for its own. A GPU runs a library natively,
    compiles its PTX first (slow), or finds nothing that it can run.

    \b
    Examples:
      .venv --gpu V100               what is installed in a folder
      torch-*.whl --gpu 9.0          wheels, by compute capability
      HOST/REPOSITORY:TAG --gpu T4   an image in a registry, without pulling it
      image.tar --json               what docker save wrote, as data

    \b
    Exit codes:
      0  every GPU that was named runs every library
      2  the command is wrong: no such file, image or GPU
      3  the outside world refused: a registry, a full disk
      4  a GPU cannot run a library, or a layer of an image holds a secret
    """
    from functools import cache

    from builder.core.settings import load
    from builder.engine.discovery import connect
    from builder.prove import audit as auditing
    from builder.prove import report

    project = root() if everything else _project()
    with reporter() as shown:
        where = load(project or Path.cwd(), registry=registry, engine=engine)
        audited = auditing.audit(
            project,
            where,
            cache(lambda start: connect(where, start, shown.on_event)),
            sources or (),
            everything,
            gpu or (),
            shown.on_event,
        )
    lines = (report.github_lines if github else report.table)(audited)
    results(as_json, [report.as_dict(source) for source in audited], lines)
    if ptx:
        _compile(sources or (), gpu or (), ptx)
    auditing.require(audited)


def prove(
    image: Annotated[
        str,
        typer.Argument(help="An image (registry, engine, docker save, OCI layout), or a target."),
    ],
    gpu: Annotated[str | None, typer.Option(help="The GPU to judge it for, such as V100.")] = None,
    run: Annotated[
        str | None, typer.Option(help="Start this in a shell of the image, not its own command.")
    ] = None,
    push_receipt: Annotated[
        bool, typer.Option("--push-receipt", help="Attach the receipt to the image.")
    ] = False,
    key: Annotated[str | None, typer.Option(help="Sign the receipt with this key.")] = None,
    sarif: Annotated[
        bool, typer.Option("--sarif", help="Write SARIF, which code scanning reads.")
    ] = False,
    registry: Registry = None,
    engine: EngineChoice = None,
    github: Github = False,
    as_json: Json = False,
) -> None:
    """Prove an image that anybody made, from its layers; one in the engine is started, too.

    Each check says passed, refused, or that there was nothing to look at; then it says where the
    bytes go that no container needs. An image in a registry is read there. One in the engine is
    started with its own user, a root that it cannot write to, and no network.

    --push-receipt puts the receipt of an image that no check refused beside it in its registry;
    `builder verify REF --suite image` asks for it. Exit code 4: a check refused the image.
    """
    from builder.core.errors import InputError
    from builder.core.settings import load
    from builder.pipeline import any_image, image_receipt
    from builder.prove import audit as auditing
    from builder.prove import waste

    project = _project()
    image, device = auditing.image_of(project, image, gpu)
    if key and not push_receipt:
        raise InputError("--key signs a receipt, and none is pushed", "add --push-receipt")
    tables = {"trust": {"key": key}}
    where = load(project or Path.cwd(), registry=registry, engine=engine, tables=tables)
    with reporter() as shown:
        if push_receipt:
            reference, manifest = image_receipt.image_at(image, shown.on_event)
            image = str(reference)
        content, started = _look_into(image, where, run, shown.on_event)
    answers = (*any_image.prove(any_image.Image(content, device)), started)
    if sarif:
        out(any_image.sarif(image, answers))
    else:
        wasted = waste.of_image(content, device.capability if device else None)
        text = (*any_image.lines(answers), *waste.lines(wasted))
        lines = any_image.github_lines(answers) if github else text
        results(as_json, _proof(image, device.name if device else None, answers, wasted), lines)
    any_image.require(image, answers)
    if push_receipt:
        accelerator = device.name if device else "CPU"
        receipt = image_receipt.of_answers(reference, manifest, accelerator, answers)
        say(image_receipt.push(reference, manifest, receipt, where))


def _proof(
    image: str, gpu: str | None, answers: Sequence["Answer"], wasted: Sequence["Waste"]
) -> dict[str, object]:
    """Return a proof as JSON-ready data."""
    checks, saved = [answer.as_dict() for answer in answers], list(map(asdict, wasted))
    return {"image": image, "gpu": gpu, "checks": checks, "could_be_saved": saved}


def _look_into(
    image: str, where: "Settings", run: str | None, on_event: "OnEvent"
) -> tuple["ImageContent", "Answer"]:
    """Read an image, and start it if the engine has it."""
    from functools import cache

    from builder.engine.discovery import connect
    from builder.pipeline import image_start
    from builder.prove import audit as auditing

    connected = cache(lambda start: connect(where, start, on_event))
    content = auditing.image_content(where, connected, image, on_event)
    auditing.require_whole(image, content)
    return content, image_start.of_name(image, content.image_id, connected, run, on_event)


def _compile(sources: Sequence[str], gpus: Sequence[str], which: Literal["kinds", "all"]) -> None:
    """Compile PTX, and show what the compiler says."""
    from builder.core.errors import CheckFailed
    from builder.prove import audit as auditing
    from builder.prove import ptxas

    with reporter() as shown:
        results = ptxas.compile_paths(
            map(Path, sources), map(auditing.capability, gpus), which, shown.on_event
        )
    for result in results:
        show(str(result))
    if failed := next((result for result in results if result.words), None):
        raise CheckFailed(str(failed), "take a release whose wheels hold code for this GPU")


def _project() -> Path | None:
    """Return the project's folder, None outside of one."""
    from builder.core.errors import InputError

    try:
        return root()
    except InputError:
        return None


def main(version: str) -> NoReturn:
    """Run `builder audit` as the program device-code-audit of this version."""
    import builder
    from builder import cli

    builder.__version__ = version

    program = typer.Typer(
        rich_markup_mode=None, pretty_exceptions_enable=False, add_completion=False
    )
    program.command(context_settings={"help_option_names": ["-h", "--help"]})(audit)
    cli.main(program)


def report(
    target: Annotated[str, typer.Argument(help="A folder of images/.")],
    html: Annotated[
        Path | None, typer.Option(help="Write one page of the image into this file instead.")
    ] = None,
    osv: Annotated[
        str | None, typer.Option(help="For --html: the address of OSV's API, or of a mirror.")
    ] = None,
    engine: EngineChoice = None,
    as_json: Json = False,
) -> None:
    """List what an image holds, by package and library.

    With --html, write a page that you can send to a colleague: layers by bytes, proof, device code,
    advisories, licences, cost. It needs no engine.
    """
    if html is not None:
        _page(target, html, osv)
        return
    from builder.devicecode.verdict import carries
    from builder.engine.discovery import connect
    from builder.prove import audit as auditing
    from builder.prove.report import by_package

    with reporter() as shown:
        where = settings(engine=engine)
        (audited,) = auditing.audit(
            root(),
            where,
            lambda start: connect(where, start, shown.on_event),
            [target],
            gpus=["V100"],  # libraries are listed, nothing is judged
            on_event=shown.on_event,
        )
    packages = by_package(audited.libraries.libraries)
    rows = [
        {
            "package": package.name,
            "library": library.path,
            "bytes": library.size,
            "device_code_bytes": library.device_code,
            "carries": carries(library),
        }
        for package in packages
        for library in package.libraries
    ]
    results(as_json, rows, _lines(packages))


def _lines(packages: Sequence["PackageSize"]) -> Iterator[str]:
    """Yield each package with its large libraries."""
    from builder.devicecode.verdict import carries

    for package in packages:
        count = f"{len(package.libraries)} libraries"
        yield f"{package.name or 'no package'}: {size(package.size)} in {count}"
        for library in package.libraries:
            if library.size >= 1_000_000:
                targets = ", ".join(carries(library))
                code = f", {size(library.device_code)} device code: {targets}"
                yield (
                    f"    {size(library.size):>9}  {library.name}"
                    f"{code if library.device_code else ''}"
                )


def _page(target: str, file: Path, osv: str | None) -> None:
    """Write the page of `builder report --html`."""
    from datetime import UTC, datetime

    from builder.core import files
    from builder.pipeline import report as pages
    from builder.trust import advisories

    address, today = osv or advisories.ADDRESS, datetime.now(UTC).date()
    page = pages.of_target(root(), target, address, today)
    files.write(file, pages.html(page))
    say(f"wrote {file}")
    if page.not_looked_up:
        say(f"advisories were not looked up: {page.not_looked_up}")
