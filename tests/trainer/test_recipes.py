"""What practitioners add to a run: a run that stops and goes on ends with the same bits."""

from pathlib import Path

import numpy as np
import pytest

from tests.trainer.runs import SMOKE, same_weights, weights

pytestmark = pytest.mark.tensorflow
pytest.importorskip("tensorflow")

COMMON = ("--records", SMOKE, "--image-size", 8, "--batch-size", 4, "--histograms-every", 0)
QUICK = (*COMMON, "--activations-every", 0, "--graph", "false", "--export", "none")

RECIPES = {
    "mixing": ("--mixup", 0.2, "--cutmix", 1, "--label-smoothing", 0.1),
}


@pytest.mark.parametrize("options", RECIPES.values(), ids=list(RECIPES))
def test_a_run_that_goes_on_ends_with_the_bits_of_an_unbroken_one(
    options: tuple[object, ...], tmp_path: Path, task
) -> None:
    for job, lengths in (("plain", (8,)), ("whole", (8,)), ("parts", (3, 8))):
        with_it = () if job == "plain" else options
        for steps in lengths:
            code, lines = task(*QUICK, "--job-dir", tmp_path / job, "--steps", steps, *with_it)
            assert code == 0, lines[-1]
    same_weights(tmp_path / "whole", tmp_path / "parts", 8)
    plain, other = weights(tmp_path / "plain", 8), weights(tmp_path / "whole", 8)
    assert any(not np.array_equal(plain[name], other.get(name)) for name in plain), (
        "it does a thing"
    )
