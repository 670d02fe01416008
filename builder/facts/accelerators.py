"""The accelerators that a person may name: accelerators.yaml, read once a process."""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Literal

from builder.core.errors import InputError
from builder.facts import DATA, Source, read_table, sourced, sources_of

Kind = Literal["gpu", "tpu", "cpu"]


@dataclass(frozen=True)
class Architecture:
    """A GPU generation."""

    name: str
    first_cuda: str
    source: Source
    last_cuda: str | None = None
    """`first_cuda` and `last_cuda`: the CUDA toolkits that know it."""
    last_driver: str | None = None
    """The last driver branch that does. Both last ones are None while it is supported."""


@dataclass(frozen=True)
class Accelerator:
    name: str
    kind: Kind
    precision: str
    """The dtype that mixed precision computes in; float32 where it gains nothing."""
    precision_source: Source
    source: Source
    aliases: Sequence[str] = ()
    architecture: Architecture | None = None
    compute_capability: str | None = None
    refused: str | None = None
    """Why no image is made for it; then `instead` names the accelerator to take."""
    instead: str | None = None
    only: Sequence[str] = ()
    """The frameworks, by the key of image.yaml, that an image is made with all the same."""
    refused_source: Source | None = None


@cache
def accelerators() -> dict[str, Accelerator]:
    table = read_table(DATA / "accelerators.yaml")
    sources = sources_of(table)
    architectures = {
        name: Architecture(name, **sourced(row, sources))
        for name, row in table["architectures"].items()
    }
    known = {}
    for row in table["accelerators"]:
        found = {
            "precision_source": sources["precision"],
            "architecture": architectures.get(row.get("architecture")),
            "refused_source": sources.get(row.get("refused_source")),
        }
        known[row["name"]] = Accelerator(**{**sourced(row, sources), **found})
    return known


@cache
def _names() -> dict[str, str]:
    """Return every spelling, in lower case, of every accelerator -> its name."""
    return {
        spelling.lower(): known.name
        for known in accelerators().values()
        for spelling in (known.name, *known.aliases)
    }


def first_cuda(compute_capability: str) -> str:
    """Return the CUDA that first knew GPUs of a compute capability ("12.8"), "" if none does."""
    same = (a for a in accelerators().values() if a.compute_capability == compute_capability)
    return next((a.architecture.first_cuda for a in same if a.architecture), "")


_WORDS = re.compile(r"nvidia|geforce|tesla|jetson|rtx|agx|[^a-z0-9]")


def _key(name: str) -> str:
    """Return a GPU's name without its maker's words: 5090 of "NVIDIA GeForce RTX 5090"."""
    return _WORDS.sub("", name.lower())


@cache
def _other_gpus() -> dict[str, tuple[str, str]]:
    """Return the key of every GPU that no image is made for -> its name and compute capability."""
    gpus = read_table(DATA / "accelerators.yaml")["gpus"]
    return {_key(name): (name, capability) for capability, names in gpus.items() for name in names}


def gpu(name: str) -> tuple[str, str]:
    """Return the name and compute capability of any GPU on record: ("RTX-5090", "12.0").

    Raises InputError for another one, and for what is no GPU.
    """
    key = _key(name)
    for each in accelerators().values():
        if each.compute_capability and key in map(_key, (each.name, *each.aliases)):
            return each.name, each.compute_capability
    if other := _other_gpus().get(key):
        return other
    try:
        known = find(name)
    except InputError as error:
        near = difflib.get_close_matches(key, _other_gpus(), n=1)
        fix = f"write {_other_gpus()[near[0]][0]}" if near else error.fix
        fix = f"write its compute capability, such as 8.6; or {fix.removeprefix('write ')}"
        raise InputError(f"no GPU is called {name!r} here", fix) from None
    raise InputError(f"{known.name} is no GPU", "name a GPU, such as V100, or 7.0")


def kind_of(name: str) -> Kind:
    """Return the kind of an accelerator, of any GPU as `gpu` returns it, or of what a compute
    capability stands for. Raises InputError."""
    if name[:1].isdigit() or _key(name) in _other_gpus():
        return "gpu"
    return find(name).kind


def on_arm64(name: str) -> bool:
    """Tell whether a GPU sits beside an arm64 processor. name: as `gpu` returns it."""
    return name in read_table(DATA / "accelerators.yaml")["arm64"]


def find(name: str) -> Accelerator:
    """Return the accelerator a person means, in any case: "v100", "A100-80GB", "TPU-v3".

    Raises InputError that names the nearest known one.
    """
    key = name.lower().removeprefix("nvidia-").removeprefix("nvidia_").removeprefix("tesla_")
    known = _names().get(key)
    if known is None and (other := _other_gpus().get(_key(name))):
        host = ", beside an arm64 processor" if on_arm64(other[0]) else ""
        raise InputError(
            f"no image is made for {other[0]} (compute capability {other[1]}{host})",
            f"builder audit IMAGE --gpu {other[1]} tells which image runs there; images are for "
            + ", ".join(accelerators()),
        )
    if known is None:
        near = difflib.get_close_matches(key, _names(), n=1, cutoff=0.7)  # a gpu is no TPU
        raise InputError(
            f"no accelerator is called {name!r}",
            (f"write {_names()[near[0]]}; " if near else "")
            + f"known: {', '.join(accelerators())}",
        )
    return accelerators()[known]
