"""`builder job`: parse, call one function, print. No logic."""

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from builder.cli import job_local
from builder.cli.common import EngineChoice, Json, Registry, out, reporter, root, say, settings

if TYPE_CHECKING:
    from builder.jobs.images import Service
    from builder.jobs.places.vertex.checks import Image, Ready
    from builder.jobs.places.vertex.logs import LogLine
    from builder.jobs.places.vertex.status import RemoteJob

job_app = typer.Typer(
    help="Training jobs: on this machine as a cluster, or on Vertex AI.",
    no_args_is_help=True,
)
job_local.register(job_app)

JobName = Annotated[str, typer.Argument(metavar="JOB", help="jobs/JOB.yaml, or a file's path.")]
Project = Annotated[str | None, typer.Option("--project", help="The Google Cloud project.")]
Region = Annotated[str | None, typer.Option("--region", help="Such as us-central1.")]
Output = Annotated[
    Path | None, typer.Option("--output", "-o", help="Write to a file instead of stdout.")
]


def _ready(
    name: str,
    project: str | None,
    region: str | None,
    registry: str | None,
    pushed: bool,
    on_event: Any = None,
    program: "tuple[Path, str | None, str | None] | None" = None,
    arguments: tuple[str, ...] = (),
    bucket: bool = False,
) -> "tuple[Ready, Service]":
    """A job with its image, checked. `program`: a folder, its module and the engine's name.

    A program's image takes minutes to make, so all else is checked before. `bucket`: that of the
    job directory, too.
    """
    from dataclasses import replace

    from builder.core.events import ignore
    from builder.jobs import description
    from builder.jobs import images as service
    from builder.jobs.places.vertex import checks

    job = description.load(root(), name)
    if arguments or program:
        changed: dict[str, Any] = {"arguments": (*job.arguments, *arguments)}
        if program:  # as AI Platform did with a package
            changed["pass_job_dir"] = True
        job = job.model_copy(update=changed)
    where = service.load(root(), job, project=project, region=region)
    if pushed:
        where = where.known()
    chosen = settings(registry=registry)

    def checked(image: "Image") -> "Ready":
        found = checks.ready(
            job,
            image,
            where.region,
            project=where.project,
            targets=service.targets(root()),
            cloud=where.endpoint is None and (pushed or chosen.registry is not None),
        )
        return _with_bucket(found, where) if bucket else found

    open_ends: tuple[str, ...] = ()
    if program:
        from builder.engine import connect
        from builder.jobs import package

        folder, module, engine = program
        package.program(folder, module)
        checked(service.planned_image(root(), job, chosen))
        docker = connect(settings(registry=registry, engine=engine), on_event=on_event or ignore)
        image = service.packaged_image(root(), job, chosen, folder, module, docker, on_event)
    elif pushed:
        image, open_ends = service.pushed_image(root(), job, chosen, on_event or ignore)
    else:
        image, open_ends = service.local_image(root(), job, chosen)
    ready = checked(image)
    return replace(ready, notes=(*open_ends, *ready.notes)), where


def _with_bucket(ready: "Ready", where: "Service") -> "Ready":
    """The same, its bucket looked at: where it is Google's own, or an emulator's."""
    import os
    from dataclasses import replace

    from builder.jobs import images as service
    from builder.jobs import submission

    emulated = bool(os.environ.get("STORAGE_EMULATOR_HOST"))
    if not ready.job.job_dir or not (where.endpoint is None or emulated):
        return ready
    notes = submission.check_bucket(ready, service.storage_client(where))
    return replace(ready, notes=(*ready.notes, *notes))


def _tell(notes: tuple[str, ...]) -> None:
    for note in notes:
        say(f"note: {note}")


def _write(text: str, output: Path | None) -> None:
    from builder.core.files import write

    if output is None:
        sys.stdout.write(text)
    else:
        write(output, text)
        say(f"wrote {output}")


