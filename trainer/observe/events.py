"""TensorBoard's event files, by TensorFlow's own writer: an image need not have TensorBoard.

Each kind of value names the plugin that shows it, as in tensorboard/plugins/*/metadata.py. The
writer has a thread of its own, so a slow bucket does not delay training.
"""

import itertools
import os
import struct
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from google.protobuf import struct_pb2  # type: ignore[import-untyped]

from trainer.report import say

_Event = tf.compat.v1.Event
_Summary = tf.compat.v1.Summary
_Metadata = tf.compat.v1.SummaryMetadata
_SCALAR, _TENSOR, _BLOBS = 1, 2, 3  # tensorflow/core/framework/summary.proto, DataClass
"""AudioPluginData of tensorboard/plugins/audio/plugin_data.proto: encoding (2) is WAV (11)."""
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
        self._values(step, [_value(tag, np.float32(v), "scalars") for tag, v in values.items()])

    def images(self, step: int, tag: str, images: Sequence[np.ndarray]) -> None:
        """uint8 [height, width, 3] each, of one size."""
        if images:
            height, width, _ = images[0].shape
            encoded = [tf.io.encode_png(image).numpy() for image in images]
            content = np.array([str(width).encode(), str(height).encode(), *encoded], object)
            self._values(step, [_value(tag, content, "images", _BLOBS)])

    def histograms(self, step: int, values: Mapping[str, np.ndarray]) -> None:
        """Rows of left edge, right edge, count: see `buckets`."""
        self._values(step, [_value(t, v, "histograms", _TENSOR) for t, v in values.items()])

    def text(self, step: int, tag: str, markdown: str) -> None:
        content = np.array([markdown.encode()], object)
        self._values(step, [_value(tag, content, "text", _TENSOR)])

    def graph(self, graph: Any) -> None:
        """A tf.GraphDef."""
        self._put(_Event(wall_time=time.time(), graph_def=graph.SerializeToString()))

    def hyperparameters(self, values: Mapping[str, Any], started: float) -> None:
        """For the HParams page. Booleans, numbers and text keep their types; None is left out."""
        hparams = struct_pb2.Struct()  # the same map of fields as SessionStartInfo.hparams (1)
        for key, value in values.items():
            if value is not None:
                plain = isinstance(value, bool | int | float | str)
                hparams[key] = value if plain else ",".join(map(str, value))
        content = hparams.SerializeToString() + _double(5, started)  # start_time_secs
        self._hparams("session_start_info", 3, content)

    def finished(self, success: bool) -> None:
        """For the HParams page. Only once the run is over for good: readers keep the first."""
        status = b"\x08\x01" if success else b"\x08\x02"  # SUCCESS or FAILURE
        self._hparams("session_end_info", 4, status + _double(2, time.time()))  # end_time_secs

    def close(self) -> None:
        """Write all events, and wait for it."""
        self._guarded(lambda: self._writer.close())

    def _hparams(self, tag: str, field: int, content: bytes) -> None:
        """HParamsPluginData of tensorboard/plugins/hparams/plugin_data.proto with one field, in
        protobuf's encoding: TensorFlow does not have the message."""
        size = len(content)
        length = bytes([size & 127 | 128, size >> 7 & 127 | 128, size >> 14])
        metadata = _metadata("hparams", bytes([field << 3 | 2]) + length + content)
        empty = tf.make_tensor_proto([], tf.float32, shape=(0,))
        value = _Summary.Value(tag=f"_hparams_/{tag}", tensor=empty, metadata=metadata)
        self._values(0, [value])

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


def _value(tag: str, content: Any, plugin: str, kind: int = _SCALAR, more: bytes = b"") -> Any:
    metadata = _metadata(plugin, more, kind)
    return _Summary.Value(tag=tag, tensor=tf.make_tensor_proto(content), metadata=metadata)


def _metadata(plugin: str, content: bytes, kind: int = 0) -> Any:
    data = _Metadata.PluginData(plugin_name=plugin, content=content)
    return _Metadata(plugin_data=data, data_class=kind)


def _double(field: int, value: float) -> bytes:
    return bytes([field << 3 | 1]) + struct.pack("<d", value)
