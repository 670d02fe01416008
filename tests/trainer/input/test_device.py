"""What a device makes of whole pictures is what the host makes of them, but for rounding."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.trainer.input.samples import context, photographs
from tests.trainer.runs import SMOKE, weights
from trainer.config import Config, UsageError, parse
from trainer.input import data, device, splits

pytestmark = pytest.mark.tensorflow

MIXED = ("--mixup", "0.4", "--cutmix", "1")


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """JPEGs of several sizes."""
    return photographs(tmp_path_factory.mktemp("records"), (70, 50), (44, 60))


def batches(records: Path, config: Config) -> list[tuple[np.ndarray, np.ndarray]]:
    """The first batches of a run, wherever they are augmented."""
    shards = splits.find(str(records), "train")
    dataset = data.training(shards, context(0, 1), config, 2, batch_size=8, consumed=16)
    made = (device.augmented(*batch, config, 2) for batch in dataset.take(4))
    return [(images.numpy().astype(int), labels.numpy()) for images, labels in made]


@pytest.mark.parametrize(
    "options",
    [
        ("--crop", "0.3", "--flip", "both", "--turn"),
        ("--cut", "--flip", "horizontal", *MIXED),
        ("--color-jitter", "0.4,0.3,0.5,0.1"),
        ("--crop", "0.5", "--rand-augment", "2", "--erase", "0.2"),
        ("--trivial-augment",),
    ],
)
def test_the_device_makes_the_host_s_pictures(records: Path, options: tuple[str, ...]) -> None:
    given = ("--records", str(records), "--job-dir", "j", "--image-size", "40")
    config = parse((*given, *options), {})
    host = batches(records, config)
    other = batches(records, replace(config, augment_on="device"))
    for (images, labels), (again, same) in zip(host, other, strict=True):
        assert images.shape == again.shape == (8, 40, 40, 3)
        np.testing.assert_allclose(labels, same, atol=1e-6)
        # A change such as posterize or a turn by nearest neighbours makes much of a rounding, and
        # colours of their own something.
        drawn = {"--rand-augment", "--trivial-augment"} & {*options}
        far = abs(images - again) > 2
        assert far.mean() < (0.06 if drawn else 1e-3 if "--color-jitter" in options else 1e-4)


def test_a_run_learns_the_same_with_either(tmp_path: Path, records: Path, task) -> None:
    options = ("--image-size", 40, "--steps", 4, "--batch-size", 8, "--crop", 0.5, "--export")
    options += ("none", "--optimizer", "sgd")  # Adam makes a whole step of the least difference.
    for where in ("device", "host"):
        given = ("--records", records, "--job-dir", tmp_path / where, "--augment-on", where)
        assert task(*given, *options)[0] == 0
    one, other = (weights(tmp_path / where, 4) for where in ("device", "host"))
    for name, value in one.items():
        np.testing.assert_allclose(value, other[name], atol=0.01, err_msg=name)


def test_where_it_is_done_follows_the_device_and_the_records(records: Path) -> None:
    given = ("--records", "r", "--job-dir", "j", "--image-size", "40")
    config, shards = parse((*given, "--crop", "0.5"), {}), splits.find(str(records), "train")
    assert device.settled(config, shards, "GPU").augment_on == "device"
    assert device.settled(config, shards, "TPU").augment_on == "device"
    assert device.settled(config, shards, "").augment_on == "host"
    assert device.settled(parse(given, {}), shards, "GPU").augment_on == "host", "nothing to do"
    drawn = parse((*given, "--rand-augment", "2"), {})
    assert device.settled(drawn, shards, "TPU").augment_on == "host"
    exact = parse((*given, "--crop", "0.5", "--deterministic"), {})
    assert device.settled(exact, shards, "GPU").augment_on == "host"
    unknown = splits.find(str(SMOKE), "train")
    assert device.settled(config, unknown, "GPU").augment_on == "host"
    with pytest.raises(UsageError, match=r"^--augment-on device: takes pictures of less than"):
        device.settled(parse((*given, "--augment-on", "device"), {}), unknown, "GPU")
