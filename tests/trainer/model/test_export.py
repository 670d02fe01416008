"""The SavedModel returns what evaluation computes, from files and from tensors."""

import itertools
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from tests.trainer.runs import SMOKE
from trainer.config import parse
from trainer.input import decoding, splits
from trainer.loop import inner
from trainer.model import networks, results
from trainer.records import tfrecord

pytestmark = pytest.mark.tensorflow

NAMES = tuple("abcdefghij")
SIZE, CROP = ("--image-size", "16"), ("--evaluate-crop", "0.5")
CONFIG = parse(["--records", "-", "--job-dir", "-", *SIZE], {})


@pytest.fixture(scope="module")
def trained() -> object:
    """A network with weights that no initializer gives."""
    network = networks.build(CONFIG, 10, "float32")
    for number, variable in enumerate(network.variables):
        values = np.random.default_rng(number).normal(0, 0.2, variable.shape)
        variable.assign(values.astype(np.float32))
    return network


@pytest.fixture(scope="module")
def saved(trained, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("job") / "model"
    weights = {variable.path: variable.numpy() for variable in trained.variables}
    for _ in range(2):  # The second replaces the first, as after a restart.
        results.export(weights, NAMES, CONFIG, str(path))
    assert [child.name for child in path.parent.iterdir()] == ["model"]
    return path


@pytest.fixture(scope="module")
def digits() -> list[bytes]:
    path = str(SMOKE / "validation-00000-of-00001.tfrecord")
    examples = map(tf.train.Example.FromString, tf.data.TFRecordDataset(path).as_numpy_iterator())
    return [
        example.features.feature["image/encoded"].bytes_list.value[0]
        for example in itertools.islice(examples, 20)
    ]


def test_files_and_tensors_give_what_evaluation_gives(trained, saved: Path, digits) -> None:
    signatures = tf.saved_model.load(str(saved)).signatures
    images = tf.stack([decoding.decode(tf.constant(png), 16) for png in digits])
    expected = tf.nn.softmax(trained(images, training=False)).numpy()
    by_bytes = signatures["serving_default"](image_bytes=tf.constant(digits))
    by_tensors = signatures["tensors"](images=images)
    for result in (by_bytes, by_tensors):
        np.testing.assert_array_equal(result["probabilities"].numpy(), expected)
        labels = [name.decode() for name in result["label"].numpy()]
        assert labels == [NAMES[index] for index in expected.argmax(axis=-1)]
    assert len(set(expected.argmax(axis=-1))) > 1


def test_the_central_square_alone_is_evaluated_predicted_and_served(
    trained, tmp_path: Path
) -> None:
    """Pictures with a frame of noise around them give what the pictures alone give."""
    random = np.random.default_rng(5)
    pictures = random.integers(0, 256, (40, 16, 16, 3)).astype(np.uint8)
    framed = random.integers(0, 256, (40, 32, 32, 3)).astype(np.uint8)
    framed[:, 8:24, 8:24] = pictures
    weights = {variable.path: variable.numpy() for variable in trained.variables}
    measured = {}
    for name, pixels, more in (
        ("plain", pictures, []),
        ("framed", framed, CROP),
        ("all", framed, []),
    ):
        files = [tf.io.encode_png(picture).numpy() for picture in pixels]
        examples = [tfrecord.serialise(file, number % 10) for number, file in enumerate(files)]
        (tmp_path / name).mkdir()
        path = tmp_path / name / "validation-0.tfrecord"
        path.write_bytes(b"".join(map(tfrecord.frame, examples)))
        job = ["--records", str(tmp_path / name), "--job-dir", str(tmp_path), *SIZE, *more]
        config = parse(job, {})
        shards = splits.find(config.records, "validation")
        strategy = tf.distribute.get_strategy()
        result = inner.Evaluation(strategy, trained, config, 10, shards).run()
        path = results.predict(trained, NAMES, config, shards, str(tmp_path / f"{name}.csv"))
        results.export(weights, NAMES, config, str(tmp_path / "model"))
        serve = tf.saved_model.load(str(tmp_path / "model")).signatures["serving_default"]
        served = serve(image_bytes=tf.constant(files))["probabilities"].numpy()
        measured[name] = (result["loss"], Path(path).read_text(), served.tolist())
    assert measured["framed"] == measured["plain"]
    for cropped, whole in zip(measured["framed"], measured["all"], strict=True):
        assert cropped != whole


def test_a_model_trained_in_mixed_precision_is_served_in_float32(tmp_path: Path) -> None:
    network = networks.build(CONFIG, 10, "mixed_bfloat16")
    weights = {variable.path: variable.numpy() for variable in network.variables}
    results.export(weights, NAMES, CONFIG, str(tmp_path / "model"))
    images = tf.zeros((1, 16, 16, 3), tf.uint8)
    served = tf.saved_model.load(str(tmp_path / "model")).signatures["tensors"](images=images)
    assert served["probabilities"].dtype == tf.float32
    expected = tf.nn.softmax(network(images, training=False)).numpy()
    np.testing.assert_allclose(served["probabilities"].numpy(), expected, atol=2e-2)
