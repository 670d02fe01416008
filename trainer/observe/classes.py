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
        if not (run.writes and run.tally):
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
    """Return the rows of a tally's table in aligned columns."""
    first, *others = rows[0]
    few = len(rows) <= MOST
    shown = rows if few else sorted(rows, key=lambda row: row.get("f1") or row.get("r2") or 0.0)
    left = "" if few else f" ({MOST} of {len(rows)}, the least f1 or r2 first)"
    width = max(5, *(len(row[first]) for row in shown[:MOST]))
    wide = {name: max(len(name), 6) for name in others}
    lines = [f"{first:{width}}" + "".join(f"  {name:>{wide[name]}}" for name in others) + left]
    for row in shown[:MOST]:
        cells = (f"  {_cell(row[name]):>{wide[name]}}" for name in others)
        lines.append(f"{row[first]:{width}}" + "".join(cells))
    return "\n".join(lines)


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    return str(value) if isinstance(value, int) else f"{value:.3f}"
