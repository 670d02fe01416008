"""What is left out of wheels: each pattern means what it looks like, and leaves something out."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path

import pytest

from builder.bases.drops import DROPS, dropped, matches, rules
from builder.core import network, web
from builder.lock import model, python, requirements
from builder.lock.pins import Pin
from builder.spec import catalogue

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    ("pattern", "path", "is_meant"),
    [
        ("tensorflow/include/**", "tensorflow/include/a/b.h", True),
        ("tensorflow/include/**", "tensorflow/includes.py", False),
        ("tensorflow/include/**", "other/tensorflow/include/b.h", False),
        ("numpy/*/tests/**", "numpy/ma/tests/test_a.py", True),
        ("numpy/*/tests/**", "numpy/a/b/tests/test_a.py", False),
        ("keras/**_test.py", "keras/src/a/b_test.py", True),
        ("keras/**_test.py", "keras/src/a/b_test.pyc", False),
        ("nvidia/cufft/lib/libcufftw.so*", "nvidia/cufft/lib/libcufftw.so.11", True),
        ("nvidia/cufft/lib/libcufftw.so*", "nvidia/cufft/lib/libcufftwXso", False),
    ],
)
def test_a_pattern(pattern: str, path: str, is_meant: bool) -> None:
    assert matches(path, pattern) is is_meant


def test_a_rule_speaks_of_its_wheels_alone() -> None:
    assert rules(model.TENSORFLOW, "tensorflow-cpu") == rules(model.TENSORFLOW, "tensorflow")
    assert dropped("tensorflow/include/a.h", rules(model.TENSORFLOW, "tensorflow"))
    assert not dropped("tensorflow/include/a.h", rules(model.TENSORFLOW, "numpy"))
    assert rules(model.EXTRA, "numpy") == ()  # what a user adds comes whole


class Ranged(io.RawIOBase):
    """A file of a server, of which only what is read is downloaded."""

    def __init__(self, client: web.Client, url: str, size: int) -> None:
        self.client, self.url, self.size, self.at = client, url, size, 0

    def seekable(self) -> bool:
        return True

    def readable(self) -> bool:
        return True

    def tell(self) -> int:
        return self.at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self.at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self.at, io.SEEK_END: self.size}[whence]
        return self.at

    def readinto(self, buffer: bytearray) -> int:  # type: ignore[override]
        end = min(self.at + len(buffer), self.size)
        if end <= self.at:
            return 0
        headers = {"Range": f"bytes={self.at}-{end - 1}"}
        answer = self.client.request("GET", self.url, headers=headers, follow=True)
        assert answer.status == 206
        buffer[: len(answer.data)] = answer.data
        self.at += len(answer.data)
        return len(answer.data)


@pytest.mark.network
@pytest.mark.slow
def test_each_pattern_leaves_something_out_of_a_locked_wheel() -> None:
    host = network.discover()
    idle = {(file, p) for file, of in DROPS.items() for one in of for p in one.paths}
    seen: set[str] = set()
    with host.client() as client:
        for target in catalogue.targets(ROOT):
            lock = model.read(ROOT, target)
            assert lock.root
            platform = python.Platform(lock.python, requirements.GLIBC[lock.root.suite])
            wheels = {
                pin.sha256: (file, pin) for file in DROPS for pin in lock.wheels.get(file, ())
            }
            new = [pin for sha, (file, pin) in wheels.items() if rules(file, pin.name)]
            new = [pin for pin in new if pin.sha256 not in seen]
            found = python.addresses(new, platform, host.host_environment())
            for sha256, address in found.items():
                seen.add(sha256)
                file, pin = wheels[sha256]
                names = listed(client, address, pin)
                idle -= {
                    (file, pattern)
                    for rule in rules(file, pin.name)
                    for pattern in rule.paths
                    if any(matches(name, pattern) for name in names)
                }
    assert idle == set()


def listed(client: web.Client, address: str, pin: Pin) -> list[str]:
    """The files of a wheel, at the paths below site-packages, from the end of the wheel alone."""
    assert pin.bytes
    with zipfile.ZipFile(io.BufferedReader(Ranged(client, address, pin.bytes), 1 << 18)) as archive:
        names = archive.namelist()
    return [name.partition(".data/platlib/")[2] or name for name in names]
