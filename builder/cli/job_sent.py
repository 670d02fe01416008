"""`builder job submit, status, list, logs, cancel`: jobs on Vertex AI and in clusters."""

import contextlib
import itertools
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, NoReturn

import typer

from builder.cli import options
from builder.cli.common import OPTIONS, out, reporter, root, say, settings
from builder.cli.options import BackendOptions, SendingOptions, argument, expanded, flag, option
from builder.core import backends
from builder.core.display import duration

if TYPE_CHECKING:
    from builder.jobs.backends.protocol import Backend, JobStatus, OnLine
    from builder.jobs.machines import Pool

_COLOURS = ("cyan", "green", "magenta", "yellow", "blue", "bright_cyan", "bright_green")
_SEVERITIES = {"WARNING": "yellow", "ERROR": "bold red", "CRITICAL": "bold red", "DEBUG": "dim"}


def backend_of(on: BackendOptions, job: str | None = None) -> "Backend":
    """Return the backend to ask about a job."""
    from builder.jobs.backends import choose

    return choose.asked(root(), on.flags, job)


def note(text: str) -> None:
    """Show what a person should know of a job before it is sent."""
    say(f"note: {text}")


# --- showing --------------------------------------------------------------------------------------


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
        say(f"  {pool.count} x {pool.role}: {pool.machine}{with_}".rstrip(": "))
    for replica in job.replicas:
        if replica.exit_code or replica.restarts or replica.uses:
            end = "" if replica.exit_code is None else f"exit code {replica.exit_code}"
            words = (replica.state, replica.uses, end, f"{replica.restarts} restarts")
            say(f"  {replica.name}: {', '.join(filter(None, words))}")
    if job.output not in ("", job.name):
        say(f"  writes to {job.output}")
    for trial in job.trials:
        given = ", ".join(f"{name}={value}" for name, value in trial.parameters.items())
        value = "" if trial.value is None else f": {trial.value:g}"
        say(f"  trial {trial.id} ({trial.state}){value}  {given}")
    if job.error:
        say(f"  {job.error}")


def _json(job: "JobStatus") -> dict[str, Any]:
    return {**asdict(job), "exit_code": None if job.active else job.exit_code}


def line_writer(pools: "Iterable[Pool]", only: str | None = None) -> "OnLine":
    """Return a callback that writes each line to stderr with its replica's name, in its colour.

    A line of JSON is its message, in the colour of its severity. only: the replica whose lines are
    written, None for all.
    """
    from rich.console import Console
    from rich.text import Text

    from builder.core.display import plain
    from builder.jobs.backends.protocol import SERVICE, LogLine
    from builder.jobs.machines import replica_names

    console = Console(stderr=True, highlight=False, quiet=OPTIONS.quiet)
    names = [*replica_names(pools), SERVICE]
    colours = dict(zip(names, itertools.cycle(_COLOURS)))
    width = max(map(len, names))

    def write(line: LogLine) -> None:
        if only not in (None, line.replica):
            return
        name = f"{line.replica}/{line.trial}" if line.trial else line.replica
        text = Text(f"{name:<{width}} | ", style=colours.get(line.replica, "bold"))
        style = _SEVERITIES.get(line.severity, "")
        console.print(text.append(plain(line.text), style=style), soft_wrap=True)

    return write


# --- waiting --------------------------------------------------------------------------------------


def _follow(
    backend: "Backend", job: "JobStatus", poll: float, replica: str | None = None
) -> "JobStatus":
    from builder.jobs.watch import follow

    write = line_writer(job.pools, replica)
    with _interruptible(backend, job):
        return follow(backend, job, write, lambda: time.sleep(poll))


@contextlib.contextmanager
def _interruptible(backend: "Backend", job: "JobStatus") -> Iterator[None]:
    """Within the block, Ctrl-C ends the watching, not the job."""
    try:
        yield
    except KeyboardInterrupt:
        flags = f"{job.id} --on {backend.name}"
        say(f"{job.display_name} goes on: builder job logs {flags} --follow, or cancel {flags}")
        raise


def end(job: "JobStatus", as_json: bool) -> NoReturn:
    """End with the job's own error and exit code."""
    _show(job)
    if as_json:
        out(_json(job))
    raise typer.Exit(job.exit_code)


