"""`python -m tests.fuzz`: damaged libraries, answers, archives, files of repositories, and names.

For each case: no exception but the factory's own, an end within 5 s of processor time, no memory
beyond 500 MB, and nothing left in the temporary folder. For libraries there is an oracle as well:
what a GPU would need is destroyed, and the verdict must never be that it runs. A case follows from
its kind and its number alone. `python -m tests.fuzz libraries --first N --cases 1` repeats one.
"""

from __future__ import annotations

import argparse
import gzip
import io
import json
import random
import re
import resource
import signal
import struct
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from builder.devicecode import inventory
from builder.devicecode.pruning.fatbin import containers
from builder.devicecode.pruning.rule import compute_capability
from builder.devicecode.verdict import Support, judge
from builder.init import proposal
from builder.prove import receipts
from builder.reading import layers, tars
from builder.registry import decoding, manifests
from tests.devicecode.writer import Part, container, digest, library, ptx, sass
from tests.fuzz import trust as fuzz_trust
from tests.fuzz.names import names
from tests.fuzz.trust import changed, own_errors
from tests.init import test_brought as brought

SECONDS, MEGABYTES = 5, 500
MOST_FAULTS = 20
"""Failures of one kind, after which it ends."""
_GPU = compute_capability("8.0")


def code(chance: random.Random, size: int) -> bytes:
    """Bytes as a compressor leaves them: no zeros in a row."""
    return bytes(byte or 1 for byte in chance.randbytes(size))


@cache
def whole(seed: int) -> bytes:
    """A library that runs on the GPU: some containers of a few architectures, as linkers lay them
    out, with the pointers to them or without."""
    chance = random.Random(seed)
    made = [
        container(
            *(sass(sm, payload=code(chance, chance.randint(200, 3000))) for sm in (70, 80, 90)),
            ptx(90, payload=code(chance, 300)),
        )
        for _ in range(chance.randint(1, 5))
    ]
    pointer = struct.pack("<IIQQ", 0x466243B1, 1, 0, 0)
    more = (Part(".nvFatBinSegment", pointer * len(made), flags=3),) if seed % 2 else ()
    return library(*made, more=(Part(".text2", code(chance, 5000), flags=6), *more))


def libraries(number: int) -> None:
    """One damaged library. With a RECORD, any other byte is damage; without one, a hole of 128
    bytes in the device code, or the end of the file."""
    chance = random.Random(number)
    data = bytearray(whole(number % 40))
    known, size = digest(bytes(data)), len(data)
    with_record = chance.random() < 0.5
    known_containers = list(containers(bytes(data)))
    first, last = known_containers[0], known_containers[-1]
    how = chance.choice(
        ["hole", "torn", "cut", "bytes"] if with_record else ["hole", "torn", "cut"]
    )
    if how == "hole":
        start = chance.randint(first.offset - 64, last.end - 128)
        end = chance.randint(start + 128, len(data))
        data[start:end] = bytes(end - start)
    elif how == "torn":
        start = chance.randint(1, last.end - 128)
        data[start:] = bytes(len(data) - start)
    elif how == "cut":
        del data[chance.randint(0, len(data) - 1) :]
    else:
        for _ in range(chance.randint(1, 8)):
            data[chance.randrange(len(data))] ^= chance.randint(1, 255)
        if digest(bytes(data)) == known:
            return
    files: list[tuple[str, bytes]] = [("site/nvidia/libkernels.so.1", bytes(data))]
    if with_record:
        record = f"nvidia/libkernels.so.1,sha256={known},{size}\n".encode()
        files.append(("site/nvidia_x-1.0.dist-info/RECORD", record))
    stream = ((name, io.BytesIO(content)) for name, content in files)
    (damaged,) = inventory.of_stream(stream).compared()
    status = judge(damaged, _GPU).status
    if status < Support.NOT_KNOWN:
        raise AssertionError(f"{how}: {status}")


