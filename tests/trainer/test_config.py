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
