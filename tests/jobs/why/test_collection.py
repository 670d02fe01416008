"""The collected logs of public threads: each is told with the ending that a person sees."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from builder.jobs.why import table
from tests.jobs.why.measure import NO_ENDING, UNSEEN, cases, measure, row

FILES = sorted((Path(__file__).parent / "cases").glob("*.yaml"))
"""link: where the lines were read. expected: an ending's name, "unknown" or "ended-well"."""
DOCUMENT = Path(__file__).parents[3] / "docs/jobs.md"


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_the_ending_that_a_person_sees_is_told(path: Path) -> None:
    assert measure(cases(path)).wrong == ()


def test_each_case_has_a_link_of_its_own_and_an_ending_of_the_table() -> None:
    known = {ending.name for ending in table.endings()} | set(NO_ENDING)
    every = [case for path in (*FILES, UNSEEN) for case in cases(path)]
    links = [case["link"] for case in every]
    assert len(set(links)) == len(links) > 400
    assert all(re.fullmatch(r"https://\S+", link) for link in links)
    assert {case["expected"] for case in every} <= known


def test_the_document_has_the_numbers_that_the_command_prints() -> None:
    assert row("unseen", measure(cases(UNSEEN))) in DOCUMENT.read_text(encoding="utf-8")
