"""Which held-out examples TensorBoard shows."""

import contextlib
import types
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tests.trainer.runs import SMOKE
from trainer.config import parse
from trainer.input import splits
from trainer.observe import drawing, examples

pytestmark = pytest.mark.tensorflow


class Shown:
    """A stand-in for the board: the pictures by tag."""

    writes = True

    def __init__(self) -> None:
        self.images_of: dict[str, list[Any]] = {}

    def spend(self, kind: str) -> Any:
        return contextlib.nullcontext()

    def of(self, run: str) -> "Shown":
        assert run == "validation"
        return self

    def images(self, step: int, tag: str, images: list[Any]) -> None:
        self.images_of[tag] = images


def test_the_surest_mistakes_come_first_and_the_matrix_has_a_row_for_each_true_class(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The network answers with a picture's first value; the second value is its confidence."""
    answers, sureness = [0, 1, 2, 1, 0, 2], [9, 1, 2, 8, 3, 5]
    labels = np.array([0, 1, 1, 0, 2, 0])
    images = np.zeros((6, 2, 2, 3), np.uint8)
    images[:, 0, 0, 0], images[:, 0, 0, 1] = answers, sureness

    def network(images: Any, training: bool) -> Any:
        first = tf.cast(images[:, 0, 0, :2], tf.float32)
        return tf.one_hot(tf.cast(first[:, 0], tf.int32), 3) * first[:, 1:]

    monkeypatch.setattr(drawing, "confusion", lambda matrix, names: matrix.tolist())
    monkeypatch.setattr(drawing, "captioned", lambda image, lines: (image[0, 0, 1], lines))
    board: Any = Shown()
    pool: Any = types.SimpleNamespace(examples=lambda run: (images, labels))
    run: Any = types.SimpleNamespace(
        tally=types.SimpleNamespace(confusion=np.array([[1, 1, 1], [0, 1, 1], [1, 0, 0]])),
        config=types.SimpleNamespace(target="class", examples=3, test_flips=False),
        steps=1,
        names=("a", "b", "c"),
        model=network,
    )
    examples.Pictures(board, pool).evaluated(run, 1, {})
    assert board.images_of["confusion"] == [[[1, 1, 1], [0, 1, 1], [1, 0, 0]]]
    shown = board.images_of["misclassified"]
    assert [sure for sure, _ in shown] == [8, 5, 3]
    assert shown[0][1] == ["is a", "100% b"]


def test_the_pool_is_of_real_examples_alone() -> None:
    """There are 200; batches are filled up with examples that do not count."""
    config = parse(["--records", str(SMOKE), "--job-dir", "-", "--image-size", "8"], {})
    run: Any = types.SimpleNamespace(
        validation=splits.find(str(SMOKE), "validation"), config=config, names=tuple("0123456789")
    )
    images, labels = examples.Pool().examples(run)
    assert (len(images), len(labels)) == (200, 200)
    assert images.max(axis=(1, 2, 3)).min() > 0
    assert set(labels) == set(range(10))
