"""A diagnosis as a person would tell it, in lines, and as plain values for JSON."""

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


def lines(name: str, found: Diagnosis) -> Iterator[str]:
    """What happened, the lines that show it, what to do, and what else is in the log."""
    likely = "Probably: " if found.certainty == "likely" else ""
    yield f"{name}: {found.ending}"
    yield from wrap(likely + " ".join(found.happened.split()), WIDTH)
    for one in found.evidence:
        yield f"  {one.where}: {one.text}"
    if found.ending not in ("ended-well", "running"):
        yield from wrap("To do: " + " ".join(found.do.split()), WIDTH)
    if found.ending not in _ENDED:
        yield AGAIN[found.again]
        yield f"More: {found.source}"
    if found.seen:
        yield "Also in the log:"
        for other in found.seen[:MOST_SEEN]:
            yield f"  {other.ending}, {other.evidence.where}: {other.evidence.text}"
    for note in found.notes:
        yield f"note: {note}"


def values(name: str, found: Diagnosis) -> dict[str, Any]:
    """The same for machines. known: whether an ending of the table was found."""
    return {"job": name, "known": found.ending not in ("unknown",), **asdict(found)}
