"""What containers did, and what is wrong with a training run for that. Pure functions."""

from __future__ import annotations

import contextlib
import math
import re
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from builder import contract
from builder.contract import TrainerEvent
from builder.prove.receipts import Defect

LOSS_FALLS_TO = 0.7
"""The mean of the last losses has to be below this share of the mean of the first ones."""
ACCURACY = 0.9
"""The share of held-out digits that have to be right where the trainer reports an evaluation; one
in ten is chance."""

_LOG = "see build/*/smoke.log"


@dataclass(frozen=True)
class Run:
    exit_code: int
    seconds: float
    events: tuple[TrainerEvent, ...] = ()
    """Those that its program reported on stdout."""
    tail: tuple[str, ...] = ()
    """The last lines that hold no event."""
    answer: Mapping[str, Any] | None = None
    """The last JSON object that it printed."""
    stopped: bool = False
    """We stopped it on purpose."""
    timed_out: bool = False
    """We killed it because it took too long."""
    out_of_memory: bool = False
    """The kernel killed it."""
    flooded: bool = False
    """We killed it because it printed too much."""
    filled: bool = False
    """We killed it because it wrote too much."""

    @property
    def last(self) -> str:
        """The last line that it printed, cut off where it is long."""
        return self.tail[-1].strip()[:200] if self.tail else "nothing"

    def of(self, name: str) -> tuple[TrainerEvent, ...]:
        """Return the events of this name that have a step."""
        return tuple(e for e in self.events if e.name == name and e.step is not None)

    def summary(self) -> dict[str, Any]:
        return {
            "exit_code": self.exit_code,
            "seconds": round(self.seconds, 1),
            "last_step": self.last_step,
            "last_checkpoint": self.last_checkpoint,
            "resumed_at": self.resumed_at,
        }

    @property
    def losses(self) -> tuple[float, ...]:
        return tuple(e.loss for e in self.of(contract.STEP) if e.loss is not None)

    @property
    def accuracy(self) -> float | None:
        """The accuracy of the last evaluation on held-out examples, None without one."""
        values = [e.accuracy for e in self.of(contract.EVALUATED) if e.accuracy is not None]
        return values[-1] if values else None

    @property
    def last_step(self) -> int:
        return max((e.step or 0 for e in self.of(contract.STEP)), default=0)

    @property
    def last_checkpoint(self) -> int | None:
        return max((e.step or 0 for e in self.of(contract.CHECKPOINT)), default=None)

    @property
    def resumed_at(self) -> int | None:
        """The step of the checkpoint that it said it resumed from, None where it said nothing."""
        events = self.of(contract.RESUMED)
        return events[0].step if events else None


def behind_a_checkpoint(events: Sequence[TrainerEvent]) -> bool:
    """Tell whether a step came after the first checkpoint: a kill now loses that step."""
    names = [event.name for event in events]
    if contract.CHECKPOINT not in names:
        return False
    return contract.STEP in names[names.index(contract.CHECKPOINT) :]


