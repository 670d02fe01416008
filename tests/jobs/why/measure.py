"""How often `job why` is right: python -m tests.jobs.why.measure [FILE.yaml ...]

Each file holds logs of public threads, each with the ending that a person named. Without a file it
measures unseen.yaml, from which the table of endings has never learned.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Sequence
from pathlib import Path

import yaml

from builder.jobs.why import logs
from builder.jobs.why.diagnose import Diagnosis, diagnose

UNSEEN = Path(__file__).parent / "unseen.yaml"
NO_ENDING = ("unknown", "ended-well")
"""What is told, and what a person names, where there is nothing to mend."""


def cases(path: Path) -> list[dict[str, str]]:
    """Return the cases of a file: link, expected and log of each."""
    content: list[dict[str, str]] = yaml.safe_load(path.read_text(encoding="utf-8"))
    return content


def told(text: str, name: str = "train.log") -> Diagnosis:
    """Return what `job why --log` tells of a log."""
    return diagnose(logs.of_stream(io.BytesIO(text.encode()), name))


def wrong(every: Sequence[dict[str, str]]) -> list[str]:
    """Return the cases that are told with another ending than the expected one."""
    endings = ((case, told(case["log"], case["link"]).ending) for case in every)
    return [
        f"{case['link']}: {ending}, not {case['expected']}"
        for case, ending in endings
        if ending != case["expected"]
    ]


def row(name: str, every: Sequence[dict[str, str]]) -> str:
    """Return the row of the table in docs/jobs.md; each number: so many were right, of so many.

    recall: of the logs with an ending; precision: of the endings that were told; quiet: of the logs
    without an ending, how many were told none.
    """
    pairs = [(case["expected"], told(case["log"], case["link"]).ending) for case in every]
    endings = [expected == ending for expected, ending in pairs if expected not in NO_ENDING]
    answers = [expected == ending for expected, ending in pairs if ending not in NO_ENDING]
    without = [ending in NO_ENDING for expected, ending in pairs if expected in NO_ENDING]
    numbers = " | ".join(f"{sum(right)}/{len(right)}" for right in (endings, answers, without))
    return f"| `{name}` | {numbers} |"


if __name__ == "__main__":
    for file in [Path(name) for name in sys.argv[1:]] or [UNSEEN]:
        lines = (row(file.stem, cases(file)), *wrong(cases(file)))
        sys.stdout.write("\n  ".join(lines) + "\n")
