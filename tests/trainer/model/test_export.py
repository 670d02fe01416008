"""The SavedModel returns what evaluation computes, from files and from tensors."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.trainer.runs import SMOKE

pytestmark = pytest.mark.tensorflow
tf = pytest.importorskip("tensorflow")

from trainer.config import parse  # noqa: E402
from trainer.input import decoding, reading  # noqa: E402
from trainer.model import export, networks  # noqa: E402

NAMES = tuple("abcdefghij")
CONFIG = parse(["--records", "-", "--job-dir", "-", "--image-size", "16"], {})


@pytest.fixture(scope="module")
def trained() -> object:
    """A network with weights that no initializer gives."""
    network = networks.small_cnn(10, 16, "float32")
    for number, variable in enumerate(network.variables):
        values = np.random.default_rng(number).normal(0, 0.2, variable.shape)
        variable.assign(values.astype(np.float32))
    return network


@pytest.fixture(scope="module")
def saved(trained, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("job") / "model"
    weights = {variable.path: variable.numpy() for variable in trained.variables}
    for _ in range(2):  # The second replaces the first, as after a restart.
        export.export(weights, NAMES, CONFIG, str(path))
    assert [child.name for child in path.parent.iterdir()] == ["model"]
    return path


@pytest.fixture(scope="module")
def digits() -> list[bytes]:
    path = str(SMOKE / "validation-00000-of-00001.tfrecord")
    return [
        tf.io.parse_single_example(record, reading.FEATURES)["image/encoded"].numpy()
        for record in tf.data.TFRecordDataset(path).take(20)
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


def test_jpeg_files_of_other_sizes_are_served(saved: Path) -> None:
    serve = tf.saved_model.load(str(saved)).signatures["serving_default"]
    files = [
        tf.io.encode_jpeg(tf.fill((side, 30, 3), tf.constant(90, tf.uint8))) for side in (9, 40)
    ]
    first, second = serve(image_bytes=tf.stack(files))["probabilities"].numpy()
    np.testing.assert_allclose(first, second, atol=1e-2)
    assert first.sum() == pytest.approx(1, abs=1e-5)


def test_a_model_trained_in_mixed_precision_is_served_in_float32(tmp_path: Path) -> None:
    network = networks.small_cnn(10, 16, "mixed_bfloat16")
    weights = {variable.path: variable.numpy() for variable in network.variables}
    export.export(weights, NAMES, CONFIG, str(tmp_path / "model"))
    images = tf.zeros((1, 16, 16, 3), tf.uint8)
    served = tf.saved_model.load(str(tmp_path / "model")).signatures["tensors"](images=images)
    assert served["probabilities"].dtype == tf.float32
    expected = tf.nn.softmax(network(images, training=False)).numpy()
    np.testing.assert_allclose(served["probabilities"].numpy(), expected, atol=2e-2)


@pytest.mark.slow
def test_processes_that_know_nothing_of_this_package_get_the_same_numbers(
    trained, saved: Path, digits, tmp_path: Path
) -> None:
    images = tf.stack([decoding.decode(tf.constant(png), 16) for png in digits]).numpy()
    expected = tf.nn.softmax(trained(images, training=False)).numpy()
    np.save(tmp_path / "images.npy", images)
    cli = [Path(sys.executable).with_name("saved_model_cli"), "run", "--dir", saved]
    cli += ["--tag_set", "serve", "--signature_def", "tensors", "--outdir", tmp_path]
    cli += ["--inputs", f"images={tmp_path}/images.npy"]
    (tmp_path / "0.png").write_bytes(digits[0])
    plain = "import sys, json, tensorflow as tf; f = tf.saved_model.load(sys.argv[1]).signatures"
    plain += "['serving_default'](image_bytes=tf.constant([open(sys.argv[2], 'rb').read()]));"
    plain += "print(json.dumps(f['probabilities'].numpy()[0].tolist()));"
    plain += "assert 'trainer' not in sys.modules"
    load = [sys.executable, "-I", "-c", plain, saved, tmp_path / "0.png"]
    processes = [
        subprocess.Popen(list(map(str, command)), cwd=tmp_path, stdout=subprocess.PIPE, text=True)
        for command in (cli, load)
    ]
    texts = [process.communicate(timeout=200)[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0]
    np.testing.assert_array_equal(np.load(tmp_path / "probabilities.npy"), expected)
    alone = np.asarray(json.loads(texts[1].splitlines()[-1]), np.float32)
    np.testing.assert_allclose(alone, expected[0], rtol=1e-6)
