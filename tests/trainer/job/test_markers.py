"""The marker of a job that is done, and what it means for a longer run."""

import json
from pathlib import Path

import pytest

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
