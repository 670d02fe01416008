"""What `prune:` saves: the bytes of each GPU target's base with `off`, with its framework's
libraries alone, and with `all`.

    python -m tools.bench prune [--targets v100,v100-torch]

Layers of images/layers.lock have their sizes there. The others are made from the locked wheels, as
a build makes them, without an engine; each wheel is downloaded once. Whether a pruned image works,
`builder image` proves.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from builder.config import compatibility, debian, image_yaml, lockfile
from builder.config.stack import GLIBC
from builder.config.uv import Platform
from builder.core.events import Event, StepDone
from builder.core.project import find_root
from builder.core.settings import Settings
from builder.facts import accelerators
from builder.image import bytecode, download, layers_lock
from builder.image.content_store import ContentStore
from builder.image.layer import Layer
from builder.image.plan import BasePlan, plan
from builder.image.wheel_layers import Making
from tools.bench import Row, enough_disk, load, report

NEEDED = 15e9
"""Bytes of free disk to start with, for the wheels and for the layers that are made of them."""


def main(targets: Sequence[str], folder: Path) -> int:
    """Measure, print a row for each variant, write results/prune.json."""
    root = find_root(Path(__file__).parent)
    gpus = {
        spec.name: spec
        for spec in image_yaml.load_all(root)
        if accelerators.find(spec.accelerator).kind == "gpu"
    }
    if unknown := [name for name in targets if name not in gpus]:
        print(f"prune: no target for a GPU: {', '.join(unknown)}", file=sys.stderr)
        return 1
    if not enough_disk("prune", folder, NEEDED):
        return 1
    of_targets = {target: variants(root, gpus[target]) for target in targets or gpus}
    with tempfile.TemporaryDirectory(prefix="bench-prune-", dir=folder) as scratch:
        every = [base for bases in of_targets.values() for base in bases.values()]
        layers = sized(root, every, ContentStore(Path(scratch)))
    rows: list[Row] = []
    for target, bases in of_targets.items():
        pulls = {mode: total(base, layers, packed=True) for mode, base in bases.items()}
        whole = total(bases["off"], layers, packed=False)
        rows.append(row(f"{target}: unpacked", whole, None))
        rows += [row(f"{target}: {mode}", pulls[mode], pulls["off"]) for mode in pulls]
    report("prune", rows, {"load": load()})
    return 0


def row(what: str, ours: int, off: int | None) -> Row:
    how = "the sum of its layers' bytes, the program's left out"
    return Row(what, ours / 1e6, off and off / 1e6, "with `prune: off`", how, unit="MB")


def variants(root: Path, spec: image_yaml.ImageSpec) -> dict[str, BasePlan]:
    """Return the base of a target for each value of `prune`."""
    lock = lockfile.read(root, spec.name)
    bases = {}
    for mode in ("off", spec.framework, "all"):
        variant = spec.model_copy(update={"prune": mode})
        bases[mode] = plan(variant, compatibility.resolve(variant), lock)
    return bases


def sized(root: Path, bases: Sequence[BasePlan], store: ContentStore) -> dict[str, Layer]:
    """Return the wheel layers of some bases by key: the committed ones, and the others made."""
    layers = dict(layers_lock.of(root).layers)
    for python in {base.python for base in bases}:
        same = [base for base in bases if base.python == python]
        missing = [layer for base in same for layer in base.wheels if layer.plan.key not in layers]
        pins = [pin for layer in missing for pin in layer.pins]
        platform = Platform(python, GLIBC[same[0].rootfs.suite])
        debs = download.fetch_debs(same[0].compiler, debian.archives(Settings()))
        with (
            bytecode.unpacked(debs.values(), python) as compiler,
            download.wheels_of(pins, platform) as wheels,
        ):
            made = Making(store, wheels, compiler, show).make(missing)
        layers |= {layer.key: layer for layer in made}
    return layers


def show(event: Event) -> None:
    """Print each layer that is made, because the whole run takes minutes."""
    if isinstance(event, StepDone):
        print(f"{time.strftime('%H:%M:%S')}  {event.name}", file=sys.stderr, flush=True)


def total(base: BasePlan, layers: dict[str, Layer], packed: bool) -> int:
    """Return the bytes of a base's layers. The environment's, some kilobytes, need not be known."""
    known = [layers[layer.key] for layer in base.layers if layer.key in layers]
    return sum(layer.blob.size if packed else layer.unpacked_bytes for layer in known)
