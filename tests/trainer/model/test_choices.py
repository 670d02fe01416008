"""What a run chooses where an option was not given, and what a job goes on with."""

import json
from pathlib import Path

import numpy as np
import pytest

from trainer.config import given, parse
from trainer.job.checkpoints import Checkpoints, Position
from trainer.model import choices

pytestmark = pytest.mark.tensorflow


def choose(*options: object, records: int = 2000, replicas: int = 1, gpu: bool = False) -> dict:
    arguments = [str(one) for one in ("--records", "r", "--job-dir", "j", *options)]
    facts = choices.Facts(records, 28, replicas, gpu)
    made = choices.choices(parse(arguments, {}), given(arguments), facts)
    assert all(why for *_, why in made)
    return {name: value for name, value, _ in made}


def test_a_run_on_a_cpu_from_scratch() -> None:
    assert choose() == {
        "image_size": 32,
        "batch_size": 32,
        "learning_rate": 0.004,
        "epochs": 20.0,
        "schedule": "cosine",
        "warmup_steps": 62,
        "evaluate_every": 125,
    }


def test_what_is_given_is_not_chosen_and_the_rest_follows_from_it() -> None:
    found = choose("--batch-size", 128, "--image-size", 64, "--epochs", 3)
    assert found.pop("evaluate_every") == 0, "47 steps are too few for more than the last one"
    assert found.pop("learning_rate") == 0.008, "by the root of the batch"
    assert found == {"schedule": "cosine", "warmup_steps": 2}
    assert "learning_rate" not in choose("--learning-rate", 1)
    assert "warmup_steps" not in choose("--schedule", "constant")
    assert choose("--image-size", 0)["image_size"] == 32, "0 means that none is given"


@pytest.mark.parametrize(
    ("options", "facts", "name", "value"),
    [
        ((), {"records": 100}, "batch_size", 16),
        ((), {"records": 100}, "epochs", 240.0),
        ((), {"records": 10**6}, "epochs", 20.0),
        ((), {"gpu": True, "records": 10**5}, "batch_size", 256),
        ((), {"gpu": True, "replicas": 4, "records": 10**6}, "batch_size", 1024),
        ((), {"gpu": True, "replicas": 4, "records": 2000}, "batch_size", 256),
        (("--model", "densenet121"), {"gpu": True, "records": 10**5}, "batch_size", 64),
        (("--model", "efficientnetb7"), {"gpu": True, "records": 10**5}, "batch_size", 16),
        (("--accumulate", 6), {}, "batch_size", 30),
        (("--model", "mobilenetv2"), {}, "learning_rate", 0.001),
        (("--model", "mobilenetv2", "--weights", "w.h5"), {}, "learning_rate", 0.0003),
        (("--weights", "job", "--fine-tune-layers", 0), {}, "learning_rate", 0.002),
        (("--weights", "job"), {}, "epochs", 8.0),
        (("--schedule", "constant"), {}, "learning_rate", 0.002),
        (("--optimizer", "sgd"), {}, "learning_rate", 0.024),
        (("--optimizer", "lion"), {}, "learning_rate", 0.0008),
        (("--steps", 5000), {}, "evaluate_every", 500),
        (("--epochs", 40), {}, "evaluate_every", 250),
    ],
)
def test_choices_follow_data_devices_and_options(
    options: tuple, facts: dict, name: str, value: object
) -> None:
    assert choose(*options, **facts)[name] == value


def job(tmp_path: Path, **record: object) -> list[str]:
    """The options of a job that has a checkpoint, and this record of its options."""
    arguments = ["--records", "r", "--job-dir", str(tmp_path)]
    zeros = {"weight": np.zeros(1)}
    Checkpoints(parse(arguments, {}).checkpoint_dir, 1).save(Position(5, 160, 0.1), zeros, {})
    (tmp_path / "config.json").write_text(json.dumps(record))
    return arguments


OLD = {"image_size": 32, "batch_size": 32, "learning_rate": 0.002, "schedule": "constant"}
OLD |= {"warmup_steps": 0, "steps": 1000, "epochs": 0.0}
"""What a job has that was begun when these were the defaults."""


def test_a_job_goes_on_with_what_it_began_with_unless_another_value_is_given(
    tmp_path: Path,
) -> None:
    arguments = job(tmp_path, **OLD)
    facts = choices.Facts(50_000, 500, 1, True)
    found = choices.settled(parse(arguments, {}), given(arguments), facts)
    assert {name: getattr(found, name) for name in OLD} == OLD
    more = [*arguments, "--steps", "2000", "--image-size", "64"]
    found = choices.settled(parse(more, {}), given(more), facts)
    assert (found.steps, found.image_size, found.schedule) == (2000, 64, "constant")
    began = {**OLD, "epochs": 7.5, "steps": 123}
    found = choices.settled(parse(job(tmp_path, **began), {}), given(arguments), facts)
    assert found.epochs == 7.5, "the length is that of the epochs"


def test_without_a_checkpoint_a_record_counts_for_nothing(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(OLD))
    arguments = ["--records", "r", "--job-dir", str(tmp_path)]
    assert choices.recorded(parse(arguments, {}), given(arguments)) == {}


def test_a_run_says_what_it_chose_goes_on_with_it_and_is_done(tmp_path: Path, task) -> None:
    early = ("--early-stopping", 1, "--evaluate-every", 10, "--learning-rate", 1e-12)
    code, lines = task(*early, "--export", "none")
    assert code == 0, lines[-1]
    said = [line["message"] for line in lines if line["event"] == "chosen"]
    assert said == [
        "--epochs 24: 1,000 records, from scratch",
        "--schedule cosine: the rate falls to 0 at the end of the run",
        "--warmup-steps 37: a twentieth of the run",
    ]
    record = json.loads((tmp_path / "config.json").read_text())
    assert (record["epochs"], record["steps"], record["warmup_steps"]) == (24.0, 750, 37)
    code, lines = task()
    assert (code, [line["event"] for line in lines]) == (0, ["done"]), "no length is asked for"
