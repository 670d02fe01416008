"""The decoder of training: encoded pictures to a batch of pixels, on all cores at once.

simplejpeg (libjpeg-turbo) decodes JPEGs, and cykooz_resizer (fast_image_resize) resizes: the same
pixels as TensorFlow's but for rounding, in less time. Both let other threads work meanwhile. What
simplejpeg does not take, TensorFlow decodes or refuses.
"""

import contextlib
import hashlib
import math
import os
import struct
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache

import numpy as np
import simplejpeg
import tensorflow as tf
from cykooz_resizer import Algorithm, FilterType, PixelType, rust_lib

from trainer.config import Config
from trainer.event_lines import say
from trainer.input import augment
from trainer.input.decoding import RATIOS

NAMED = 20
"""Damaged pictures that are named, each once."""
_JPEG = b"\xff\xd8\xff"
_PNG, _PNG_SIZE = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR", slice(16, 24)
"""How a PNG begins, and where its width and height lie (ISO 15948, 11.2.2)."""
_RGB = PixelType.U8x3.value
_BILINEAR = rust_lib.RustResizeOptions().set_resize_alg(
    Algorithm.interpolation.value, FilterType.bilinear.value, 1
)
_AVERAGING = rust_lib.RustResizeOptions().set_resize_alg(
    Algorithm.convolution.value, FilterType.bilinear.value, 1
)
_ALIGNED = 64
"""TensorFlow takes an array without a copy if it starts at a multiple of so many bytes
(EIGEN_MAX_ALIGN_BYTES)."""


