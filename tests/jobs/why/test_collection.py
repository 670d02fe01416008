"""The collected logs of public threads: each is told with the ending that a person sees."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from builder.jobs.why import table
from tests.jobs.why.measure import NO_ENDING, UNSEEN, cases, measure, row, told

CASES = [
    case
    for path in sorted((Path(__file__).parent / "cases").glob("*.yaml"))
    for case in cases(path)
]
"""link: where the lines were read. expected: an ending's name, "unknown" or "ended-well"."""
DOCUMENT = Path(__file__).parents[3] / "docs/job-tools.md"


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["link"].partition(".com/")[2])
def test_the_ending_that_a_person_sees_is_told(case: dict[str, str]) -> None:
    assert told(case["log"], case["link"]).ending == case["expected"]


def test_each_case_has_a_link_of_its_own_and_an_ending_of_the_table() -> None:
    known = {ending.name for ending in table.load().endings} | set(NO_ENDING)
    every = [*CASES, *cases(UNSEEN)]
    links = [case["link"] for case in every]
    assert len(set(links)) == len(links)
    assert all(re.fullmatch(r"https://\S+", link) for link in links)
    assert {case["expected"] for case in every} <= known


def test_the_document_has_the_numbers_that_the_command_prints() -> None:
    assert row("unseen", measure(cases(UNSEEN))) in DOCUMENT.read_text(encoding="utf-8")
