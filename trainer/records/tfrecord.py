"""TFRecords, and tf.train.Examples to write, in plain Python.

So the tool that makes records starts at once and needs no TensorFlow. What it writes is byte for
byte what TensorFlow writes (tests/trainer/records/test_tfrecord.py).

A record: 8 bytes length, 4 bytes masked CRC-32C of it, payload, 4 bytes masked CRC-32C of the
payload, all little-endian (TensorFlow, tsl/lib/io/record_writer.h).
"""

import struct
from collections.abc import Callable, Iterator, Mapping
from typing import IO

HEADER, FOOTER = 12, 4
"""Bytes before and after a payload."""
_MASK = 0xA282EAD8
Value = bytes | int | tuple[int, ...] | tuple[float, ...]
"""A feature's value; a tuple has several, and whole numbers if it is empty."""
Target = int | tuple[int, ...] | tuple[float, ...]
"""The number of a class, those of several labels, or values; values are never empty."""


class Damaged(Exception):  # noqa: N818 - named for what was found
    """A record cannot be read; the message says which one, and where it lies."""


def masked(crc: int) -> int:
    """Return a CRC as it is stored.

    TensorFlow masks it, because a CRC of data with CRCs in it is weak.
    """
    return ((crc >> 15 | crc << 17) + _MASK) & 0xFFFFFFFF


def frame(payload: bytes) -> bytes:
    """Return the bytes of a record in a file."""
    length = struct.pack("<Q", len(payload))
    of_length, of_payload = (
        struct.pack("<I", masked(checksum()(content))) for content in (length, payload)
    )
    return b"".join((length, of_length, payload, of_payload))


def lengths(file: IO[bytes], size: int) -> Iterator[tuple[int, int]]:
    """Yield (position, payload length) of each record of a file of `size` bytes, without its
    payload.

    Raises Damaged if the file is cut short or a length was changed: the records after it cannot be
    found.
    """
    position = number = 0
    while position < size:
        file.seek(position)
        header = file.read(HEADER)
        if len(header) < HEADER:
            raise Damaged(f"cut short after record {number}")
        length, stored = struct.unpack("<QI", header)
        if masked(_slow(header[:8])) != stored:
            raise Damaged(f"record {number} is corrupt (byte {position})")
        end = position + HEADER + length + FOOTER
        if end > size:
            raise Damaged(f"cut short in record {number}")
        yield position, length
        position = end
        number += 1


def payload(file: IO[bytes], position: int, length: int) -> bytes | None:
    """Return the payload of the record at `position`; None if its checksum does not match."""
    file.seek(position + HEADER)
    content = file.read(length)
    stored = struct.unpack("<I", file.read(FOOTER))[0]
    return content if masked(checksum()(content)) == stored else None


def example(features: Mapping[str, Value]) -> bytes:
    """Return a serialised tf.train.Example of features with one value each, or several in a tuple.

    Sorted by name, as in TensorFlow's deterministic serialisation.
    """
    entries = b"".join(
        _field(1, _field(1, name.encode()) + _field(2, _feature(features[name])))
        for name in sorted(features)
    )
    return _field(1, entries)


def serialise(image: bytes, label: Target, **more: Value) -> bytes:
    """Return a tf.train.Example of an encoded image; the names in `more` are put below image/."""
    target = "class/label" if isinstance(label, int) else "class/labels"
    if isinstance(label, tuple) and label and isinstance(label[0], float):
        target = "values"
    features = {"encoded": image, target: label, **more}
    return example({f"image/{name}": value for name, value in features.items()})


def checksum() -> Callable[[bytes], int]:
    """Return a function for CRC-32C: google-crc32c's, which uses the hardware, or a slow one."""
    try:
        import google_crc32c
    except ImportError:
        return _slow
    value: Callable[[bytes], int] = google_crc32c.value
    return value


def _feature(value: Value) -> bytes:
    if isinstance(value, bytes):
        return _field(1, _field(1, value))
    several = value if isinstance(value, tuple) else (value,)
    if several and isinstance(several[0], float):
        return _field(2, _field(1, struct.pack(f"<{len(several)}f", *several)))
    for number in several:
        if not (isinstance(number, int) and 0 <= number < 1 << 63):
            raise ValueError(f"{number} is not an int64 of 0 or more")
    packed = b"".join(_varint(int(number)) for number in several)
    return _field(3, _field(1, packed) if packed else b"")


def _field(number: int, content: bytes) -> bytes:
    """Return a length-delimited field of a protocol buffer."""
    return bytes([number << 3 | 2]) + _varint(len(content)) + content


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _crc_table() -> tuple[int, ...]:
    table = []
    for value in range(256):
        for _ in range(8):
            value = (value >> 1) ^ (0x82F63B78 if value & 1 else 0)
        table.append(value)
    return tuple(table)


_TABLE = _crc_table()


def _slow(content: bytes) -> int:
    crc = 0xFFFFFFFF
    for byte in content:
        crc = _TABLE[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    return crc ^ 0xFFFFFFFF
