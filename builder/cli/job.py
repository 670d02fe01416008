"""`builder job`: the commands that ask no backend about a job, and `builder tensorboard`."""

import re
import sys
from pathlib import Path
from typing import Any

import typer

from builder.cli import job_sent, options
from builder.cli.common import out, reporter, root, save, say, settings
from builder.cli.job_sent import backend_of, end, line_writer
from builder.cli.options import BackendOptions, SendingOptions, argument, expanded, flag, option
from builder.core import backends
from builder.core.errors import InputError

job_app = typer.Typer(
    help="Training jobs: on this machine, on Vertex AI or on Kubernetes. On this machine, as a "
    "cluster. Vertex AI is now called Gemini Enterprise Agent Platform.",
    no_args_is_help=True,
)
OUTPUT = option("Write to a file instead of stdout.", "--output", "-o")


def _write(text: str, output: Path | None) -> None:
    if output is None:
        sys.stdout.write(text)
    else:
        save(output, text)


def local(
    job: str = argument(
        "jobs/JOB.yaml, a file, or a target of images/.", default=..., metavar="JOB"
    ),
    arguments: list[str] | None = options.ARGUMENTS,
    records: Path | None = option(
        "A folder of data: /records in the containers, passed as --records."
    ),
    job_dir: Path | None = option("Where the job writes (default: build/jobs/JOB)."),
    env_file: Path | None = option("NAME=VALUE lines: the values of variables that name a secret."),
    program: str | None = options.PROGRAM,
    engine: str | None = options.ENGINE,
    as_json: bool = options.JSON,
) -> None:
    """Run a job as containers on this machine, as Vertex AI would.

    \b
    builder job local cats --records data/records
    builder job local cpu --program my-script:train -- --epochs 3

    Each replica is a container with TF_CONFIG, CLUSTER_SPEC and AIP_*. Restarts are the service's;
    the job ends when the chief ends, with the chief's exit code. A job with a study runs once for
    each trial, a few at a time; the same command continues an interrupted study.
    """
    chosen = settings(engine=engine)
    own = {"records": records, "job_dir": job_dir, "env_file": env_file}
    start: Any = backends.of("local").prepare
    with reporter() as progress:
        given = (root(), job, chosen, program, progress.on_event)
        prepared = start(*given, arguments=arguments or (), **own)
    end(prepared.run(line_writer), as_json)


@expanded
def render(
    on: SendingOptions,
    job: str = options.JOB_NAME,
    program: str | None = options.PROGRAM,
    registry: str | None = options.REGISTRY,
    engine: str | None = options.ENGINE,
    pushed: bool = flag("--pushed", "Ask the registry for the image, as submit does."),
    check: bool = flag("--check", "Say what is known of its step, as submit does."),
    output: Path | None = OUTPUT,
) -> None:
    """Show what would be sent, after every check.

    \b
    builder job render cats-and-dogs                      a Vertex AI CustomJob
    builder job render cats-and-dogs --on kubernetes --pushed | kubectl apply -f -

    Without --pushed an image stands by its tag, and a note says so. With --program, the program's
    image is built, proven and pushed first, as submit does. --check: docs/compile.md.
    """
    from builder.jobs import request

    chosen = settings(registry, engine)
    asked = request.JobRequest(root(), job, on.flags, chosen, program=program, pushed=pushed)
    with reporter() as progress:
        prepared = request.prepare(asked, job_sent.note, progress.on_event)
        if check:
            request.check_step(asked, prepared, job_sent.note, progress.on_event)
    _write(prepared.text, output)


def schema() -> None:
    """Write jobs/schema.json, with which editors complete jobs/*.yaml."""
    from builder.core.files import write
    from builder.jobs import description

    write(root() / description.JOBS / description.SCHEMA, description.schema_text())
    say("wrote jobs/schema.json")


