"""Markers of a job: done, failed, no longer improving; and what they mean for a longer run."""

import json
import threading
import time
import types
from pathlib import Path
from typing import Any

import pytest

from tests.trainer.runs import SMOKE, cluster

pytestmark = pytest.mark.tensorflow
pytest.importorskip("tensorflow")

from trainer.config import Config, parse  # noqa: E402
from trainer.job import markers  # noqa: E402
from trainer.loop import outer  # noqa: E402


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


@pytest.mark.parametrize(
    ("found", "stops"),
    [
        ({"stop": True, "asked": 100, "epochs": 0.0}, True),
        ({"stop": True, "asked": 99, "epochs": 0.0}, False),
        ({"stop": False, "asked": 100, "epochs": 0.0}, False),
        (None, False),
    ],
)
def test_an_evaluator_s_word_on_a_shorter_run_stops_no_longer_one(
    tmp_path: Path, found: dict | None, stops: bool
) -> None:
    if found is not None:
        (tmp_path / "evaluations.json").write_text(json.dumps(found))
    chosen = config(tmp_path, "--steps", 100, "--early-stopping", 2)
    controller: Any = types.SimpleNamespace(config=chosen, _looked_at=float("-inf"))
    assert outer.Controller._evaluator_stops(controller) is stops


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


def test_trainers_that_gave_up_take_their_evaluator_with_them(
    tmp_path: Path, task: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This holds until they are started again. An evaluator that starts first waits for them."""
    trainer, evaluator = (one["TF_CONFIG"] for one in cluster("worker", "evaluator"))
    options = ("--records", SMOKE, "--job-dir", tmp_path, "--image-size", 8)
    longer = (*options, "--steps", 40, "--checkpoint-every", 10, "--early-stopping", 2)
    marker, evaluations = tmp_path / "FAILED", tmp_path / "evaluations.json"

    def run(role: str, *arguments: object) -> tuple[int, list[dict]]:
        monkeypatch.setenv("TF_CONFIG", role)
        return task(*arguments)

    assert run(trainer, *options, "--steps", 20)[0] == 0
    wild = ("--optimizer", "sgd", "--momentum", 0, "--learning-rate", 1e38)
    code, lines = run(trainer, *longer, "--job-dir", tmp_path / "wild", *wild)
    assert code == 4
    given_up = json.loads((tmp_path / "wild/FAILED").read_text())
    assert (given_up["code"], given_up["message"]) == (4, lines[-1]["message"])

    # From the attempt before, which was to make 20 steps.
    earlier = {"code": 4, "message": "long ago", "time": 0.0}
    marker.write_text(json.dumps(earlier))
    judged = {"best": 0.99, "best_step": 5, "waited": 2}
    shorter = {"step": 10, "stop": True, "judge": judged, "asked": 20, "epochs": 0.0}
    evaluations.write_text(json.dumps(shorter))

    def give_up_later() -> None:
        while json.loads(evaluations.read_text())["step"] == 10:
            time.sleep(0.05)
        marker.write_text(json.dumps(given_up))

    thread = threading.Thread(target=give_up_later, daemon=True)
    thread.start()
    code, lines = run(evaluator, *longer, "--peer-timeout", 60)
    thread.join()
    assert code == 4
    assert lines[-1]["message"] == f"the trainers have given up: {given_up['message']}"
    found = json.loads(evaluations.read_text())
    assert (found["step"], found["asked"], found["stop"]) == (20, 40, False)
    assert found["judge"] == {**judged, "waited": 1}, "patience is counted anew"

    # Now this marker is from the attempt before. It counts after the trainers did not come.
    code, lines = run(evaluator, *longer, "--peer-timeout", 1)
    assert (code, lines[-1]["severity"]) == (4, "ERROR")

    assert run(trainer, *longer)[0] == 0
    assert not marker.exists()
    assert json.loads((tmp_path / "DONE").read_text())["step"] == 40
