"""Does SIGTERM reach the trainer, and does it save its work? One more run, stopped at once.

Every service sends SIGTERM to the first process of a container before it kills. A shell without
`exec` as the entry point never passes it on. Then all work since the last checkpoint is lost, and
the exit code is one after which a service does not start the job again.
"""

from __future__ import annotations

from collections.abc import Sequence

from builder import contract
from builder.contract import TrainerEvent
from builder.prove.image import NotThereError
from builder.prove.judge import Run
from builder.prove.receipts import Defect
from builder.prove.session import JOB, Session
from builder.prove.suite import Answer, Check

LONG = 100
"""The run has so many times the steps of the training check, so that it cannot end before."""

_EXEC = (
    'start the program with `exec` in the script, or write ENTRYPOINT ["python", "-m", ...] in the '
    f"JSON form; the program has to save and to exit with {contract.RESTART}"
)


def run(session: Session) -> Answer:
    """Stop a new run after its first step. A trainer that does not train has nothing to save."""
    if session.finished_job is None:
        raise NotThereError("no training run ended well")
    steps = session.workload.steps * LONG
    run = session.train(
        f"{JOB}/stopped", steps, every=steps, stop=in_training, stop_signal="SIGTERM"
    )
    defect = judge(run, session.limits.grace_seconds)
    return [defect] if defect else [], run.summary()


def in_training(events: Sequence[TrainerEvent]) -> bool:
    return any(event.name == contract.STEP for event in events)


def judge(run: Run, grace: float) -> Defect | None:
    """Say what is wrong with a run that was sent SIGTERM after a step."""
    if not run.stopped:
        return Defect(
            f"the trainer ended with exit code {run.exit_code} before it could be stopped; "
            f"it said last: {run.last}",
            "see build/*/smoke.log",
        )
    if run.timed_out:
        return Defect(
            f"SIGTERM does not end the trainer: {grace:.0f} s later it was at step "
            f"{run.last_step}, and was killed",
            _EXEC,
        )
    if run.exit_code != contract.RESTART:
        return Defect(
            f"stopped by SIGTERM, the image ends with exit code {run.exit_code}, not "
            f"{contract.RESTART}: a service takes that for "
            + ("success" if run.exit_code == contract.OK else "a failure"),
            _EXEC,
        )
    if (run.last_checkpoint or 0) < run.last_step:
        saved = "no checkpoint" if run.last_checkpoint is None else f"one of {run.last_checkpoint}"
        return Defect(
            f"stopped by SIGTERM at step {run.last_step}, the trainer saved {saved}: the "
            "work since then is lost",
            "write a checkpoint when SIGTERM comes, and report it, before the exit",
        )
    return None


CHECK = Check("stopping", 1, run)
