"""Advisories against a project's targets: open, accepted, expired; entries of nothing."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from inline_snapshot import snapshot

from builder.config import lockfile
from builder.pipeline import make
from tests.conftest import Run
from tests.emulators.osv import Osv, serving
from tests.shown import shown


@pytest.fixture
def osv(copy: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Osv]:
    """A service that knows an advisory against the keras of cpu."""
    monkeypatch.chdir(copy)
    lock = lockfile.read(copy, "cpu")
    with serving() as service:
        service.known["PyPI", "keras", lock.packages["keras"].version] = ["GHSA-planted"]
        yield service


LOCKED = {r"keras \d+(\.\d+)+": "keras VERSION", r"\d{3} locked": "N locked"}


def accept(root: Path, *entries: str) -> None:
    """Accept advisories in each image.yaml with TensorFlow. An entry: id, package, the last day."""
    text = "advisories:\n" + "".join(
        f"  - id: {id_}\n    package: {package}\n    reason: loads no model of others\n"
        f"    until: {until}\n"
        for id_, package, until in (entry.split() for entry in entries)
    )
    for lock in (root / "images").glob("*/tensorflow.lock"):
        path = lock.with_name("image.yaml")
        path.write_text(path.read_text() + text)


def test_open_accepted_and_expired(osv: Osv, copy: Path, builder: Run) -> None:
    words = ("check", "--advisories", "--osv", osv.address)
    check = lambda: shown(builder(*words), changes)  # noqa: E731
    changes = LOCKED
    for folder in (copy / "images").iterdir():
        if folder.is_dir() and folder.name not in ("cpu", "v100", "h100-torch"):
            shutil.rmtree(folder)
    before = make.prepare(copy, "cpu").inputs
    assert check() == snapshot("""\
keras VERSION (PyPI): GHSA-planted; in cpu, v100
| cuDNN 9.26.0.51: the gradients of cuDNN's attention are NaN for one query and
| .. strongly negative scores (9.25.1.1 and 9.26.0.51 on an H200, with one query and
| .. 128 keys: https://github.com/NVIDIA/cudnn-frontend/issues/1072); take attention
| .. that is not cuDNN's where there is one query; in h100-torch
| error: 1 advisories or exceptions of N locked packages fail
| fix:   take newer versions: builder lock --upgrade; or accept them in image.yaml:
| .. advisories
exit code 4
""")
    changes = {**LOCKED, r"\| cuDNN 9\.26.*": "| NOTE"}
    assert "GHSA-planted" in str(json.loads(builder(*words, "--json")[1])["failures"])
    files = {path: path.read_text() for path in (copy / "images").glob("*/image.yaml")}
    accept(copy, "GHSA-planted keras 2999-12-31", "CVE-2026-2 keras 2999-12-31")
    assert check() == snapshot("""\
| keras VERSION (PyPI): GHSA-planted: accepted until 2999-12-31: loads no model of
| .. others; in cpu, v100
| images/cpu/image.yaml:10: advisories.1: CVE-2026-2 of keras matches nothing that
| .. is known: take it out
| images/v100/image.yaml:10: advisories.1: CVE-2026-2 of keras matches nothing that
| .. is known: take it out
| NOTE
| N locked packages: what is known against them is accepted
""")
    assert make.prepare(copy, "cpu").inputs == before, "it changes nothing in the image"
    for path, text in files.items():
        path.write_text(text)
    accept(copy, "GHSA-planted keras 2026-01-31")
    assert check() == snapshot("""\
keras VERSION (PyPI): GHSA-planted; in cpu, v100
images/cpu/image.yaml:6: advisories.0: GHSA-planted of keras was accepted until
.. 2026-01-31
images/v100/image.yaml:6: advisories.0: GHSA-planted of keras was accepted until
.. 2026-01-31
| NOTE
| error: 3 advisories or exceptions of N locked packages fail
| fix:   take newer versions: builder lock --upgrade; or accept them in image.yaml:
| .. advisories
exit code 4
""")
    osv.known.pop(next(key for key in osv.known if key[1] == "keras"))
    for path, text in files.items():
        path.write_text(text)
    assert check() == snapshot("""\
| NOTE
| N locked packages: nothing is known against them
""")
