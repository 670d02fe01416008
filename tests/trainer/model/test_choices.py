"""What a run chooses where an option was not given, and what a job goes on with."""

import dataclasses
import json
from pathlib import Path

import keras
import numpy as np
import pytest

from trainer.config import UNKNOWN, Config, UsageError, given, parse
from trainer.job.checkpoints import Checkpoints, Position
from trainer.model import choices

pytestmark = pytest.mark.tensorflow


def choose(
    *options: object, records: int = 2000, replicas: int = 1, gpu: bool = False, kept: bool = False
) -> dict:
    arguments = [str(one) for one in ("--records", "r", "--job-dir", "j", *options)]
    facts = choices.Facts(records, 28, replicas, gpu, kept)
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


def test_adamw_has_keras_decay_unless_another_is_given_also_none() -> None:
    assert choose("--optimizer", "adamw")["weight_decay"] == keras.optimizers.AdamW().weight_decay
    assert "weight_decay" not in choose("--optimizer", "adamw", "--weight-decay", 0)
    assert "weight_decay" not in choose("--optimizer", "sgd")


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
        ((), {"kept": True}, "cache", "memory"),
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

    def settled(arguments: list[str]) -> Config:
        return choices.settled(*choices.carried(parse(arguments, {}), given(arguments)), facts)

    found = settled(arguments)
    assert {name: getattr(found, name) for name in OLD} == OLD
    found = settled([*arguments, "--steps", "2000", "--image-size", "64"])
    assert (found.steps, found.image_size, found.schedule) == (2000, 64, "constant")
    began = {**OLD, "epochs": 7.5, "steps": 123}
    found = settled(job(tmp_path, **began))
    assert found.epochs == 7.5, "the length is that of the epochs"


def test_every_option_that_is_not_given_is_that_of_the_job(tmp_path: Path) -> None:
    began = ("--label-smoothing", "0.3", "--crop", "0.5", "--mixup", "0.4", "--seed", "5")
    began += ("--color-jitter", "0.1", "--deterministic", "--ema", "0.9", "--precision", "float32")
    arguments = ["--records", "r", "--job-dir", str(tmp_path)]
    config = parse([*arguments, *began], {})
    job(tmp_path, **dataclasses.asdict(config))
    again = [*arguments, "--mixup", "0.1", "--crop", "1"]
    found, named = choices.carried(parse(again, {}), given(again))
    assert found == dataclasses.replace(config, mixup=0.1, crop=1.0)
    assert {"seed", "ema", "crop", "steps", "image_size"} <= named


def test_a_length_in_epochs_takes_the_place_of_one_in_steps(tmp_path: Path, capsys) -> None:
    arguments = ["--records", "r", "--job-dir", str(tmp_path)]
    job(tmp_path, **dataclasses.asdict(parse([*arguments, "--steps", "100"], {})))
    again = [*arguments, "--epochs", "3"]
    found, _ = choices.carried(parse(again, {}), given(again))
    assert (found.epochs, found.steps) == (3.0, UNKNOWN)
    assert "it was" not in capsys.readouterr().out


def test_what_a_start_says_of_itself_is_not_carried_on(tmp_path: Path) -> None:
    arguments = ["--records", "r", "--job-dir", str(tmp_path)]
    own = ("--accelerator", "none", "--output", "json", "--accept-changed-records")
    job(tmp_path, **dataclasses.asdict(parse([*arguments, *own], {})))
    found, _ = choices.carried(parse(arguments, {}), given(arguments))
    assert (found.accelerator, found.output, found.accept_changed_records) == (
        "auto",
        "auto",
        False,
    )


def test_options_that_exclude_each_other_are_refused_wherever_they_come_from(
    tmp_path: Path,
) -> None:
    arguments = ["--records", "r", "--job-dir", str(tmp_path)]
    job(tmp_path, **dataclasses.asdict(parse([*arguments, "--crop", "0.5"], {})))
    again = [*arguments, "--cut"]
    with pytest.raises(UsageError, match=r"--cut and --crop 0.5: give one of them"):
        choices.carried(parse(again, {}), given(again))


def test_a_restart_says_what_it_carries_on_and_what_is_another_now(tmp_path: Path, task) -> None:
    length = ("--steps", 3, "--export", "none")
    assert task(*length, "--label-smoothing", 0.3, "--seed", 5, "--crop", 0.5)[0] == 0
    code, lines = task("--steps", 5, "--crop", 0.7)
    assert code == 0
    said = [line["message"] for line in lines if line["event"] == "chosen"]
    assert said[0].endswith(": as this job began (config.json)")
    for option in ("--label-smoothing 0.3", "--seed 5", "--export none"):
        assert option in said[0]
    differ = "--crop 0.7 (it was 0.5), --steps 5 (it was 3)"
    assert said[1] == f"{differ}: given, and another from here on"
    record = json.loads((tmp_path / "config.json").read_text())
    assert (record["label_smoothing"], record["seed"], record["crop"]) == (0.3, 5, 0.7)


def test_without_a_checkpoint_a_record_counts_for_nothing(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(OLD))
    arguments = ["--records", "r", "--job-dir", str(tmp_path)]
    config, named = parse(arguments, {}), given(arguments)
    assert choices.carried(config, named) == (config, named)


def test_a_run_says_what_it_chose_goes_on_with_it_and_is_done(tmp_path: Path, task) -> None:
    early = ("--early-stopping", 1, "--evaluate-every", 10, "--learning-rate", 1e-12)
    code, lines = task(*early, "--export", "none")
    assert code == 0, lines[-1]
    said = [line["message"] for line in lines if line["event"] == "chosen"]
    assert said == [
        "--epochs 24: 1,000 records, from scratch",
        "--schedule cosine: the rate falls to 0 at the end of the run",
        "--warmup-steps 37: a twentieth of the run",
        "--cache memory: the records have at most 16 MiB",
    ]
    record = json.loads((tmp_path / "config.json").read_text())
    assert (record["epochs"], record["steps"], record["warmup_steps"]) == (24.0, 750, 37)
    code, lines = task()
    assert (code, [line["event"] for line in lines]) == (0, ["done"]), "no length is asked for"
