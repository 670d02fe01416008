"""Which part of a sound is heard, and how its spectrogram shows it."""

import numpy as np
import pytest

pytestmark = pytest.mark.tensorflow
tf = pytest.importorskip("tensorflow")

from trainer.input import spectrograms  # noqa: E402
from trainer.input.parts import Sound  # noqa: E402
from trainer.records import sounds  # noqa: E402

RATE = 16000
TENTH = Sound(RATE, 0.1)


def wav(samples: np.ndarray, rate: int = RATE) -> bytes:
    """A WAV file of floats from -1 to 1."""
    return sounds.wav(np.rint(samples * 32768).clip(-32768, 32767).astype("<i2").tobytes(), rate)


def counted(length: int) -> bytes:
    """Each sample is its own place, over 32768."""
    return wav(np.arange(1, length + 1) / 32768)


def places(heard: tf.Tensor) -> np.ndarray:
    return np.rint(heard.numpy() * 32768).astype(int)


def tone(hertz: float, seconds: float = 1.0, rate: int = RATE, loud: float = 0.5) -> np.ndarray:
    return loud * np.sin(2 * np.pi * hertz * np.arange(int(seconds * rate)) / rate)


def test_of_a_longer_one_the_middle_is_heard_or_what_is_drawn() -> None:
    content = counted(2000)
    assert (places(spectrograms.piece(content, TENTH)) == np.arange(201, 1801)).all()
    firsts = [
        int(places(spectrograms.piece(content, TENTH, tf.constant(place, tf.float32)))[0])
        for place in np.linspace(0, 1, 803)[:-1]
    ]
    assert set(firsts) == set(range(1, 402)), "all there are, the first and the last too"
    counts = np.bincount(firsts)[1:]
    assert counts.max() - counts.min() <= 2, "all of them alike"


def test_a_shorter_one_lies_in_the_middle_of_silence_and_is_moved_if_asked() -> None:
    for place in (0.0, 0.5, 0.9999):
        middle = places(spectrograms.piece(counted(1000), TENTH, place))
        assert (middle == [0] * 300 + [*range(1, 1001)] + [0] * 300).all()
    late = places(spectrograms.piece(counted(1000), TENTH, 0.0, more=0.01))
    early = places(spectrograms.piece(counted(1000), TENTH, 0.9999, more=0.01))
    assert (late == [0] * 460 + [*range(1, 1001)] + [0] * 140).all()
    assert (early == [0] * 140 + [*range(1, 1001)] + [0] * 460).all()


def test_another_rate_is_refused_and_so_is_what_is_no_wav_file() -> None:
    with pytest.raises(tf.errors.InvalidArgumentError, match="not at 16000 samples a second"):
        spectrograms.piece(wav(tone(440, rate=8000), 8000), TENTH)
    with pytest.raises(tf.errors.InvalidArgumentError):
        spectrograms.piece(b"no sound", TENTH)


def rows(image: tf.Tensor) -> np.ndarray:
    """The brightest row of each column."""
    return image.numpy()[..., 0].argmax(axis=0)


