"""TensorBoard's event files, written without TensorBoard, which an image need not have.

A file holds TFRecords of tensorflow.Event. Each kind of value names the plugin that shows it, as in
tensorboard/plugins/*/metadata.py. Values are serialised at once and written by one thread, so a
slow bucket does not delay training.
"""

import itertools
import os
import socket
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import tensorflow as tf

from trainer.job import storage
from trainer.report import say

_Event = tf.compat.v1.Event
_Summary = tf.compat.v1.Summary
_Metadata = tf.compat.v1.SummaryMetadata
_SCALAR, _TENSOR, _BLOBS = 1, 2, 3  # tensorflow/core/framework/summary.proto, DataClass
_AUDIO = b"\x10\x0b"
"""AudioPluginData of tensorboard/plugins/audio/plugin_data.proto: encoding (2) is WAV (11)."""
_NUMBER = itertools.count()
BUCKETS = 30


class Events:
    """One run of a chart: adds an event file to a folder.

    Readers forget what an earlier attempt wrote for `first_step` and later steps.
    """

    def __init__(self, folder: str, first_step: int = 0) -> None:
        name = f"events.out.tfevents.{time.time():.0f}.{socket.gethostname()}.{os.getpid()}"
        self.path = f"{folder}/{name}.{next(_NUMBER):04d}"  # read in the order of names
        self._file: Any = None
        self._thread = ThreadPoolExecutor(1, "events")
        self._broken = False
        self._guarded(lambda: self._open(folder))
        self._put(_Event(wall_time=time.time(), file_version="brain.Event:2"))
        self.restart(first_step)  # The first START of a folder means nothing to readers.

    def _open(self, folder: str) -> None:
        storage.gfile.makedirs(folder)
        self._file = tf.io.TFRecordWriter(self.path)

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

    def sound(self, step: int, tag: str, wav: bytes) -> None:
        """A WAV file. A tag has one, because TensorBoard's page expects the same number in each
        step."""
        content = np.array([wav], object)
        value = _value(tag, content, "audio", _BLOBS, _AUDIO)
        self._values(step, [value])

    def histograms(self, step: int, values: Mapping[str, np.ndarray]) -> None:
        """Rows of left edge, right edge, count: see `buckets`."""
        rows = [
            _value(tag, v.astype(np.float64), "histograms", _TENSOR) for tag, v in values.items()
        ]
        self._values(step, rows)

    def text(self, step: int, tag: str, markdown: str) -> None:
        content = np.array([markdown.encode()], object)
        self._values(step, [_value(tag, content, "text", _TENSOR)])

    def graph(self, graph: Any) -> None:
        """A tf.GraphDef."""
        self._put(_Event(wall_time=time.time(), graph_def=graph.SerializeToString()))

    def hyperparameters(self, values: Mapping[str, Any], started: float) -> None:
        """For the HParams page. Booleans, numbers and text keep their types; None is left out."""
        fields = b""
        for key, value in values.items():
            if value is not None:
                entry = _bytes(1, key.encode()) + _bytes(2, _hyperparameter(value))
                fields += _bytes(1, entry)  # map<string, google.protobuf.Value> hparams = 1
        fields += _double(5, started)  # start_time_secs
        self._hparams("_hparams_/session_start_info", _bytes(3, fields))

    def finished(self, success: bool) -> None:
        """For the HParams page. Only once the run is over for good: readers keep the first."""
        fields = _varint(1 << 3) + _varint(1 if success else 2)  # status: SUCCESS or FAILURE
        fields += _double(2, time.time())  # end_time_secs
        self._hparams("_hparams_/session_end_info", _bytes(4, fields))

    def flush(self) -> None:
        """Have all events so far become readable; does not wait."""
        self._thread.submit(self._guarded, lambda: self._file.flush())

    def close(self) -> None:
        """Write all events, and wait for it."""
        self._thread.submit(self._guarded, lambda: self._file.close())
        self._thread.shutdown(wait=True)

    def _hparams(self, tag: str, content: bytes) -> None:
        empty = tf.make_tensor_proto([], tf.float32, shape=(0,))
        self._values(
            0, [_Summary.Value(tag=tag, tensor=empty, metadata=_metadata("hparams", content))]
        )

    def _values(self, step: int, values: list[Any]) -> None:
        if values:
            summary = _Summary(value=values)
            self._put(_Event(wall_time=time.time(), step=step, summary=summary))

    def _put(self, event: Any) -> None:
        content = event.SerializeToString()
        self._thread.submit(self._guarded, lambda: self._file.write(content))

    def _guarded(self, action: Any) -> None:
        if not self._broken:
            try:
                action()
            except Exception as error:  # This must not stop a training run.
                self._broken = True
                reason = getattr(error, "message", None) or f"{type(error).__name__}: {error}"
                text = f"no more TensorBoard events: {self.path}: {reason}"
                say("summaries_failed", text, "WARNING")


def buckets(values: np.ndarray) -> np.ndarray:
    """A histogram's rows of left edge, right edge and count, [BUCKETS, 3]; finite values only.

    If all values are the same, there is one bucket with a width of zero (as in
    tensorboard/plugins/histogram/summary_v2.py).
    """
    values = np.asarray(values, np.float32).reshape(-1)
    finite = np.isfinite(values)
    values = values if finite.all() else values[finite]
    if not values.size:
        return np.zeros((0, 3))
    low, high = float(values.min()), float(values.max())
    if low == high:
        return rows(np.array([0] * (BUCKETS - 1) + [values.size]), low, high)
    numbers = ((values - low) * (BUCKETS / (high - low))).astype(np.int32)
    counts = np.bincount(np.minimum(numbers, BUCKETS - 1), minlength=BUCKETS)
    return rows(counts, low, high)


def rows(counts: np.ndarray, low: float, high: float) -> np.ndarray:
    """Counts of equally wide buckets between `low` and `high` as rows of a histogram."""
    edges = np.linspace(low, high, len(counts) + 1)
    return np.stack([edges[:-1], edges[1:], counts], axis=1)


def _value(tag: str, content: Any, plugin: str, kind: int = _SCALAR, more: bytes = b"") -> Any:
    metadata = _metadata(plugin, more, kind)
    return _Summary.Value(tag=tag, tensor=tf.make_tensor_proto(content), metadata=metadata)


def _metadata(plugin: str, content: bytes, kind: int = 0) -> Any:
    data = _Metadata.PluginData(plugin_name=plugin, content=content)
    return _Metadata(plugin_data=data, data_class=kind)


# Messages of tensorboard/plugins/hparams/plugin_data.proto, in protobuf's encoding: TensorFlow does
# not have them.


def _hyperparameter(value: Any) -> bytes:
    """A google.protobuf.Value (struct.proto)."""
    if isinstance(value, bool):
        return _varint(4 << 3) + _varint(int(value))
    if isinstance(value, int | float):
        return _double(2, value)
    text = ",".join(map(str, value)) if isinstance(value, tuple | list) else str(value)
    return _bytes(3, text.encode())


def _varint(number: int) -> bytes:
    content = b""
    while number > 127:
        content += bytes([number & 127 | 128])
        number >>= 7
    return content + bytes([number])


def _bytes(field: int, content: bytes) -> bytes:
    return _varint(field << 3 | 2) + _varint(len(content)) + content


def _double(field: int, value: float) -> bytes:
    return _varint(field << 3 | 1) + np.float64(value).tobytes()
