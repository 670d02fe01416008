"""Classes of unequal size: weights in the loss, or repeated examples."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from trainer.input.parts import Piece


def counts(labels: Mapping[str, np.ndarray], classes: int) -> np.ndarray:
    """Return examples of each class."""
    every = [np.zeros(0, np.int64), *labels.values()]
    return np.bincount(np.concatenate(every), minlength=classes)


def weights(counted: np.ndarray) -> np.ndarray:
    """Return what an example of each class counts in the loss: examples / (classes x examples of
    the class), as scikit-learn's class_weight="balanced"; the mean over the examples is 1. A
    class without examples has 0.
    """
    present = counted > 0
    share = counted.sum() / (present.sum() * np.maximum(counted, 1))
    return np.where(present, share, 0.0).astype(np.float32)


@dataclass(frozen=True)
class Repeats:
    """How often an epoch has each example: its class's size goes into that of the largest so many
    times, rounded."""

    of: tuple[int, ...]
    """By class."""
    labels: Mapping[str, np.ndarray]
    """The label of each record, by file."""

    @classmethod
    def balanced(cls, labels: Mapping[str, np.ndarray], classes: int) -> "Repeats":
        counted = counts(labels, classes)
        times = np.maximum(np.rint(counted.max() / np.maximum(counted, 1)), 1).astype(int)
        return cls(tuple(np.where(counted > 0, times, 1).tolist()), labels)

    def size(self, pieces: Iterable[Piece]) -> int:
        """Return examples that an epoch has of these records."""
        times = np.array(self.of)
        own = (self.labels[p.path][p.start : p.start + p.count] for p in pieces)
        return int(sum(times[some].sum() for some in own))
