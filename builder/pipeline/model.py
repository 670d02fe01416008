"""A model that the trainer made: its files as the job wrote them, and the image that it ran in."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from builder import registry
from builder.core import files
from builder.core.errors import CheckFailed, InputError
from builder.core.events import OnEvent, ignore
from builder.core.settings import Settings
from builder.pipeline import verify
from builder.pipeline.verify import Verification
from builder.trust import keys, model_bill, model_signatures
from builder.trust.keys import SigningKey

FILE: Final = "provenance.json"
"""What the trainer writes into a job's folder (trainer/job/provenance.py), and a program with
training_contract.py."""
_SCHEMA: Final = 1
_MODELS: Final = ("model", "export")
"""The folders of a job in which nothing may lie that it did not write."""


@dataclass(frozen=True)
class Model:
    folder: Path
    files: int
    """How many were compared."""
    content: Mapping[str, Any]
    """provenance.json."""
    image: Verification
    signer: str
    """The key that signed the folder, "" where no key was named."""


def is_one(name: str) -> bool:
    """Tell whether a name is that of a job's folder, and not of an image."""
    return (Path(name) / FILE).is_file()


def check(folder: Path, settings: Settings, root: Path, on_event: OnEvent = ignore) -> Model:
    """Follow a model back to its image: each file is the one that the job wrote, and the image, by
    the digest that the job ran in, is proven by its receipt and no other than git names.

    Where the settings name keys, one of them has to have signed the folder.

    Raises CheckFailed for the first link that does not hold, InputError for a provenance.json of
    another form, OutsideError.
    """
    named = [name for name in settings.trust.prove if isinstance(name, str)]
    trusted = [keys.read_public(name) for name in named]
    signer = model_signatures.verify(folder, trusted).source if trusted else ""
    return _check(folder, settings, root, on_event, signer)


def sign(
    folder: Path, settings: Settings, root: Path, key: SigningKey, on_event: OnEvent = ignore
) -> Model:
    """Write the bill of materials of a model that leads to its image, and sign the job's folder.
    Raises what `check` does."""
    model = _check(folder, settings, root, on_event)
    name, measured = folder.resolve().name, model_bill.measured(folder)
    image = registry.parse(model.content["image"])
    bill = model_bill.bill(name, model.content, image, measured)
    files.write(folder / model_bill.FILE, json.dumps(bill, indent=1) + "\n")
    model_signatures.sign(folder, key)
    return replace(model, signer=key.source)


def _check(
    folder: Path, settings: Settings, root: Path, on_event: OnEvent, signer: str = ""
) -> Model:
    content = _content(folder / FILE)
    compare(folder, content["files"])
    image = content["image"]
    if not image or not registry.parse(image).digest:
        raise CheckFailed(
            f"{folder / FILE}: names no image by its digest: the job was not sent by the factory",
            "train it by builder job submit; a job on this machine has no image of a registry",
        )
    verified = verify.verify(image, settings, root, on_event=on_event)
    return Model(folder, len(content["files"]), content, verified, signer)


def _content(path: Path) -> dict[str, Any]:
    try:
        content = files.parsed(json.loads, path.read_text(encoding="utf-8"))
        named = {str(name): str(digest) for name, digest in content["files"].items()}
        if content["schema"] != _SCHEMA or not isinstance(content["image"], str):
            raise ValueError("another schema")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(
            f"{path}: is not what the trainer writes ({error})", "take it from the job's folder"
        ) from None
    return {**content, "files": named}


def compare(folder: Path, named: Mapping[str, str]) -> None:
    """Raise CheckFailed where a file is not the one that was written, or one is there beside."""
    fix = "take the folder as the job left it"
    inside = folder.resolve()
    for name, digest in named.items():
        path = (folder / name).resolve()
        if not path.is_relative_to(inside):
            raise CheckFailed(f"{folder / FILE}: {name} lies outside of the folder", fix)
        if not path.is_file():
            raise CheckFailed(f"{folder / name}: is missing", fix)
        with path.open("rb") as file:
            if hashlib.file_digest(file, "sha256").hexdigest() != digest:
                raise CheckFailed(f"{folder / name}: is not the file that the job wrote", fix)
    found = (path for top in _MODELS for path in (folder / top).rglob("*"))
    there = {path for path in found if path.is_symlink() or not path.is_dir()}
    if foreign := sorted(there - {folder / name for name in named}):
        raise CheckFailed(f"{foreign[0]}: the job did not write it", fix)
    if not named:
        raise CheckFailed(f"{folder / FILE}: names no file", fix)
