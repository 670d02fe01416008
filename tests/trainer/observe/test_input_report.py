"""The cost of the input."""

import pytest

pytestmark = pytest.mark.tensorflow
pytest.importorskip("tensorflow")

from tests.trainer.runs import SMOKE  # noqa: E402
from trainer.observe.input_report import cost  # noqa: E402


def test_the_cores_needed_are_those_that_would_never_let_a_step_wait() -> None:
    # 10 steps of 64 in 2 s, of which half is waiting: 640 images in 1 s of computing. A core
    # makes 100.
    found = cost(seconds=2.0, waited=1.0, steps=10, batch=64, per_core=100.0, cores=2)
    assert found.wait_share == pytest.approx(0.5)
    assert found.step_seconds == pytest.approx(0.1)
    assert found.cores_needed == pytest.approx(6.4)


def test_a_run_says_it_once(tmp_path, task) -> None:
    code, lines = task("--records", SMOKE, "--job-dir", tmp_path, "--steps", 150)
    assert code == 0
    [line] = [line for line in lines if line["event"] == "input"]
    assert 0 <= line["wait_share"] < 1
    assert line["images_per_second_core"] > 0
    assert line["cores_needed"] > 0
    assert "cores needed" in line["message"]
