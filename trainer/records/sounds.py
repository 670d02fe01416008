"""Sound files as the trainer hears them: mono, at one rate, as WAV. Needs soundfile and soxr.

This module converts channels, rates, depths and codecs once, when records are made. It keeps the
length of a clip; the reader decides how much of it is heard.
"""

import io
import re
import struct
from dataclasses import dataclass
from typing import Any

SUFFIXES = frozenset(
    [
        ".aif",
        ".aifc",
        ".aiff",
        ".au",
        ".caf",
        ".flac",
        ".mp3",
        ".oga",
        ".ogg",
        ".opus",
        ".rf64",
        ".snd",
        ".w64",
        ".wav",
        ".wave",
    ]
)
"""Names of the libsndfile formats that are in use (soundfile.available_formats() has all)."""
LONGEST = 600.0
"""Most seconds of a file: 19 MB at 16,000 samples a second. One file is one example, so a longer
one is most likely a mistake."""
HEARD = 10.0
"""Most seconds that the model hears by default; less if no clip is as long."""
HEADER = struct.Struct("<4sI4s4sIHHIIHH4sI")
"""Header of a WAV file that holds only PCM samples: RIFF, fmt and the beginning of data."""

_LESS = r"^\s*(?:data|SSND|Data Size|Riff size|riff)\s*:\s*(\d+) \(should be (\d+)\)"
_UNKNOWN = 0x7FFFF000


class UnreadableSound(Exception):  # noqa: N818 - named for what was found
    """A sound cannot be decoded; the message says why."""


@dataclass(frozen=True)
class SoundForm:
    """How sounds are stored, and how much of each is heard."""

    rate: int = 16000
    """Samples a second."""
    seconds: float | None = None
    """Length that the model hears of a clip. None: as long as the longest clip, but at most HEARD.
    The records do not depend on it."""


@dataclass(frozen=True)
class StoredSound:
    """A sound as it is stored, and facts about it."""

    content: bytes
    """A WAV file: 16 bits, one channel."""
    frames: int
    """Number of samples."""
    facts: tuple[str, ...]
    """Its format and what was done to it; `dataset.json` counts these."""
    silent: bool
    """All samples are 0."""


def missing() -> str | None:
    """Return one line that names the packages to install before sounds can be read; None: none."""
    try:
        import soundfile  # noqa: F401
        import soxr  # noqa: F401
    except (ImportError, OSError) as error:  # OSError: there is no libsndfile for this machine
        return f"sounds need soundfile and soxr: pip install soundfile soxr ({error})"
    return None


def prepare(content: bytes, form: SoundForm) -> StoredSound:
    """Decode a sound; make it mono, with 16 bits, at the rate of `form`. Raises UnreadableSound.

    Channels are averaged. A sound that is louder than full scale, as a file of floats can be, is
    made quieter as a whole, not clipped.
    """
    import numpy as np
    import soxr

    samples, rate, facts = _decoded(content)
    if not np.isfinite(samples).all():
        raise UnreadableSound("has samples that are not finite numbers")
    channels = samples.shape[1]
    if channels > 1:
        facts.append(f"{channels} channels averaged")
    mono = samples.mean(axis=1)
    if rate != form.rate:
        facts.append(f"{rate} samples a second to {form.rate}")
        mono = soxr.resample(mono, rate, form.rate)
    peak = float(np.abs(mono).max(initial=0.0))
    if peak > 1.0:
        facts.append("louder than full scale: made quieter")
        mono = mono / peak
    stored = np.clip(np.rint(mono * 32768.0), -32768, 32767).astype("<i2")
    if not stored.size:
        raise UnreadableSound("has no samples")
    return StoredSound(
        wav(stored.tobytes(), form.rate), stored.size, tuple(facts), not bool(stored.any())
    )


def wav(samples: bytes, rate: int) -> bytes:
    """Return a WAV file of 16-bit samples of one channel, as tf.audio.decode_wav reads it."""
    size = len(samples)
    chunks = (b"RIFF", 36 + size, b"WAVE", b"fmt ", 16, 1, 1, rate, 2 * rate, 2, 16, b"data", size)
    return HEADER.pack(*chunks) + samples


def _decoded(content: bytes) -> tuple[Any, int, list[str]]:
    """Return float32 [frames, channels], samples a second, facts."""
    import soundfile

    try:
        with soundfile.SoundFile(io.BytesIO(content)) as file:
            if file.frames > LONGEST * file.samplerate:
                length = f"{file.frames / file.samplerate:,.0f} s"
                raise UnreadableSound(
                    f"is {length} long: cut it into parts of at most {LONGEST:.0f} s"
                )
            samples = file.read(dtype="float32", always_2d=True)
            kind = file.format
            short = _cut_short(len(samples), file.frames, file.extra_info)
            if short or (kind == "OGG" and _last_page_cut(content)):
                raise UnreadableSound("is cut short")
            return samples, file.samplerate, [f"format {kind} {file.subtype}"]
    except (soundfile.SoundFileError, ValueError, TypeError) as error:
        raise UnreadableSound(_reason(content, error)) from error
    except MemoryError as error:
        raise UnreadableSound("too large") from error


def _cut_short(read: int, promised: int, log: str) -> bool:
    """Return whether the file has less than its header says. libsndfile reads what is there and
    logs this.
    """
    if read < 0.9 * promised:  # MP3: without a header its length is an estimate.
        return True
    noted = re.search(_LESS, log, re.MULTILINE)
    # A file that was written to a pipe has no length: all bits are set, or almost all.
    return noted is not None and int(noted[2]) < int(noted[1]) < _UNKNOWN


def _last_page_cut(content: bytes) -> bool:
    """Return whether the last page of an Ogg file is incomplete (RFC 3533, section 6)."""
    segments = content.rfind(b"OggS") + 27
    if segments > len(content):
        return True
    body = segments + content[segments - 1]
    return body + sum(content[segments:body]) > len(content)


def _reason(content: bytes, error: BaseException) -> str:
    if not content:
        return "is empty"
    text = " ".join(str(error).split()).rpartition(">: ")[2]
    return "not a sound that libsndfile knows" if "not recognised" in text else text[:200]
