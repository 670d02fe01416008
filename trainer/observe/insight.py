"""A run's observers, and those that report progress, a trial's metric and the account."""

import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from trainer.config import Config
from trainer.event_lines import finite, say
from trainer.job import storage
from trainer.model import networks, scores
from trainer.observe.observer import Observer, Run
from trainer.observe.page import Mistakes, Report
from trainer.observe.summaries import Profile, Scalars
from trainer.observe.utilization import Utilization
from trainer.observe.views import Views

EVALUATION, SUMMARY = "evaluation.json", "summary.json"
"""In the job folder: metrics, classes and confusion matrix of the last evaluation; the final
account."""
SETTLED_STEPS, SETTLED_SECONDS = 50, 10.0
"""What the input costs is reported after so many steps or seconds, without the first call, which
compiles."""
WAITS = 0.1
"""A larger share of waiting is a warning, and says what helps."""
TUNING, KEPT = "/tmp/hypertune/output.metrics", 100
"""Where Vertex AI's tuning reads a trial's metric, if CLOUD_ML_HP_METRIC_FILE names no other file,
and how many values are kept there."""


def observers(config: Config) -> list[Observer]:
    """Return the observers in the order of their calls."""
    machine, mistakes = Utilization(), Mistakes()
    account, scalars = Account(machine), Scalars(machine)
    return [
        machine,
        Progress(config, machine),
        Profile(config),
        scalars,
        mistakes,
        *([Views(scalars, mistakes)] if config.summaries else []),
        Trial(os.environ),
        account,
        Report(mistakes, account),
    ]


class Progress(Observer):
    """Reports steps: each of the first calls, then a line every SECONDS; and once, what share of a
    step waits for its batch."""

    FIRST = 100
    """Inner calls of an attempt that are reported one by one."""
    SECONDS = 10.0
    """Between two lines after that, so that a day has some 9,000 lines, not a million."""

    def __init__(self, config: Config, machine: Utilization) -> None:
        self._machine = machine
        self._calls = self._steps = 0
        self._seconds = self._waited = 0.0
        # A step's wait is not measured with --deterministic.
        self._settled = config.deterministic
        self._since: dict[str, list[float]] = {}
        """Loss, accuracy and seconds of each step since the last line."""
        self._reported = 0.0

    def begin(self, run: Run) -> None:
        sizes = networks.depth(run.model)
        text = "{trained_parameters:,} of {parameters:,} parameters trained "
        text += "({trained_layers} of {backbone_layers} backbone layers)"
        say("model", f"{run.model.name}: {text.format(**sizes)}", **sizes)

    def steps(self, run: Run, first_step: int, metrics: dict[str, np.ndarray]) -> None:
        for name in ("loss", "accuracy", "seconds"):
            if name in metrics:
                self._since.setdefault(name, []).extend(metrics[name].tolist())
        self._calls += 1
        # With parameter servers, it is not the chief that waits.
        if self._calls > 1 and not (self._settled or run.place.parameter_servers):
            self._report_input(run, metrics)
        now, step = time.monotonic(), run.position.step
        late = now - self._reported >= self.SECONDS or step >= run.config.steps
        if self._calls > self.FIRST and not late:
            return
        means = {name: float(np.mean(values)) for name, values in self._since.items()}
        pace = means.pop("seconds")
        fields: dict[str, Any] = {
            **means,
            "epoch": run.position.epoch,
            "examples_per_second": round(run.config.batch_size / pace, 1),
            "steps": run.config.steps,
            "eta_seconds": round((run.config.steps - step) * pace, 1),
            **self._machine.of_gpus,
        }
        say(
            "step",
            f"step {step} of {run.config.steps}: loss {means['loss']:.4f}",
            step=step,
            **fields,
        )
        self._since, self._reported = {}, now

    def _report_input(self, run: Run, metrics: dict[str, np.ndarray]) -> None:
        self._steps += len(metrics["seconds"])
        self._seconds += float(np.sum(metrics["seconds"]))
        self._waited += float(np.sum(metrics["input_wait"]))
        if self._steps < SETTLED_STEPS and self._seconds < SETTLED_SECONDS:
            return
        self._settled, share = True, self._waited / max(self._seconds, 1e-9)
        text, severity = f"input: {share:.1%} of a step waited for", "INFO"
        if share > WAITS:
            severity, cores = "WARNING", len(os.sched_getaffinity(0))
            text += (
                "; what helps: smaller records (trainer.records --resize), --cache memory, or "
                f"more than the {cores} cores that are here"
            )
        say("input", text, severity, step=run.position.step, wait_share=round(share, 4))


