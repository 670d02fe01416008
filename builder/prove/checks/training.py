"""Does it train, and survive a kill? Two runs with the image's own entry point, on real images.

The first run is killed after its first checkpoint and one more step. The second, with the same
command, has to resume there, to finish, and to learn. A last run has no records: it has to fail,
because a program that swallows its errors looks like one that succeeded. builder/contract.py holds
the options and the lines of events; builder/prove/judge.py says what is wrong.
"""

from __future__ import annotations

from typing import Any

from builder import contract
from builder.prove.judge import (
    behind_a_checkpoint,
    falling,
    judge_failing,
    judge_first,
    judge_second,
)
from builder.prove.receipts import Defect
from builder.prove.session import JOB, RECORDS, Session
from builder.prove.suite import Answer, Check

NO_RECORDS = f"{RECORDS}-that-are-not-there"
"""The folder of the last run, which has to fail."""
ATTEMPTS = 3
LONGER = 4
"""A run that is over before it can be killed is tried again with so many times more steps."""


def run(session: Session) -> Answer:
    """Train, kill, train again. If the second run ends well, the session keeps its job folder."""
    if not session.config.get("Entrypoint"):
        module = session.subject.spec.program.module
        defect = Defect(
            "the image has no ENTRYPOINT: a training service would start nothing",
            f'end the Dockerfile with ENTRYPOINT ["python", "-m", "{module}"]',
        )
        return [defect], {}
    for attempt in range(ATTEMPTS):
        steps, job = session.workload.steps * LONGER**attempt, f"{JOB}/{attempt}"
        first = session.train(job, steps, stop=behind_a_checkpoint)
        if first.exit_code != contract.OK or first.last_checkpoint is None:
            break
    seen: dict[str, Any] = {"steps": steps, "first": first.summary()}
    if wrong := judge_first(first, steps):
        return [wrong], seen
    second = session.train(job, steps)
    if second.exit_code == contract.OK:
        session.finished_job = job
    seen["second"] = second.summary()
    seen["finished"] = second.exit_code == contract.OK
    seen["loss"] = falling(first.losses, second.losses)
    seen["accuracy"] = second.accuracy
    defects = judge_second(first, second, steps)
    if not defects:
        third = session.train(f"{JOB}/none", steps, NO_RECORDS)
        seen["without_records"] = third.summary()
        defects = [failing] if (failing := judge_failing(third)) else []
    return defects, seen


CHECK = Check("training", 3, run)