def pixels(content: bytes, ratio: int = 1, name: bytes = b"", colours: str = "RGB") -> np.ndarray:
    """Return an encoded picture as uint8 [height, width, 3], a JPEG at one in `ratio` pixels of a
    side. `colours` may also be BGR. A JPEG that is damaged, and can be decoded all the same, is
    told by its `name`.

    Raises ValueError, which a graph passes on as tf.errors.InvalidArgumentError.
    """
    jpeg, damage = content.startswith(_JPEG), ""
    if jpeg:
        try:
            least = [-(-side // ratio) for side in _header(content)] if ratio > 1 else [0, 0]
            return simplejpeg.decode_jpeg(content, colours, True, False, *least)
        except ValueError as error:
            damage = str(error)
    try:
        with tf.device("CPU:0"):
            if jpeg:
                image = tf.io.decode_jpeg(content, channels=3, ratio=ratio).numpy()
            else:
                image = tf.io.decode_image(content, channels=3, expand_animations=False).numpy()
    except tf.errors.InvalidArgumentError as error:
        raise ValueError(error.message) from None
    if damage.startswith("Corrupt"):  # and not a format that simplejpeg does not know
        _tell(name.decode(errors="replace") or _nameless(content), damage)
    return image if colours == "RGB" else image[..., ::-1]


_damaged: set[str] = set()
_telling = threading.Lock()


def _tell(name: str, damage: str) -> None:
    """Report a damaged picture, once; beyond NAMED, only when their number has doubled."""
    with _telling:
        if name in _damaged:
            return
        _damaged.add(name)
        count = len(_damaged)
        if count <= NAMED or count & (count - 1) == 0:
            text = f"{name}: {damage}; trained on as far as it can be decoded"
            say("damaged", text, "WARNING", damaged=count)


def _nameless(content: bytes) -> str:
    digest = hashlib.sha256(content).hexdigest()[:12]
    return f"a JPEG without a name of {len(content):,} bytes, SHA-256 {digest}"


def size(content: bytes, pixels: Callable[[bytes], np.ndarray] = pixels) -> tuple[int, int]:
    """Return height and width of an encoded picture. `pixels` decodes one that is neither a JPEG
    nor a PNG. Raises ValueError."""
    if content.startswith(_JPEG):
        with contextlib.suppress(ValueError):
            return _header(content)
    if content.startswith(_PNG) and len(content) >= _PNG_SIZE.stop:
        width, height = struct.unpack(">II", content[_PNG_SIZE])
        return height, width
    height, width, _ = pixels(content).shape
    return height, width


def _header(content: bytes) -> tuple[int, int]:
    height, width, _, _ = simplejpeg.decode_jpeg_header(content)
    return height, width


@dataclass(frozen=True)
class Decoder:
    """Makes batches of squares, as `config` has them."""

    config: Config
    pixels: Callable[..., np.ndarray] = pixels

    def batch(
        self, contents: tf.Tensor, draws: tf.Tensor, names: tf.Tensor | None = None
    ) -> tf.Tensor:
        """Return pictures, uint8 [n, side, side, 3]. draws: the augment.DRAWS random numbers of
        each. names: for reports."""
        names = tf.fill(contents.shape, "") if names is None else names
        [n], side = contents.shape, self.config.image_size
        sizes = tf.ensure_shape(tf.numpy_function(self._sizes, [contents], tf.int32), [n, 2])
        seen = augment.window(sizes, draws, self.config)
        views = tf.concat([seen, augment.placing(draws, self.config)], axis=1)
        images = tf.numpy_function(self._squares, [contents, names, views], tf.uint8)
        return tf.ensure_shape(images, [n, side, side, 3])

    def _sizes(self, contents: np.ndarray) -> np.ndarray:
        sizes = np.empty((len(contents), 2), np.int32)

        def measure(number: int) -> None:
            sizes[number] = size(contents[number], self.pixels)

        _each(len(contents), measure)
        return sizes

    def _squares(self, contents: np.ndarray, names: np.ndarray, views: np.ndarray) -> np.ndarray:
        images = _empty(len(contents), self.config.image_size, self.config.image_size, 3)
        rows = views.tolist()

        def make(number: int) -> None:
            self._square(contents[number], names[number], images[number], *rows[number])

        _each(len(contents), make)
        return images

    def _square(
        self, content: bytes, name: bytes, out: np.ndarray,
        top: int, left: int, height: int, width: int, mirrored: int, upended: int,
        turns: int,
    ) -> None:  # fmt: skip
        """Make the part that is seen, at the scale that is large enough, into a square.

        A JPEG that is to be mirrored is decoded with its colours backwards: see `_backwards`.
        """
        jpeg = content.startswith(_JPEG)
        scale = max(min(height, width) // self.config.image_size, 1) if jpeg else 1
        ratio = min(1 << scale.bit_length() - 1, RATIOS[-1])
        if backwards := bool(jpeg and mirrored and not turns and self.pixels is pixels):
            image = pixels(content, ratio, name, "BGR")
        else:
            image = self.pixels(content, ratio, name)
        if not augment.whole(self.config):
            top, left = top // ratio, left // ratio
            bottom, right = top + max(height // ratio, 1), left + max(width // ratio, 1)
            image = image[top:bottom, left:right]
        image = _resized(image, self.config.image_size)
        image = image[::-1] if upended else image
        if backwards:
            _backwards(image, out)
        else:
            _copy(np.rot90(image[:, ::-1] if mirrored else image, turns), out)


def _resized(image: np.ndarray, side: int) -> np.ndarray:
    """Return a square: bilinear, with half-pixel centres, as decoding has it."""
    if image.shape[:2] == (side, side):
        return image
    height, width, _ = image.shape
    source = rust_lib.Image(width, height, _RGB, image.tobytes())
    square = rust_lib.Image(side, side, _RGB, None)
    filtering = _AVERAGING if min(height, width) >= 2 * side else _BILINEAR
    rust_lib.RustResizer().resize(source, square, filtering)
    return np.frombuffer(square.buffer(), np.uint8).reshape(side, side, 3)


def _backwards(image: np.ndarray, out: np.ndarray) -> None:
    """Copy BGR pixels mirrored and as RGB: all bytes of a row backwards, in words of 8 if they fill
    it. That takes a third of what mirroring pixels of three bytes takes."""
    side, word = len(image), math.gcd(out.strides[0], 8)
    rows = np.ascontiguousarray(image).reshape(side, -1).view(f"<u{word}")
    out.reshape(side, -1).view(f">u{word}")[:] = rows[:, ::-1]


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
