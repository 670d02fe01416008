"""What an evaluation found of each class: evaluation.json, and a table at the end of a run."""

import json
from typing import Any

from trainer.job import storage
from trainer.observe.observer import Observer, Run
from trainer.report import say

EVALUATION = "evaluation.json"
"""In the job folder: metrics, classes and confusion matrix of the last evaluation."""
MOST = 40
"""Classes in the table; of more, those with the least F1."""


class Classes(Observer):
    """Keeps what the last evaluation found of each class."""

    def __init__(self) -> None:
        self._rows: list[dict[str, Any]] = []

    def evaluated(self, run: Run, step: int, result: dict[str, float]) -> None:
        if not (run.writer.write and run.tally):
            return
        self._rows = run.tally.table(run.names)
        matrix = run.tally.confusion
        content = {
            "step": step,
            "metrics": {k: v if v == v else None for k, v in result.items()},
            "classes": self._rows,
            "confusion": None if matrix is None else matrix.tolist(),
        }
        path = f"{run.config.job_dir}/{EVALUATION}"
        try:
            storage.write(path, json.dumps(content).encode())
        except storage.FAILURES as error:  # A full disk is not a fault of this program.
            say("summary", f"{EVALUATION} cannot be written: {error}", "WARNING")

    def end(self, run: Run, outcome: str) -> None:
        if self._rows and outcome in ("done", "stopped"):
            say("classes", table(self._rows), step=run.position.step)


def table(rows: list[dict[str, Any]]) -> str:
    """The rows of Tally.table in aligned columns."""
    shown = rows if len(rows) <= MOST else sorted(rows, key=lambda row: row["f1"])[:MOST]
    left = f" ({MOST} of {len(rows)}, the least f1 first)" if len(rows) > MOST else ""
    width = max(5, *(len(row["class"]) for row in shown))
    lines = [f"{'class':{width}}  examples  precision  recall     f1    auc{left}"]
    for row in shown:
        auc = "     -" if row["auc"] is None else f"{row['auc']:6.3f}"
        lines.append(
            f"{row['class']:{width}}  {row['examples']:8}  {row['precision']:9.3f}  "
            f"{row['recall']:6.3f} {row['f1']:6.3f} {auc}"
        )
    return "\n".join(lines)
