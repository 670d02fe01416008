"""The decoder of training: encoded pictures to a batch of pixels, on all cores at once.

simplejpeg (libjpeg-turbo) decodes JPEGs, and cykooz_resizer (fast_image_resize) resizes: the same
pixels as TensorFlow's but for rounding, in less time. Both let other threads work meanwhile. What
simplejpeg does not take, TensorFlow decodes or refuses.
"""

import contextlib
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache

import numpy as np
import simplejpeg
import tensorflow as tf
from cykooz_resizer import Algorithm, FilterType, PixelType, rust_lib

from trainer.config import Config
from trainer.input import augment
from trainer.input.decoding import RATIOS

_JPEG = b"\xff\xd8\xff"
_RGB = PixelType.U8x3.value
_BILINEAR = rust_lib.RustResizeOptions().set_resize_alg(
    Algorithm.interpolation.value, FilterType.bilinear.value, 1
)
_ALIGNED = 64
"""TensorFlow takes an array without a copy if it starts at a multiple of so many bytes
(EIGEN_MAX_ALIGN_BYTES)."""


def pixels(content: bytes, ratio: int = 1, out: np.ndarray | None = None) -> np.ndarray:
    """Return an encoded picture as uint8 [height, width, 3], a JPEG at one in `ratio` pixels of a
    side. The pixels of a JPEG lie in `out`, if it is given.

    Raises ValueError, which a graph passes on as tf.errors.InvalidArgumentError.
    """
    jpeg = content.startswith(_JPEG)
    if jpeg:
        with contextlib.suppress(ValueError):
            least = [-(-side // ratio) for side in _header(content)] if ratio > 1 else [0, 0]
            return simplejpeg.decode_jpeg(content, "RGB", True, False, *least, buffer=out)
    try:
        with tf.device("CPU:0"):
            if jpeg:
                return tf.io.decode_jpeg(content, channels=3, ratio=ratio).numpy()
            return tf.io.decode_image(content, channels=3, expand_animations=False).numpy()
    except tf.errors.InvalidArgumentError as error:
        raise ValueError(error.message) from None


def size(content: bytes) -> tuple[int, int]:
    """Return height and width of an encoded picture. Raises ValueError."""
    if content.startswith(_JPEG):
        with contextlib.suppress(ValueError):
            return _header(content)
    return pixels(content).shape[:2]


def _header(content: bytes) -> tuple[int, int]:
    height, width, _, _ = simplejpeg.decode_jpeg_header(content)
    return height, width


@dataclass(frozen=True)
class Decoder:
    """Makes batches of squares, as `config` has them; with a `canvas`, of whole pictures at the top
    left of squares of so many pixels."""

    config: Config
    canvas: int = 0
    pixels: Callable[..., np.ndarray] = pixels

    def batch(self, contents: tf.Tensor, draws: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Return pictures, uint8 [n, side, side, 3], and what is seen of each: int32 [n, 4].

        draws: the augment.DRAWS random numbers of each.
        """
        [n], side = contents.shape, self.canvas or self.config.image_size
        sizes = tf.ensure_shape(tf.numpy_function(_sizes, [contents], tf.int32), [n, 2])
        seen = augment.window(sizes, draws, self.config)
        if self.canvas:
            images = tf.numpy_function(self._wholes, [contents, sizes], tf.uint8)
        else:
            views = tf.concat([seen, augment.placing(draws, self.config)], axis=1)
            images = tf.numpy_function(self._squares, [contents, views], tf.uint8)
        return tf.ensure_shape(images, [n, side, side, 3]), seen

    def _wholes(self, contents: np.ndarray, sizes: np.ndarray) -> np.ndarray:
        images = _empty(len(contents), self.canvas, self.canvas, 3)
        widths = sizes[:, 1].tolist()

        def make(number: int) -> None:
            out = images[number]
            fits = widths[number] == self.canvas  # Then it can be decoded where it shall lie.
            image = self.pixels(contents[number], 1, out if fits else None)
            if not np.may_share_memory(image, out):
                out[: image.shape[0], : image.shape[1]] = image

        _each(len(contents), make)
        return images

    def _squares(self, contents: np.ndarray, views: np.ndarray) -> np.ndarray:
        images = _empty(len(contents), self.config.image_size, self.config.image_size, 3)
        rows = views.tolist()

        def make(number: int) -> None:
            self._square(contents[number], images[number], *rows[number])

        _each(len(contents), make)
        return images

    def _square(
        self, content: bytes, out: np.ndarray, top: int, left: int, height: int, width: int,
        mirrored: int, upended: int, turns: int,
    ) -> None:  # fmt: skip
        """Make the part that is seen, at the scale that is large enough, into a square."""
        scale = (
            max(min(height, width) // self.config.image_size, 1) if content.startswith(_JPEG) else 1
        )
        ratio = min(1 << scale.bit_length() - 1, RATIOS[-1])
        image = self.pixels(content, ratio)
        if not augment.whole(self.config):
            top, left = top // ratio, left // ratio
            bottom, right = top + max(height // ratio, 1), left + max(width // ratio, 1)
            image = image[top:bottom, left:right]
        image = _resized(image, self.config.image_size)
        if mirrored or upended:
            image = image[:: -1 if upended else 1, :: -1 if mirrored else 1]
        _copy(np.rot90(image, turns) if turns else image, out)


def _sizes(contents: np.ndarray) -> np.ndarray:
    sizes = np.empty((len(contents), 2), np.int32)

    def measure(number: int) -> None:
        sizes[number] = size(contents[number])

    _each(len(contents), measure)
    return sizes


def _resized(image: np.ndarray, side: int) -> np.ndarray:
    """Return a square: bilinear, with half-pixel centres and no smoothing, as tf.image.resize."""
    if image.shape[:2] == (side, side):
        return image
    height, width, _ = image.shape
    source = rust_lib.Image(width, height, _RGB, image.tobytes())
    square = rust_lib.Image(side, side, _RGB, None)
    rust_lib.RustResizer().resize(source, square, _BILINEAR)
    return np.frombuffer(square.buffer(), np.uint8).reshape(side, side, 3)


def _copy(image: np.ndarray, out: np.ndarray) -> None:
    """Copy pixels. A mirrored picture is copied channel by channel, which is six times as fast."""
    if image.strides[1] == 3:
        out[:] = image
    else:
        for channel in range(3):
            out[..., channel] = image[..., channel]


def _empty(*shape: int) -> np.ndarray:
    """Return a uint8 array that TensorFlow takes without a copy."""
    length = int(np.prod(shape))
    memory = np.empty(length + _ALIGNED, np.uint8)
    start = -memory.ctypes.data % _ALIGNED
    return memory[start : start + length].reshape(shape)


def _each(count: int, work: Callable[[int], None]) -> None:
    """Call `work` with each number below `count`, a thread on each core."""
    threads = min(len(os.sched_getaffinity(0)), count)

    def some(first: int) -> None:
        for number in range(first, count, threads):
            work(number)

    for _ in _pool().map(some, range(threads)):
        pass


@cache
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(len(os.sched_getaffinity(0)), "decoder")
