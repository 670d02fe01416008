"""TensorBoard's event files, written by TensorFlow alone: what tf.summary.scalar, histogram and
image write, they take from TensorBoard, which an image need not have."""

import time
from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf

FLUSH = 30
"""Seconds after which events become readable. A bucket gets the whole file again each time."""
_START = tf.compat.v1.SessionLog(status=tf.compat.v1.SessionLog.START)


class Events:
    """An event file of a folder: one run in TensorBoard."""

    def __init__(self, folder: str) -> None:
        self._writer = tf.summary.create_file_writer(folder, flush_millis=1000 * FLUSH)
        self._handle: Any = self._writer._resource

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        """Write those of the `values` that are finite."""
        summary = tf.compat.v1.Summary()
        for tag, value in values.items():
            if np.isfinite(value):
                summary.value.add(tag=tag, simple_value=value)
        self._add(step, summary=summary)

    def begin(self, step: int) -> None:
        """Have readers forget what came after `step` before this."""
        self._add(step, session_log=_START)

    def histogram(self, step: int, tag: str, values: Any) -> None:
        tf.raw_ops.WriteHistogramSummary(writer=self._handle, step=step, tag=tag, values=values)

    def images(self, step: int, tag: str, images: Any) -> None:
        """Write uint8 pictures [n, height, width, 3] as TAG/image/0 and so on."""
        black = tf.zeros([3], tf.uint8)  # for values that are not finite
        tf.raw_ops.WriteImageSummary(
            writer=self._handle, step=step, tag=tag, tensor=images, bad_color=black,
            max_images=len(images),
        )  # fmt: skip

    def graph(self, graph: tf.Graph) -> None:
        with self._writer.as_default():
            tf.summary.graph(graph)

    def flush(self) -> None:
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()

    def _add(self, step: int, **content: Any) -> None:
        event = tf.compat.v1.Event(wall_time=time.time(), step=step, **content)
        tf.raw_ops.ImportEvent(writer=self._handle, event=event.SerializeToString())
