"""Which held-out examples the report shows."""

import types
from typing import Any

import numpy as np
import pytest

from trainer.observe import examples

pytestmark = pytest.mark.tensorflow


def test_the_surest_mistakes_come_first() -> None:
    sure = np.array([0.9, 0.4, 0.5, 0.8, 0.6, 0.95])
    answers, labels = np.array([0, 1, 2, 1, 0, 2]), np.array([0, 1, 1, 0, 2, 0])
    predicted = np.zeros((6, 3))
    predicted[np.arange(6), answers] = sure
    run: Any = types.SimpleNamespace(
        config=types.SimpleNamespace(target="class"), names=("a", "b", "c")
    )
    assert examples.worst(run, labels, predicted) == [
        (5, "is a, 95% c"),
        (3, "is a, 80% b"),
        (4, "is c, 60% a"),
        (2, "is b, 50% c"),
    ]
