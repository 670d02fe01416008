"""`builder job submit, status, list, logs, wait, cancel`: jobs on Vertex AI."""

import contextlib
import time
from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from builder.cli import job_local
from builder.cli.common import (
    OPTIONS,
    EngineChoice,
    Json,
    Registry,
    out,
    reporter,
    root,
    say,
    settings,
)
from builder.cli.console import duration
from builder.core.display import plain

if TYPE_CHECKING:
    from builder.jobs.places.protocol import JobStatus, LogLine, Place
    from builder.jobs.places.vertex.place import VertexAI

JobName = Annotated[str, typer.Argument(metavar="JOB", help="jobs/JOB.yaml, or a file's path.")]
SentName = Annotated[
    str,
    typer.Argument(metavar="JOB", help="The job's name (its newest), display name or number."),
]
Project = Annotated[str | None, typer.Option("--project", help="The Google Cloud project.")]
Region = Annotated[str | None, typer.Option("--region", help="Such as us-central1.")]
Poll = Annotated[float, typer.Option(help="Seconds between two looks.", min=0.05)]
Arguments = Annotated[
    list[str] | None, typer.Argument(metavar="[-- ARGS]", help="For the trainer, after --.")
]


def place(project: str | None, region: str | None, name: str | None = None) -> "VertexAI":
    """Where to ask about a job."""
    from builder.jobs.places.vertex import service
    from builder.jobs.places.vertex.place import VertexAI

    return VertexAI(service.of_job(root(), name, project, region))


# --- showing --------------------------------------------------------------------------------------


def notes(found: tuple[str, ...]) -> None:
    """What a person should know about a job before it is sent."""
    for note in found:
        say(f"note: {note}")


def _line(job: "JobStatus") -> str:
    ran = f", {duration(job.seconds)}" if job.seconds is not None else ""
    return f"{job.display_name}: {job.state}{ran}"


def _show(job: "JobStatus") -> None:
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


def _json(job: "JobStatus") -> dict[str, Any]:
    return {**asdict(job), "exit_code": None if job.active else job.exit_code}


def _line_writer(job: "JobStatus") -> Any:
    """A callback that writes each line with its replica's name, in its colour."""
    from rich.console import Console
    from rich.text import Text

    from builder.jobs import show
    from builder.jobs.places.protocol import SERVICE
    from builder.jobs.pools import replica_names

    names = [*replica_names(job.pools), SERVICE]
    colours = show.colours(names)
    width = max(len(name) for name in names)
    console = Console(stderr=True, highlight=False)

    def tell(line: "LogLine") -> None:
        if OPTIONS.quiet:
            return
        who = f"{line.replica}" + (f"/{line.trial}" if line.trial else "")
        text = Text(f"{who:<{width}} ", style=colours.get(line.replica, "dim"))
        console.print(text.append(plain(line.text), style="none"), soft_wrap=True)

    return tell


# --- waiting --------------------------------------------------------------------------------------


def _follow(
    there: "Place[Any]", job: "JobStatus", poll: float, replica: str | None = None
) -> "JobStatus":
    from builder.jobs import following

    tell = _line_writer(job)
    with _goes_on(job):
        return following.follow(there, job, tell, replica=replica, pause=lambda: time.sleep(poll))


def _wait(
    there: "Place[Any]", job: "JobStatus", poll: float, timeout: float | None = None
) -> "JobStatus":
    """Say each new state until the job ends."""
    from builder.jobs import following

    seen = [""]

    def look(now: "JobStatus") -> None:
        if now.state != seen[0]:
            say(f"{now.display_name}: {now.state}")
            seen[0] = now.state

    with _goes_on(job):
        return following.wait(there, job, poll=poll, timeout=timeout, on_look=look)


@contextlib.contextmanager
def _goes_on(job: "JobStatus") -> Iterator[None]:
    """Ctrl-C ends the watching, not the job."""
    try:
        yield
    except KeyboardInterrupt:
        say(f"{job.display_name} goes on: builder job logs {job.id} --follow, or cancel {job.id}")
        raise


def _end(job: "JobStatus", as_json: bool) -> None:
    """End with the job's own error and exit code."""
    _show(job)
    if as_json:
        out(_json(job))
    raise typer.Exit(job.exit_code)


