"""What the input costs."""

import os

import pytest

pytestmark = pytest.mark.tensorflow
pytest.importorskip("tensorflow")

from tests.trainer.runs import SMOKE  # noqa: E402
from trainer.config import parse  # noqa: E402
from trainer.input.parts import Shard  # noqa: E402
from trainer.observe import input_report  # noqa: E402
from trainer.observe.input_report import remedy  # noqa: E402

GB = 10**9
RESIZED = Shard("train-0.tfrecord", 1000, jpeg=(256, 256, 341))
LARGE = Shard("train-0.tfrecord", 1000, jpeg=(400, 3000, 4000))
OTHERS = Shard("train-0.tfrecord", 1000)
"""Another tool's, of pictures of unknown size."""
CACHE = "--cache memory decodes each picture once, and takes at most 262 MB"
CORES = "about 6 cores would feed these steps, 2 are here; "


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
    shard: Shard,
    options: tuple[str, ...],
    left: int,
    free: int,
    says: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    words = ("--records", "r", "--job-dir", "j", "--image-size", "224", *options)
    assert remedy((shard,), parse([*words], {}), 0.65, left, free).startswith(says)


@pytest.mark.parametrize(("waits", "severity"), [(-1.0, "WARNING"), (1.0, "INFO")])
def test_a_run_says_once_what_share_waits_and_above_a_tenth_what_helps(
    waits: float, severity: str, tmp_path, task, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(input_report, "WAITS", waits)
    code, lines = task("--records", SMOKE, "--job-dir", tmp_path, "--steps", 150)
    assert code == 0
    [line] = [line for line in lines if line["event"] == "input"]
    assert line["severity"] == severity
    assert 0 <= line["wait_share"] < 1
    assert ("would feed these steps" in line["message"]) == (severity == "WARNING")
