"""Train a classifier on TFRecords: `python -m trainer.task --records DIR --job-dir DIR`.

A run resumes from the newest whole checkpoint of its job folder; a finished job is left alone. It
reports what it does, one JSON object a line.

Exit codes: 0 done; 1 a fault of the program; 2 what the user gave cannot be right; 3 a folder
could no longer be written; 4 the loss became NaN or infinite; 143 stopped by SIGTERM, Ctrl-C, the
loss of another process or a store that gives no records, start it again.
"""

import os
import sys
import traceback
from collections.abc import Sequence
from typing import Any

from trainer import evaluate, guard
from trainer.config import UsageError, choose_backend, given, parse
from trainer.event_lines import FAULT, OK, USAGE, leave, say, speak_as, speak_in
from trainer.job.preemption import RESTART, Preempted, Preemption
from trainer.loop import distribution


def main(arguments: Sequence[str] | None = None) -> int:
    """Parse, train, and return the exit code; an error is one line."""
    preemption = Preemption()
    preemption.install()
    try:
        return _main(sys.argv[1:] if arguments is None else arguments, preemption)
    finally:
        preemption.uninstall()


def _main(arguments: Sequence[str], preemption: Preemption) -> int:
    try:
        config, named = parse(arguments, os.environ), given(arguments)
        place = distribution.cluster(os.environ)
        if place.workers > 1:
            speak_as(place.index)
        speak_in(config.output)
        guard.check(config.accelerator, os.environ)
        choose_backend(os.environ)
    except (UsageError, guard.Refused) as error:
        say("error", str(error), "ERROR")
        return USAGE
    if place.role == "evaluator":
        request = evaluate.Request(
            job_dir=config.job_dir,
            records=config.records,
            follow=True,
            evaluate_every=config.evaluate_every,
        )
        return evaluate.answer(request, config)
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "1")
    from trainer import verdict
    from trainer.job.lease import Lease
    from trainer.loop.outer import NotFinite
    from trainer.model import choices
    from trainer.run import train

    claim = Lease(config.job_dir)
    try:
        config, named = choices.carried(config, named)
        preemption.grace = config.grace
        train(config, named, place, preemption, claim)
        return OK
    except Preempted as error:
        claim.release()
        leave(RESTART, "preempted", str(error), "WARNING", step=error.step)
    except Exception as error:
        code, text = verdict.of(error, config, place)
        claim.release()
        if code == FAULT:
            traceback.print_exc()
        fields = {"step": error.step} if isinstance(error, NotFinite) else {}
        return _end(place, code, text, **fields)
    finally:
        claim.release()


def _end(place: distribution.Cluster, code: int, text: str, **fields: Any) -> int:
    """Report why, and exit with `code`: at once if TensorFlow's shutdown would wait for others."""
    if place.workers > 1 or place.parameter_servers or code == RESTART:
        leave(code, "error", text, **fields)
    say("error", text, "ERROR", **fields)
    return code


if __name__ == "__main__":
    sys.exit(main())
