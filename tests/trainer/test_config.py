"""The command line, and the environment that Vertex AI gives. No TensorFlow."""

import argparse
import dataclasses
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from trainer import config, task
from trainer import values as values_of
from trainer.config import Config, UsageError, parse
from trainer.options import switch, whole_number

VERTEX = {
    "AIP_MODEL_DIR": "gs://bucket/run/model/",
    "AIP_CHECKPOINT_DIR": "gs://bucket/run/checkpoints/",
    "AIP_TENSORBOARD_LOG_DIR": "gs://bucket/run/logs/",
}


def test_everything_lies_below_the_job_folder() -> None:
    config = parse(["--records", "r", "--job-dir", "job/"], {})
    assert (config.model_dir, config.checkpoint_dir, config.log_dir) == (
        "job/model",
        "job/checkpoints",
        "job/logs",
    )


def test_vertex_says_where_to_write() -> None:
    config = parse(["--records=r"], VERTEX)
    assert config.job_dir == "gs://bucket/run"
    assert config.checkpoint_dir == "gs://bucket/run/checkpoints"


def test_the_environment_wins_over_the_job_folder() -> None:
    config = parse(["--records", "r", "--job-dir", "j"], VERTEX)
    assert (config.job_dir, config.log_dir) == ("j", "gs://bucket/run/logs")
    assert config.model_dir == "gs://bucket/run/model"


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (["--bogus", "1"], "unrecognized arguments: --bogus 1"),
        (["--step", "5"], "unrecognized arguments: --step 5"),
        (["--steps", "many"], "argument --steps: 'many' is not a whole number"),
        (["--steps", "0"], "--steps 0: must be 1 or more"),
        (["--batch-size", "-1"], "--batch-size -1: must be 1 or more"),
        (["--learning-rate", "nan"], "--learning-rate nan: must be more than 0"),
        (["--epochs", "inf"], "--epochs inf: must be"),
        (["--epochs", "1e300"], "--epochs 1e+300: must be between 0 and 1000000"),
        (["--clip-norm", "inf"], "--clip-norm inf: must be a finite number"),
        (["--seed", "1e10"], "--seed 10000000000: must be between 0 and 4294967295"),
        (["--steps", "1e300"], "argument --steps: '1e300' is too large"),
        (["--clip-norm", "nan"], "--clip-norm nan: must be 0 or more"),
        (["--cut", "--crop", "0.5"], "--cut and --crop 0.5: give one of them"),
        (["--trivial-augment", "--rand-augment", "2"], "--trivial-augment and --rand-augment 2: "),
        (["--color-jitter", "0.4,2"], "argument --color-jitter: '0.4,2' is not B or B,C,S[,H]"),
        (["--color-jitter", "0.1,0.1,0.1,0.6"], "argument --color-jitter: '0.1,0.1,0.1,0.6' is"),
        (["--precision", "int4"], "argument --precision: invalid choice: 'int4'"),
        (["--profile-steps", "9,3"], "argument --profile-steps: '9,3' is not FIRST,LAST"),
        (["--profile-steps", "9"], "argument --profile-steps: '9' is not FIRST,LAST"),
        (["--warmup-steps", "2.5"], "argument --warmup-steps: '2.5' is not a whole number"),
        (["--warmup-steps=9", "--steps=9"], "--warmup-steps 9: the run of 9 steps is over before"),
        (["--predictions", "maybe"], "argument --predictions: 'maybe' is not one of true, false"),
        (["--dropout", "1.5"], "--dropout 1.5: must be between 0 and 0.99"),
        (["--fine-tune-layers", "some"], "argument --fine-tune-layers: 'some' is not a whole"),
        (["--weights", "imagenet"], "--weights imagenet: there are none for small_cnn"),
        (["--weights-sha256", "0" * 64], "--weights-sha256: --weights none is not a file"),
        (
            ["--weights", "a.h5", "--weights-sha256", "12"],
            "--weights-sha256 12: is not 64 hexadecimal digits",
        ),
    ],
)
def test_a_mistake_is_one_line_that_names_the_option(wrong: list[str], message: str) -> None:
    with pytest.raises(UsageError) as error:
        parse(["--records", "r", "--job-dir", "j", *wrong], {})
    assert str(error.value).startswith(message)
    assert "\n" not in str(error.value)


