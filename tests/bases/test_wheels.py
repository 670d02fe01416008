"""The wheel layers of a lock: which there are, in which order, and what moves each one's key."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from builder.bases import wheels
from builder.bases.drops import DROPS
from builder.bases.layer import Compression
from builder.bases.wheels import WheelLayer
from builder.lock import model
from builder.lock.model import Lock
from builder.lock.pins import Pin
from builder.spec.stack import Prune

ROOT = Path(__file__).resolve().parents[2]
OLDER = Pin("tensorflow", "2.20.0", "ab" * 32, 500_000_000)


@pytest.fixture
def lock() -> Lock:
    return model.read(ROOT, "v100")


def replaced(lock: Lock, file: str, *pins: Pin) -> Lock:
    """The lock with other pins for the packages of these names."""
    names = {pin.name for pin in pins}
    kept = [pin for pin in lock.wheels[file] if pin.name not in names]
    return dataclasses.replace(lock, wheels={**lock.wheels, file: (*kept, *pins)})


def moved(before: tuple[WheelLayer, ...], after: tuple[WheelLayer, ...]) -> set[str]:
    """The names of layers that have another key."""
    keys = {layer.plan.key for layer in before}
    return {layer.plan.name for layer in after if layer.plan.key not in keys}


def test_a_big_wheel_has_a_layer_and_the_small_ones_of_a_file_share_one(lock: Lock) -> None:
    layers = wheels.plan(lock, None)
    names = [layer.plan.name.split(" ")[0] for layer in layers]
    cuda = sorted(pin.name for pin in lock.wheels[model.CUDA] if (pin.bytes or 0) >= wheels.BIG)
    assert names == [*cuda, "nvidia-cuda-runtime-cu12", *names[len(cuda) + 1 :]]
    assert names[len(cuda) + 1 :] == ["libclang", "numpy", "tensorflow", "29", "2"]
    assert [
        pin for layer in layers for pin in layer.pins if pin not in lock.packages.values()
    ] == []
    assert sum(len(layer.pins) for layer in layers) == len(lock.packages)
    (tensorflow,) = (layer.plan for layer in layers if layer.plan.name.startswith("tensorflow "))
    assert tensorflow.download == lock.packages["tensorflow"].bytes
    assert tensorflow.packages == (f"tensorflow {lock.tensorflow}",)


def test_an_unknown_size_is_a_small_one(lock: Lock) -> None:
    unknown = dataclasses.replace(lock.packages["numpy"], bytes=None)
    layers = wheels.plan(replaced(lock, model.TENSORFLOW, unknown), None)
    (small,) = (one for one in layers if unknown in one.pins)
    assert len(small.pins) == 30 and small.plan.download is None


def test_another_tensorflow_moves_its_layer_alone(lock: Lock) -> None:
    before = wheels.plan(lock, None)
    after = wheels.plan(replaced(lock, model.TENSORFLOW, OLDER), None)
    assert moved(before, after) == {"tensorflow 2.20.0"}


def test_pruning_moves_what_is_pruned(lock: Lock) -> None:
    off = wheels.plan(lock, None)
    tensorflow, all_of_them = (
        wheels.plan(lock, Prune("7.0", only)) for only in ("tensorflow", "all")
    )  # type: ignore[arg-type]
    other = wheels.plan(lock, Prune("7.5", "tensorflow"))
    assert moved(off, tensorflow) == moved(tensorflow, other) == {"tensorflow 2.21.0"}
    names = {layer.plan.name for layer in off if layer.plan.name.startswith("nvidia-")}
    assert moved(tensorflow, all_of_them) == names
    assert {one.only for one in tensorflow} == {None, "tensorflow"}
    assert {one.only for one in all_of_them} == {None, "tensorflow", "all"}


@pytest.mark.parametrize(
    ("what", "moves"),
    [
        ("the program that prunes", {"tensorflow 2.21.0"}),
        ("what an image says when it starts", set()),
        ("a rule for numpy", {"numpy 2.4.6"}),
        ("the recipe", None),
        ("compression", None),
        ("Debian's Python", None),
    ],
)
def test_what_moves_a_key(
    what: str, moves: set[str] | None, lock: Lock, monkeypatch: pytest.MonkeyPatch
) -> None:
    prune, compression = Prune("7.0", "tensorflow"), Compression()
    before = wheels.plan(lock, prune, compression)
    program = dict(wheels.pruning_program())
    if what == "the program that prunes":
        program["rule.py"] += "\n"
    elif what == "what an image says when it starts":
        program["announce.py"] += "\n"
    elif what == "a rule for numpy":
        rules = [r for r in DROPS[model.TENSORFLOW] if r.paths != ("numpy/*/lib/*.a",)]
        monkeypatch.setitem(DROPS, model.TENSORFLOW, tuple(rules))  # type: ignore[arg-type]
    elif what == "the recipe":
        monkeypatch.setattr(wheels, "RECIPE", wheels.RECIPE + 1)
    elif what == "compression":
        compression = Compression("gzip", 6)
    elif what == "Debian's Python":
        apt = [
            dataclasses.replace(deb, version=f"{deb.version}+b1")
            if deb.name == "python3.11-minimal"
            else deb
            for deb in lock.apt[model.APT]
        ]
        lock = dataclasses.replace(lock, apt={**lock.apt, model.APT: tuple(apt)})
    monkeypatch.setattr(wheels, "pruning_program", lambda: program)
    after = wheels.plan(lock, prune, compression)
    assert moved(before, after) == ({one.plan.name for one in before} if moves is None else moves)


def test_targets_share_what_is_the_same() -> None:
    keys = {}
    for target, keep in (("v100", "7.0"), ("t4", "7.5"), ("h100", "9.0")):
        layers = wheels.plan(model.read(ROOT, target), Prune(keep, "tensorflow"))
        keys[target] = {layer.plan.key for layer in layers}
    assert len(keys["v100"] - keys["t4"]) == len(keys["v100"] - keys["h100"]) == 1
