"""What is written without TensorFlow is what TensorFlow writes."""

import io
from pathlib import Path

import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from trainer.records import tfrecord

pytestmark = pytest.mark.tensorflow

values = st.one_of(st.binary(max_size=300), st.integers(0, 2**63 - 1))


def theirs(features: dict) -> tf.train.Example:
    proto = {}
    for name, value in features.items():
        if isinstance(value, bytes):
            proto[name] = tf.train.Feature(bytes_list=tf.train.BytesList(value=[value]))
        else:
            proto[name] = tf.train.Feature(int64_list=tf.train.Int64List(value=[value]))
    return tf.train.Example(features=tf.train.Features(feature=proto))


@settings(deadline=None)
@given(st.dictionaries(st.text(min_size=1, max_size=20), values, max_size=5))
def test_tensorflow_reads_our_examples(features: dict) -> None:
    ours, example = tfrecord.example(features), theirs(features)
    if features:  # An empty map is an empty field here, and no field there.
        assert tf.train.Example.FromString(ours) == example


def test_files_are_tensorflows(tmp_path: Path) -> None:
    payloads = [b"", b"x", bytes(range(256)) * 40]
    with tf.io.TFRecordWriter(str(tmp_path / "theirs")) as writer:
        for payload in payloads:
            writer.write(payload)
    ours = b"".join(map(tfrecord.frame, payloads))
    assert ours == (tmp_path / "theirs").read_bytes()
    file = io.BytesIO(ours)
    found = list(tfrecord.lengths(file, len(ours)))
    assert [tfrecord.payload(file, *place) for place in found] == payloads


def test_the_slow_checksum_is_the_fast_one(monkeypatch: pytest.MonkeyPatch) -> None:
    content = bytes(range(251)) * 3
    fast = tfrecord.frame(content)
    monkeypatch.setattr(tfrecord, "checksum", lambda: tfrecord._slow)
    assert tfrecord.frame(content) == fast
