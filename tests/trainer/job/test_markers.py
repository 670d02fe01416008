"""The marker of a job that is done, and what it means for a longer run."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.trainer.runs import SMOKE
from trainer.config import Config, parse
from trainer.job import markers

pytestmark = pytest.mark.tensorflow


def config(job: object, *options: object) -> Config:
    return parse(["--records", "r", "--job-dir", str(job), *map(str, options)], {})


@pytest.mark.parametrize(
    ("done", "options", "finished"),
    [
        ({"step": 100}, ("--steps", 100), True),
        ({"step": 100, "asked": 100}, ("--steps", 101), False),
        ({"step": 30, "asked": 100, "early": True}, ("--steps", 100), True),
        ({"step": 30, "asked": 100, "early": True}, ("--steps", 101), False),
        ({"step": 30, "asked": 100, "early": True}, ("--steps", 20), True),
        ({"step": 90, "asked": 90, "epochs": 3.0}, ("--epochs", 3), True),
        ({"step": 90, "asked": 90, "epochs": 3.0}, ("--epochs", 4), False),
        ({"step": 30, "asked": 90, "epochs": 3.0, "early": True}, ("--epochs", 3), True),
        ({"step": 90, "asked": 90, "epochs": 0.0}, ("--epochs", 3), False),
        ({"step": 90, "asked": 90, "epochs": 3.0}, ("--steps", 90), True),
    ],
)
def test_done_holds_for_the_length_it_was_asked_for(
    tmp_path: Path, done: dict, options: tuple, finished: bool
) -> None:
    assert markers.finished(config(tmp_path, *options)) is None
    (tmp_path / "DONE").write_text(json.dumps(done))
    found = markers.finished(config(tmp_path, *options))
    assert found == (done if finished else None)


def test_a_run_stopped_early_trains_on_where_more_steps_are_asked_for(
    tmp_path: Path, task: Any
) -> None:
    """The patience starts anew: two more evaluations without a better one, not zero."""
    options = ("--records", SMOKE, "--job-dir", tmp_path, "--image-size", 8)
    options += ("--evaluate-every", 10, "--early-stopping", 2, "--learning-rate", 1e-12)
    for steps, stopped in ((500, 30), (1000, 50), (2000, 70)):
        code, lines = task(*options, "--steps", steps)
        assert code == 0
        assert [line["step"] for line in lines if line["event"] == "early"] == [stopped]
    assert [line["step"] for line in lines if line["event"] == "resumed"] == [50]
    code, lines = task(*options, "--steps", 2000)
    assert [line["message"] for line in lines] == [
        "already finished at step 70, stopped early: nothing to do"
    ]