def test_no_number_of_a_run_may_be_without_end() -> None:
    numbers = [one.option_strings[0] for one in options() if one.type is float]
    assert {"--epochs", "--grace", "--weight-decay"} < set(numbers)
    for name in numbers:
        for value in ("inf", "-inf", "nan"):
            with pytest.raises(UsageError, match=rf"^{name} {value}: must be [^\n]*$"):
                parse(["--records", "r", "--job-dir", "j", f"{name}={value}"], {})


def test_a_mistake_is_answered_before_tensorflow_is_imported() -> None:
    code = (
        "import sys; from trainer import task; code = task.main(['--bogus']);"
        "sys.exit(code if 'tensorflow' not in sys.modules else 99)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stdout.count("\n") == 1
    assert '"severity": "ERROR"' in done.stdout
    assert not done.stderr


def test_another_backend_of_keras_is_one_line() -> None:
    code = "import sys; from trainer import task; sys.exit(task.main())"
    arguments = [sys.executable, "-c", code, "--records", "r", "--job-dir", "j"]
    ran = subprocess.run(
        arguments, env={**os.environ, "KERAS_BACKEND": "jax"}, capture_output=True, text=True
    )
    assert ran.returncode == 2
    assert "KERAS_BACKEND=jax: the trainer runs on TensorFlow: unset it" in ran.stdout
    assert not ran.stderr


def test_a_tuning_service_names_and_writes_parameters_in_its_own_way() -> None:
    """parameterId with underscores, numbers as 64.0, switches with a value."""
    given = ["--records=r", "--job_dir=j", "--learning_rate=0.01", "--warmup_steps=64.0"]
    given += [
        "--batch_size=64.0",
        "--predictions=false",
        "--deterministic=true",
        "--profile_steps=2,6",
    ]
    config = parse(given, {})
    assert (config.learning_rate, config.warmup_steps, config.batch_size) == (0.01, 64, 64)
    assert (config.predictions, config.deterministic, config.profile_steps) == (False, True, (2, 6))


def test_each_trial_has_a_folder_of_its_own() -> None:
    config = parse(["--records", "r", "--job-dir", "gs://b/study"], {"CLOUD_ML_TRIAL_ID": "7"})
    assert config.job_dir == "gs://b/study/7"
    assert config.checkpoint_dir == "gs://b/study/7/checkpoints"
    # The folders that Vertex AI names already belong to the trial.
    assert parse(["--records=r"], {**VERTEX, "CLOUD_ML_TRIAL_ID": "7"}).job_dir == "gs://bucket/run"


def options() -> list[argparse.Action]:
    """argparse's action for every option but --help and --help-all."""
    found: list[argparse.Action] = []

    def stop(parser: argparse.ArgumentParser, *_: object) -> None:
        found.extend(parser._actions[2:])
        raise UsageError

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(argparse.ArgumentParser, "parse_args", stop)
        with pytest.raises(UsageError):
            parse([], {})
    return found


def test_every_field_of_a_run_is_an_option_and_help_says_what_it_does(
    capsys: pytest.CaptureFixture[str],
) -> None:
    fields = {field.name for field in dataclasses.fields(Config)}
    fields -= {
        "model_dir",
        "checkpoint_dir",
        "log_dir",
        "target",
    }  # what follows from others
    assert {one.dest for one in options()} == fields
    with pytest.raises(SystemExit) as end:
        parse(["--help-all"], {})
    assert end.value.code == 0
    shown = capsys.readouterr().out
    for one in options():
        assert one.help, one.dest
        assert f"{one.option_strings[0]} " in shown
    assert "Exit codes: 0 done" in shown
    assert "examples a step, all replicas (default: by the devices)" in " ".join(shown.split())


def test_every_option_has_a_place_in_the_documents() -> None:
    docs = Path(__file__).resolve().parents[2] / "docs"
    text = "\n".join(page.read_text() for page in docs.glob("*.md"))
    named = set(re.findall(r"--[a-z0-9-]+", text))
    assert [one.option_strings[0] for one in options() if one.option_strings[0] not in named] == []


def test_help_shows_the_common_options_first_and_says_where_all_are(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit):
        parse(["--help"], {})
    shown = capsys.readouterr().out
    named = re.findall(r"^  (--[a-z-]+)", shown.partition("common options")[2], re.MULTILINE)
    assert named == [f"--{name.replace('_', '-')}" for name in config.COMMON]
    assert len(named) == 20 and named[0] == "--records"
    assert "--help-all" in shown and "--grace" not in shown


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (("--image-size", "4"), "--image-size 4: must be 8 or more, or 0"),
        (("--model", "a:b", "--dropout", "0.5"), "--dropout 0.5: --model a:b makes its own head"),
        (("--model", "a:b", "--weights", "w.h5"), "--weights w.h5: --model a:b loads its own"),
    ],
)
def test_what_does_not_go_with_a_model_is_refused(given: tuple[str, ...], message: str) -> None:
    with pytest.raises(UsageError) as error:
        parse(["--records", "r", "--job-dir", "j", *given], {})
    assert str(error.value) == message


