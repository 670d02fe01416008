"""A trial's metric, in the file that Vertex AI's hyperparameter tuning reads.

The format is that of Google's cloudml-hypertune: the last 100 values, a JSON object a line. The
file is rewritten in one move, so that no reader sees half of it. Vertex AI sets CLOUD_ML_TRIAL_ID,
and CLOUD_ML_HP_METRIC_FILE if the file is not the default one. The tag must be the study's
metricId.
"""

import json
import os
import time
from collections.abc import Mapping
from pathlib import Path

from trainer.observe.observer import Observer, Run
from trainer.report import say

DEFAULT = "/tmp/hypertune/output.metrics"
KEPT = 100


def report(path: Path, trial: str, tag: str, value: float, step: int) -> None:
    """Add one value. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = path.read_text().splitlines() if path.exists() else []
    entry = {
        "timestamp": time.time(),
        "trial": trial,
        tag: str(float(value)),
        "global_step": str(int(step)),
        "checkpoint_path": "",
    }
    lines = [*lines, json.dumps(entry, sort_keys=True)][-KEPT:]
    temporary = path.with_name(f"{path.name}.tmp-{os.getpid()}")
    temporary.write_text("\n".join(lines) + "\n")
    temporary.replace(path)


class Trial(Observer):
    """Reports --metric after each evaluation, if this run is a trial."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._trial = environment.get("CLOUD_ML_TRIAL_ID", "")
        file = environment.get("CLOUD_ML_HP_METRIC_FILE", "")
        self._path = Path(file or DEFAULT) if self._trial or file else None
        self._tag = environment.get("CLOUD_ML_HP_METRIC_TAG", "")

    def evaluated(self, run: Run, step: int, result: dict[str, float]) -> None:
        if self._path is None or not run.place.chief:
            return
        value, tag = result[run.config.metric], self._tag or run.config.metric
        try:
            report(self._path, self._trial or "0", tag, value, step)
        except OSError as error:
            text = f"the trial's metric cannot be reported: {self._path}: {error.strerror}"
            say("trial", text, "ERROR", step=step)
        else:
            text = f"trial {self._trial or '0'}: {tag} {value:.4f} after step {step}"
            say("trial", text, step=step, tag=tag, value=value)
