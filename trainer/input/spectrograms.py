"""Sounds as pictures: WAV files in, log-mel spectrograms out, as uint8 squares.

What is behind it (models, precision, misclassified examples) is the same for both then. Training,
evaluation and the SavedModel share these functions; they are TensorFlow's own operations.
"""

import functools

import numpy as np
import tensorflow as tf

from trainer.input.parts import Sound
from trainer.records import sounds

WINDOW = 0.03
"""Seconds that one spectrum is of, about: a whole number of hops."""
HOP = 0.010
"""Seconds from one to the next, at most."""
BANDS = 80
"""Of the mel scale, at most; a larger picture is enlarged to its height."""
LOWEST = 20.0
"""Hertz."""
RANGE = 80.0
"""Decibels from black to white. White is the loudest there is, so that how loud a recording is made
does not matter (as in librosa's power_to_db(ref=max, top_db=80)),"""
QUIET = -80.0
"""but at least so loud, in decibels of full scale: the noise of silence stays dark."""

_NEPER = np.log(10.0) / 10.0
"""The natural logarithm of a power is a decibel times this."""


def piece(
    wav: tf.Tensor, sound: Sound, place: float | tf.Tensor = 0.5, more: float = 0.0
) -> tf.Tensor:
    """float32 [samples], -1 to 1: what is heard of a WAV file of 16 bits at the rate of `sound`.

    `place`, from 0 to 1 (excluded), says which part of a longer one, and where in the silence a
    shorter one lies; 0.5 is the middle. `more`: seconds of silence that are added to both ends
    before. Channels are averaged. Raises tf.errors.InvalidArgumentError for another rate.
    """
    samples, rate = tf.audio.decode_wav(wav)
    said = f"a sound is not at {sound.rate} samples a second"
    with tf.control_dependencies([tf.debugging.assert_equal(rate, sound.rate, said)]):
        mono = tf.reduce_mean(samples, axis=1)
    silence = round(more * sound.rate)
    mono = tf.pad(mono, [[silence, silence]])
    spare = tf.shape(mono)[0] - sound.samples
    room = tf.abs(spare)
    first = tf.cast(tf.floor(place * tf.cast(room + 1, tf.float32)), tf.int32)
    first = tf.minimum(first, room)
    before = tf.where(spare < 0, first, 0)
    padded = tf.pad(mono, [[before, tf.maximum(-spare, 0) - before]])
    start = tf.where(spare < 0, 0, first)
    return tf.ensure_shape(padded[start : start + sound.samples], [sound.samples])


def seen(wav: tf.Tensor, sound: Sound, size: int) -> tf.Tensor:
    """What evaluation and a server see of a WAV file: its middle, as a uint8 square."""
    return shown(piece(wav, sound), sound.rate, size)


def clip(wav: bytes, sound: Sound) -> bytes:
    """What evaluation hears of a WAV file, as one."""
    samples = np.rint(piece(wav, sound).numpy() * 32768.0)
    return sounds.wav(samples.clip(-32768, 32767).astype("<i2").tobytes(), sound.rate)


def shown(samples: tf.Tensor, rate: int, size: int) -> tf.Tensor:
    """`picture` in bytes."""
    return tf.cast(picture(samples, rate, size) + 0.5, tf.uint8)


def noisy(samples: tf.Tensor, share: float | tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
    """With white noise, `share` as strong as the sound (root mean square). `seed`: int32 [2]."""
    strength = share * tf.sqrt(tf.reduce_mean(tf.square(samples)))
    even = tf.random.stateless_uniform(tf.shape(samples), seed, -1.0, 1.0, alg="philox")
    noise = 3.0**0.5 * even  # As white as a normal one, and made in a third of the time.
    return tf.clip_by_value(samples + strength * noise, -1.0, 1.0)


def picture(samples: tf.Tensor, rate: int, size: int) -> tf.Tensor:
    """The spectrogram of float32 [n] as a float32 square, 0 to 255, of three equal channels.

    Time goes from left to right, pitch from the bottom to the top.
    """
    length, bands = int(samples.shape[0]), min(size, BANDS)
    hop = max(1, min(round(HOP * rate), length // size))
    count = -(-length // hop)
    window = hop * max(1, round(WINDOW * rate / hop))  # So frames are made of whole rows: faster.
    points = _points(rate, bands, window)
    # The middle of each window is the middle of its hop; beyond the ends there is silence.
    before = (window - hop) // 2
    around = tf.pad(samples, [[before, (count - 1) * hop + window - length - before]])
    frames = tf.signal.frame(around, window, hop) * _hann(window)
    spectra = tf.signal.rfft(frames, [points])
    power = tf.square(tf.math.real(spectra)) + tf.square(tf.math.imag(spectra))
    heard = tf.matmul(power, mel_weights(rate, bands, points))
    columns = tf.matmul(column_weights(length, hop, size), heard)
    level = tf.math.log(tf.maximum(columns, 1e-20))
    loudest = tf.maximum(tf.reduce_max(level), QUIET * _NEPER)
    light = tf.clip_by_value(255.0 + (level - loudest) * (255.0 / (RANGE * _NEPER)), 0.0, 255.0)
    image = tf.transpose(light)[::-1, :, None]
    image = tf.image.resize(image, (size, size)) if bands < size else image
    return tf.repeat(image, 3, axis=-1)


@functools.cache
def _hann(window: int) -> np.ndarray:
    """float32 [window]; its sum is 1, so that a tone of full scale has half of it."""
    shape = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(window) / window)
    return (shape / shape.sum()).astype(np.float32)


@functools.cache
def column_weights(length: int, hop: int, size: int) -> np.ndarray:
    """float32 [size, spectra]: each column is the mean of the spectra of its share of the time."""
    ends = np.arange(0, length + hop, hop).clip(max=length)
    edges = np.linspace(0, length, size + 1)[:, None]
    overlap = np.minimum(edges[1:], ends[1:]) - np.maximum(edges[:-1], ends[:-1])
    shares = np.maximum(overlap, 0.0)
    return (shares / shares.sum(axis=1, keepdims=True)).astype(np.float32)


@functools.cache
def mel_weights(rate: int, bands: int, points: int) -> np.ndarray:
    """float32 [points // 2 + 1, bands]: triangles that are equally wide on the mel scale.

    Mel as in HTK, 1127 ln(1 + f / 700 Hz), from LOWEST to half the rate, as
    tf.signal.linear_to_mel_weight_matrix has it.
    """
    edges = np.linspace(_mel(LOWEST), _mel(rate / 2), bands + 2)
    bins = _mel(np.linspace(0.0, rate / 2, points // 2 + 1))[:, None]
    rising = (bins - edges[:-2]) / (edges[1:-1] - edges[:-2])
    falling = (edges[2:] - bins) / (edges[2:] - edges[1:-1])
    weights = np.maximum(0.0, np.minimum(rising, falling))
    weights[0] = 0.0  # A constant is no sound.
    return weights.astype(np.float32)


def _mel(hertz: float | np.ndarray) -> np.ndarray:
    return 1127.0 * np.log1p(np.asarray(hertz) / 700.0)


def _points(rate: int, bands: int, window: int) -> int:
    """Of the Fourier transform: so many that the narrowest band, the lowest, has one to itself."""
    edges = np.linspace(_mel(LOWEST), _mel(rate / 2), bands + 2)
    narrowest = float(np.diff(700.0 * np.expm1(edges[:2] / 1127.0))[0])
    return 1 << int(np.ceil(np.log2(max(window, rate / narrowest))))
