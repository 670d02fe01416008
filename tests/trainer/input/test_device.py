"""What a device makes of a batch is what the host makes of it, but for rounding."""

from pathlib import Path

import numpy as np
import pytest

from tests.trainer.input.samples import context, options, photographs
from trainer.config import Config
from trainer.input import data, device, splits

pytestmark = pytest.mark.tensorflow

MIXED = {"mixup": 0.4, "cutmix": 1.0}


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """JPEGs of several sizes."""
    return photographs(tmp_path_factory.mktemp("records"), (70, 50), (44, 60))


def batches(records: Path, config: Config, **where: bool) -> list[tuple[np.ndarray, np.ndarray]]:
    """The first batches of a run, wherever they are augmented."""
    shards, place = splits.find(str(records), "train"), context(0, 1)
    dataset = data.training(shards, place, config, 2, batch_size=8, consumed=16, **where)
    made = (device.augmented(*batch, config, 2) for batch in dataset.take(3))
    return [(images.numpy().astype(int), labels.numpy()) for images, labels in made]


@pytest.mark.parametrize(
    "how",
    [
        {"cut": True, "flip": "horizontal", "color_jitter": (0.4, 0.3, 0.5, 0.1), **MIXED},
        {"crop": 0.5, "turn": True, "rand_augment": 1, "erase": 0.2},
        {"trivial_augment": True},
    ],
)
def test_the_device_makes_the_host_s_pictures(records: Path, how: dict) -> None:
    config = options(image_size=40, **how)
    host, other = batches(records, config), batches(records, config, on_device=True)
    for (images, labels), (again, same) in zip(host, other, strict=True):
        assert images.shape == again.shape == (8, 40, 40, 3)
        np.testing.assert_allclose(labels, same, atol=1e-6)
        assert (abs(images - again) > 1).mean() < 1e-3


@pytest.mark.parametrize(
    ("how", "where"),
    [
        ({"crop": 0.5, "flip": "both"}, set()),
        ({"mixup": 0.4}, {"GPU", "TPU"}),
        ({"erase": 0.1}, {"GPU", "TPU"}),
        ({"rand_augment": 2}, {"GPU"}),
        ({"erase": 0.1, "deterministic": True}, set()),
    ],
)
def test_where_it_is_done_follows_the_device_and_the_options(how: dict, where: set[str]) -> None:
    assert {kind for kind in ("GPU", "TPU", "") if device.useful(options(**how), kind)} == where