@job_app.command()
def render(
    job: JobName,
    to: Annotated[
        str,
        typer.Option(
            help="vertex: the REST body. gcloud: its config file. legacy: AI Platform's config.yaml"
            " (shut down). training-input: the whole of AI Platform's REST body."
        ),
    ] = "vertex",
    project: Project = None,
    region: Region = None,
    registry: Registry = None,
    pushed: Annotated[
        bool,
        typer.Option("--pushed", help="Ask the registry for the image, as submit does."),
    ] = False,
    output: Output = None,
) -> None:
    """Show what would be sent, after every check.

    \b
    builder job render cats-and-dogs                      a Vertex AI CustomJob
    builder job render cats-and-dogs --to gcloud -o job.yaml
    builder job render cats-and-dogs --to legacy          AI Platform's config.yaml
    """
    import json

    from builder.core.errors import InputError
    from builder.jobs.aiplatform import render as legacy
    from builder.jobs.places.vertex import messages as vertex

    if to not in ("vertex", "gcloud", "legacy", "training-input"):
        raise InputError(
            f"--to {to}: nothing is called so", "vertex, gcloud, legacy or training-input"
        )
    with reporter() as shown:
        ready, _ = _ready(job, project, region, registry, pushed, shown.on_event)
    if to == "gcloud":
        command, config = vertex.gcloud(ready)
        text = vertex.yaml(config, command)
    elif to == "legacy":
        command, config = legacy.config(ready)
        text = vertex.yaml(config, f"{legacy.GONE}\n\n{command}")
    elif to == "training-input":
        text = json.dumps({"trainingInput": legacy.training_input(ready)}, indent=2) + "\n"
        say(f"note: {legacy.GONE}")
    else:
        text = json.dumps(vertex.to_dict(vertex.message(ready)), indent=2) + "\n"
    _tell(ready.notes)
    _write(text, output)


@job_app.command()
def convert(
    config: Annotated[Path, typer.Argument(help="AI Platform's config.yaml.")],
    arguments: Annotated[
        list[str] | None, typer.Argument(metavar="[-- ARGS]", help="For the trainer, after --.")
    ] = None,
    image: Annotated[str | None, typer.Option(help="A target, or an image.")] = None,
    region: Region = None,
    job_dir: Annotated[str | None, typer.Option(help="What --job-dir was.")] = None,
    output: Output = None,
) -> None:
    """Turn an AI Platform config.yaml into a job of today.

    \b
    builder job convert config.yaml --region us-central1 -o jobs/cats.yaml -- --epochs 10
    """
    from builder.core.errors import InputError
    from builder.jobs import images as service
    from builder.jobs.aiplatform.convert import convert as converted

    try:
        text = config.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "not UTF-8"
        raise InputError(f"{config}: {why}", "name the file that gcloud's --config took") from None
    found = converted(
        text,
        config,
        image=image,
        region=region,
        job_dir=job_dir,
        arguments=tuple(arguments or ()),
        targets=service.targets(root()),
    )
    _tell(found.notes)
    _write(found.text, output)


@job_app.command()
def schema(
    check: Annotated[bool, typer.Option("--check", help="Only say whether it is stale.")] = False,
) -> None:
    """Write jobs/schema.json, which editors complete jobs/*.yaml with."""
    from builder.core.errors import CheckFailed
    from builder.core.files import write
    from builder.jobs import description

    path = root() / description.JOBS / description.SCHEMA
    if check:
        if not path.is_file() or path.read_text() != description.schema_text():
            raise CheckFailed("jobs/schema.json: not today's schema", "builder job schema")
        return
    write(path, description.schema_text())
    say("wrote jobs/schema.json")


# --- on Vertex AI ---------------------------------------------------------------------------------

RemoteName = Annotated[
    str,
    typer.Argument(metavar="JOB", help="The job's name (its newest), display name or number."),
]
Poll = Annotated[float, typer.Option(help="Seconds between two looks.", min=0.05)]


def _service(project: str | None, region: str | None, name: str | None = None) -> "Service":
    """Where to ask about this job."""
    from builder.jobs import images as service

    return service.of_job(root(), name, project, region)


def _line(job: "RemoteJob") -> str:
    from builder.cli.console import duration

    ran = f", {duration(job.seconds)}" if job.seconds is not None else ""
    return f"{job.display_name}: {job.state}{ran}"