@expanded
def submit(
    on: SendingOptions,
    job: str = options.JOB_NAME,
    arguments: list[str] | None = options.ARGUMENTS,
    program: str | None = options.PROGRAM,
    again: bool = flag("--again", "Run it a second time, in a folder of its own."),
    stream: bool = flag("--logs", "Wait for the end, and show the replicas' lines."),
    dry_run: bool = flag("--dry-run", "Ask whether the job would be taken, and show what is sent."),
    poll: float = options.POLL,
    registry: str | None = options.REGISTRY,
    engine: str | None = options.ENGINE,
    as_json: bool = options.JSON,
) -> None:
    """Send a job to Vertex AI or to a cluster, by the digest of its image.

    \b
    builder job submit cats-and-dogs --logs
    builder job submit cats-and-dogs --on kubernetes --queue gpus --logs
    builder job submit cats-and-dogs --program my-script:train -- --epochs 3

    The same command again finds the job that it created: after a lost connection, or while it
    runs. With --logs the exit code is the job's. A study with trials on Kubernetes runs to its
    end; the same command continues an interrupted one.
    """
    from builder.jobs import request
    from builder.jobs.backends.protocol import SERVICE
    from builder.jobs.trials import SentStudy

    own = (tuple(arguments or ()), program)
    asked = request.JobRequest(root(), job, on.flags, settings(registry, engine), *own)
    with reporter() as progress:
        if dry_run:
            sys.stdout.write(
                request.taken(asked, again=again, on_note=note, on_event=progress.on_event)
            )
            return
        backend, sent = request.submit(asked, again=again, on_note=note, on_event=progress.on_event)
    if isinstance(sent, SentStudy):
        write = line_writer(sent.ready.job.pools, None if stream else SERVICE)
        end(sent.run(write, poll), as_json)
    if not sent.created:
        say(f"{sent.job.display_name}: {sent.reason}; --again runs it a second time")
    if stream:
        end(_follow(backend, sent.job, poll), as_json)
    _show(sent.job)
    if as_json:
        out({**_json(sent.job), "is_new": sent.created})


# --- asking ---------------------------------------------------------------------------------------


@expanded
def status(
    on: BackendOptions,
    job: str = options.SENT_NAME,
    watch: bool = flag("--watch", "Until the job ends: step, loss, speed of each replica."),
    poll: float = options.POLL,
    as_json: bool = options.JSON,
) -> None:
    """Show the state of a job.

    With --watch the page is drawn again until the job ends, and the exit code is the job's. Ctrl-C
    leaves the job alone.
    """
    from builder.jobs.watch import measured

    backend = backend_of(on, job)
    sent = backend.find(job)
    if watch:
        end(_watch(backend, sent, min(poll, backends.of(backend.name).poll)), as_json)
    sent = measured(backend, sent)
    _show(sent)
    if as_json:
        out(_json(sent))


def _watch(backend: "Backend", job: "JobStatus", poll: float) -> "JobStatus":
    """Draw the job's page again and again until it ends."""
    from rich.console import Console
    from rich.live import Live

    from builder.jobs.watch import Watch

    watched = Watch(backend, job)
    console = Console(stderr=True, highlight=False, quiet=OPTIONS.quiet)
    with (
        _interruptible(backend, job),
        Live(watched.look(), console=console, auto_refresh=False) as live,
    ):
        while watched.job.active:
            time.sleep(poll)
            live.update(watched.look(), refresh=True)
    if not console.is_terminal:
        console.line()  # Live ends its page for a terminal alone
    return watched.job


@expanded
def list_jobs(
    on: BackendOptions,
    job: str | None = argument("Only those of this description.", metavar="[JOB]"),
    limit: int = option("At most this many.", default=20, min=1),
    as_json: bool = options.JSON,
) -> None:
    """List the jobs of a region, of a namespace or of this machine, newest first."""
    backend = backend_of(on, job)
    jobs = backend.list(job, limit)
    for sent in jobs:
        created = sent.created.strftime("%Y-%m-%d %H:%M") if sent.created else ""
        say(f"{created}  {sent.id}  {_line(sent)}")
    if not jobs:
        say(f"no jobs in {backend.location}")
    if as_json:
        out([_json(sent) for sent in jobs])


@expanded
def logs(
    on: BackendOptions,
    job: str = options.SENT_NAME,
    replica: str | None = option("Only this one, such as worker-0."),
    follow: bool = option(
        "Until the job ends; its exit code is the job's.", "--follow", "-f", default=False
    ),
    poll: float = options.POLL,
) -> None:
    """Show the lines of a job's replicas, each with its replica's name."""
    backend = backend_of(on, job)
    sent = backend.find(job)
    if follow:
        end(_follow(backend, sent, poll, replica), False)
    write = line_writer(sent.pools, replica)
    for line in backend.logs(sent).read():
        write(line)


@expanded
def cancel(on: BackendOptions, job: str = options.SENT_NAME, as_json: bool = options.JSON) -> None:
    """End a job."""
    backend = backend_of(on, job)
    sent = backend.find(job)
    if not sent.active:
        say(f"{sent.display_name}: it has {sent.state} already")
    ended = backend.cancel(sent)
    _show(ended)
    if as_json:
        out(_json(ended))
