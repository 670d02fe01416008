"""The cost of the input."""

import pytest

pytestmark = pytest.mark.tensorflow
pytest.importorskip("tensorflow")

from tests.trainer.runs import SMOKE  # noqa: E402
from trainer.config import parse  # noqa: E402
from trainer.input.parts import Shard  # noqa: E402
from trainer.observe import input_report  # noqa: E402
from trainer.observe.input_report import cost, remedy  # noqa: E402

GB = 10**9
RESIZED = Shard("train-0.tfrecord", 1000, jpeg=(256, 256, 341))
LARGE = Shard("train-0.tfrecord", 1000, jpeg=(400, 3000, 4000))
OTHERS = Shard("train-0.tfrecord", 1000)
"""Another tool's, of pictures of unknown size."""
CACHE = "--cache memory decodes each picture once, and takes at most 262 MB"
CORES = "a machine with 7 cores would feed these steps"
NEEDED = cost(seconds=2.0, waited=1.0, steps=10, batch=64, per_core=100.0, cores=2)
"""6.4 cores needed, 2 here."""


def test_the_cores_needed_are_those_that_would_never_let_a_step_wait() -> None:
    # 10 steps of 64 in 2 s, of which half is waiting: 640 images in 1 s of computing. A core
    # makes 100.
    found = cost(seconds=2.0, waited=1.0, steps=10, batch=64, per_core=100.0, cores=2)
    assert found.wait_share == pytest.approx(0.5)
    assert found.step_seconds == pytest.approx(0.1)
    assert found.cores_needed == pytest.approx(6.4)


@pytest.mark.parametrize(
    ("shard", "options", "left", "free", "says"),
    [
        (LARGE, (), 10**5, GB, "make smaller records: trainer.records --resize 224"),
        (LARGE, ("--crop", "0.5"), 10**5, GB, "make smaller records: trainer.records --resize 256"),
        (LARGE, ("--cut",), 10**5, GB, "make smaller records: trainer.records --resize 256"),
        (RESIZED, (), 10**5, GB, CACHE),
        (RESIZED, ("--cache", "memory"), 10**5, GB, CORES),
        (RESIZED, (), 1500, GB, CORES),
        (RESIZED, (), 10**5, GB // 4, CORES),
        (OTHERS, (), 10**5, GB, CORES),
    ],
)
def test_what_helps_is_the_cheapest_that_can_be_done(
    shard: Shard, options: tuple[str, ...], left: int, free: int, says: str
) -> None:
    words = ("--records", "r", "--job-dir", "j", "--image-size", "224", *options)
    assert remedy((shard,), parse([*words], {}), NEEDED, left, free) == says


def test_where_the_cores_are_enough_no_more_are_asked_for() -> None:
    words = ("--records", "r", "--job-dir", "j", "--image-size", "224")
    enough = cost(seconds=2.0, waited=1.0, steps=10, batch=64, per_core=1000.0, cores=2)
    said = remedy((OTHERS,), parse([*words], {}), enough, 10**5, GB)
    assert said.startswith("the cores are enough: copy the records to a disk of this machine")


def test_a_run_that_waits_says_what_helps(tmp_path, task, monkeypatch) -> None:
    monkeypatch.setattr(input_report, "WAITS", -1.0)
    code, lines = task("--records", SMOKE, "--job-dir", tmp_path, "--steps", 150)
    assert code == 0
    [line] = [line for line in lines if line["event"] == "input"]
    assert line["severity"] == "WARNING"
    enough = line["cores_needed"] <= line["cores"]
    says = "; the cores are enough: " if enough else " cores would feed these steps"
    assert says in line["message"]  # the records are PNGs, of unknown size


def test_a_run_says_it_once(tmp_path, task) -> None:
    code, lines = task("--records", SMOKE, "--job-dir", tmp_path, "--steps", 150)
    assert code == 0
    [line] = [line for line in lines if line["event"] == "input"]
    assert 0 <= line["wait_share"] < 1
    assert line["images_per_second_core"] > 0
    assert line["cores_needed"] > 0
    assert "cores needed" in line["message"]