@pytest.mark.parametrize("size", [32, 64, 96, 224])
def test_a_tone_is_a_line_at_its_pitch(size: int) -> None:
    images = [
        spectrograms.picture(tf.constant(tone(hertz), tf.float32), RATE, size)
        for hertz in (100, 300, 1000, 3000, 7000)
    ]
    assert all(image.shape == (size, size, 3) for image in images)
    assert all(image.numpy().min() >= 0 and image.numpy().max() <= 255.0 for image in images)
    lines = [rows(image) for image in images]
    assert all(np.ptp(line[2:-2]) == 0 for line in lines)
    heights = [int(line[size // 2]) for line in lines]
    assert heights == sorted(heights, reverse=True), "the higher the pitch, the higher the line"
    top = spectrograms._mel(RATE / 2)
    for hertz, height in zip((100, 300, 1000, 3000, 7000), heights, strict=True):
        expected = size * (1 - spectrograms._mel(hertz) / top)
        assert height == pytest.approx(expected, abs=0.03 * size + 1)


@pytest.mark.parametrize("seconds", [0.1, 1.0, 10.0])
def test_a_click_is_a_column_at_its_time(seconds: float) -> None:
    samples = np.zeros(int(seconds * RATE), np.float32)
    samples[int(0.75 * len(samples))] = 1.0
    image = spectrograms.picture(tf.constant(samples), RATE, 32).numpy()[..., 0]
    assert image.mean(axis=0).argmax() == pytest.approx(24, abs=1)


def test_how_loud_it_is_does_not_matter() -> None:
    sound = (tone(500) + tone(2500)) / 2
    loud, quiet = (
        spectrograms.picture(tf.constant(sound * factor, tf.float32), RATE, 32).numpy()
        for factor in (1.0, 0.03)
    )
    np.testing.assert_allclose(loud, quiet, atol=0.1)


@pytest.mark.parametrize(("rate", "bands", "points"), [(16000, 80, 1024), (8000, 32, 256)])
def test_bands_are_those_of_tf_signal(rate: int, bands: int, points: int) -> None:
    expected = tf.signal.linear_to_mel_weight_matrix(
        bands, points // 2 + 1, rate, spectrograms.LOWEST, rate / 2, tf.float64
    )
    found = spectrograms.mel_weights(rate, bands, points)
    np.testing.assert_allclose(found, expected.numpy(), atol=1e-6)


def test_noise_is_as_strong_as_asked_and_the_same_for_the_same_seed() -> None:
    sound = tf.constant(tone(440), tf.float32)
    seed = tf.constant([1, 2])
    noisy = spectrograms.noisy(sound, 0.1, seed)
    added = (noisy - sound).numpy()
    assert added.std() == pytest.approx(0.1 * sound.numpy().std(), rel=0.03)
    assert (spectrograms.noisy(sound, 0.1, seed).numpy() == noisy.numpy()).all()
    assert (spectrograms.noisy(sound, 0.1, tf.constant([1, 3])).numpy() != noisy.numpy()).any()
    assert spectrograms.noisy(tf.zeros([9]), 0.5, seed).numpy().max() == 0


def test_what_is_seen_is_the_middle_and_a_clip_is_what_was_seen() -> None:
    noise = np.random.default_rng(1).normal(0, 0.1, 3000)
    content = wav(noise)
    cut = spectrograms.clip(content, TENTH)
    expected = np.rint(noise * 32768)[700:2300] / 32768
    np.testing.assert_array_equal(spectrograms.piece(cut, TENTH).numpy(), expected)
    seen = spectrograms.seen(content, TENTH, 32)
    assert (seen.dtype, seen.shape) == (tf.uint8, (32, 32, 3))
    assert (seen.numpy() == spectrograms.seen(cut, TENTH, 32).numpy()).all()
    same = spectrograms.shown(tf.constant(expected, tf.float32), RATE, 32)
    assert (seen.numpy() == same.numpy()).all()


@pytest.mark.parametrize(("length", "hop", "size"), [(20560, 160, 64), (1600, 7, 224), (90, 9, 10)])
def test_a_column_is_the_mean_of_its_time(length: int, hop: int, size: int) -> None:
    weights = spectrograms.column_weights(length, hop, size)
    assert weights.shape == (size, -(-length // hop))
    np.testing.assert_allclose(weights.sum(axis=1), 1.0, rtol=1e-6)
    # For a value that grows with time, the mean is the value in the middle.
    starts = hop * np.arange(weights.shape[1])
    middles = (starts + np.minimum(starts + hop, length)) / 2
    expected = (np.arange(size) + 0.5) * length / size
    np.testing.assert_allclose(weights @ middles, expected, atol=hop / 2)
