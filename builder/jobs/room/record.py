"""What the newest submission of a job tried, kept beside what this machine sent.

build/jobs/tried-NAME.json holds which ways to run the job had no room, and where it went.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from builder.core import files
from builder.jobs.submission import Submitted, Tried


@dataclass(frozen=True)
class Search:
    """How the search for room went. ways: how many there were. where: the job's place, in words;
    on, region, job: the place, and the job's whole name; "" where none had room."""

    ways: int
    tried: tuple[Tried, ...] = ()
    where: str = ""
    on: str = ""
    region: str = ""
    job: str = ""


def _file(folder: Path, name: str) -> Path:
    return folder / f"tried-{name}.json"


def write(folder: Path, name: str, search: Search) -> None:
    """Keep it. folder: that of the locks."""
    files.write(_file(folder, name), json.dumps(asdict(search), indent=1) + "\n")


def ended(search: Search, found: Submitted) -> Search:
    """The search with the job that was found."""
    place = found.place
    on, where = (place.on, f"{place.title}, {place.where}") if place else ("", "")
    return Search(search.ways, search.tried, where, on, found.job.region, found.job.name)


def read(folder: Path, name: str) -> Search | None:
    """The newest search for a job of this name; None where this machine made none."""
    try:
        found = json.loads(_file(folder, name).read_text(encoding="utf-8"))
        tried = tuple(Tried(**one) for one in found.pop("tried"))
        return Search(**{**found, "tried": tried})
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None


def lines(search: Search) -> Iterator[str]:
    """What was tried, a line each, and where the job is."""
    yield f"Of {search.ways} ways to run it, tried in this order:"
    for one in search.tried:
        yield f"  no room: {one.told}: {one.why}"
    if search.job:
        yield f"  there it is: {search.where}: {search.job}"
