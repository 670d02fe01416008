"""How often `job why` is right: python -m tests.jobs.why.measure [FILE.yaml ...]

Each file holds logs of public threads, each with the endings that a person accepts. Without a file
it measures unseen.yaml, from which the table of endings has never learned.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from builder.jobs.why import logs
from builder.jobs.why.diagnose import Diagnosis, diagnose

UNSEEN = Path(__file__).parent / "unseen.yaml"
NO_ENDING = ("unknown", "ended-well")
"""What is told, and what a person names, where there is nothing to mend."""


def cases(path: Path) -> list[dict[str, Any]]:
    """Return the cases of a file: link, expected and log of each, and also and line of some."""
    content: list[dict[str, Any]] = yaml.safe_load(path.read_text(encoding="utf-8"))
    return content


def told(text: str, name: str = "train.log") -> Diagnosis:
    """Return what `job why --log` tells of a log."""
    return diagnose(logs.of_stream(io.BytesIO(text.encode()), name))


def accepted(case: Mapping[str, Any]) -> set[str]:
    """Return the endings that a person accepts for a case."""
    return {case["expected"], *case.get("also", ())}


def wrong(every: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the cases that are told with an ending that no person accepts."""
    endings = ((case, told(case["log"], case["link"]).ending) for case in every)
    return [
        f"{case['link']}: {ending}, not {case['expected']}"
        for case, ending in endings
        if ending not in accepted(case)
    ]


def row(name: str, every: Sequence[Mapping[str, Any]]) -> str:
    """Return the row of the table in docs/jobs.md; each number: so many were right, of so many.

    recall: of the logs with an ending; precision: of the endings that were told; quiet: of the runs
    that did not fail, how many were told none; shown: of the others, how many with their line.
    """
    pairs = [(case, told(case["log"], case["link"])) for case in every]
    endings = [(case, answer.ending) for case, answer in pairs]
    recall = [
        ending in accepted(case) - {*NO_ENDING}
        for case, ending in endings
        if case["expected"] not in NO_ENDING
    ]
    precision = [ending in accepted(case) for case, ending in endings if ending not in NO_ENDING]
    quiet = [
        ending in NO_ENDING
        for case, ending in endings
        if case["expected"] in NO_ENDING and "line" not in case
    ]
    shown = [
        any(words in line.text for words in case["line"] for line in answer.evidence)
        for case, answer in pairs
        if "line" in case
    ]
    numbers = " | ".join(
        f"{sum(right)}/{len(right)}" for right in (recall, precision, quiet, shown)
    )
    return f"| `{name}` | {numbers} |"


if __name__ == "__main__":
    for file in [Path(name) for name in sys.argv[1:]] or [UNSEEN]:
        lines = (row(file.stem, cases(file)), *wrong(cases(file)))
        sys.stdout.write("\n  ".join(lines) + "\n")
