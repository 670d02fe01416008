"""The command line, and the environment that Vertex AI gives. No TensorFlow."""

import argparse
import dataclasses
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from trainer import config
from trainer.config import Config, UsageError, parse, sized
from trainer.options import switch, whole_number

NAMES = ("model", "checkpoints", "logs")
OF_VERTEX = tuple(f"gs://bucket/run/{name}" for name in NAMES)
VARIABLES = ("AIP_MODEL_DIR", "AIP_CHECKPOINT_DIR", "AIP_TENSORBOARD_LOG_DIR")
VERTEX = dict(zip(VARIABLES, (f"{folder}/" for folder in OF_VERTEX), strict=True))
TRIAL = {"CLOUD_ML_TRIAL_ID": "7"}


@pytest.mark.parametrize(
    ("given", "environment", "folders"),
    [
        ("--job-dir=job/", {}, ("job", "job/model", "job/checkpoints", "job/logs")),
        ("--job-dir=gs://b/s", TRIAL, ("gs://b/s/7", *(f"gs://b/s/7/{name}" for name in NAMES))),
        ("--records=r", VERTEX, ("gs://bucket/run", *OF_VERTEX)),
        ("--job-dir=j", VERTEX, ("j", *OF_VERTEX)),
        ("--records=r", {**VERTEX, **TRIAL}, ("gs://bucket/run", *OF_VERTEX)),
    ],
)
def test_where_a_run_writes(
    given: str, environment: dict[str, str], folders: tuple[str, ...]
) -> None:
    """The folders that Vertex AI names already belong to the trial."""
    config = parse(["--records=r", given], environment)
    assert (config.job_dir, config.model_dir, config.checkpoint_dir, config.log_dir) == folders


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (["--step", "5"], "unrecognized arguments: --step 5"),
        (["--epochs", "1e300"], "--epochs 1e+300: must be between 0 and 1000000"),
        (["--seed", "1e10"], "--seed 10000000000: must be between 0 and 4294967295"),
        (["--steps", "1e300"], "argument --steps: '1e300' is too large"),
        (["--cut", "--crop", "0.5"], "--cut and --crop 0.5: give one of them"),
        (["--trivial-augment", "--rand-augment", "2"], "--trivial-augment and --rand-augment 2: "),
        (["--color-jitter", "0.4,2"], "argument --color-jitter: '0.4,2' is not B or B,C,S[,H]"),
        (["--color-jitter", "0.1,0.1,0.1,0.6"], "argument --color-jitter: '0.1,0.1,0.1,0.6' is"),
        (["--checkpoint-every", "0m"], "argument --checkpoint-every: '0m' is not a time such as"),
        (["--checkpoint-every", "0"], "--checkpoint-every 0: must be 1 or more"),
        (["--checkpoint-every", "nans"], "argument --checkpoint-every: 'nans' is not a time"),
        (["--profile-steps", "9,3"], "argument --profile-steps: '9,3' is not FIRST,LAST"),
        (["--warmup-steps=9", "--steps=9"], "--warmup-steps 9: the run of 9 steps is over before"),
        (["--fine-tune-layers", "some"], "argument --fine-tune-layers: 'some' is not a whole"),
        (["--weights", "imagenet"], "--weights imagenet: there are none for small_cnn"),
        (["--image-size", "4"], "--image-size 4: must be 8 or more, or 0"),
        (["--model", "a:b", "--dropout", "0.5"], "--dropout 0.5: --model a:b makes its own head"),
        (["--model", "a:b", "--weights", "w.h5"], "--weights w.h5: --model a:b loads its own"),
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


@pytest.mark.parametrize("program", ["task", "evaluate"])
def test_another_backend_of_keras_is_one_line(program: str) -> None:
    arguments = [sys.executable, "-m", f"trainer.{program}", "--records", "r", "--job-dir", "j"]
    ran = subprocess.run(
        arguments, env={**os.environ, "KERAS_BACKEND": "jax"}, capture_output=True, text=True
    )
    assert ran.returncode == 2
    assert "KERAS_BACKEND=jax: the trainer runs on TensorFlow: unset it" in ran.stdout
    assert not ran.stderr


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
    fields -= {"model_dir", "checkpoint_dir", "log_dir", "target"}  # They follow from others.
    assert {one.dest for one in options()} == fields
    with pytest.raises(SystemExit) as end:
        parse(["--help-all"], {})
    assert end.value.code == 0
    shown = capsys.readouterr().out
    for one in options():
        assert one.help, one.dest
        assert re.search(rf"{one.option_strings[0]}[ ,]", shown)  # Python 3.13: "-b, --batch"
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


@pytest.mark.parametrize("form", ["--name=value", "--na_me=value", "--na_me value"])
def test_every_option_can_be_a_trials_parameter(form: str) -> None:
    """As a tuning service writes them: names with underscores, whole numbers as 8.0."""
    values = {"steps": "8.0", "image_size": "8.0", "weights": "a.h5", "profile_steps": "2,3"}
    values |= {"color_jitter": "0.1,0.2,0.3,0.4", "export": "best,latest", "metric": "loss"}
    values |= {"model": "mobilenetv2", "warmup_steps": "4.0"}
    values |= dict.fromkeys(("dropout", "drop_path", "label_smoothing", "momentum"), "0.5")
    values |= {"checkpoint_every": "2.0", "erase": "0.5", "ema": "0.5", "summaries": "graph,images"}
    apart = ("epochs", "cut", "rand_augment")  # Each excludes another option.
    arguments, asked = [], {}
    for one in options():
        if one.dest in apart:
            continue
        value = values.get(one.dest)
        if value is None:
            numbers = {float: "1.0", whole_number: "2.0", switch: "true", None: "text"}
            numbers |= {config.layer_count: "2.0"}
            value = one.choices[-1] if one.choices else numbers[one.type]
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
            sized(parse([*given, *option], {}), 800)
    assert sized(parse([*given, "--warmup-steps", "49"], {}), 800).steps == 50
