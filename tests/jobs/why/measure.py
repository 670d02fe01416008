"""How often `builder job why` tells the right ending: python -m tests.jobs.why.measure [PART ...].

Parts: open (the table was written with these cases in view), held-out (a third of the first
collection), or the name of another collection. Every number is over cases with one log each.

recall: of the cases with a known ending, the share that was told with that ending.
precision: of the endings that were told, the share that was right. "unknown" tells no ending.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from builder.jobs.why import logs
from builder.jobs.why.diagnose import diagnose
from tests.jobs.why.collection import Case, cases

NO_ENDING = ("unknown",)


def part(name: str) -> list[Case]:
    """The cases of a part."""
    if name in ("open", "held-out"):
        return [
            one for one in cases() if one.file == "first" and one.held_out == (name == "held-out")
        ]
    return [one for one in cases() if one.file == name]


def told(case: Case) -> str:
    """The ending that is told for a case's lines."""
    return diagnose(logs.of_lines(case.log.splitlines(), case.link)).ending


def measured(chosen: Sequence[Case]) -> tuple[str, list[tuple[Case, str]]]:
    """A line with both numbers, and the cases that were told wrong."""
    answers = [(case, told(case)) for case in chosen]
    known = [(case, name) for case, name in answers if case.expected not in NO_ENDING]
    named = [(case, name) for case, name in answers if name not in NO_ENDING]
    found = sum(case.expected == name for case, name in known)
    right = sum(case.expected == name for case, name in named)
    quiet = sum(case.expected in NO_ENDING for case in chosen)
    silent = sum(name in NO_ENDING for case, name in answers if case.expected in NO_ENDING)
    text = (
        f"{len(chosen)} cases: recall {found}/{len(known)}, precision {right}/{len(named)}, "
        f"said to be unknown {silent}/{quiet}"
    )
    return text, [(case, name) for case, name in answers if case.expected != name]


def main() -> None:
    """Print the numbers of each part."""
    for name in sys.argv[1:] or ["open"]:
        text, wrong = measured(part(name))
        sys.stdout.write(f"{name}: {text}\n")
        for case, answer in wrong:
            sys.stdout.write(f"  {answer} instead of {case.expected}: {case.link}\n")


if __name__ == "__main__":
    main()
