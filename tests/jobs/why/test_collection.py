"""The collected logs of public threads: each is told with the ending that a person sees."""

from __future__ import annotations

import io
import re
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from builder.jobs.why import logs, table
from builder.jobs.why.diagnose import diagnose

FILES = sorted((Path(__file__).parent / "cases").glob("*.yaml"))
CASES: list[dict[str, str]] = [
    case for path in FILES for case in YAML(typ="safe").load(path.read_text(encoding="utf-8"))
]
"""link: where the lines were read. expected: an ending's name, "unknown" or "ended-well"."""


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["link"].partition(".com/")[2])
def test_the_ending_that_a_person_sees_is_told(case: dict[str, str]) -> None:
    log = logs.of_stream(io.BytesIO(case["log"].encode()), case["link"])
    assert diagnose(log).ending == case["expected"]


def test_each_case_has_a_link_of_its_own_and_an_ending_of_the_table() -> None:
    known = {ending.name for ending in table.load().endings} | {"unknown", "ended-well"}
    links = [case["link"] for case in CASES]
    assert len(set(links)) == len(links)
    assert all(re.fullmatch(r"https://\S+", link) for link in links)
    assert {case["expected"] for case in CASES} <= known