def convert(
    config: Path | None = argument("The job's file; none: a command alone."),
    words: list[str] | None = argument(
        "The gcloud or xpk command that sent it, or the trainer's arguments.", metavar="[-- WORDS]"
    ),
    image: str | None = option("A target, or an image."),
    region: str | None = option("Such as us-central1."),
    accelerator: str | None = option("V100: what a cluster's job counts without a name."),
    job: str | None = option("The name of one, of several jobs in the file."),
    output: Path | None = OUTPUT,
) -> None:
    """Turn a job of AI Platform or of another service into a job of today.

    \b
    builder job convert config.yaml --region us-central1 -o jobs/cats.yaml -- --epochs 10
    builder job convert -o jobs/cats.yaml -- gcloud ai-platform jobs submit training cats \\
        --config config.yaml --region us-central1 -- --epochs 10

    It knows AI Platform's config.yaml and gcloud command, Vertex AI's CustomJobSpec and gcloud
    command, a cluster's Job, CronJob, Pod, JobSet, PyTorchJob, TFJob, MPIJob and TrainJob, a task
    of SkyPilot, and xpk. It ends with what is not as it was, and with each field and flag that is
    not taken over, such as a variable that looks like a secret. What names a device that is not
    known here, or is another service's, is refused.
    """
    from builder.jobs import images
    from builder.jobs.convert import convert as converted

    rest = list(words or ())
    command = r"(.*/)?(gcloud|xpk(\.py)?|python[\d.]*)|-.*|docker|kubectl|sbatch|srun|sky|ray"
    if config is not None and re.fullmatch(command, str(config)):
        config, rest = None, [str(config), *rest]  # what stands after --, without a file
    targets = images.targets(root())
    given = {"image": image, "region": region, "accelerator": accelerator, "name": job}
    made = converted(config, rest, **given, targets=targets)
    for line in made.changes:
        say(line)
    for line in made.left_out:
        say(f"not taken over: {line}")
    _write(made.text, output)


@expanded
def cost(
    on: BackendOptions,
    job: str = options.JOB_NAME,
    lasting: str | None = option("How long it runs, such as 22m.", "--for", metavar="TIME"),
    engine: str | None = options.ENGINE,
    as_json: bool = options.JSON,
) -> None:
    """Show what a job costs, line by line.

    \b
    builder job cost cats-and-dogs --for 22m
    builder job cost cats-and-dogs                        at least, by its steps

    Without --for its step is compiled, with its own arguments, in the image that was built here:
    it takes no less time than the device needs for the operations. It costs at least that.
    """
    from builder.jobs import cost as costs
    from builder.jobs import request
    from builder.jobs.description.values import length

    asked = request.JobRequest(root(), job, on.flags, settings(engine=engine), pushed=False)
    ready = request.prepare(asked).ready
    if lasting is not None:
        seconds, basis = length("--for", lasting), "the time given"
    else:
        from builder.jobs import step

        with reporter() as progress:
            seconds, basis = step.least(root(), ready, asked.settings, progress.on_event)
    if ready.job.study is not None:
        seconds *= ready.job.study.trials
        basis += f", {ready.job.study.trials} trials"
    bill = costs.bill(ready, seconds, basis, least=lasting is None)
    for line in costs.as_text(bill):
        say(line)
    if as_json:
        out(costs.as_json(bill))


@expanded
def why(
    on: BackendOptions,
    job: str | None = argument("A job that runs or ran, here or elsewhere.", metavar="[JOB]"),
    log: str | None = option("The log of any program; - reads stdin.", "--log", metavar="FILE"),
    as_json: bool = options.JSON,
) -> None:
    """Say why a job ended: what happened, the line that shows it, what to do.

    \b
    builder job why cats
    builder job why --log train.log
    kubectl logs trainer-0 | builder job why --log -

    An ending that is not in the table of known endings is said to be unknown.
    """
    from builder.jobs.why import diagnose, logs

    if (job is None) == (log is None):
        raise InputError("name a job or a log", "builder job why JOB, or --log FILE")
    if job is None:
        run = logs.of_log(log or "")
    else:
        backend = backend_of(on, job)
        run = logs.of_job(backend, backend.find(job))
    diagnosis = diagnose.diagnose(run)
    for line in diagnose.as_text(run.name, diagnosis):
        say(line)
    if as_json:
        out(diagnose.as_json(run.name, diagnosis))


def tensorboard(
    jobs: list[str] | None = argument(
        "Jobs, folders, gs:// addresses (default: every job in build/jobs).", metavar="JOB"
    ),
    port: int = option("The port; 0 takes a free one.", default=6006),
    host: str = option(
        "The address to listen on; 0.0.0.0 opens it to the network.", default="localhost"
    ),
) -> None:
    """Show jobs in TensorBoard, several in one view."""
    from builder.jobs import tensorboard as board

    board.serve(
        board.sources(root(), jobs or ()),
        host,
        port,
        lambda address: say(f"TensorBoard at {address} (Ctrl-C ends it)"),
    )


for command in (
    local,
    render,
    convert,
    schema,
    job_sent.submit,
    job_sent.status,
    job_sent.logs,
    job_sent.cancel,
    why,
    cost,
):
    job_app.command()(command)
job_app.command(name="list")(job_sent.list_jobs)
