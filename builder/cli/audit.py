"""`builder audit`, `prove` and `report`: which GPUs libraries run on, and what an image is."""

from collections.abc import Sequence
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Literal

from builder.cli.common import out, project, reporter, results, save, say, settings, show
from builder.cli.options import ENGINE, JSON, OSV, REGISTRY, argument, flag, option
from builder.core import files
from builder.core.errors import InputError


def audit(
    sources: list[str] | None = argument(
        "Folders, wheels, libraries, images (registry, engine, archive), targets.", metavar="SOURCE"
    ),
    everything: bool = flag("--all", "Every GPU target, a table."),
    gpu: list[str] | None = option("A GPU such as V100, or a compute capability such as 7.0."),
    ptx: Literal["kinds", "all"] | None = option(
        "Compile the PTX that they use: a module of each kind, or all."
    ),
    registry: str | None = REGISTRY,
    engine: str | None = ENGINE,
    github: bool = flag("--github", "Write annotations for GitHub instead of a table."),
    as_json: bool = JSON,
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
    from builder.audit import audited as judged
    from builder.audit import report
    from builder.engine.discovery import connect
    from builder.prove import audit as auditing

    configured = settings(registry, engine, anywhere=not everything)
    with reporter() as progress:
        connected = cache(lambda start: connect(configured, start, progress.on_event))
        audited = auditing.audit(
            project(),
            _targets(),
            configured,
            connected,
            sources or (),
            everything,
            gpu or (),
            progress.on_event,
        )
    lines = (report.github_lines if github else report.table)(audited)
    results(as_json, [report.as_dict(source) for source in audited], lines)
    if ptx:
        _compile(sources or (), gpu or (), ptx)
    judged.require(audited)


ALSO_GITHUB = option(
    "Write annotations for GitHub, too; there it is set by itself.",
    "--github",
    default=False,
    envvar="GITHUB_ACTIONS",
)


def prove(
    image: str = argument(
        "An image (registry, engine, docker save, OCI layout), or a target.", default=...
    ),
    gpu: str | None = option("The GPU to judge it for, such as V100."),
    nodes: str | None = option("A fleet, such as T4:535,H100:550: each GPU with its driver."),
    topology: str | None = option("The slice of a TPU to compile it for, such as v5e:2x4."),
    run: str | None = option("Start this in a shell of the image, not its own command."),
    on_gpu: bool = flag("--on-gpu", "Run it on this machine's GPU, too; it has to be GPU."),
    html: Path | None = option("Write one page for people, too."),
    push_receipt: bool = flag("--push-receipt", "Attach the receipt to the image."),
    key: str | None = option("Sign the receipt with this key."),
    sarif: bool = flag("--sarif", "Write SARIF, which code scanning reads."),
    github: bool = ALSO_GITHUB,
    registry: str | None = REGISTRY,
    engine: str | None = ENGINE,
    as_json: bool = JSON,
) -> None:
    """Prove an image that anybody made, from its layers; one in the engine is started, too.

    Each check says passed, refused, or what it could not look at; then it says where the bytes go
    that no container needs. One in the engine is started with its own user, a root that it cannot
    write to, and no network; with --gpu or --topology once more, to compile its step for that
    accelerator; with --on-gpu on that GPU itself, to compare. --push-receipt puts the receipt of an
    image that no check refused beside it in its registry (`builder verify REF --suite image`). Exit
    code 4: it is refused.
    """
    from builder.pipeline import page, prove_any
    from builder.pipeline import report as reports
    from builder.prove import any_image, waste

    if key and not push_receipt:
        raise InputError("--key signs a receipt, and none is pushed", "add --push-receipt")
    if on_gpu and topology:
        raise InputError("--on-gpu and --topology are two accelerators", "leave one of them out")
    chosen = settings(registry, engine, key, anywhere=True)
    asked = prove_any.ProofRequest(
        project(), image, chosen, gpu, nodes, topology or "", run, on_gpu, push_receipt
    )
    with reporter() as progress:
        judged = prove_any.prove_any(asked, progress.on_event)
    name, checks, wasted = judged.name, judged.results, judged.waste
    if sarif:
        out(any_image.sarif(name, checks))
    else:
        annotations = any_image.github_lines(checks) if github else ()
        lines = (*any_image.lines(checks), *waste.lines(wasted), *annotations)
        data = any_image.as_dict(name, judged.gpu, checks, wasted, judged.image.spent)
        results(as_json, data, lines)
    if html:
        save(html, page.html(reports.page(reports.of_judgement(judged))))
    judged.require()
    if push_receipt:
        say(judged.push_receipt(chosen))


def slim(
    image: str = argument("An image (registry, engine, docker save, OCI layout).", default=...),
    gpu: str | None = option("The GPU whose device code stays, such as t4."),
    output: str | None = option(
        "Where the new image goes: FILE.tar, HOST/REPOSITORY:TAG, or a name in the engine.",
        "-o",
        "--output",
    ),
    run: str | None = option("Run this in both images; it has to end the same."),
    nvidia: bool = flag("--nvidia", "Prune NVIDIA's own libraries, too (see the CUDA EULA)."),
    dry_run: bool = flag("--dry-run", "Say what would go; write nothing."),
    registry: str | None = REGISTRY,
    engine: str | None = ENGINE,
    as_json: bool = JSON,
) -> None:
    """Make another image without device code of other GPUs, second copies of CUDA, and caches.

    The source stays as it is. The new image has the same configuration, and a receipt of what went
    (/training_image_slim.json). It is written beside the source, with -slim in its name, once the
    checks of `builder prove` find nothing in it that the old one had not. Exit code 4: they do, or
    it has no code for the GPU.
    """
    from builder.pipeline import slim as slimming

    configured = settings(registry, engine, anywhere=True)
    asked = slimming.SlimRequest(image, configured, gpu, output, run, nvidia, dry_run)
    with reporter() as progress:
        receipt = slimming.slim(asked, progress.on_event)
    results(as_json, receipt, slimming.lines(receipt))


def _targets() -> dict[str, str]:
    """Return the project's targets, each with the ID of the image that it built, or ""."""
    folder = project()
    if folder is None:
        return {}
    from builder.pipeline import records

    return records.image_ids(folder)


def _compile(sources: Sequence[str], gpus: Sequence[str], which: Literal["kinds", "all"]) -> None:
    """Compile PTX, and show what the compiler says."""
    from builder.audit import ptxas
    from builder.audit.audited import gpu_named
    from builder.config import network

    with reporter() as progress:
        devices = [gpu_named(name).capability for name in gpus]
        variables, paths = network.discover().host_environment(), map(Path, sources)
        results = ptxas.compile_paths(paths, devices, which, progress.on_event, variables)
    for result in results:
        show(str(result))
    ptxas.require(results)


def report(
    image: str = argument(
        "A target, or an image (registry, engine, docker save, OCI layout).", "IMAGE", default=...
    ),
    new: str | None = argument("Another one: what changed from the first to it.", "NEW"),
    html: Path | None = option("Write a page, too."),
    summary: Path | None = option(
        "Append Markdown to this file, too; on GitHub it is a job's summary.",
        envvar="GITHUB_STEP_SUMMARY",
    ),
    gpu: str | None = option("The GPU to judge an image for that is no target's."),
    osv: str | None = OSV,
    registry: str | None = REGISTRY,
    engine: str | None = ENGINE,
    as_json: bool = JSON,
) -> None:
    """Say what an image is, or what changed between two: for a person, a page, a CI run.

    Proof, bytes, device code, GPUs and drivers, packages, and a target's advisories. Nothing of an
    image runs. What this machine has built itself is read without an engine.

    \b
    Examples:
      v100 --html v100.html            a page of the last build, for a colleague
      HOST/REPOSITORY:v100 v100        what the last build changes of what is in use
      HOST/REPOSITORY:OLD HOST/REPOSITORY:NEW --json
    """
    from builder.pipeline import difference, page, report
    from builder.trust import advisories

    address = "" if new else osv or advisories.ADDRESS
    asked = report.ReportRequest(project(), settings(registry, engine, anywhere=True), gpu, address)
    today = datetime.now(UTC).date()
    with reporter() as progress:
        told = [report.of(name, asked, today, progress.on_event) for name in (image, new) if name]
    if new:
        changed = difference.of(*told)
        data, shown = difference.as_dict(changed), difference.page(changed)
    else:
        data, shown = report.as_dict(told[0]), report.page(told[0])
    results(as_json, data, page.lines(shown))
    if html:
        save(html, page.html(shown))
    if summary:
        files.append(summary, page.markdown(shown))