def _told(job: "RemoteJob") -> None:
    say(_line(job))
    say(f"  {job.name}")
    say(f"  {job.console}")
    for pool in job.pools:
        with_ = f" with {pool.accelerators} x {pool.accelerator}" if pool.accelerator else ""
        say(f"  {pool.count} x {pool.role}: {pool.machine}{with_}")
    if job.output:
        say(f"  writes to {job.output}")
    for trial in job.trials:
        given = ", ".join(f"{name}={value}" for name, value in trial.parameters.items())
        value = "" if trial.value is None else f": {trial.value:g}"
        say(f"  trial {trial.id} ({trial.state}){value}  {given}")
    if job.error:
        say(f"  {job.error}")


def _json(job: "RemoteJob") -> dict[str, Any]:
    from dataclasses import asdict

    return {**asdict(job), "exit_code": None if job.active else job.exit_code}


def _teller(job: "RemoteJob") -> "Any":
    """A callback that writes each line with its replica's name, in its colour."""
    from rich.console import Console
    from rich.text import Text

    from builder.cli.common import OPTIONS
    from builder.jobs import show

    names = [f"{pool.role}-{n}" for pool in job.pools for n in range(pool.count)]
    colours = show.colours([*names, "service"])
    width = max(len(name) for name in (*names, "service"))
    console = Console(stderr=True, highlight=False)

    def tell(line: "LogLine") -> None:
        if OPTIONS.quiet:
            return
        who = f"{line.replica}" + (f"/{line.trial}" if line.trial else "")
        text = Text(f"{who:<{width}} ", style=colours.get(line.replica, "dim"))
        console.print(text.append(line.text, style="none"), soft_wrap=True)

    return tell


def _follow(where: "Service", job: "RemoteJob", poll: float, replica: str | None) -> "RemoteJob":
    """Tell what the replicas say until the job ends."""
    import time

    from builder.jobs import images as service
    from builder.jobs import submission
    from builder.jobs.places.vertex import logs

    client = service.jobs_client(where)
    follower = logs.Follower(
        service.logging_client(where), where.project or "", job.id, replica=replica
    )
    with _left_alone(job):
        return logs.follow(
            follower,
            lambda: submission.get(client, job.name, job.kind),
            lambda: time.sleep(poll),
            _teller(job),
        )


def _wait(where: "Service", job: "RemoteJob", poll: float, timeout: float | None) -> "RemoteJob":
    """Tell each new state until the job ends."""
    from builder.jobs import images as service
    from builder.jobs import submission

    seen = [""]

    def look(now: "RemoteJob") -> None:
        if now.state != seen[0]:
            say(f"{now.display_name}: {now.state}")
            seen[0] = now.state

    with _left_alone(job):
        return submission.wait(
            service.jobs_client(where), job, poll=poll, timeout=timeout, on_look=look
        )


@contextlib.contextmanager
def _left_alone(job: "RemoteJob") -> Iterator[None]:
    """Ctrl-C ends the watching, not the job."""
    try:
        yield
    except KeyboardInterrupt:
        say(f"{job.display_name} goes on: builder job logs {job.id} --follow, or cancel {job.id}")
        raise


def _end(job: "RemoteJob", as_json: bool) -> None:
    """The job's own end: its error and its exit code."""
    _told(job)
    if as_json:
        out(_json(job))
    raise typer.Exit(job.exit_code)


@job_app.command()
def submit(
    job: JobName,
    arguments: Annotated[
        list[str] | None, typer.Argument(metavar="[-- ARGS]", help="For the trainer, after --.")
    ] = None,
    package: job_local.Package = None,
    module: job_local.Module = None,
    again: Annotated[
        bool, typer.Option("--again", help="Run it a second time, in a folder of its own.")
    ] = False,
    wait: Annotated[bool, typer.Option("--wait", help="Wait for the end.")] = False,
    stream: Annotated[
        bool, typer.Option("--logs", help="Wait for the end, and show what the replicas say.")
    ] = False,
    poll: Poll = 10.0,
    project: Project = None,
    region: Region = None,
    registry: Registry = None,
    engine: EngineChoice = None,
    as_json: Json = False,
) -> None:
    """Send a job to Vertex AI, by the digest of its image.

    \b
    builder job submit cats-and-dogs --logs
    builder job submit cats-and-dogs --package my-script --module train -- --epochs 3

    The same command again finds the job that it made: after a lost connection, or while it runs.
    With --wait or --logs the exit code is the job's.
    """
    from builder.jobs import images as service
    from builder.jobs import submission

    program = (package, module, engine) if package else None
    given = tuple(arguments or ())
    with reporter() as shown:
        ready, where = _ready(
            job, project, region, registry, True, shown.on_event, program, given, bucket=True
        )
        sent = submission.submit(
            service.jobs_client(where),
            where,
            ready,
            again=again,
            locks=root() / "build" / "jobs",
            on_event=shown.on_event,
        )
    _tell(ready.notes)
    if not sent.created:
        say(f"{sent.job.display_name}: {sent.why}; --again runs it a second time")
    if stream:
        _end(_follow(where, sent.job, poll, None), as_json)
    if wait:
        _end(_wait(where, sent.job, poll, None), as_json)
    _told(sent.job)
    if as_json:
        out({**_json(sent.job), "made": sent.created})


