"""The decoder of training gives TensorFlow's pixels, and refuses what TensorFlow refuses."""

import io
import json

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

from tests.trainer.input.samples import options
from trainer.input import augment, decoding, pictures

pytestmark = pytest.mark.tensorflow


def encoded(kind: str, mode: str = "RGB", size: tuple[int, int] = (141, 97), **options) -> bytes:
    buffer = io.BytesIO()
    noise = [Image.effect_noise(size, 40 + 10 * channel) for channel in range(3)]
    Image.merge("RGB", noise).convert(mode).save(buffer, kind, **options)
    return buffer.getvalue()


@pytest.mark.parametrize("ratio", [1, 2, 4, 8])
@pytest.mark.parametrize("subsampling", ["4:4:4", "4:2:2", "4:2:0"])
@pytest.mark.parametrize(("mode", "progressive"), [("RGB", False), ("RGB", True), ("L", False)])
def test_a_jpeg_is_decoded_to_the_same_bits(
    mode: str, progressive: bool, subsampling: str, ratio: int
) -> None:
    content = encoded("jpeg", mode, subsampling=subsampling, progressive=progressive)
    theirs = tf.io.decode_jpeg(content, channels=3, ratio=ratio).numpy()
    np.testing.assert_array_equal(pictures.pixels(content, ratio), theirs)
    assert pictures.size(content) == (97, 141)


@pytest.mark.parametrize("kind", ["jpeg", "png"])
@pytest.mark.parametrize("side", [141, 64, 60, 50])
def test_flips_and_turns_move_pixels_and_change_none(kind: str, side: int) -> None:
    """Also where a row of the square is no whole number of words."""
    draws = np.random.default_rng(0).random((24, augment.DRAWS), np.float32)
    contents = tf.fill([24], encoded(kind, size=(141, 141)))
    plain = pictures.Decoder(options(image_size=side)).batch(contents, draws).numpy()
    config = options(image_size=side, flip="both", turn=True)
    placing = augment.placing(tf.constant(draws), config).numpy()
    assert len(np.unique(placing, axis=0)) > 10
    moved = pictures.Decoder(config).batch(contents, tf.constant(draws)).numpy()
    for image, whole, (mirrored, upended, turns) in zip(moved, plain, placing, strict=True):
        flipped = whole[:: -1 if upended else 1, :: -1 if mirrored else 1]
        np.testing.assert_array_equal(image, np.rot90(flipped, turns))


@pytest.mark.parametrize("kind", ["png", "gif", "bmp", "webp"])
def test_other_formats_are_tensorflow_s(kind: str) -> None:
    content = encoded(kind)
    theirs = tf.io.decode_image(content, channels=3, expand_animations=False).numpy()
    np.testing.assert_array_equal(pictures.pixels(content), theirs)
    assert pictures.size(content) == (97, 141)
    expected = tf.image.resize(theirs, (16, 16), antialias=True).numpy()
    seen = tf.function(decoding.decode)(tf.constant(content), 16).numpy()
    np.testing.assert_allclose(seen.astype(float), expected, atol=1)


@pytest.mark.parametrize("content", [encoded("jpeg")[:3000], encoded("png")[:3000], b"no picture"])
def test_what_is_corrupt_is_refused(content: bytes) -> None:
    with pytest.raises(ValueError, match=r"\S"):
        pictures.pixels(content)
    draws = tf.zeros([2, augment.DRAWS])
    batches = tf.data.Dataset.from_tensors(tf.constant([encoded("jpeg"), content]))
    decoder = pictures.Decoder(options(image_size=8))
    with pytest.raises(tf.errors.InvalidArgumentError):
        next(iter(batches.map(lambda contents: decoder.batch(contents, draws))))


def test_a_jpeg_that_decoders_only_warn_of_is_named_once_with_their_count(capsys) -> None:
    sound = encoded("jpeg")
    rotten = sound[: len(sound) // 2] + bytes(40) + sound[len(sound) // 2 + 40 :]
    decoder, draws = pictures.Decoder(options(image_size=8)), tf.zeros([3, augment.DRAWS])
    other = rotten[:1500] + bytes(40) + rotten[1540:]
    contents = tf.constant([sound, rotten, other])
    for _ in range(2):
        decoder.batch(contents, draws, tf.constant(["a.jpg", "cat/7.jpg", ""]))
    told = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["damaged"] for line in told] == [1, 2]
    first, second = sorted(line["message"] for line in told)
    assert first.startswith("a JPEG without a name of ")
    assert second.startswith("cat/7.jpg: Corrupt JPEG data: ")
    assert second.endswith("; trained on as far as it can be decoded")


def test_the_size_of_a_png_is_known_without_decoding_it(monkeypatch: pytest.MonkeyPatch) -> None:
    content = encoded("png")
    monkeypatch.setattr(pictures, "pixels", None)
    assert pictures.size(content) == (97, 141)


@pytest.mark.parametrize("kind", ["png", "webp"])
def test_what_becomes_much_smaller_is_averaged_as_pillow_does_it(kind: str) -> None:
    size = (512, 384)
    noise = Image.merge("RGB", [Image.effect_noise(size, 90) for _ in range(3)])
    file = io.BytesIO()
    noise.save(file, kind, **({"lossless": True} if kind == "webp" else {}))
    theirs = np.asarray(noise.resize((64, 64), Image.Resampling.BILINEAR), float)
    graph = tf.function(decoding.decode)(tf.constant(file.getvalue()), 64).numpy()
    decoder = pictures.Decoder(options(image_size=64))
    [host] = decoder.batch(tf.constant([file.getvalue()]), tf.zeros([1, augment.DRAWS]))
    for seen in (graph, host.numpy()):
        assert np.abs(seen - theirs).mean() < 1


@pytest.mark.parametrize(("height", "width"), [(97, 141), (30, 200), (64, 64), (7, 5)])
def test_a_picture_is_resized_as_tensorflow_does_it(height: int, width: int) -> None:
    image = np.random.default_rng(0).integers(0, 256, (height, width, 3), np.uint8)
    theirs = tf.image.resize(image, (64, 64)).numpy()
    ours = pictures._resized(image, 64)
    np.testing.assert_allclose(ours.astype(float), theirs, atol=2)
