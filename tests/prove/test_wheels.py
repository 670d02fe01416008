"""What the wheels of a lock carry: kept beside the locks, and held against the tables."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import replace
from pathlib import Path

import pytest

from builder.config import device_code, image_yaml, lockfile, locking
from builder.config.device_code import Read
from builder.config.lockfile import Lock
from builder.config.uv import Platform
from builder.core.errors import InputError
from builder.devicecode.library import Wheel
from builder.prove import wheels
from tests import ROOT
from tests.config.test_lock import nothing_new
from tests.devicecode.writer import container, library, sass
from tests.prove.installed import site, stack

WITHOUT_VOLTA = library(container(*map(sass, (75, 80, 86, 90, 100))))


def with_another_cudnn(root: Path, scratch: Path) -> tuple[Lock, Read]:
    """The V100's lock, and its wheels as if cuDNN's had no code for it."""
    lock, read = lockfile.read(root, "v100"), dict(device_code.read(root))
    pin = lock.packages["nvidia-cudnn-cu12"]
    libraries = site(scratch, cudnn=WITHOUT_VOLTA).libraries
    return lock, read | wheels.by_wheel([pin], libraries)


# --- images/device-code.lock ----------------------------------------------------------------------


def test_what_is_written_is_read_and_anything_else_is_said_to_be_none(copy: Path) -> None:
    read = device_code.read(copy)
    assert sum(bool(wheel.libraries) for wheel in read.values()) >= 9
    text = (copy / "images" / device_code.FILE).read_text()
    assert not device_code.write(copy, read)
    (copy / "images" / device_code.FILE).unlink()
    assert device_code.read(copy) == read, "the factory's own, which a foreign project has"
    assert device_code.write(copy, read)
    assert (copy / "images" / device_code.FILE).read_text() == text
    json.loads(text)
    for text in ("", "{}", '{"schema": 1, "wheels": {"a": 1}}', "[]"):
        (copy / "images" / device_code.FILE).write_text(text)
        with pytest.raises(InputError, match=r"device-code\.lock: is not what") as error:
            device_code.read(copy)
        assert device_code.COMMAND in error.value.fix


# --- gaps ----------------------------------------------------------------------------------------


def test_every_gpu_target_of_this_repository_is_judged_by_its_wheels() -> None:
    targets = image_yaml.targets(ROOT)
    gaps = wheels.check(ROOT, targets)
    gpus = [name for name in targets if name.split("-")[0] not in ("cpu", "tpu")]
    assert gaps == dict.fromkeys(sorted(gpus), ())


def test_what_nobody_read_and_what_carries_less_than_the_table_says_is_a_gap(
    copy: Path, tmp_path: Path
) -> None:
    lock, other = with_another_cudnn(copy, tmp_path / "site")
    device_code.write(copy, other)
    gaps = wheels.check(copy, ["v100", "h100"])
    assert "the wheels say: 7.0: missing, because of libcudnn_ops.so.9" in gaps["v100"][0]
    assert gaps["h100"] == ()
    cudnn = lock.packages["nvidia-cudnn-cu12"].sha256
    device_code.write(copy, {key: wheel for key, wheel in other.items() if key != cudnn})
    (gap,) = wheels.check(copy, ["v100"])["v100"]
    assert gap.startswith("what nvidia-cudnn-cu12 9.10.2.21 carries was never read: run builder")
    for file in (copy / "images/v100").glob("*.lock"):
        file.unlink()
    assert wheels.check(copy, ["v100", "cpu"]) == {}, "never locked"


# --- refusing -------------------------------------------------------------------------------------


def test_versions_whose_wheels_do_not_run_are_refused_before_anything_is_written(
    copy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock, read = with_another_cudnn(copy, tmp_path / "site")
    device_code.write(copy, read)
    before = {file: file.read_bytes() for file in copy.rglob("*") if file.is_file()}
    monkeypatch.setattr(locking, "_made", lambda *_: lock)
    chosen = stack(copy)
    with pytest.raises(
        InputError, match=r"nvidia-cudnn-cu12 9\.10\.2\.21 does not run on V100"
    ) as error:
        locking.lock(
            copy, chosen.spec, chosen, nothing_new, upgrade=True,
            require=lambda made: wheels.require(copy, chosen, made),
        )  # fmt: skip
    assert error.value.message.startswith("images/v100/image.yaml")
    assert "9.10.2.21 or older" in error.value.fix
    (copy / "build" / ".lock").unlink()
    assert before == {file: file.read_bytes() for file in copy.rglob("*") if file.is_file()}
    wheels.require(copy, stack(copy, "h100"), replace(lock, target="h100"))
    (copy / "images" / device_code.FILE).unlink()
    wheels.require(copy, stack(copy), lockfile.read(copy, "v100"))


# --- reading --------------------------------------------------------------------------------------


def test_verifying_writes_what_was_read_and_tells_what_was_committed_wrongly(
    copy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a download: the wheels are those that this repository has read."""
    lock, wrong = with_another_cudnn(copy, tmp_path / "site")
    gone = Wheel("nvidia-old", "1.0", "0" * 64, ())
    truth = device_code.of_known(lock, device_code.read(copy)).libraries
    device_code.write(copy, {**wrong, gone.sha256: gone})
    monkeypatch.setattr(wheels, "of_lock", lambda *_: truth)
    gaps = wheels.verify(copy, ["v100", "cpu"])
    assert gaps == {
        "v100": ("device-code.lock does not say what nvidia-cudnn-cu12 9.10.2.21 carries",)
    }
    known = {pin.sha256 for pin in lock.packages.values()}
    written = device_code.read(copy)
    assert set(written) == known | set(device_code.read(ROOT)), "what no lock names is gone"
    assert all(written[sha256] == wheel for sha256, wheel in device_code.read(ROOT).items())
    assert wheels.verify(copy, ["v100"]) == {"v100": ()}


@pytest.mark.network
@pytest.mark.slow
def test_the_wheels_of_a_lock_are_what_is_committed(root: Path) -> None:
    """A small one, downloaded: the whole stack is `builder lock --verify-device-code`."""
    lock = lockfile.read(root, "v100")
    small = {"nvidia-curand-cu12", "typing-extensions"}
    pins = tuple(pin for pin in lock.packages.values() if pin.name in small)
    libraries = wheels.of_lock(
        replace(lock, wheels={lockfile.CUDA: pins}), Platform(lock.python, 36)
    )
    fresh, committed = wheels.by_wheel(pins, libraries), device_code.read(root)
    assert len(fresh) == 2
    assert all(committed[sha256] == wheel for sha256, wheel in fresh.items())
    (curand,) = (library for library in libraries if library.groups)
    assert dataclasses.astuple(curand)[0] == "nvidia/curand/lib/libcurand.so.10"