@job_app.command()
def status(
    job: RemoteName, project: Project = None, region: Region = None, as_json: Json = False
) -> None:
    """How a job on Vertex AI is."""
    from builder.jobs import images as service
    from builder.jobs import submission

    where = _service(project, region, job)
    found = submission.find(service.jobs_client(where), where, job)
    _told(found)
    if as_json:
        out(_json(found))


@job_app.command(name="list")
def list_jobs(
    job: Annotated[
        str | None, typer.Argument(metavar="[JOB]", help="Only those of this description.")
    ] = None,
    limit: Annotated[int, typer.Option(help="At most so many.", min=1)] = 20,
    project: Project = None,
    region: Region = None,
    as_json: Json = False,
) -> None:
    """The jobs of a region, newest first."""
    from builder.jobs import images as service
    from builder.jobs import submission

    where = _service(project, region, job)
    found = submission.listing(service.jobs_client(where), where, job, limit)
    for one in found:
        made = one.created.strftime("%Y-%m-%d %H:%M") if one.created else ""
        say(f"{made}  {one.id}  {_line(one)}")
    if not found:
        say(f"no jobs in {where.region} of {where.project}")
    if as_json:
        out([_json(one) for one in found])


@job_app.command()
def logs(
    job: RemoteName,
    replica: Annotated[
        str | None, typer.Option(help="Only this one, such as worker-0 or workerpool1-0.")
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Until the job ends; its exit code is the job's.")
    ] = False,
    poll: Poll = 10.0,
    project: Project = None,
    region: Region = None,
) -> None:
    """What a job's replicas say, each line with its replica's name."""
    from builder.jobs import images as service
    from builder.jobs import submission
    from builder.jobs.places.vertex import logs as reading

    where = _service(project, region, job)
    found = submission.find(service.jobs_client(where), where, job)
    if follow:
        _end(_follow(where, found, poll, replica), False)
    follower = reading.Follower(
        service.logging_client(where), where.project or "", found.id, replica=replica
    )
    tell = _teller(found)
    for line in follower.new():
        tell(line)


@job_app.command()
def wait(
    job: RemoteName,
    timeout: Annotated[str | None, typer.Option(help="Such as 2h; then exit code 3.")] = None,
    poll: Poll = 10.0,
    project: Project = None,
    region: Region = None,
    as_json: Json = False,
) -> None:
    """Wait for a job's end; the exit code is the job's."""
    from builder.core.errors import InputError
    from builder.jobs import description, submission
    from builder.jobs import images as service

    try:
        limit = float(description.seconds(timeout)) if timeout else None
    except ValueError:
        raise InputError(f"--timeout {timeout}: no length of time", "write 2h or 30m") from None
    where = _service(project, region, job)
    found = submission.find(service.jobs_client(where), where, job)
    _end(_wait(where, found, poll, limit), as_json)


@job_app.command()
def cancel(
    job: RemoteName, project: Project = None, region: Region = None, as_json: Json = False
) -> None:
    """End a job on Vertex AI."""
    from builder.jobs import images as service
    from builder.jobs import submission

    where = _service(project, region, job)
    client = service.jobs_client(where)
    found = submission.find(client, where, job)
    if not found.active:
        say(f"{found.display_name}: it has {found.state} already")
    _told(submission.cancel(client, found))
    if as_json:
        out(_json(submission.get(client, found.name, found.kind)))


# --- cost -----------------------------------------------------------------------------------------


