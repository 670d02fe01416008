"""Models: their inputs and outputs, and which of their layers are trained."""

import json
from pathlib import Path
from types import SimpleNamespace

import keras
import numpy as np
import pytest
import tensorflow as tf

from trainer.config import Config, UsageError, parse
from trainer.job.checkpoints import Checkpoints, Position
from trainer.model import backbones, networks, optimization

pytestmark = pytest.mark.tensorflow

MOBILENET = ("--model", "mobilenet")


@pytest.fixture(autouse=True)
def shallow(monkeypatch: pytest.MonkeyPatch) -> None:
    """EfficientNets have the first three of their seven kinds of blocks: each layer costs time."""
    known = keras.src.applications.efficientnet
    monkeypatch.setattr(known, "DEFAULT_BLOCKS_ARGS", known.DEFAULT_BLOCKS_ARGS[:3])


def config(*options: object) -> Config:
    words = ["--records", "r", "--job-dir", "j", "--image-size", "32", *map(str, options)]
    return parse(words, {})


def pixels(size: int = 32) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (2, size, size, 3)).astype(np.uint8)


def values(network: keras.Model) -> dict[str, np.ndarray]:
    return {variable.path: variable.numpy() for variable in network.variables}


FAMILIES = {
    name: module
    for name, module in vars(keras.applications).items()
    if hasattr(module, "preprocess_input") and name != "imagenet_utils"
}


