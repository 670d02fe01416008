"""The schema for editors says what the reader says."""

from __future__ import annotations

from pathlib import Path

import jsonschema
import pytest
from ruamel.yaml import YAML

from builder.cloudbuild.reader.jsonschema import json_schema

ROOT = Path(__file__).resolve().parents[2]


def test_it_takes_our_own_build_and_those_of_the_projects() -> None:
    jsonschema.Draft7Validator.check_schema(json_schema())
    files = [ROOT / "cloudbuild.yaml", *Path(__file__).parent.glob("projects/*/*cloudbuild.yaml")]
    assert len(files) > 10
    for file in files:
        jsonschema.validate(YAML(typ="safe", pure=True).load(file.read_text()), json_schema())


@pytest.mark.parametrize(
    ("build", "field"),
    [
        ({"steps": [{"name": "a", "arg": ["x"]}]}, "arg"),
        ({"steps": [{"name": "a", "timeout": "1m"}]}, "1m"),
        ({"steps": [{"name": 1}]}, "1"),
        ({"options": {"machineType": "HUGE"}}, "HUGE"),
    ],
)
def test_it_refuses(build: object, field: str) -> None:
    with pytest.raises(jsonschema.ValidationError) as raised:
        jsonschema.validate(build, json_schema())
    assert field in str(raised.value)
