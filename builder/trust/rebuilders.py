"""Who made the layers of images/layers.lock again: signed lines, committed beside that file.

A line that fewer than `layers` of [trust] rebuilders signed counts for nothing that a cache or a
registry has: its layer is made here, and compared. So nobody has to be believed alone, not even who
wrote the line.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from builder.core import files
from builder.core.errors import CheckFailed
from builder.core.settings import TrustSettings
from builder.image.layer import Layer
from builder.image.layers_lock import LayersLock, line_of
from builder.trust import attestations, dsse, policy
from builder.trust.attestations import Signer, Trusted
from builder.trust.dsse import Statement

FOLDER: Final = "layers.signed"
"""Beside layers.lock; each file in it is a Sigstore bundle."""
_LARGEST: Final = 16 << 20


def required(lock: LayersLock, trust: TrustSettings) -> LayersLock:
    """Return a project's lines, with those `unsigned` that lack signatures that [trust] asks for.

    Raises InputError for a key that cannot be read.
    """
    if not trust.layers:
        return lock
    signers = signed(lock.path.parent / FOLDER, policy.signers(trust, trust.rebuilders))
    lacking = (
        key
        for key, layer in lock.layers.items()
        if len(signers.get(line_of(layer), ())) < trust.layers
    )
    return replace(lock, unsigned=frozenset(lacking))


def signed(folder: Path, rebuilders: Sequence[Trusted]) -> Mapping[str, frozenset[Trusted]]:
    """Return each line that one of these rebuilders signed, with all that did.

    A file that none of them signed says nothing.
    """
    lines: dict[str, set[Trusted]] = defaultdict(set)
    for path in sorted(folder.glob("*.json")):
        try:
            statement, signer = attestations.verify(_bundle(path), rebuilders)
        except CheckFailed:
            continue
        if statement.predicate_type == dsse.LAYERS:
            for line in _lines(statement):
                lines[line].add(signer)
    return {line: frozenset(signers) for line, signers in lines.items()}


def sign(folder: Path, layers: Iterable[Layer], signer: Signer) -> Path | None:
    """Write that a signer made these layers; None where it has signed all of them before."""
    before = signed(folder, (signer.public,))
    lines = sorted({line_of(layer) for layer in layers} - before.keys())
    if not lines:
        return None
    subject = f"sha256:{hashlib.sha256(chr(10).join(lines).encode()).hexdigest()}"
    bundle = signer.seal(Statement(subject, dsse.LAYERS, {"lines": lines}).payload)
    path = folder / f"{hashlib.sha256(bundle).hexdigest()[:16]}.json"
    files.write(path, bundle)
    return path


def drop(lock: LayersLock) -> None:
    """Remove the files none of whose lines is in layers.lock any more, whoever signed them."""
    lines = {line_of(layer) for layer in lock.layers.values()}
    for path in (lock.path.parent / FOLDER).glob("*.json"):
        try:
            payload, _ = dsse.envelope(_bundle(path))
            if lines.isdisjoint(_lines(dsse.statement(payload))):
                path.unlink()
        except CheckFailed:
            continue


def _bundle(path: Path) -> bytes:
    """Return a file's bytes; b"" for what is too large to be one of ours, or no file."""
    if not path.is_file() or path.is_symlink() or path.stat().st_size > _LARGEST:
        return b""
    return path.read_bytes()


def _lines(statement: Statement) -> tuple[str, ...]:
    lines = statement.predicate.get("lines")
    return tuple(line for line in lines if isinstance(line, str)) if isinstance(lines, list) else ()
