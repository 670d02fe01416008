"""Make the records of the smoke test from scikit-learn's digits: `make_smoke_records.py [OUT]`.

The records have the same bytes on every machine: a hash chooses the examples, and the PNGs are not
compressed, so that they do not depend on the version of zlib.
"""

import hashlib
import struct
import sys
import zlib
from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
from trainer.records import tfrecord  # noqa: E402 - found through the line above

TRAIN, VALIDATION, SHARD_SIZE = 1000, 200, 250


def png(pixels: np.ndarray) -> bytes:
    """A grey PNG file. pixels: uint8, of shape [height, width]."""
    height, width = pixels.shape
    rows = b"".join(b"\0" + row.tobytes() for row in pixels)
    chunks = (
        (b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)),
        (b"IDAT", zlib.compress(rows, 0)),
        (b"IEND", b""),
    )
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
        for kind, body in chunks
    )


def main(out: Path) -> None:
    """Write the records of both splits into `out`."""
    out.mkdir(parents=True, exist_ok=True)
    digits = load_digits()
    order = sorted(
        range(len(digits.target)), key=lambda index: hashlib.sha256(b"%d" % index).digest()
    )
    # The scans have 17 levels of grey, 0 to 16.
    images = np.round(digits.images * 255 / 16).astype(np.uint8)
    examples = [(png(images[index]), int(digits.target[index])) for index in order]
    splits = {"train": examples[:TRAIN], "validation": examples[TRAIN : TRAIN + VALIDATION]}
    (out / "labels.txt").write_text("".join(f"{digit}\n" for digit in range(10)))
    for split, members in splits.items():
        count = -(-len(members) // SHARD_SIZE)
        for number in range(count):
            content = (tfrecord.serialise(*example) for example in members[number::count])
            path = out / f"{split}-{number:05d}-of-{count:05d}.tfrecord"
            path.write_bytes(b"".join(map(tfrecord.frame, content)))


if __name__ == "__main__":
    main(Path(sys.argv[1]) if sys.argv[1:] else ROOT / "builder/prove/records")
