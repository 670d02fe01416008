"""The wheel layers of a base: which there are, and what decides the bytes of each.

Order: cuda.lock, tensorflow.lock, extra.lock. A wheel of BIG bytes or more has a layer of its own;
the smaller ones of a lock file share one, after its big ones. Big ones are sorted by name, with
TensorFlow itself last. So a new TensorFlow moves one layer, and a new small package a small one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from builder.bases import bytecode
from builder.bases.drops import Drop, rules
from builder.bases.layer import Compression, LayerPlan
from builder.core.files import hash_of
from builder.devicecode.program import pruning_program
from builder.devicecode.pruning.prune import OWNERS, TENSORFLOW
from builder.lock import model
from builder.lock.pins import Pin

if TYPE_CHECKING:
    from builder.lock.model import Lock
    from builder.spec.stack import Prune

BIG: Final = 10_000_000
"""Bytes of a wheel from which on it has a layer of its own."""

RECIPE: Final = 2
"""Raised with each change of this folder that gives a layer other bytes from the same wheels."""

LOADED: Final = "usr/lib/x86_64-linux-gnu"
"""Where the loader looks without being told: links to NVIDIA's libraries lie there."""

_WHY: Final = {
    model.CUDA: "NVIDIA's libraries",
    model.TENSORFLOW: "TensorFlow and all it needs",
    model.EXTRA: "what image.yaml and the trainer add",
}


@dataclass(frozen=True)
class WheelLayer:
    """A layer to make from wheels.

    python: "3.11". keep, only: the compute capability whose device code stays, and in whose
    libraries; None where nothing is pruned. linked: whether the loader has to find its libraries.
    """

    plan: LayerPlan
    pins: tuple[Pin, ...]
    drops: tuple[tuple[Drop, ...], ...]
    python: str
    keep: str | None
    only: str | None
    linked: bool
    compression: Compression


def plan(
    lock: Lock, prune: Prune | None, compression: Compression | None = None
) -> tuple[WheelLayer, ...]:
    """The wheel layers of a lock, in their order in the base. Reads no wheel.

    prune: what device code stays; None where nothing is pruned.
    """
    packing = compression or Compression()
    return tuple(
        _layer(lock, file, pins, prune, packing)
        for file in model.WHEELS
        for pins in _grouped(lock.wheels.get(file, ()))
    )


def _grouped(pins: Sequence[Pin]) -> Iterator[tuple[Pin, ...]]:
    """The wheels of each layer of one lock file."""
    big = [pin for pin in pins if (pin.bytes or 0) >= BIG]
    for pin in sorted(big, key=lambda pin: (_first_word(pin) == TENSORFLOW, pin.name)):
        yield (pin,)
    if small := tuple(sorted((pin for pin in pins if pin not in big), key=lambda pin: pin.name)):
        yield small


def _layer(
    lock: Lock, file: str, pins: tuple[Pin, ...], prune: Prune | None, compression: Compression
) -> WheelLayer:
    only = _only(file, prune)
    # the first word of a distribution's name is that of the folder its libraries lie in
    pruned = prune if only and any(_first_word(pin) in OWNERS[only] for pin in pins) else None
    drops = tuple(rules(file, pin.name) for pin in pins)
    linked = file == model.CUDA
    key = hash_of(
        f"wheels {RECIPE}",
        *(f"{pin.name} {pin.version} {pin.sha256}" for pin in pins),
        *(f"{pin.name}: {one.paths}" for pin, of in zip(pins, drops, strict=True) for one in of),
        *((f"keep {pruned.keep} {only}", *_program()) if pruned else ()),
        *((f"links in {LOADED}",) if linked else ()),
        f"python {lock.python} {_python(lock)}",
        str(compression),
    )
    sizes = [pin.bytes for pin in pins]
    named = tuple(f"{pin.name} {pin.version}" for pin in pins)
    return WheelLayer(
        plan=LayerPlan(
            key=key,
            name=named[0] if len(pins) == 1 else f"{len(pins)} small wheels of {file}",
            packages=named,
            download=None if None in sizes else sum(size or 0 for size in sizes),
            why=_WHY[file] + (f", device code for {pruned.keep}" if pruned else ""),
        ),
        pins=pins,
        drops=drops,
        python=lock.python,
        keep=pruned.keep if pruned else None,
        only=only if pruned else None,
        linked=linked,
        compression=compression,
    )


def _only(file: str, prune: Prune | None) -> str | None:
    """In whose libraries device code is pruned, of the wheels of a lock file."""
    if prune is None or file == model.EXTRA:
        return None
    return TENSORFLOW if file == model.TENSORFLOW else prune.only


def _first_word(pin: Pin) -> str:
    return pin.name.partition("-")[0]


def _program() -> Iterator[str]:
    """The program that prunes; what an image says when it starts is no part of this layer."""
    for name, text in pruning_program().items():
        if name != "announce.py":
            yield f"{name} {text!r}"


def _python(lock: Lock) -> str:
    """The version of the Debian package whose Python compiles the bytecode."""
    return next(deb.version for deb in bytecode.packages(lock) if deb.name.startswith("python"))
