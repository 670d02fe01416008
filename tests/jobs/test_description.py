"""jobs/*.yaml: what a person writes, and what they are told where it is wrong."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from builder.core.errors import InputError
from builder.jobs import description
from tests import ROOT
from tests.jobs import jobfiles

SIX_LINES = """\
image: v100
region: asia-east1
machine: n1-standard-8
accelerators: 2 x V100
job_dir: gs://my-bucket/jobs/{job}
arguments: {records: "gs://my-bucket/records", steps: 2000}
"""
ONE = "image: v100\nmachine: n1-standard-8\n"


def refusal(text: str, name: str = "cats") -> tuple[str, str]:
    with pytest.raises(InputError) as caught:
        jobfiles.job(text, name)
    assert caught.value.fix
    return caught.value.message, caught.value.fix


def test_two_v100s_are_six_lines() -> None:
    job = jobfiles.job(SIX_LINES)
    assert len(SIX_LINES.splitlines()) == 6
    (chief,) = job.pools
    assert (chief.role, chief.count, chief.machine) == ("chief", 1, "n1-standard-8")
    assert (chief.accelerator, chief.accelerators) == ("V100", 2)
    assert job.arguments == ("--records=gs://my-bucket/records", "--steps=2000")
    assert (job.id, job.distributed, job.scheduling.timeout) == ("cats", False, 604_800)
    assert jobfiles.job(ONE + "scheduling: {timeout: 1h30m}\n").scheduling.timeout == 5400


@pytest.mark.parametrize(
    ("written", "name", "count"),
    [
        ("2 x V100", "V100", 2),
        ("V100", "V100", 1),
        ("4xT4", "T4", 4),
        ("2 x NVIDIA_TESLA_T4", "NVIDIA_TESLA_T4", 2),
        ("8 x TPU-v3", "TPU-v3", 8),
    ],
)
def test_accelerators_are_written_as_people_say_them(written: str, name: str, count: int) -> None:
    (chief,) = jobfiles.job(f"{ONE}accelerators: {written}\n").pools
    assert (chief.accelerator, chief.accelerators) == (name, count)


def test_a_replica_is_as_the_chief_unless_it_says_otherwise() -> None:
    job = jobfiles.job(
        ONE
        + """\
accelerators: 2 x V100
replicas:
  workers: 3
  parameter_servers: {count: 2, machine: n1-highmem-8}
  evaluator: {accelerators: none}
