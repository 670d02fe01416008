"""The command line, and the environment that Vertex AI gives. No TensorFlow."""

import subprocess
import sys

import pytest

from trainer.config import UsageError, parse

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


def test_an_option_wins_over_the_environment_and_the_environment_over_the_job_folder() -> None:
    given = ["--records", "r", "--job-dir", "j", "--log-dir", "l"]
    config = parse(given, VERTEX)
    assert (config.job_dir, config.log_dir) == ("j", "l")
    assert config.model_dir == "gs://bucket/run/model"


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (["--bogus", "1"], "unrecognized arguments: --bogus 1"),
        (["--step", "5"], "unrecognized arguments: --step 5"),
        (["--steps", "many"], "argument --steps: invalid int value: 'many'"),
        (["--steps", "0"], "--steps 0: must be 1 or more"),
        (["--batch-size", "-1"], "--batch-size -1: must be 1 or more"),
        (["--learning-rate", "nan"], "--learning-rate nan: must be more than 0"),
        (["--precision", "int4"], "argument --precision: invalid choice: 'int4'"),
    ],
)
def test_a_mistake_is_one_line_that_names_the_option(wrong: list[str], message: str) -> None:
    with pytest.raises(UsageError) as error:
        parse(["--records", "r", "--job-dir", "j", *wrong], {})
    assert str(error.value).startswith(message)
    assert "\n" not in str(error.value)


def test_a_run_without_a_place_to_write_is_refused() -> None:
    with pytest.raises(UsageError, match="give --job-dir or set AIP_MODEL_DIR"):
        parse(["--records", "r"], {})
    with pytest.raises(UsageError, match="--records"):
        parse(["--job-dir", "j"], {})


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


def test_a_tuning_service_names_and_writes_parameters_in_its_own_way() -> None:
    """parameterId with underscores, numbers as 64.0, switches with a value."""
    given = ["--records=r", "--job_dir=j", "--learning_rate=0.01", "--warmup_steps=64.0"]
    given += ["--batch_size=64.0", "--graph=false", "--deterministic=true", "--decay_at=0.3,0.6"]
    config = parse(given, {})
    assert (config.learning_rate, config.warmup_steps, config.batch_size) == (0.01, 64, 64)
    assert (config.graph, config.deterministic, config.decay_at) == (False, True, (0.3, 0.6))


def test_the_last_one_wins_as_a_trials_arguments_come_last() -> None:
    given = ["--records", "r", "--job-dir", "j", "--learning-rate", "1", "--learning-rate", "2"]
    assert parse(given, {}).learning_rate == 2


def test_each_trial_has_a_folder_of_its_own() -> None:
    config = parse(["--records", "r", "--job-dir", "gs://b/study"], {"CLOUD_ML_TRIAL_ID": "7"})
    assert config.job_dir == "gs://b/study/7"
    assert config.checkpoint_dir == "gs://b/study/7/checkpoints"
    # Where Vertex AI says where to write, its folders are the trial's already.
    assert parse(["--records=r"], {**VERTEX, "CLOUD_ML_TRIAL_ID": "7"}).job_dir == "gs://bucket/run"


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (["--profile-steps", "9,3"], "argument --profile-steps: '9,3' is not FIRST,LAST"),
        (["--profile-steps", "9"], "argument --profile-steps: '9' is not FIRST,LAST"),
        (["--decay-at", "0.5,0.2"], "argument --decay-at: '0.5,0.2' is not a rising list"),
        (["--decay-at", "x"], "argument --decay-at: 'x' is not a rising list"),
        (["--warmup-steps", "2.5"], "argument --warmup-steps: '2.5' is not a whole number"),
        (["--warmup-steps", "1000"], "--warmup-steps 1000: the run is over before its end"),
        (["--graph", "maybe"], "argument --graph: 'maybe' is not one of true, false"),
        (["--dropout", "1.5"], "--dropout 1.5: must be between 0 and 0.99"),
        (["--l2", "nan"], "--l2 nan: must be between 0 and 1"),
        (["--price-per-hour", "-1"], "--price-per-hour -1: must be 0 or more"),
        (["--metric", "f1"], "--metric f1: must be one of accuracy, loss"),
        (["--fine-tune-layers", "some"], "argument --fine-tune-layers: 'some' is not a whole"),
    ],
)
def test_a_mistake_in_what_looks_on_is_one_line(wrong: list[str], message: str) -> None:
    with pytest.raises(UsageError) as error:
        parse(["--records", "r", "--job-dir", "j", *wrong], {})
    assert str(error.value).startswith(message)
    assert "\n" not in str(error.value)
