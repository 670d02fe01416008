"""Sound files of all kinds, made by libsndfile, are stored as a person hears them. No
TensorFlow."""

import io
from typing import Any

import numpy as np
import pytest

soundfile = pytest.importorskip("soundfile")

from trainer.records.sounds import SoundForm, StoredSound, UnreadableSound, prepare  # noqa: E402

RATE = 16000


def tone(hertz: float = 440.0, seconds: float = 0.5, rate: int = RATE, loud: float = 0.5) -> Any:
    return (loud * np.sin(2 * np.pi * hertz * np.arange(int(seconds * rate)) / rate)).astype("f4")


def file(samples: Any, kind: str = "WAV", subtype: str | None = None, rate: int = RATE) -> bytes:
    buffer = io.BytesIO()
    soundfile.write(buffer, samples, rate, format=kind, subtype=subtype)
    return buffer.getvalue()


def heard(made: StoredSound) -> Any:
    """The samples, read by libsndfile."""
    samples, rate = soundfile.read(io.BytesIO(made.content), dtype="int16", always_2d=True)
    assert (rate, samples.shape) == (RATE, (made.frames, 1))
    return samples[:, 0]


def pitch(samples: Any) -> float:
    return float(np.abs(np.fft.rfft(samples)).argmax() * RATE / len(samples))


@pytest.mark.parametrize(
    ("kind", "subtype"),
    [
        ("WAV", "PCM_16"),
        ("WAV", "PCM_U8"),
        ("WAV", "PCM_24"),
        ("WAV", "PCM_32"),
        ("WAV", "FLOAT"),
        ("WAV", "DOUBLE"),
        ("WAV", "ULAW"),
        ("WAV", "IMA_ADPCM"),
        ("WAVEX", "PCM_24"),
        ("RF64", "PCM_16"),
        ("W64", "PCM_16"),
        ("AIFF", "PCM_16"),
        ("AU", "PCM_16"),
        ("CAF", "PCM_16"),
        ("FLAC", "PCM_24"),
        ("OGG", "VORBIS"),
        ("OGG", "OPUS"),
        ("MP3", "MPEG_LAYER_III"),
    ],
)
def test_every_format_becomes_the_same_sound(kind: str, subtype: str) -> None:
    made = prepare(file(tone(), kind, subtype), SoundForm())
    assert pitch(heard(made)) == pytest.approx(440, abs=3)
    assert made.frames == pytest.approx(8000, abs=1300 if kind == "MP3" else 600)
    middle = heard(made)[2000:6000].astype(float)
    assert np.sqrt((middle**2).mean()) == pytest.approx(16384 / 2**0.5, rel=0.05)
    assert made.facts == (f"format {kind} {subtype}",)
    assert not made.silent


def test_16_bits_of_one_channel_at_the_rate_are_taken_over_as_they_are() -> None:
    samples = np.random.default_rng(0).integers(-32768, 32768, 5000).astype(np.int16)
    assert (heard(prepare(file(samples), SoundForm())) == samples).all()
    assert (heard(prepare(file(samples, "FLAC", "PCM_16"), SoundForm())) == samples).all()


@pytest.mark.parametrize("rate", [8000, 11025, 22050, 44100, 48000, 96000])
def test_another_rate_is_converted_and_the_pitch_stays(rate: int) -> None:
    made = prepare(file(tone(rate=rate), rate=rate), SoundForm())
    assert made.frames == pytest.approx(8000, abs=1)
    assert pitch(heard(made)) == pytest.approx(440, abs=3)
    assert f"{rate} samples a second to 16000" in made.facts


def test_what_is_above_half_the_rate_is_gone_and_not_folded_back() -> None:
    made = prepare(file(tone(9000, rate=48000), rate=48000), SoundForm(rate=16000))
    assert np.abs(heard(made)[500:-500]).max() < 40


def test_channels_are_averaged() -> None:
    left, right = tone(), np.zeros(8000, "f4")
    made = prepare(file(np.stack([left, right], 1)), SoundForm())
    assert np.abs(heard(made)).max() == pytest.approx(8192, abs=2)
    assert "2 channels averaged" in made.facts
    six = prepare(file(np.stack([left] * 6, 1), "WAVEX"), SoundForm())
    assert np.abs(heard(six)).max() == pytest.approx(16384, abs=2)
    assert "6 channels averaged" in six.facts


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "is empty"),
        (b"no sound at all", "not a sound that libsndfile knows"),
        (b"RIFF\x24\x00\x00\x00WAVE", "No 'data' chunk"),
        (file(np.zeros(0, "f4")), "has no samples"),
        (file(np.array([0, np.nan, 0], "f4"), subtype="FLOAT"), "not finite numbers"),
        (file(np.array([0, np.inf, 0], "f4"), subtype="FLOAT"), "not finite numbers"),
        (file(np.zeros((9010, 1), "f4"), rate=15), "is 601 s long: cut it"),
    ],
    # names, because libsndfile writes the time of the day into some of the files
    ids=["nothing", "text", "no data", "no samples", "not a number", "infinity", "too long"],
)
def test_what_cannot_be_heard_is_refused_with_its_reason(content: bytes, reason: str) -> None:
    with pytest.raises(UnreadableSound, match=reason):
        prepare(content, SoundForm())


@pytest.mark.parametrize(
    ("kind", "subtype"),
    [
        ("WAV", "PCM_16"),
        ("WAV", "FLOAT"),
        ("WAVEX", "PCM_24"),
        ("RF64", "PCM_16"),
        ("W64", "PCM_16"),
        ("AIFF", "PCM_16"),
        ("AU", "PCM_16"),
        ("CAF", "PCM_16"),
        ("FLAC", "PCM_16"),
        ("OGG", "VORBIS"),
        ("OGG", "OPUS"),
        ("MP3", "MPEG_LAYER_III"),
    ],
)
def test_a_file_that_is_cut_short_is_refused(kind: str, subtype: str) -> None:
    # Noise, because a codec could drop silence.
    whole = file(np.random.default_rng(0).normal(0, 0.1, 32000), kind, subtype)
    prepare(whole, SoundForm())
    for share in (0.5, 0.8) if kind == "MP3" else (0.5, 0.8, 0.97, 0.999):
        with pytest.raises(UnreadableSound):
            prepare(whole[: int(share * len(whole))], SoundForm())
