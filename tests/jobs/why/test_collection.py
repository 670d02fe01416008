"""The collected logs of public threads: each is told with the ending that a person sees."""

from __future__ import annotations

import re

import pytest

from builder.jobs.why import table
from tests.jobs.why import measure
from tests.jobs.why.collection import Case, cases


@pytest.mark.parametrize("case", list(cases()), ids=lambda case: case.link.partition(".com/")[2])
def test_the_ending_that_a_person_sees_is_told(case: Case) -> None:
    assert measure.told(case) == case.expected


def test_a_third_of_the_first_collection_is_held_out() -> None:
    first = [case for case in cases() if case.file == "first"]
    held = sum(case.held_out for case in first)
    assert len(first) >= 40 and 0.25 < held / len(first) < 0.45


def test_each_case_has_a_link_of_its_own_and_an_ending_of_the_table() -> None:
    known = {ending.name for ending in table.load().endings} | {"unknown", "ended-well"}
    links = [case.link for case in cases()]
    assert len(set(links)) == len(links)
    assert all(re.fullmatch(r"https://\S+", link) for link in links)
    assert {case.expected for case in cases()} <= known


def test_measuring_counts_unknown_as_no_ending() -> None:
    found = Case("https://a", "disk-full", "No space left on device", "x")
    missed = Case("https://b", "disk-full", "words", "x")
    quiet = Case("https://c", "unknown", "words", "x")
    wrong = Case("https://d", "unknown", "No space left on device", "x")
    text, answers = measure.measured([found, missed, quiet, wrong])
    assert text == "4 cases: recall 1/2, precision 1/2, said to be unknown 1/2"
    assert [case.link for case, _ in answers] == ["https://b", "https://d"]
