"""Sounds as pictures: log-mel spectrograms of WAV files, as uint8 squares.

So models, precision and TensorBoard treat sounds as they treat pictures. Training, evaluation and
the SavedModel share these functions, which consist of TensorFlow's own operations.
"""

import functools

import numpy as np
import tensorflow as tf

from trainer.input.parts import Sound
from trainer.records import sounds

WINDOW = 0.03
"""Seconds of one spectrum, about: a whole number of hops."""
HOP = 0.010
"""Most seconds from one spectrum to the next."""
BANDS = 80
"""Most bands of the mel scale; for a larger picture they are enlarged."""
LOWEST = 20.0
"""Hertz."""
RANGE = 80.0
"""Decibels from black to white. White is the sound's loudest, so the volume of a recording does not
matter (as in librosa's power_to_db(ref=max, top_db=80)),"""
QUIET = -80.0
"""but white is at least this loud, in decibels of full scale, so the noise of silence is dark."""

_NEPER = np.log(10.0) / 10.0
"""Decibels times this are the natural logarithm of a power."""


def piece(
    wav: tf.Tensor, sound: Sound, place: float | tf.Tensor = 0.5, more: float = 0.0
) -> tf.Tensor:
    """Return float32 [samples], -1 to 1: the part that is heard of a WAV file of 16 bits.

    A shorter sound lies in the middle of silence. Then `more` seconds of silence are added to both
    ends, and `place`, from 0 up to 1, chooses the part; 0.5 is the middle. Channels are averaged.
    Raises tf.errors.InvalidArgumentError if the rate is not that of `sound`.
    """
    samples, rate = tf.audio.decode_wav(wav)
    message = f"a sound is not at {sound.rate} samples a second"
    with tf.control_dependencies([tf.debugging.assert_equal(rate, sound.rate, message)]):
        mono = tf.reduce_mean(samples, axis=1)
    lack = tf.maximum(sound.samples - tf.shape(mono)[0], 0)
    silence = round(more * sound.rate)
    whole = tf.pad(mono, [[silence + (lack + 1) // 2, silence + lack // 2]])
    spare = tf.shape(whole)[0] - sound.samples
    start = tf.cast(tf.floor(place * tf.cast(spare + 1, tf.float32)), tf.int32)
    start = tf.minimum(start, spare)
    return tf.ensure_shape(whole[start : start + sound.samples], [sound.samples])


def seen(wav: tf.Tensor, sound: Sound, size: int) -> tf.Tensor:
    """Return the uint8 square that evaluation and a server see of a WAV file: its middle."""
    return shown(piece(wav, sound), sound.rate, size)


def clip(wav: bytes, sound: Sound) -> bytes:
    """Return the part of a WAV file that evaluation hears, as a WAV file."""
    samples = np.rint(piece(wav, sound).numpy() * 32768.0)
    return sounds.wav(samples.clip(-32768, 32767).astype("<i2").tobytes(), sound.rate)


def shown(samples: tf.Tensor, rate: int, size: int) -> tf.Tensor:
    """Return `picture` as uint8."""
    return tf.cast(picture(samples, rate, size) + 0.5, tf.uint8)


def noisy(samples: tf.Tensor, share: float | tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
    """Add white noise, `share` as strong as the sound (root mean square). `seed`: int32 [2]."""
    strength = share * tf.sqrt(tf.reduce_mean(tf.square(samples)))
    even = tf.random.stateless_uniform(tf.shape(samples), seed, -1.0, 1.0, alg="philox")
    noise = 3.0**0.5 * even  # as white as normal noise, in a third of the time
    return tf.clip_by_value(samples + strength * noise, -1.0, 1.0)


def picture(samples: tf.Tensor, rate: int, size: int) -> tf.Tensor:
    """Return the spectrogram of float32 [n] as a float32 square, 0 to 255, of three equal channels.

    Time goes from left to right, pitch from the bottom to the top.
    """
    length, bands = int(samples.shape[0]), min(size, BANDS)
    hop = max(1, min(round(HOP * rate), length // size))
    count = -(-length // hop)
    window = hop * max(1, round(WINDOW * rate / hop))  # Frames of whole rows are made faster.
    points = _points(rate, bands, window)
    # The middle of each window is the middle of its hop; silence surrounds the sound.
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
    """Return float32 [window] with a sum of 1, so that a tone of full scale has an amplitude of
    1/2.
    """
    shape = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(window) / window)
    return (shape / shape.sum()).astype(np.float32)


@functools.cache
def column_weights(length: int, hop: int, size: int) -> np.ndarray:
    """Return float32 [size, spectra]: each column of the picture is the mean of the spectra in its
    share of the time.
    """
    ends = np.arange(0, length + hop, hop).clip(max=length)
    edges = np.linspace(0, length, size + 1)[:, None]
    overlap = np.minimum(edges[1:], ends[1:]) - np.maximum(edges[:-1], ends[:-1])
    shares = np.maximum(overlap, 0.0)
    return (shares / shares.sum(axis=1, keepdims=True)).astype(np.float32)


@functools.cache
def mel_weights(rate: int, bands: int, points: int) -> np.ndarray:
    """Return float32 [points // 2 + 1, bands]: triangles of equal width on the mel scale.

    The scale is HTK's, 1127 ln(1 + f / 700 Hz), from LOWEST to half the rate, as in
    tf.signal.linear_to_mel_weight_matrix.
    """
    edges = np.linspace(_mel(LOWEST), _mel(rate / 2), bands + 2)
    bins = _mel(np.linspace(0.0, rate / 2, points // 2 + 1))[:, None]
    rising = (bins - edges[:-2]) / (edges[1:-1] - edges[:-2])
    falling = (edges[2:] - bins) / (edges[2:] - edges[1:-1])
    weights = np.maximum(0.0, np.minimum(rising, falling))
    weights[0] = 0.0  # A constant is not a sound.
    return weights.astype(np.float32)


def _mel(hertz: float | np.ndarray) -> np.ndarray:
    return 1127.0 * np.log1p(np.asarray(hertz) / 700.0)


def _points(rate: int, bands: int, window: int) -> int:
    """Return points of the Fourier transform: enough for the lowest band, the narrowest, to have
    one.
    """
    edges = np.linspace(_mel(LOWEST), _mel(rate / 2), bands + 2)
    narrowest = float(np.diff(700.0 * np.expm1(edges[:2] / 1127.0))[0])
    return 1 << int(np.ceil(np.log2(max(window, rate / narrowest))))
