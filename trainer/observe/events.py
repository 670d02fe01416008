"""TensorBoard's event files, by TensorFlow's own writer: an image need not have TensorBoard.

Each kind of value names the plugin that shows it, as in tensorboard/plugins/*/metadata.py. The
writer has a thread of its own, so a slow bucket does not delay training.
"""

import itertools
import os
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from trainer.report import say

_Event = tf.compat.v1.Event
_Summary = tf.compat.v1.Summary
_Metadata = tf.compat.v1.SummaryMetadata
_SCALAR, _TENSOR = 1, 2  # tensorflow/core/framework/summary.proto, DataClass
_NUMBER = itertools.count()
BUCKETS = 30
FLUSH = 5
"""Seconds after which an event becomes readable, with the next one."""


def _loud_unless_told(args: Any, hook: Any = threading.excepthook) -> None:
    """The writer's thread raises what the writer raises, too, and `_guarded` reports."""
    if getattr(args.thread, "name", "") != "EventLoggerThread":
        hook(args)


threading.excepthook = _loud_unless_told


class Events:
    """One run of a chart: adds an event file to a folder.

    Readers forget what an earlier attempt wrote for `first_step` and later steps.
    """

    def __init__(self, folder: str, first_step: int = 0) -> None:
        self._folder = folder
        self._writer: Any = None
        self._guarded(self._open)
        self.restart(first_step)  # The first START of a folder means nothing to readers.

    def _open(self) -> None:
        suffix = f".{os.getpid()}.{next(_NUMBER):04d}"  # read in the order of names
        with tf.Graph().as_default():  # which the writer demands and does not use
            self._writer = tf.compat.v1.summary.FileWriter(
                self._folder, max_queue=0, flush_secs=FLUSH, filename_suffix=suffix
            )

    def restart(self, step: int) -> None:
        """Make readers forget what was written for `step` and later steps."""
        start = tf.compat.v1.SessionLog(status=tf.compat.v1.SessionLog.START)
        self._put(_Event(wall_time=time.time(), step=step, session_log=start))

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        self._values(
            step, [_value(tag, np.float32(v), "scalars", _SCALAR) for tag, v in values.items()]
        )

    def histograms(self, step: int, values: Mapping[str, np.ndarray]) -> None:
        """Rows of left edge, right edge, count: see `buckets`."""
        self._values(step, [_value(t, v, "histograms") for t, v in values.items()])

    def text(self, step: int, tag: str, markdown: str) -> None:
        content = np.array([markdown.encode()], object)
        self._values(step, [_value(tag, content, "text")])

    def graph(self, graph: Any) -> None:
        """A tf.GraphDef."""
        self._put(_Event(wall_time=time.time(), graph_def=graph.SerializeToString()))

    def close(self) -> None:
        """Write all events, and wait for it."""
        self._guarded(lambda: self._writer.close())

    def _values(self, step: int, values: list[Any]) -> None:
        if values:
            summary = _Summary(value=values)
            self._put(_Event(wall_time=time.time(), step=step, summary=summary))

    def _put(self, event: Any) -> None:
        self._guarded(lambda: self._writer.add_event(event))

    def _guarded(self, action: Callable[[], None]) -> None:
        """Do something with the writer; after a failure, which must not stop a run, nothing."""
        if self._folder:
            try:
                action()
            except Exception as error:
                reason = getattr(error, "message", None) or f"{type(error).__name__}: {error}"
                text = f"no more TensorBoard events in {self._folder}: {reason}"
                self._folder = ""
                say("summaries_failed", text, "WARNING")


def buckets(values: np.ndarray) -> np.ndarray:
    """Return a histogram's rows of left edge, right edge and count, [BUCKETS, 3]; finite values
    only.
    """
    values = np.asarray(values, np.float32).reshape(-1)
    values = values[np.isfinite(values)]
    if not values.size:
        return np.zeros((0, 3))
    counts, edges = np.histogram(values, BUCKETS)
    return rows(counts, float(edges[0]), float(edges[-1]))


def rows(counts: np.ndarray, low: float, high: float) -> np.ndarray:
    """Return counts of equally wide buckets between `low` and `high` as rows of a histogram."""
    edges = np.linspace(low, high, len(counts) + 1)
    return np.stack([edges[:-1], edges[1:], counts], axis=1)


def _value(tag: str, content: Any, plugin: str, kind: int = _TENSOR) -> Any:
    shown_by = _Metadata.PluginData(plugin_name=plugin)
    metadata = _Metadata(plugin_data=shown_by, data_class=kind)
    return _Summary.Value(tag=tag, tensor=tf.make_tensor_proto(content), metadata=metadata)
