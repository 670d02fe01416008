"""TrivialAugment and RandAugment: each change is Pillow's, in the space of its paper; all of them
occur, and none leaves the bounds."""

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image, ImageEnhance, ImageOps

from trainer.input import changes

pytestmark = pytest.mark.tensorflow

SIDE = 56
PICTURE = np.clip(
    np.random.default_rng(0).normal(0, 25, (SIDE, SIDE, 3)).cumsum(axis=0) % 190 + 20, 0, 255
).astype(np.uint8)


PAPERS = {
    "TrivialAugment": (changes.WIDE, 135, 0.99, SIDE * 32 / 224, 0.99, 6),
    "RandAugment": (changes.USUAL, 30, 0.3, SIDE * 150 / 331, 0.9, 4),
}
"""The most that a change does: degrees, slope, pixels, factor, bits."""


def pillow(name: str, strength: float, sign: float, paper: str) -> np.ndarray:
    """What torchvision's reference does, by Pillow alone."""
    _, degrees, most, pixels, colour, bits = PAPERS[paper]
    image, factor = Image.fromarray(PICTURE), 1 + sign * strength * colour
    slope, way = sign * strength * most, sign * strength * pixels
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
            "rotate": lambda: image.rotate(sign * strength * degrees),
            "solarize": lambda: ImageOps.solarize(image, round(255 * (1 - strength))),
            "posterize": lambda: ImageOps.posterize(image, 8 - round(strength * bits)),
            "autocontrast": lambda: ImageOps.autocontrast(image),
            "equalize": lambda: ImageOps.equalize(image),
        }[name]()
    return np.asarray(made)


@pytest.mark.parametrize("strength", [0.4, 1.0])
@pytest.mark.parametrize("sign", [-1.0, 1.0])
@pytest.mark.parametrize("name", changes.NAMES)
@pytest.mark.parametrize("paper", PAPERS)
def test_a_change_is_pillow_s(paper: str, name: str, sign: float, strength: float) -> None:
    images, space = tf.constant(PICTURE, tf.float32)[None], PAPERS[paper][0]
    [found] = changes.changed(
        images, name, tf.constant([strength]), tf.constant([sign]), space
    ).numpy()
    expected = pillow(name, strength, sign, paper).astype(np.float32)
    far = np.abs(found - expected).max(axis=-1) > 3  # nearest neighbours may round to another
    assert far.mean() < 0.05, far.mean()
    assert found.min() >= 0 and found.max() <= 255
    if name != "identity":
        assert not np.array_equal(found, PICTURE)


def test_all_changes_occur_and_the_numbers_alone_decide() -> None:
    draws = np.random.default_rng(1).uniform(size=(120, 3)).astype(np.float32)
    image = tf.constant(PICTURE, tf.float32)[None]
    change = tf.function(changes.trivial)
    made = change(tf.repeat(image, 120, axis=0), tf.constant(draws)).numpy()
    assert {int(one * len(changes.NAMES)) for one in draws[:, 0]} == set(range(14))
    assert len({one.tobytes() for one in made}) > 60
    alone = [change(image, tf.constant(draw[None])).numpy()[0] for draw in draws[:40]]
    np.testing.assert_allclose(alone, made[:40], atol=0.01)


def test_rand_augment_makes_its_changes_one_after_the_other_with_one_strength() -> None:
    """Algorithm of section 3.1: N of the K kinds, each with a chance of 1/K, at M of 10."""
    image, change = tf.constant(PICTURE, tf.float32)[None], tf.function(changes.several)
    random = np.random.default_rng(2)
    kinds = []
    for draws in random.uniform(size=(20, 2, 2)).astype(np.float32):
        expected = image
        for kind, way in draws:
            name, sign = changes.NAMES[int(kind * 14)], tf.constant([-1.0 if way < 0.5 else 1.0])
            expected = changes.changed(expected, name, tf.constant([0.7]), sign, changes.USUAL)
            kinds.append(name)
        found = change(image, tf.constant(draws[None]), 7.0)
        np.testing.assert_allclose(found, expected, atol=1e-3)
    assert set(kinds) == set(changes.NAMES)
