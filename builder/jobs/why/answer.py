"""A diagnosis in lines for a person, and as plain values for JSON."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from textwrap import wrap
from typing import Any

from builder.jobs.why.diagnose import Diagnosis

WIDTH = 96
MOST_SEEN = 5
AGAIN = {
    "yes": "The same job may end well when it runs again.",
    "later": "The same job may end well later.",
    "no": "The same job ends the same way again.",
}
_ENDED = ("unknown", "ended-well", "cancelled", "running", "waiting")


def lines(name: str, diagnosis: Diagnosis) -> Iterator[str]:
    """Yield what happened, the lines that show it, what to do, and what else is in the log."""
    likely = "Probably: " if diagnosis.certainty == "likely" else ""
    yield f"{name}: {diagnosis.ending}"
    yield from wrap(likely + " ".join(diagnosis.happened.split()), WIDTH)
    for line in diagnosis.evidence:
        yield f"  {line.where}: {line.text}"
    if diagnosis.ending != "ended-well":
        yield from wrap("To do: " + " ".join(diagnosis.do.split()), WIDTH)
    if diagnosis.ending not in _ENDED:
        yield AGAIN[diagnosis.again]
        yield f"More: {diagnosis.source}"
    if diagnosis.seen:
        yield "Also in the log:"
        for other in diagnosis.seen[:MOST_SEEN]:
            yield f"  {other.ending}, {other.evidence.where}: {other.evidence.text}"
    for note in diagnosis.notes:
        yield f"note: {note}"


def values(name: str, diagnosis: Diagnosis) -> dict[str, Any]:
    """Return the same for machines. known: whether its ending is in the table."""
    return {"job": name, "known": diagnosis.ending not in ("unknown",), **asdict(diagnosis)}
