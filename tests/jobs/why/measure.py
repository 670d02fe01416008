"""How often `job why` is right: python -m tests.jobs.why.measure [FILE.yaml ...]

Each file holds logs of public threads, each with the ending that a person named. Without a file it
measures unseen.yaml, from which the table of endings has never learned.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml

from builder.jobs.why import logs
from builder.jobs.why.diagnose import Diagnosis, diagnose

UNSEEN = Path(__file__).parent / "unseen.yaml"
NO_ENDING = ("unknown", "ended-well")
"""What is told, and what a person names, where there is nothing to mend."""


@dataclass(frozen=True)
class Measured:
    """What was told of the logs. Each pair: how many were right, of how many.

    recall: of the logs with an ending; precision: of the endings that were told; quiet: of the logs
    without an ending, how many were told none.
    """

    recall: tuple[int, int]
    precision: tuple[int, int]
    quiet: tuple[int, int]
    wrong: tuple[str, ...]


def cases(path: Path) -> list[dict[str, str]]:
    """Return the cases of a file: link, expected and log of each."""
    content: list[dict[str, str]] = yaml.safe_load(path.read_text(encoding="utf-8"))
    return content


def told(text: str, name: str = "train.log") -> Diagnosis:
    """Return what `job why --log` tells of a log."""
    return diagnose(logs.of_stream(io.BytesIO(text.encode()), name))


def measure(every: Sequence[dict[str, str]]) -> Measured:
    """Return how often these cases are told right."""
    pairs = [(case["expected"], told(case["log"], case["link"])) for case in every]
    endings = [pair for pair in pairs if pair[0] not in NO_ENDING]
    answers = [pair for pair in pairs if pair[1].ending not in NO_ENDING]
    without = [pair for pair in pairs if pair[0] in NO_ENDING]
    return Measured(
        recall=_right(endings),
        precision=_right(answers),
        quiet=(sum(diagnosis.ending in NO_ENDING for _, diagnosis in without), len(without)),
        wrong=tuple(
            f"{case['link']}: {diagnosis.ending}, not {expected}"
            for case, (expected, diagnosis) in zip(every, pairs, strict=True)
            if diagnosis.ending != expected
        ),
    )


def _right(pairs: Sequence[tuple[str, Diagnosis]]) -> tuple[int, int]:
    return sum(diagnosis.ending == expected for expected, diagnosis in pairs), len(pairs)


def row(name: str, measured: Measured) -> str:
    """Return the row of the table in docs/jobs.md."""
    numbers = (measured.recall, measured.precision, measured.quiet)
    return f"| `{name}` | " + " | ".join(f"{right}/{all_}" for right, all_ in numbers) + " |"


if __name__ == "__main__":
    for file in [Path(name) for name in sys.argv[1:]] or [UNSEEN]:
        result = measure(cases(file))
        lines = (row(file.stem, result), *result.wrong)
        sys.stdout.write("\n  ".join(lines) + "\n")
