"""What practitioners add to a run: a run that stops and goes on ends with the same bits."""

from pathlib import Path

import numpy as np
import pytest

from tests.trainer.runs import SMOKE, same_weights, weights

pytestmark = pytest.mark.tensorflow

COMMON = ("--records", SMOKE, "--image-size", 8, "--batch-size", 4)
QUICK = (*COMMON, "--export", "none", "--schedule", "constant")

RECIPES = {
    "classes": (
        *("--ema", 0.9, "--evaluate-every", 2, "--accumulate", 2, "--class-weights", "balanced"),
        *("--sampling", "balanced", "--optimizer", "adamw", "--weight-decay", 0.01),
    ),
    "pictures": (
        *("--mixup", 0.2, "--cutmix", 1, "--label-smoothing", 0.1),
        *("--rand-augment", 2, "--crop", 0.5),
    ),
}


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The job folder of a run with nothing of it."""
    from trainer import task

    job = tmp_path_factory.mktemp("plain")
    assert task.main([str(one) for one in (*QUICK, "--job-dir", job, "--steps", 8)]) == 0
    return job


@pytest.mark.parametrize("options", RECIPES.values(), ids=list(RECIPES))
def test_a_run_that_goes_on_ends_with_the_bits_of_an_unbroken_one(
    options: tuple[object, ...], plain: Path, tmp_path: Path, task
) -> None:
    for job, lengths in (("whole", (8,)), ("parts", (3, 8))):
        for steps in lengths:
            code, lines = task(*QUICK, "--job-dir", tmp_path / job, "--steps", steps, *options)
            assert code == 0, lines[-1]
    same_weights(tmp_path / "whole", tmp_path / "parts", 8)
    before, other = weights(plain, 8), weights(tmp_path / "whole", 8)
    assert any(not np.array_equal(before[name], other.get(name)) for name in before), (
        "it does a thing"
    )