"""
    )
    carried = {
        pool.role: (pool.count, pool.machine, pool.accelerator and pool.accelerators)
        for pool in job.pools
    }
    assert carried == {
        "chief": (1, "n1-standard-8", 2),
        "worker": (3, "n1-standard-8", 2),
        "ps": (2, "n1-highmem-8", None),
        "evaluator": (1, "n1-standard-8", None),
    }
    assert [pool.position for pool in job.pools] == [0, 1, 2, 3]
    assert job.distributed


def test_arguments_are_a_command_line_or_names_and_values() -> None:
    listed = jobfiles.job(ONE + "arguments: [trainer/task.py, --bucket, b, --n, 0.10]\n")
    assert listed.arguments == ("trainer/task.py", "--bucket", "b", "--n", "0.10")
    named = jobfiles.job(ONE + "arguments:\n  steps: 1_000\n  deterministic:\n  rate: 1e-3\n")
    assert named.arguments == ("--steps=1_000", "--deterministic", "--rate=1e-3")


@pytest.mark.parametrize(
    ("written", "kind"),
    [
        ("{min: 1, max: 5}", "integer"),
        ("{min: 1.0, max: 5}", "double"),
        ("{min: 0.001, max: 0.1, scale: log}", "double"),
        ("{values: [16, 32]}", "discrete"),
        ("{values: [adam, sgd]}", "categorical"),
    ],
)
def test_a_parameter_is_what_its_values_look_like(written: str, kind: str) -> None:
    job = jobfiles.job(f"{ONE}study: {{metric: a, parameters: {{x: {written}}}}}\n")
    assert job.study is not None and job.study.parameters["x"].kind == kind


@pytest.mark.parametrize(
    ("text", "problem", "fix"),
    [
        ("machine: n1-standard-8\n", ":1: image: is missing", "add image: v100"),
        ("imge: v100\nmachine: n1-standard-8\n", ":1: imge: unknown key", "did you mean image?"),
        ("image: v100\n", ":1: machine: is missing", "add machine: n1-standard-8"),
        (ONE + "accelerators: two V100\n", ":3: accelerators:", "write 2 x V100"),
        (ONE + "replicas: {workers: 0}\n", "replicas.workers.count: expected at least 1", "count"),
        (ONE + "arguments:\n- a\n-\n", ":5: arguments.1: is empty", "remove the line"),
        (ONE + "job_dir: data/x\n", "not a folder of a bucket, or a path", "gs://BUCKET/FOLDER"),
        (ONE + "job_dir: gs://bucket/{name}\n", "not a folder of a bucket", "only {job}"),
        (ONE + "environment: {AIP_MODEL_DIR: x}\n", "'AIP_MODEL_DIR' is not", "the service's"),
        (ONE + "scheduling: {timeout: two hours}\n", "not a length of time", "2h"),
        (ONE + "scheduling: {timeout: 0s}\n", "expected more than 0", "timeout: 2h"),
        (ONE + "scheduling: {strategy: spt}\n", "'spt' is not one of", "write spot"),
        (ONE + "scheduling: {max_wait: 2h}\n", "flex-start only", "or write strategy: flex-start"),
        (ONE + "region: here\n", ":3: region: 'here' is not a region", "europe-west4"),
        (
            ONE + "study: {metric: a, parameters: {x: {values: []}}}\n",
            "values: expected at least one entry",
            "[16, 32, 64]",
        ),
        (ONE + "topology: 2x2\naccelerators: V100\n", "accelerators must be left out", "remove"),
        (ONE + "name: Cats_1\n", "'Cats_1' is not a job's name", "a-z"),
        (ONE + "image: t4\n", ":3: image: stands twice, first in line 1", "keep one"),
        (ONE + "arguments: {--steps: 3}\n", "not the name of an argument", "without dashes"),
        (ONE + "study: {metric: a, parameters: {}}\n", "at least one entry", "learning-rate"),
        (
            ONE + "study: {metric: a, parameters: {x: {min: 2, max: 1}}}\n",
            "min 2 is not below max 1",
            "smaller",
        ),
        (
            ONE + "study: {metric: a, parameters: {x: {min: 0, max: 1, scale: log}}}\n",
            "needs values above 0",
            "linear",
        ),
        (
            ONE + "study: {metric: a, algorithm: grid, parameters: {x: {min: 0.1, max: 1}}}\n",
            "a grid has no points",
            "values",
        ),
        (
            ONE + "study: {metric: a, trials: 2, parallel: 3, parameters: {x: {values: [a]}}}\n",
            "3 at once of 2 trials",
            "parallel: 2",
        ),
        (ONE + "study: {metric: a, parameters: {x: {}}}\n", "needs min and max, or values", "min"),
        (
            ONE + "arguments: {x: 3}\nstudy: {metric: a, parameters: {x: {min: 1, max: 2}}}\n",
            "arguments has x, and the study varies it",
            "remove x",
        ),
        (
            ONE
            + 'arguments: [--y, "1", --x, "3"]\n'
            + "study: {metric: a, parameters: {x: {min: 1, max: 2}}}\n",
            "arguments has x, and the study varies it",
            "remove x",
        ),
        ("- image\n", "is not a list of `key: value` lines", "image: v100"),
        ("image: [\n", "not YAML", ""),
    ],
)
def test_what_is_wrong_is_told_where_it_stands(text: str, problem: str, fix: str) -> None:
    message, way_out = refusal(text)
    assert problem in message and message.startswith("jobs/cats.yaml:")
    assert fix in way_out


def test_all_problems_of_a_file_at_once() -> None:
    message, fix = refusal(
        "imge: v100\njob_dir: x\nmachine: n1-standard-8\naccelerators: two V100\n"
    )
    assert [line.split(" ")[0] for line in message.splitlines()] == [
        "jobs/cats.yaml:1:",
        "jobs/cats.yaml:2:",
        "jobs/cats.yaml:4:",
    ]
    assert "these 3 lines" in fix


@pytest.mark.parametrize("name", ["Cats And Dogs", "9-lives", "a" * 62 + "-b", "-", "x--"])
def test_any_files_name_gives_a_jobs_name(name: str) -> None:
    made = jobfiles.job(ONE, name).id
    assert jobfiles.job(f"{ONE}name: {made}\n").id == made
    assert jobfiles.job(ONE + "name: cats\n", name).id == "cats"


def test_a_job_that_is_not_there(tmp_path: Path) -> None:
    (tmp_path / "jobs").mkdir()
    (tmp_path / "jobs" / "cats.yaml").write_text(ONE)
    with pytest.raises(InputError) as caught:
        description.load(tmp_path, "cat")
    assert "no job is called 'cat'" in caught.value.message and "write cats" in caught.value.fix
    assert description.load(tmp_path, "cats").id == "cats"
    assert description.load(tmp_path, "jobs/cats.yaml").id == "cats"
    assert description.load(tmp_path, str(tmp_path / "jobs" / "cats.yaml")).id == "cats"
    (tmp_path / "jobs" / "bad.yaml").write_bytes(b"\xff\xfe")
    with pytest.raises(InputError, match="not UTF-8"):
        description.load(tmp_path, "bad")


@pytest.mark.slow
def test_the_schema_takes_every_job_of_the_project() -> None:
    import jsonschema

    file = ROOT / "jobs" / "schema.json"
    assert file.read_text() == description.schema_text(), "run: builder job schema"
    schema = json.loads(file.read_text())
    for name in description.names(ROOT):
        value = yaml.safe_load((ROOT / "jobs" / f"{name}.yaml").read_text())
        jsonschema.validate(value, schema)
    more = {"arguments": {"steps": 3}, "environment": {"A": 1}, "replicas": {"workers": 2}}
    more |= {"accelerators": "2 x V100", "scheduling": {"timeout": "2h"}}
    jsonschema.validate({"image": "v100", "machine": "n1-standard-8", **more}, schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({"image": "v100", "machin": "n1-standard-8"}, schema)
