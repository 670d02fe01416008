"""`builder job submit, status, list, logs, wait, cancel`: jobs sent to Vertex AI or a cluster."""

import contextlib
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from builder.cli import job_kubernetes, job_local
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
from builder.cli.job_place import (
    Context,
    Namespace,
    Nodes,
    On,
    Project,
    PullSecret,
    Queue,
    Region,
    ServiceAccount,
    place,
)
from builder.core.display import plain

if TYPE_CHECKING:
    from builder.jobs.places.candidates import Ways
    from builder.jobs.places.protocol import JobStatus, LogLine, Place
    from builder.jobs.submission import Submitted, Tried

JobName = Annotated[str, typer.Argument(metavar="JOB", help="jobs/JOB.yaml, or a file's path.")]
SentName = Annotated[
    str,
    typer.Argument(metavar="JOB", help="The job's name (its newest), display name or number."),
]
Again = Annotated[
    bool, typer.Option("--again", help="Run it a second time, in a folder of its own.")
]
Wait = Annotated[bool, typer.Option("--wait", help="Wait for the end.")]
Stream = Annotated[
    bool, typer.Option("--logs", help="Wait for the end, and show the replicas' lines.")
]
DryRun = Annotated[
    bool,
    typer.Option(
        "--dry-run",
        help="Create nothing. kubernetes: let the cluster check it, write its YAML. Of a job with "
        "alternatives: the order in which they are tried.",
    ),
]
Poll = Annotated[float, typer.Option(help="Seconds between two looks.", min=0.05)]
Arguments = Annotated[
    list[str] | None, typer.Argument(metavar="[-- ARGS]", help="For the trainer, after --.")
]


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
    if job.console:
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
    with _goes_on(there, job):
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

    with _goes_on(there, job):
        return following.wait(there, job, poll=poll, timeout=timeout, on_look=look)


@contextlib.contextmanager
def _goes_on(there: "Place[Any]", job: "JobStatus") -> Iterator[None]:
    """Ctrl-C ends the watching, not the job."""
    try:
        yield
    except KeyboardInterrupt:
        flags = f"{job.id} --on {there.on}"
        say(f"{job.display_name} goes on: builder job logs {flags} --follow, or cancel {flags}")
        raise


def _end(job: "JobStatus", as_json: bool) -> None:
    """End with the job's own error and exit code."""
    _show(job)
    if as_json:
        out(_json(job))
    raise typer.Exit(job.exit_code)


# --- submit ---------------------------------------------------------------------------------------


def order(found: "Ways") -> Iterator[str]:
    """The ways to run a job, in the order in which they are tried."""
    for number, one in enumerate(found.candidates, 1):
        price = "price unknown" if one.usd is None else f"USD {one.usd:,.4f} an hour"
        yield f"{number}. {one.told}: {price}"
    for text in found.left_out:
        yield f"note: {text}"


def _send(job: str, found: "Ways", again: bool) -> "Submitted":
    """Send a job, and keep what was tried where there are several ways to run it."""
    from builder.jobs import submission
    from builder.jobs.places.choose import SENT
    from builder.jobs.room import record

    folder, candidates = root() / SENT, found.candidates
    search = record.Search(len(candidates))

    def keep(tried: "tuple[Tried, ...]") -> None:
        nonlocal search
        search = record.Search(len(candidates), tried)
        record.write(folder, name, search)

    name = candidates[0].request.job.id
    several = candidates[0].request.group is not None
    if several:
        keep(())
        for line in order(found):
            say(line)
    try:
        with reporter() as shown:
            sent = submission.submit_first(
                candidates, locks=folder, again=again, on_tried=keep, on_event=shown.on_event
            )
    except KeyboardInterrupt:
        if several:
            say(f"interrupted: builder job submit {job} goes on, builder job cancel ends the job")
        raise
    if several:
        record.write(folder, name, record.ended(search, sent))
    return sent