def headers(number: int) -> None:
    """One library with a few other bytes in its headers: whatever it says, it is said."""
    chance = random.Random(number)
    data = bytearray(whole(number % 40))
    for _ in range(chance.randint(1, 6)):
        at = chance.choice(
            [
                chance.randrange(64),
                chance.randrange(len(data)),
                len(data) - 1 - chance.randrange(600),
            ]
        )
        data[at : at + chance.choice((1, 2, 4, 8))] = chance.choice(
            [b"\0" * 8, b"\xff" * 8, b"\x01", b"\x7f" * 4, chance.randbytes(8)]
        )
    (damaged,) = inventory.of_stream([("libkernels.so.1", io.BytesIO(bytes(data)))]).compared()
    str(judge(damaged, _GPU))


_DESCRIPTOR = {"mediaType": manifests.OCI_LAYER_ZSTD, "digest": f"sha256:{'a' * 64}", "size": 1}
_ANSWERS: tuple[dict[str, Any], ...] = (
    {"schemaVersion": 2, "config": _DESCRIPTOR, "layers": [_DESCRIPTOR], "annotations": {"a": "b"}},
    {"manifests": [{**_DESCRIPTOR, "platform": {"os": "linux", "architecture": "amd64"}}]},
    {"architecture": "amd64", "os": "linux", "config": {"Env": ["A=1"], "Labels": {"a": "b"}},
     "rootfs": {"diff_ids": ["sha256:1"]}, "history": [{"created_by": "x"}]},
    {"token": "abc", "expires_in": 300},
    {"schema_version": 1, "target": "v100", "accelerator": "V100", "reference": "x", "suite": "x",
     "image_id": f"sha256:{'a' * 64}", "inputs": "x", "made_by": "x", "made_at": "2026-01-01",
     "device": "CPU", "checks": [{"name": "size", "version": 1, "passed": True, "seconds": 1.0}]},
)  # fmt: skip


def answers(number: int) -> None:
    """One answer of a registry, as JSON of another shape or as bytes that are none."""
    chance = random.Random(number)
    data = json.dumps(changed(chance, chance.choice(_ANSWERS))).encode()
    if chance.random() < 0.3:
        at = chance.randrange(len(data) + 1)
        data = data[:at] + chance.choice([b"[" * 100_000, b"\xff", b'"', b"{", b""]) + data[at:]
    made = manifests.Manifest(data, chance.choice([manifests.OCI_MANIFEST, manifests.OCI_INDEX]))
    asks: tuple[Callable[[], object], ...] = (
        lambda: (made.config, made.layers, made.subject),
        lambda: (made.manifests, made.of_platform("linux", "amd64")),
        lambda: manifests.configuration_in(data),
        lambda: decoding.token(data),
        lambda: receipts.parse(data, "receipt"),
    )
    for ask in asks:
        with own_errors():
            ask()