def report_metric(path: Path, trial: str, tag: str, value: float, step: int) -> None:
    """Add one value, in the format of Google's cloudml-hypertune: a JSON object a line. Raises one
    of storage.FAILURES."""
    lines = path.read_text().splitlines() if path.exists() else []
    entry = {
        "timestamp": time.time(),
        "trial": trial,
        tag: str(float(value)),
        "global_step": str(int(step)),
        "checkpoint_path": "",
    }
    lines = [*lines, json.dumps(entry, sort_keys=True)][-KEPT:]
    storage.write(str(path.absolute()), ("\n".join(lines) + "\n").encode())


class Trial(Observer):
    """Reports --metric after each evaluation, if this run is a trial: if Vertex AI has set
    CLOUD_ML_TRIAL_ID. The tag must be the study's metricId."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._trial = environment.get("CLOUD_ML_TRIAL_ID", "")
        file = environment.get("CLOUD_ML_HP_METRIC_FILE", "")
        self._path = Path(file or TUNING) if self._trial or file else None

    def evaluated(self, run: Run, step: int, result: dict[str, float]) -> None:
        if self._path is None:
            return
        tag, value = run.config.metric, result[run.config.metric]
        try:
            report_metric(self._path, self._trial or "0", tag, value, step)
        except storage.FAILURES as error:
            text = f"the trial's metric cannot be reported: {self._path}: {error}"
            say("trial", text, "ERROR", step=step)
        else:
            text = f"trial {self._trial or '0'}: {tag} {value:.4f} after step {step}"
            say("trial", text, step=step, tag=tag, value=value)


class Account(Observer):
    """Writes evaluation.json after each evaluation, and summary.json at the end: the outcome, and
    where the time of all attempts went."""

    def __init__(self, machine: Utilization) -> None:
        self.machine = machine
        self._evaluation: dict[str, Any] = {}
        self._outcome = ""

    def evaluated(self, run: Run, step: int, result: dict[str, float]) -> None:
        self._evaluation = {"step": step, **result}
        matrix = run.scores.confusion
        confusion = None if matrix is None else matrix.tolist()
        found = {"classes": run.scores.table(run.names), "confusion": confusion}
        self._write(run, EVALUATION, {"step": step, "metrics": result, **found})

    def end(self, run: Run, outcome: str) -> None:
        self._outcome = outcome
        self._write(run, SUMMARY, self.summary(run))
        if outcome in ("done", "stopped") and run.scores:
            say("classes", scores.as_text(run.scores.table(run.names)), step=run.position.step)

    def closed(self, run: Run) -> None:
        self._write(run, SUMMARY, self.summary(run))  # with the time of the last SavedModel

    def summary(self, run: Run) -> dict[str, Any]:
        """Return the content of summary.json: times of all attempts, speeds of this one."""
        return {
            "outcome": self._outcome,
            "step": run.position.step,
            "steps": run.config.steps,
            "epoch": run.position.epoch,
            "examples": run.position.examples,
            "evaluation": self._evaluation,
            "best": run.judge.summary(),
            "model": {
                "name": run.model.name,
                "precision": run.policy,
                **networks.depth(run.model),
            },
            "time": run.stopwatch.state(),
            "speed": self.machine.summary(),
            "software": run.facts,
            "left_out": run.left_out,
        }

    def _write(self, run: Run, name: str, content: dict[str, Any]) -> None:
        text = json.dumps(finite(content), indent=1)
        storage.attempt(f"{run.config.job_dir}/{name}", text.encode())