def submit(
    job: JobName,
    arguments: Arguments = None,
    package: job_local.Package = None,
    module: job_local.Module = None,
    again: Again = False,
    wait: Wait = False,
    stream: Stream = False,
    dry_run: DryRun = False,
    poll: Poll = 10.0,
    on: On = None,
    project: Project = None,
    region: Region = None,
    context: Context = None,
    namespace: Namespace = None,
    queue: Queue = None,
    service_account: ServiceAccount = None,
    nodes: Nodes = None,
    pull_secret: PullSecret = None,
    registry: Registry = None,
    engine: EngineChoice = None,
    as_json: Json = False,
) -> None:
    """Send a job to Vertex AI or to a cluster, by the digest of its image.

    \b
    builder job submit cats-and-dogs --logs
    builder job submit cats-and-dogs --on kubernetes --queue gpus --logs
    builder job submit cats-and-dogs --package my-script --module train -- --epochs 3

    The same command again finds the job that it created: after a lost connection, or while it
    runs. With --wait or --logs the exit code is the job's.
    """
    from builder.core.events import ignore
    from builder.jobs import description
    from builder.jobs.cost import prices
    from builder.jobs.images import ProgramFolder
    from builder.jobs.places import candidates, choose

    vertex = {"project": project, "region": region}
    cluster = {"context": context, "namespace": namespace, "queue": queue, "nodes": nodes}
    cluster |= {"service_account": service_account, "pull_secret": pull_secret}
    choose.Asked(on).known()
    chosen = settings(registry=registry, engine=engine)
    connect = lambda: job_local.connected(chosen, ignore)  # noqa: E731
    program = ProgramFolder(package, module, connect) if package else None
    given = tuple(arguments or ())
    if on == choose.KUBERNETES and not dry_run and description.load(root(), job).study:
        job_kubernetes.study(job, chosen, cluster, program, given, as_json)
    asked = candidates.SendOptions(on, vertex, cluster, given, program)
    with reporter() as shown:
        found = candidates.ways(root(), job, chosen, asked, prices.load(root()), shown.on_event)
    notes(found.candidates[0].request.notes)
    if dry_run:
        sys.stdout.write(_dry_run(found))
        return
    sent = _send(job, found, again)
    _report(sent.place or found.candidates[0].place, sent, wait, stream, poll, as_json)


def _dry_run(found: "Ways") -> str:
    """What the cluster would get; of a job with several ways the order in which they are tried."""
    first = found.candidates[0]
    if first.request.group is None:
        return job_kubernetes.dry_run(first.place, first.request)
    return "".join(f"{line}\n" for line in order(found))


def _report(
    there: "Place[Any]",
    sent: "Submitted",
    wait: bool,
    stream: bool,
    poll: float,
    as_json: bool,
) -> None:
    """Say what was sent; with `wait` or `stream`, how it ended."""
    for one in sent.tried:
        say(f"no room: {one.told}: {one.why}")
    if not sent.created:
        say(f"{sent.job.display_name}: {sent.why}; --again runs it a second time")
    if stream:
        _end(_follow(there, sent.job, poll), as_json)
    if wait:
        _end(_wait(there, sent.job, poll), as_json)
    _show(sent.job)
    if as_json:
        tried = [asdict(one) for one in sent.tried]
        out({**_json(sent.job), "made": sent.created, "tried": tried})


# --- asking ---------------------------------------------------------------------------------------


def status(
    job: SentName,
    on: On = None,
    project: Project = None,
    region: Region = None,
    context: Context = None,
    namespace: Namespace = None,
    as_json: Json = False,
) -> None:
    """Show the state of a job that was sent."""
    found = place(on, project, region, context, namespace, job).find(job)
    _show(found)
    if as_json:
        out(_json(found))


def list_jobs(
    job: Annotated[
        str | None, typer.Argument(metavar="[JOB]", help="Only those of this description.")
    ] = None,
    limit: Annotated[int, typer.Option(help="At most this many.", min=1)] = 20,
    on: On = None,
    project: Project = None,
    region: Region = None,
    context: Context = None,
    namespace: Namespace = None,
    as_json: Json = False,
) -> None:
    """List the jobs of a region or a namespace, newest first."""
    there = place(on, project, region, context, namespace, job)
    found = there.newest(job, limit)
    for one in found:
        made = one.created.strftime("%Y-%m-%d %H:%M") if one.created else ""
        say(f"{made}  {one.id}  {_line(one)}")
    if not found:
        say(f"no jobs in {there.where}")
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
    on: On = None,
    project: Project = None,
    region: Region = None,
    context: Context = None,
    namespace: Namespace = None,
) -> None:
    """Show the lines of a job's replicas, each with its replica's name."""
    there = place(on, project, region, context, namespace, job)
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
    on: On = None,
    project: Project = None,
    region: Region = None,
    context: Context = None,
    namespace: Namespace = None,
    as_json: Json = False,
) -> None:
    """Wait for a job's end; the exit code is the job's."""
    from builder.jobs import description

    limit = description.length("--timeout", timeout)
    there = place(on, project, region, context, namespace, job)
    _end(_wait(there, there.find(job), poll, limit), as_json)


def cancel(
    job: SentName,
    on: On = None,
    project: Project = None,
    region: Region = None,
    context: Context = None,
    namespace: Namespace = None,
    as_json: Json = False,
) -> None:
    """End a job that was sent."""
    there = place(on, project, region, context, namespace, job)
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