@pytest.mark.parametrize("family", FAMILIES)
def test_preprocessing_is_what_the_weights_were_trained_with(
    family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each family's own preprocess_input, as a part of the model."""

    def backbone(input_tensor: object, **_: object) -> SimpleNamespace:
        return SimpleNamespace(output=input_tensor)

    preprocess, images = FAMILIES[family].preprocess_input, keras.Input((8, 8, 3), dtype="uint8")
    monkeypatch.setattr(backbones, "application", lambda name: (backbone, preprocess))
    network = keras.Model(images, backbones.features(config("--model", family), images))
    expected = preprocess(pixels(8).astype(np.float32))
    np.testing.assert_allclose(network(pixels(8)), expected, atol=1e-3)


@pytest.mark.parametrize("name", ["small_cnn", "MobileNet", "EfficientNetB0"])
@pytest.mark.parametrize("policy", ["mixed_float16", "mixed_bfloat16"])
def test_bytes_in_and_float32_logits_out_whatever_it_computes_in(name: str, policy: str) -> None:
    network = networks.build(config("--model", name), 3, policy)
    logits = network(pixels())
    assert (logits.shape, logits.dtype) == ((2, 3), tf.float32)
    assert np.isfinite(logits).all()
    assert {v.dtype for v in network.trainable_variables} == {"float32"}
    assert {layer.compute_dtype for layer in networks.layers_of(network)} >= {policy[6:]}
    assert keras.config.dtype_policy().name == "float32"  # As it was before.


@pytest.mark.parametrize(
    ("options", "trained", "frozen"),
    [
        ((), 27, 0),
        (("--batch-norm", "frozen"), 27, 27),
        (("--fine-tune-layers", 0), 0, 27),
        (("--fine-tune-layers", 10), 10, 17),
    ],
)
def test_the_last_layers_are_trained_and_batch_norm_is_frozen_with_its_statistics(
    options: tuple[object, ...], trained: int, frozen: int
) -> None:
    """MobileNet has 27 convolutions, each with a BatchNorm, and one dense layer, the head."""
    network = networks.build(config(*MOBILENET, *options), 3, "float32")
    depth = networks.depth(network)
    assert (depth["trained_layers"], depth["backbone_layers"]) == (trained, 27)
    kinds = keras.layers.Conv2D, keras.layers.DepthwiseConv2D
    convolutions = [layer.trainable for layer in network.layers if isinstance(layer, kinds)]
    assert convolutions == [False] * (27 - trained) + [True] * trained
    if not trained:
        paths = [variable.path for variable in network.trainable_variables]
        assert paths == ["head_logits/kernel", "head_logits/bias"]
    assert depth["frozen_batch_norms"] == frozen
    before = values(network)
    network(pixels(), training=True)
    moved = {path for path, value in values(network).items() if (value != before[path]).any()}
    assert len({path for path in moved if "moving_mean" in path}) == 27 - frozen


def numbered(network: keras.Model) -> dict[str, np.ndarray]:
    """Variables with names as in a checkpoint."""
    return {f"{n:04d} {path}": value for n, (path, value) in enumerate(values(network).items())}


def test_a_checkpoint_gives_the_backbone_and_not_the_head(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = networks.build(config(), 3, "float32")
    Checkpoints(str(tmp_path), 1).save(Position(7), numbered(first))
    second = values(networks.build(config("--weights", tmp_path), 3, "float32"))
    for path, value in values(first).items():
        same = bool((second[path] == value).all())
        assert same is not path.endswith("head_logits/kernel"), path
    assert "from step 7 of" in capsys.readouterr().out


def test_a_checkpoint_of_something_else_is_refused(tmp_path: Path) -> None:
    Checkpoints(str(tmp_path), 1).save(
        Position(1), numbered(networks.build(config(), 3, "float32"))
    )
    with pytest.raises(UsageError, match="another --model, --image-size or number of classes"):
        networks.build(config(*MOBILENET, "--weights", tmp_path), 3, "float32")
    with pytest.raises(UsageError, match="folder without a whole checkpoint"):
        networks.build(config("--weights", tmp_path / "nothing"), 3, "float32")


def test_a_weights_file_is_loaded_and_one_of_another_model_is_refused(tmp_path: Path) -> None:
    backbone = keras.applications.MobileNet(
        include_top=False, weights=None, input_shape=(32, 32, 3)
    )
    backbone.get_layer("conv1").kernel.assign(kernel := np.full((3, 3, 3, 32), 0.25))
    path = tmp_path / "mobilenet.weights.h5"
    backbone.save_weights(path)
    network = values(networks.build(config(*MOBILENET, "--weights", path), 3, "float32"))
    np.testing.assert_array_equal(network["conv1/kernel"], kernel)
    with pytest.raises(UsageError, match="not those of efficientnetb0 without its top"):
        networks.build(config("--model", "efficientnetb0", "--weights", path), 3, "float32")


@pytest.fixture
def efficientnet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Weights in the form of Keras' own file of EfficientNetB0, and Keras finding it.

    Its "variance" is the standard deviation, as in theirs (tensorflow/tensorflow#49930).
    """
    backbone = keras.applications.EfficientNetB0(
        include_top=False, weights=None, input_shape=(32, 32, 3)
    )
    constants = {v.path.rpartition("/")[2]: v for v in backbone.get_layer(index=2).weights}
    constants["mean"].assign([0.485, 0.456, 0.406])
    constants["variance"].assign([0.229, 0.224, 0.225])
    path = tmp_path / "efficientnet.weights.h5"
    backbone.save_weights(path)
    monkeypatch.setattr(keras.src.utils.file_utils, "get_file", lambda *_, **__: str(path))
    return path


def test_efficientnet_computes_what_keras_does_and_so_does_what_is_exported(
    efficientnet: Path,
) -> None:
    """Keras' own network has one more layer with weights="imagenet" than without."""
    theirs = keras.applications.EfficientNetB0(
        include_top=False, weights="imagenet", input_shape=(32, 32, 3)
    )
    expected = theirs(pixels().astype(np.float32)).numpy()
    for weights in ("imagenet", efficientnet):
        chosen = config("--model", "efficientnetb0", "--weights", weights)
        network = networks.build(chosen, 3, "float32")
        features = keras.Model(network.inputs, network.get_layer("top_activation").output)
        apart = np.abs(features(pixels()).numpy() - expected).max()
        assert apart < 1e-3 * np.abs(expected).max()
    operations = tf.function(network).get_concrete_function(pixels()).graph.get_operations()
    assert all(tensor.dtype != tf.float64 for each in operations for tensor in each.outputs)
    # The evaluator, the export and a checkpoint's reader build it like this.
    again = networks.build(chosen, 3, "float32", pretrain=False)
    for variable, value in zip(again.variables, network.variables, strict=True):
        variable.assign(value)
    np.testing.assert_allclose(again(pixels()), network(pixels()), rtol=1e-5)


def test_weights_that_keras_cannot_get_are_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def offline(*_: object, **__: object) -> str:
        raise OSError("URL fetch failure: [Errno -2]\nName or service not known")

    monkeypatch.setattr(keras.src.utils.file_utils, "get_file", offline)
    with pytest.raises(UsageError, match="those of mobilenet are not available here") as error:
        networks.build(config(*MOBILENET, "--weights", "imagenet"), 3, "float32")
    assert "\n" not in str(error.value)


def test_a_whole_keras_model_gives_its_backbone(tmp_path: Path) -> None:
    first = networks.build(config(*MOBILENET), 9, "float32")
    first.save(tmp_path / "mine.keras")
    chosen = config(*MOBILENET, "--weights", tmp_path / "mine.keras")
    second = values(networks.build(chosen, 4, "float32"))
    assert (second["conv1/kernel"] == values(first)["conv1/kernel"]).all()
    assert second["head_logits/kernel"].shape[-1] == 4


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--model", "densenet12"), "near it are densenet121"),
        (("--model", "densenet121", "--image-size", 16), "at --image-size 16: Input size must be"),
        (("--fine-tune-layers", 4), "small_cnn has 3 layers with weights"),
        (("--weights", "no/such.h5"), "--weights no/such.h5: cannot be read"),
    ],
)
def test_what_cannot_be_built_is_one_line(options: tuple[object, ...], message: str) -> None:
    with pytest.raises(UsageError, match=message) as error:
        networks.build(config(*options), 3, "float32")
    assert "\n" not in str(error.value)


def rates(*options: object, steps: int = 100) -> np.ndarray:
    chosen = config("--learning-rate", 1.0, "--steps", steps, *options)
    schedule = optimization.optimizer(chosen, "float32")._learning_rate
    return np.array([float(schedule(step)) for step in range(steps)])


def test_schedules() -> None:
    assert set(rates()) == {1.0}
    warm = rates("--warmup-steps", 10)
    np.testing.assert_allclose(warm[:12], [*np.arange(1, 11) / 10, 1, 1], rtol=1e-6)
    cosine = rates("--schedule", "cosine", "--warmup-steps", 10)
    assert cosine.argmax() in (9, 10)
    assert (np.diff(cosine[10:]) < 0).all()
    np.testing.assert_allclose(cosine[[10, 99]], [1.0, 0.0], atol=1e-6)
    stepped = rates("--schedule", "step")
    np.testing.assert_allclose(stepped[[49, 50, 74, 75]], [1, 0.1, 0.1, 0.01], rtol=1e-6)


@pytest.mark.parametrize(
    ("name", "policy"),
    [
        *((name, "float32") for name in ("adam", "adamw", "sgd", "rmsprop", "lamb", "lion")),
        ("adam", "mixed_float16"),
        ("lamb", "mixed_float16"),
    ],
)
def test_each_optimizer_learns_and_has_stable_names(name: str, policy: str) -> None:
    chosen = config("--optimizer", name, "--learning-rate", 0.001, "--weight-decay", 0.01)
    paths = []
    for _ in range(2):
        network = networks.build(chosen, 3, policy)
        optimizer = optimization.optimizer(chosen, policy)
        optimizer.build(network.trainable_variables)
        paths.append([variable.path for variable in optimizer.variables])
    assert paths[0] == paths[1]
    labels, images = tf.constant([0, 2]), pixels()
    found = []
    for _ in range(8):
        with tf.GradientTape() as tape:
            logits = network(images, training=True)
            loss = tf.reduce_mean(optimization.losses(chosen, labels, logits))
            scaled = optimizer.scale_loss(loss)
        variables = network.trainable_variables
        optimizer.apply(tape.gradient(scaled, variables), variables)
        found.append(float(loss))
    assert found[-1] < found[0]


@pytest.mark.parametrize("name", ["adam", "adamw", "sgd"])
@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_weight_decay_is_of_kernels_and_only_as_asked(name: str, decay: float) -> None:
    """Without a gradient nothing else changes."""
    options = ("--optimizer", name, "--learning-rate", 0.5, "--weight-decay", decay)
    inputs = keras.Input((3,))
    x = keras.layers.BatchNormalization()(keras.layers.Dense(2, bias_initializer="ones")(inputs))
    network = keras.Model(inputs, x)
    network.trainable_variables[-1].assign([1.0, 1.0])  # beta
    optimizer = optimization.optimizer(config(*options), "float32")
    optimizer.build(network.trainable_variables)
    before = values(network)
    variables = network.trainable_variables
    optimizer.apply([tf.zeros(v.shape) for v in variables], variables)
    for variable in variables:
        factor = 1 - 0.5 * decay if variable.path.endswith("/kernel") else 1.0
        expected = before[variable.path] * factor
        np.testing.assert_allclose(variable.numpy(), expected, rtol=1e-6, err_msg=variable.path)


@pytest.mark.parametrize("smoothing", [0.0, 0.3])
def test_shares_of_classes_give_the_cross_entropy_in_these_shares(smoothing: float) -> None:
    chosen = config("--label-smoothing", smoothing)
    logits = tf.constant([[2.0, 0, 1], [0.5, 0, 1]])
    first, second = (
        optimization.losses(chosen, tf.constant(labels), logits) for labels in ([0, 2], [1, 1])
    )
    shares = tf.constant([[0.7, 0.3, 0.0], [0.0, 0.3, 0.7]])
    mixed = optimization.losses(chosen, shares, logits)
    np.testing.assert_allclose(mixed, 0.7 * first + 0.3 * second, rtol=1e-5)
    np.testing.assert_array_equal(optimization.right(shares, logits), [1, 1])
    np.testing.assert_array_equal(optimization.right(tf.constant([1, 2]), logits), [0, 1])
    plain = optimization.losses(config(), tf.constant([0, 2]), logits)
    even = optimization.losses(config(), tf.fill((2, 3), 1 / 3), logits)
    np.testing.assert_allclose(first, (1 - smoothing) * plain + smoothing * even, rtol=1e-5)


def test_a_rare_class_counts_in_the_loss_what_its_weight_says() -> None:
    labels, logits = tf.constant([0, 1]), tf.constant([[1.0, 2.0], [0.5, 0.0]])
    weights = np.array([0.5, 3.0], np.float32)
    plain = optimization.losses(config(), labels, logits).numpy()
    np.testing.assert_allclose(
        optimization.losses(config(), labels, logits, weights), plain * weights, rtol=1e-6
    )


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_of_a_mixed_picture_each_class_counts_by_its_own_weight(smoothing: float) -> None:
    """As torch.nn.CrossEntropyLoss has it: the weight stands inside the sum over the classes, also
    of what is smoothed. By the mean of the weights a rare class would pull the other up."""
    logits, weights = tf.constant([[1.0, 2.0], [0.5, 0.0]]), np.array([0.5, 3.0], np.float32)
    shares = np.array([[0.25, 0.75], [1.0, 0.0]], np.float32)
    smoothed = shares * (1 - smoothing) + smoothing / 2
    logarithms = np.log(tf.nn.softmax(logits).numpy())
    expected = -(weights * smoothed * logarithms).sum(axis=1)
    chosen = config("--label-smoothing", smoothing)
    with tf.GradientTape() as tape:
        tape.watch(logits)
        losses = optimization.losses(chosen, tf.constant(shares), logits, weights)
    np.testing.assert_allclose(losses, expected, rtol=1e-5)
    weighted = weights * smoothed
    gradient = np.exp(logarithms) * weighted.sum(axis=1, keepdims=True) - weighted
    np.testing.assert_allclose(tape.gradient(losses, logits), gradient, rtol=1e-5)
    whole = optimization.losses(chosen, tf.constant([0]), logits[1:], weights)
    np.testing.assert_allclose(whole, expected[1:], rtol=1e-5)


def test_drop_path_drops_more_of_later_blocks_and_only_in_networks_that_have_it() -> None:
    network = networks.build(config("--model", "efficientnetb0", "--drop-path", 0.3), 3, "float32")
    rates = [layer.rate for layer in network.layers if layer.name.endswith("_drop")]
    assert rates == pytest.approx([0.15, 0.3])
    with pytest.raises(UsageError, match=r"--drop-path 0\.3: small_cnn has no blocks"):
        networks.build(config("--drop-path", 0.3), 3, "float32")


# Models of the user's own, and image sizes


PROGRAM = """
import keras

def tiny(image_size, classes):
    images = keras.Input((image_size, image_size, 3))
    x = keras.layers.Rescaling(1 / 255)(images)
    x = keras.layers.Conv2D(8, 3, activation="relu", trainable=False, name="fixed")(x)
    x = keras.layers.Flatten()(keras.layers.BatchNormalization()(x))
    return keras.Model(images, keras.layers.Dense(classes)(x), name="tiny")

def sure(image_size, classes):
    images = keras.Input((image_size, image_size, 3))
    x = keras.layers.Flatten()(images)
    return keras.Model(images, keras.layers.Dense(classes, "softmax")(x))

def narrow(image_size, classes):
    return tiny(image_size, classes - 1)

def twins(image_size, classes):
    model, images = tiny(image_size, classes), keras.Input((image_size, image_size, 3))
    head = keras.layers.Dense(classes, name=model.layers[-1].name)
    return keras.Model(images, head(model(images)))

def broken(image_size, classes):
    raise ValueError("not today")

nothing = 3
"""


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_models.py").write_text(PROGRAM)
    monkeypatch.syspath_prepend(tmp_path)


@pytest.mark.usefixtures("program")
def test_a_model_of_the_user_s_own_is_trained_resumed_and_served(tmp_path: Path, task) -> None:
    common = ("--model", "my_models:tiny", "--learning-rate", 0.002, "--schedule", "constant")
    losses = []
    for steps, exported in ((15, "none"), (40, "final")):
        code, lines = task(*common, "--steps", steps, "--export", exported)
        assert code == 0, lines[-1]
        losses.append([line["loss"] for line in lines if line["event"] == "step"])
    assert losses[1][0] < losses[0][-1] < losses[0][0]
    assert json.loads((tmp_path / "summary.json").read_text())["model"]["name"] == "tiny"
    found = next(line for line in lines if line["event"] == "model")
    assert found["parameters"] - found["trained_parameters"] == 3 * 3 * 3 * 8 + 8 + 16
    assert lines[-1]["accuracy"] > 0.5
    served = tf.saved_model.load(str(tmp_path / "model")).signatures["tensors"]
    images = tf.constant(np.random.default_rng(0).integers(0, 255, (2, 8, 8, 3)), tf.uint8)
    assert served(images=images)["probabilities"].shape == (2, 10)


@pytest.mark.usefixtures("program")
@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("no_such_module:f", "No module named 'no_such_module'"),
        ("my_models:missing", "my_models has no function 'missing'"),
        ("my_models:nothing", "my_models has no function 'nothing'"),
        ("my_models:broken", "ValueError: not today ("),
        ("my_models:narrow", "its model returns (None, 2), not a logit for each of 3 classes"),
        ("my_models:twins", "its model has two variables at dense"),
        ("my_models:sure", "its last layer ends with an activation; return the logits"),
    ],
)
def test_what_is_wrong_with_a_model_of_the_user_s_own_is_one_line(name: str, message: str) -> None:
    given = ["--records", "r", "--job-dir", "j", "--model", name, "--image-size", "8"]
    with pytest.raises(UsageError) as error:
        networks.build(parse(given, {}), 3, "float32")
    assert str(error.value).startswith(f"--model {name}: ")
    assert message in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("model", "stored", "size"),
    [
        ("small_cnn", 0, 32),
        ("small_cnn", 8, 32),
        ("small_cnn", 61, 64),
        ("small_cnn", 500, 96),
        ("DenseNet121", 500, 224),
        ("xception", 0, 299),
        ("EfficientNetB3", 0, 300),
        ("my_models:tiny", 8, 224),
    ],
)
def test_the_image_size_is_the_model_s_unless_it_is_given(
    model: str, stored: int, size: int
) -> None:
    assert backbones.image_size(model, stored)[0] == size


def test_the_sizes_name_models_of_keras() -> None:
    known = {name.lower() for name in dir(tf.keras.applications)}
    assert backbones._SIZES.keys() <= known