@cache
def layer() -> bytes:
    """A layer with a library, its RECORD, a link and a whiteout."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.GNU_FORMAT) as archive:
        for name, data in {
            f"site/{'d' * 120}/libkernels.so.1": whole(1),
            "site/nvidia_x-1.0.dist-info/RECORD": b"a.so,sha256=x,1\n",
            "etc/.wh.gone": b"",
        }.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))
    return packed.getvalue()


def archives(number: int) -> None:
    """One layer with damage in its headers, its names or its compression."""
    chance = random.Random(number)
    data = bytearray(layer())
    for _ in range(chance.randint(0, 5)):
        at = chance.randrange(1600) if chance.random() < 0.7 else chance.randrange(len(data))
        data[at : at + chance.choice((1, 8, 12))] = chance.choice(
            [
                b"77777777777",
                b"\x80" + b"\xff" * 11,
                b"L",
                b"x",
                b"S",
                b"\0" * 12,
                chance.randbytes(4),
            ]
        )
    packed = bytes(data)
    if chance.random() < 0.5:
        zipped = bytearray(gzip.compress(packed, 1, mtime=0))
        zipped[chance.randrange(len(zipped))] ^= chance.randint(0, 255)
        packed = bytes(zipped)
    try:
        layers.read(io.BytesIO(packed[: chance.randint(0, len(packed)) or None]))
    except tars.BROKEN:
        pass
    except OSError as error:
        if error.errno is not None:
            raise


_PIECES = (
    *(
        "'",
        '"',
        "`",
        "$(",
        "${",
        "\\",
        "\n",
        "<<EOF",
        "[",
        "]",
        "{",
        "}",
        "=",
        "==",
        "::",
        "@",
        "-",
    ),
    *("--", "#", "\0", "\x85", "*", ";", "&&", "|", ">", ",", "FROM ", "RUN ", "-r ", "-c "),
)


def repositories(number: int) -> None:
    """Files of repositories, damaged: `init` takes or names what they say, or refuses them."""
    chance = random.Random(number)
    with tempfile.TemporaryDirectory() as scratch:
        for kind in chance.sample(list(brought.KINDS.values()), 2):
            for name, text in kind.files.items():
                for _ in range(chance.randint(0, 6)):
                    at, other = chance.randint(0, len(text)), chance.randint(0, len(text))
                    piece = chance.choice([*_PIECES, text[other : other + 20]])
                    text = text[:at] + piece + text[at + chance.randint(0, 6) :]
                path = Path(scratch, name)
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text, encoding="utf-8")
        with own_errors():
            proposal.propose(Path(scratch), chance.choice(["t4", "cpu", "tpu-jax"]))


KINDS: dict[str, Callable[[int], None]] = {
    "libraries": libraries,
    "headers": headers,
    "answers": answers,
    "archives": archives,
    "repositories": repositories,
    "names": names,
    **fuzz_trust.KINDS,
}


def run(kind: str, first: int, cases: int, until: float = float("inf")) -> int:
    """Run these cases of a kind, at most until a time. Returns how many ran.

    Raises AssertionError for a case that took too long, left files or used too much memory, and
    whatever a case raised that is none of the factory's errors, with the case's number.
    """

    def too_long(*_: object) -> None:
        raise AssertionError(f"more than {SECONDS} s of processor time")

    signal.signal(signal.SIGPROF, too_long)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with tempfile.TemporaryDirectory() as folder:
        kept, tempfile.tempdir = tempfile.tempdir, folder
        try:
            for number in range(first, first + cases):
                if time.time() > until:
                    return number - first
                signal.setitimer(signal.ITIMER_PROF, SECONDS)
                try:
                    with own_errors():
                        KINDS[kind](number)
                except Exception as error:
                    raise AssertionError(
                        f"{kind} {number}: {type(error).__name__}: {error}"
                    ) from error
                finally:
                    signal.setitimer(signal.ITIMER_PROF, 0)
            left = list(Path(folder).iterdir())
        finally:
            tempfile.tempdir = kept
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    assert not left, f"{kind}: left {left[0].name}"
    assert grown < MEGABYTES, f"{kind}: {grown:.0f} MB more"
    return cases


def main() -> int:
    """Run the command line; 1 for a case that failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("kinds", nargs="*", metavar="KIND", help=", ".join(KINDS))
    parser.add_argument("--first", type=int, default=0, help="number of the first case")
    parser.add_argument("--cases", type=int, default=1_000_000_000, help="of each kind")
    parser.add_argument(
        "--seconds", type=float, default=float("inf"), help="for all kinds together"
    )
    chosen = parser.parse_args()
    kinds = chosen.kinds or list(KINDS)
    failed = 0
    for left, kind in zip(range(len(kinds), 0, -1), kinds, strict=True):
        began = time.time()
        until = began + chosen.seconds / left
        chosen.seconds -= chosen.seconds / left
        first, end, faults = chosen.first, chosen.first + chosen.cases, 0
        while first < end and faults < MOST_FAULTS and (faults == 0 or time.time() < until):
            try:
                first += run(kind, first, end - first, until)
                break
            except AssertionError as error:
                print(f"failed: {error}", flush=True)
                faults += 1
                number = re.match(rf"{kind} (\d+):", str(error))
                first = int(number[1]) + 1 if number else end
        failed += bool(faults)
        result = f"{faults} failed" if faults else "none failed"
        done, seconds = first - chosen.first, time.time() - began
        print(f"{kind}: {done:,} cases, {result}, {seconds:,.0f} s", flush=True)
    return min(failed, 1)


if __name__ == "__main__":
    sys.exit(main())