# --- commands -------------------------------------------------------------------------------------


def submit(
    job: JobName,
    arguments: Arguments = None,
    package: job_local.Package = None,
    module: job_local.Module = None,
    again: Annotated[
        bool, typer.Option("--again", help="Run it a second time, in a folder of its own.")
    ] = False,
    wait: Annotated[bool, typer.Option("--wait", help="Wait for the end.")] = False,
    stream: Annotated[
        bool, typer.Option("--logs", help="Wait for the end, and show the replicas' lines.")
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

    The same command again finds the job that it created: after a lost connection, or while it
    runs. With --wait or --logs the exit code is the job's.
    """
    from builder.jobs import submission
    from builder.jobs.places.vertex.place import VertexAI
    from builder.jobs.places.vertex.prepare import ProgramFolder, VertexOptions, prepare

    chosen = settings(registry=registry, engine=engine)
    with reporter() as shown:
        connect = lambda: job_local.connected(chosen, shown.on_event)  # noqa: E731
        program = ProgramFolder(package, module, connect) if package else None
        given = tuple(arguments or ())
        wanted = VertexOptions(project, region, True, program, given, bucket=True)
        ready, where = prepare(root(), job, chosen, wanted, shown.on_event)
        there = VertexAI(where)
        locks = root() / "build" / "jobs"
        sent = submission.submit(there, ready, again=again, locks=locks, on_event=shown.on_event)
    notes(ready.notes)
    if not sent.created:
        say(f"{sent.job.display_name}: {sent.why}; --again runs it a second time")
    if stream:
        _end(_follow(there, sent.job, poll), as_json)
    if wait:
        _end(_wait(there, sent.job, poll), as_json)
    _show(sent.job)
    if as_json:
        out({**_json(sent.job), "made": sent.created})


def status(
    job: SentName, project: Project = None, region: Region = None, as_json: Json = False
) -> None:
    """Show the state of a job on Vertex AI."""
    found = place(project, region, job).find(job)
    _show(found)
    if as_json:
        out(_json(found))


def list_jobs(
    job: Annotated[
        str | None, typer.Argument(metavar="[JOB]", help="Only those of this description.")
    ] = None,
    limit: Annotated[int, typer.Option(help="At most this many.", min=1)] = 20,
    project: Project = None,
    region: Region = None,
    as_json: Json = False,
) -> None:
    """List the jobs of a region, newest first."""
    there = place(project, region, job)
    found = there.newest(job, limit)
    for one in found:
        made = one.created.strftime("%Y-%m-%d %H:%M") if one.created else ""
        say(f"{made}  {one.id}  {_line(one)}")
    if not found:
        say(f"no jobs in {there.service.region} of {there.service.project}")
    if as_json:
        out([_json(one) for one in found])


def logs(
    job: SentName,
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
    """Show the lines of a job's replicas, each with its replica's name."""
    there = place(project, region, job)
    found = there.find(job)
    if follow:
        _end(_follow(there, found, poll, replica), False)
    tell = _line_writer(found)
    for line in there.log(found, replica).new():
        tell(line)


def wait(
    job: SentName,
    timeout: Annotated[str | None, typer.Option(help="Such as 2h; then exit code 3.")] = None,
    poll: Poll = 10.0,
    project: Project = None,
    region: Region = None,
    as_json: Json = False,
) -> None:
    """Wait for a job's end; the exit code is the job's."""
    from builder.jobs import description

    limit = description.length("--timeout", timeout)
    there = place(project, region, job)
    _end(_wait(there, there.find(job), poll, limit), as_json)


def cancel(
    job: SentName, project: Project = None, region: Region = None, as_json: Json = False
) -> None:
    """End a job on Vertex AI."""
    there = place(project, region, job)
    found = there.find(job)
    if not found.active:
        say(f"{found.display_name}: it has {found.state} already")
    ended = there.cancel(found)
    _show(ended)
    if as_json:
        out(_json(ended))


def register(app: typer.Typer) -> None:
    """Add the commands to `builder job`."""
    for command in (submit, status, logs, wait, cancel):
        app.command()(command)
    app.command(name="list")(list_jobs)