@pytest.mark.parametrize("form", ["--name=value", "--na_me=value", "--na_me value"])
def test_every_option_can_be_a_trials_parameter(form: str) -> None:
    """As a tuning service writes them: names with underscores, whole numbers as 8.0."""
    values = {
        "steps": "8.0",
        "image_size": "8.0",
        "weights": "a.h5",
        "profile_steps": "2,3",
    }
    values |= {
        "color_jitter": "0.1,0.2,0.3,0.4",
        "weights_sha256": "0" * 64,
        "export": "best,latest",
    }
    values |= {"metric": "loss", "model": "mobilenetv2", "warmup_steps": "4.0"}
    apart = {
        "epochs": "steps",
        "cut": "crop",
        "rand_augment": "trivial_augment",
    }
    """Options that exclude another one."""
    arguments, asked = [], {}
    for one in options():
        if one.dest in apart:
            continue
        value = values.get(one.dest)
        if value is None:
            numbers = {float: "1.0", whole_number: "2.0", switch: "true", None: "text"}
            numbers |= {values_of.layers: "2.0"}
            value = one.choices[-1] if one.choices else numbers[one.type]
        bounds = {
            "dropout": "0.5",
            "drop_path": "0.5",
            "label_smoothing": "0.5",
            "momentum": "0.5",
        }
        value = {**bounds, "erase": "0.5", "ema": "0.5"}.get(one.dest, value)
        name = one.option_strings[0]
        name = "--" + name[2:].replace("-", "_") if "_" in form else name
        arguments += [f"{name}={value}"] if "=" in form else [name, value]
        asked[one.dest] = one.type(value) if one.type else value
    found = parse(arguments, {})
    for name, value in asked.items():
        assert getattr(found, name) == value, name


def test_what_never_comes_about_is_refused_when_the_epochs_are_counted_too() -> None:
    given = ["--records", "r", "--job-dir", "j", "--epochs", "2"]
    for option, message in (
        (("--warmup-steps", "50"), "--warmup-steps 50: the run of 50 steps is over before its end"),
        (("--profile-steps", "51,60"), "--profile-steps 51,60: the run of 50 steps is over"),
    ):
        with pytest.raises(UsageError, match=message):
            task.sized(parse([*given, *option], {}), 800)
    assert task.sized(parse([*given, "--warmup-steps", "49"], {}), 800).steps == 50