def falling(first: Sequence[float], second: Sequence[float]) -> dict[str, float] | None:
    """Return the mean of the first losses of the first run, and of the last of the second run.

    Each mean is over at most five losses, and over at most half of all. None where there are fewer
    than two losses, or where one that counts is not finite.
    """
    total = len(first) + len(second)
    count = min(5, total // 2)
    if count == 0:
        return None
    losses = [*first, *second]
    start, end = sum(losses[:count]) / count, sum(losses[-count:]) / count
    return {"first": start, "last": end} if math.isfinite(start + end) else None


def judge_first(run: Run, steps: int) -> Defect | None:
    """Say what is wrong with the first run, which is killed after its first checkpoint."""
    if run.stopped and run.last_checkpoint is not None and not run.timed_out:
        return _not_finite(run)
    if run.exit_code != contract.OK or run.timed_out:
        return explain(run, "the trainer")
    if run.last_checkpoint is None and not run.last_step:
        return Defect(
            f"the image ended with exit code 0 and trained no step{_error_in(run)}",
            "let the program's exit code be the image's, and print "
            '{"event": "step", "step": N, "loss": X} every few steps',
        )
    if run.last_checkpoint is None:
        return Defect(
            f"the trainer reported no checkpoint in {run.last_step or steps} steps",
            'print {"event": "checkpoint", "step": N} once a checkpoint is safely written',
        )
    return Defect(
        f"the trainer was through with {steps} steps before it could be killed, or printed "
        "no step after its first checkpoint",
        'print {"event": "step", "step": N, "loss": X} at least every ten steps',
    )


def judge_failing(run: Run) -> Defect | None:
    """Say what is wrong with a run whose records are not there: it has to end with an error."""
    if run.exit_code != contract.OK or run.timed_out:
        return None
    return Defect(
        "without records the image ends with exit code 0: a service takes a job that did "
        f"nothing for a success{_error_in(run)}",
        "let the program's exit code be the image's: no `|| true`, no `except: pass`, `exec` "
        "in a script",
    )


def judge_second(first: Run, second: Run, steps: int) -> list[Defect]:
    """Say what is wrong with the second run, which has to resume where the first was killed and to
    finish."""
    if second.exit_code != contract.OK or second.timed_out:
        return [explain(second, "the trainer, started again after a kill,")]
    defects = [_ignored_checkpoint(first, second)]
    if second.last_step < steps:
        what = f"the trainer ended well, but at step {second.last_step} of {steps}"
        fix = "let it train until --steps, those before a restart included"
        defects.append(Defect(what, fix))
    defects.append(_not_finite(second) or _not_learning(first, second, steps))
    return [defect for defect in defects if defect]


def _error_in(run: Run) -> str:
    """Return the last error in a run's log, for the end of a sentence."""
    errors = [line for line in run.tail if _ERROR.match(line)]
    return f"; its log says: {errors[-1].strip()[:200]}" if errors else ""


def _ignored_checkpoint(first: Run, second: Run) -> Defect | None:
    saved = first.last_checkpoint or 0
    resumed = second.resumed_at
    began = min((event.step or 0 for event in second.of(contract.STEP)), default=0)
    if resumed is not None and resumed >= saved and began > saved:
        return None
    how = "did not say it resumed" if resumed is None else f"said it resumed at step {resumed}"
    return Defect(
        f"the trainer ignored its checkpoint: killed at step {first.last_step} "
        f"with a checkpoint of step {saved}, it {how} and went on with step {began}",
        "restore the newest checkpoint of --job-dir at the start, and print "
        '{"event": "resumed", "step": N}',
    )


def _not_learning(first: Run, second: Run, steps: int) -> Defect | None:
    losses = falling(first.losses, second.losses)
    if losses is None:
        return Defect(
            "the trainer reported no loss",
            'print {"event": "step", "step": N, "loss": X} every few steps',
        )
    limit = LOSS_FALLS_TO * losses["first"]
    if losses["last"] >= limit:
        return Defect(
            f"the loss does not fall: {losses['first']:.4g} at first, "
            f"{losses['last']:.4g} after {steps} steps (wanted: below {limit:.4g})",
            f"{_LOG}; learning rate, labels or a frozen model are the usual reasons",
        )
    if second.accuracy is not None and not second.accuracy >= ACCURACY:
        return Defect(
            f"it does not learn: {second.accuracy:.1%} of the held-out digits are "
            f"right after {steps} steps (wanted: {ACCURACY:.0%})",
            "the loss falls, so training and evaluation differ: compare their preprocessing, "
            "BatchNorm's statistics and the order of the labels",
        )
    return None


def _not_finite(run: Run) -> Defect | None:
    for event in run.of(contract.STEP):
        if event.loss is not None and not math.isfinite(event.loss):
            return Defect(
                f"the loss is {event.loss} at step {event.step}",
                "lower the learning rate or clip gradients; see the step before it",
            )
    return None


_ERROR = re.compile(r"[\w.]*(?:Error|Exception|Exit)\b")
_NETWORK = re.compile(
    r"name resolution|Name or service not known|Network is unreachable|No route to host|"
    r"getaddrinfo|Could not resolve|Couldn't resolve|Failed to establish a new connection",
    re.IGNORECASE,
)
_READ_ONLY = re.compile(r"Read-only file system|Permission denied")
_PATH = re.compile(r"(/[^\s'\";:,]+)")


def explain(run: Run, who: str) -> Defect:
    """Say why a container failed: from how it ended and from the last lines that it printed."""
    if run.timed_out:
        return Defect(
            f"{who} was not done after {run.seconds:.0f} s; it said last: {run.last}",
            f"{_LOG} for where it hangs",
        )
    if run.flooded:
        return Defect(
            f"{who} printed too much in {run.seconds:.0f} s and was stopped; its last: {run.last}",
            "print a line a step, not one for each example",
        )
    if run.filled:
        return Defect(
            f"{who} wrote too much to its volumes in {run.seconds:.0f} s and was stopped",
            f"write less below {contract.JOB_DIR}: of a short run, a few checkpoints",
        )
    if run.out_of_memory:
        return Defect(
            f"{who} needed more memory than its limit and was killed",
            "make the batch or the shuffle buffer smaller, or look for a leak",
        )
    return _not_finite(run) or _not_hermetic(run, who) or _by_exit_code(run, who)


def _not_hermetic(run: Run, who: str) -> Defect | None:
    """Say what the program wanted that the container has not: network, or a place to write."""
    for line in reversed(run.tail[-40:]):
        if _NETWORK.search(line):
            return Defect(
                f"{who} needs the network, and has none: {line.strip()[:200]}",
                "put what it downloads into the image or beside the records",
            )
        if _READ_ONLY.search(line):
            path = _PATH.search(line)
            return Defect(
                f"{who} writes outside its job folder: {path[1] if path else line[:200]}",
                f"write below {contract.JOB_DIR} (or, what may be lost, below /tmp)",
            )
    return None


def _by_exit_code(run: Run, who: str) -> Defect:
    reported = [
        event.message for event in run.events if event.severity == "ERROR" and event.message
    ]
    errors = [line for line in run.tail if _ERROR.match(line)]
    last = (reported or errors or list(run.tail) or ["nothing"])[-1].strip()[:300]
    at = f" after step {run.last_step}" if run.last_step else ""
    if run.exit_code == contract.NOT_FINITE:
        return Defect(
            f"{who} ended with a loss that is not finite{at}: {last}",
            "lower the learning rate or clip gradients",
        )
    if run.exit_code > 128:
        with contextlib.suppress(ValueError):
            name = signal.Signals(run.exit_code - 128).name
            return Defect(f"{who} was ended by {name}{at}; it said last: {last}", _LOG)
    return Defect(
        f"{who} failed with exit code {run.exit_code}{at}: {last}", f"{_LOG} for its last lines"
    )