@job_app.command()
def cost(
    job: Annotated[
        str | None, typer.Argument(metavar="[JOB]", help="jobs/JOB.yaml; with --after a sent job.")
    ] = None,
    lasting: Annotated[
        str | None, typer.Option("--for", metavar="TIME", help="How long it runs, such as 22m.")
    ] = None,
    measured: Annotated[
        Path | None,
        typer.Option(help="A finished run's folder: its rate, from summary.json, says how long."),
    ] = None,
    speedup: Annotated[
        float, typer.Option(help="How much faster the job's machines are than the measured one.")
    ] = 1.0,
    examples: Annotated[
        float | None, typer.Option(help="To train on (default: --steps x --batch-size).")
    ] = None,
    after: Annotated[bool, typer.Option("--after", help="What a job on Vertex AI ran.")] = False,
    storage_gb: Annotated[float, typer.Option(help="Of outputs in the bucket.", min=0)] = 0.0,
    image_gb: Annotated[
        float | None, typer.Option(help="Of images in the registry (default: the built one's).")
    ] = None,
    months: Annotated[float, typer.Option(help="That outputs and images are kept.", min=0)] = 1.0,
    build_minutes: Annotated[float, typer.Option(help="Of Cloud Build.", min=0)] = 0.0,
    build_machine: Annotated[str, typer.Option(help="Of Cloud Build.")] = "e2-standard-2",
    left_on: Annotated[
        str, typer.Option(help="That a notebook stays on when the work is done.")
    ] = "15h",
    checkpoint_every: Annotated[
        str, typer.Option(help="Time between checkpoints: what a preemption loses half of.")
    ] = "10m",
    restart_time: Annotated[
        str, typer.Option(help="From a preemption until training goes on.")
    ] = "5m",
    preemptions: Annotated[
        float, typer.Option("--preemptions-per-day", help="Of one spot machine: your guess.", min=0)
    ] = 1.0,
    ml_units: Annotated[
        float | None, typer.Option(help="What AI Platform charged, in ML units.", min=0)
    ] = None,
    where: Annotated[str, typer.Option(help="americas or europe-asia; for --ml-units.")] = (
        "americas"
    ),
    prices: Annotated[
        Path | None, typer.Option(help="Rows that win over the table's and prices.yaml's.")
    ] = None,
    project: Project = None,
    region: Region = None,
    as_json: Json = False,
) -> None:
    """What a job costs, before it runs or after, line by line.

    \b
    builder job cost cats-and-dogs --for 22m
    builder job cost cats-and-dogs --measured build/jobs/cpu --speedup 40
    builder job cost cats-and-dogs --after
    builder job cost --ml-units 1.79                      as AI Platform charged
    """
    from dataclasses import asdict

    from builder.core.errors import InputError
    from builder.jobs.cost import bill as costing
    from builder.jobs.cost import prices as pricing
    from builder.jobs.cost import quote

    table = pricing.load(root(), prices)
    answer: dict[str, Any] = {"prices_of": table.as_of}
    if ml_units is not None:
        line = costing.ml_units(ml_units, table, where)
        say(quote.legacy(line))
        answer["ml_units"] = asdict(line)
    if job is not None:
        wanted = quote.Wanted(
            lasting=quote.length("--for", lasting),
            measured=measured,
            speedup=speedup,
            examples=examples,
            extras=costing.Extras(
                storage_gb, image_gb or 0.0, months, build_minutes, build_machine.lower()
            ),
            own_image=image_gb is None,
            left_on=quote.length("--left-on", left_on) or 0.0,
            checkpoint_every=quote.length("--checkpoint-every", checkpoint_every) or 0.0,
            restart=quote.length("--restart-time", restart_time) or 0.0,
            preemptions=preemptions,
        )
        if after:
            from builder.jobs import images as service
            from builder.jobs import submission

            there = _service(project, region, job)
            found = submission.find(service.jobs_client(there), there, job)
            made = quote.after(found, table, wanted)
        else:
            ready, _ = _ready(job, project, region, None, False)
            made = quote.before(root(), ready, table, wanted)
        for text in quote.told(made, table):
            say(text)
        answer |= quote.as_json(made)
    elif ml_units is None:
        raise InputError(
            "no job is named", "builder job cost JOB --for 22m, or builder job cost --ml-units 1.79"
        )
    if as_json:
        out(answer)
