"""TrivialAugment: each change is Pillow's, all of them occur, and none leaves the bounds."""

import numpy as np
import pytest

pytestmark = pytest.mark.tensorflow
tf = pytest.importorskip("tensorflow")
Image = pytest.importorskip("PIL.Image")
from PIL import ImageEnhance, ImageOps  # noqa: E402

from trainer.input import trivial  # noqa: E402

SIDE = 56
PICTURE = np.clip(
    np.random.default_rng(0).normal(0, 25, (SIDE, SIDE, 3)).cumsum(axis=0) % 190 + 20, 0, 255
).astype(np.uint8)


def pillow(name: str, strength: float, sign: float) -> np.ndarray:
    """What torchvision's reference does, by Pillow alone."""
    image, factor = Image.fromarray(PICTURE), 1 + sign * strength * 0.99
    slope, way = sign * strength * 0.99, sign * strength * SIDE * 32 / 224
    middle = (SIDE - 1) / 2
    affine = {
        "shear_x": (1, slope, -slope * (middle + 0.5), 0, 1, 0),
        "shear_y": (1, 0, 0, slope, 1, -slope * (middle + 0.5)),
        "translate_x": (1, 0, way, 0, 1, 0),
        "translate_y": (1, 0, 0, 0, 1, way),
    }
    enhance = {
        "color": ImageEnhance.Color,
        "contrast": ImageEnhance.Contrast,
        "brightness": ImageEnhance.Brightness,
        "sharpness": ImageEnhance.Sharpness,
    }
    if name in affine:
        made = image.transform(image.size, Image.Transform.AFFINE, affine[name])
    elif name in enhance:
        made = enhance[name](image).enhance(factor)
    else:
        made = {
            "identity": lambda: image,
            "rotate": lambda: image.rotate(np.degrees(sign * strength * np.radians(135))),
            "solarize": lambda: ImageOps.solarize(image, round(255 * (1 - strength))),
            "posterize": lambda: ImageOps.posterize(image, 8 - round(strength * 6)),
            "autocontrast": lambda: ImageOps.autocontrast(image),
            "equalize": lambda: ImageOps.equalize(image),
        }[name]()
    return np.asarray(made)


@pytest.mark.parametrize("strength", [0.4, 1.0])
@pytest.mark.parametrize("sign", [-1.0, 1.0])
@pytest.mark.parametrize("name", trivial.NAMES)
def test_a_change_is_pillow_s(name: str, sign: float, strength: float) -> None:
    image = tf.constant(PICTURE, tf.float32)
    found = trivial.changed(image, name, tf.constant(strength), tf.constant(sign)).numpy()
    expected = pillow(name, strength, sign).astype(np.float32)
    far = np.abs(found - expected).max(axis=-1) > 3  # nearest neighbours may round to another
    assert far.mean() < 0.03, far.mean()
    assert found.min() >= 0 and found.max() <= 255
    if name != "identity":
        assert not np.array_equal(found, PICTURE)


def test_all_changes_occur_and_the_numbers_alone_decide() -> None:
    draws = np.random.default_rng(1).uniform(size=(300, 3)).astype(np.float32)
    image = tf.constant(PICTURE, tf.float32)
    change = tf.function(trivial.trivial)
    made = [change(image, tf.constant(one)).numpy() for one in draws]
    assert {int(one * len(trivial.NAMES)) for one in draws[:, 0]} == set(range(14))
    assert len({one.tobytes() for one in made}) > 150
    np.testing.assert_array_equal(made[7], change(image, tf.constant(draws[7])).numpy())
