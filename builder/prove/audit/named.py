"""Read and judge what a person names: targets, images, folders, wheels."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from builder import registry
from builder.core.errors import InputError, OutsideError
from builder.core.events import OnEvent, StepLog, ignore, step
from builder.core.settings import LOCAL_REPOSITORY, Settings
from builder.devicecode.pruning.rule import compute_capability
from builder.devicecode.verdict import Audit
from builder.devicecode.verdict import audit as read_paths
from builder.facts import accelerators
from builder.prove.audit.in_registry import of_registry
from builder.prove.audit.judged import Audited, Gpu
from builder.prove.audit.on_engine import of_image
from builder.spec import catalogue

if TYPE_CHECKING:
    from builder.engine import Engine


def audit(
    root: Path | None,
    settings: Settings,
    engine: Callable[[bool], Engine],
    names: Sequence[str],
    everything: bool = False,
    gpus: Sequence[str] = (),
    on_event: OnEvent = ignore,
) -> tuple[Audited, ...]:
    """Read and judge targets, images and paths. Paths are taken together, as one image would hold
    them.

    root: the project's, None outside of one. engine: connects to an engine, and starts the private
    one if it is called with True; it is called only where one is needed. A target is judged for its
    own accelerator, anything else for every known GPU; `gpus` names others. everything: also audit
    the project's GPU targets, and note those that the engine holds no image of. Raises InputError
    for a name that leads nowhere and where nothing could be read, OutsideError for what the engine
    or the registry refuses.
    """
    targets = catalogue.targets(root) if root else ()
    asked = tuple(_device(name) for name in gpus)
    if everything:
        kinds = {name: _accelerator(root, name).kind for name in targets}
        names = (*names, *(name for name in targets if kinds[name] == "gpu"))
    names = tuple(dict.fromkeys(names))
    if not names:
        raise InputError(
            "nothing to audit is named",
            "name a target, an image, a folder or wheels, or write --all",
        )
    paths = [Path(name) for name in names if name not in targets and Path(name).exists()]
    found = []
    if paths:
        with step("audit " + ", ".join(map(str, paths[:3])), on_event):
            every = read_paths(paths)
        what = str(paths[0]) if len(paths) == 1 else f"{paths[0]} and {len(paths) - 1} more"
        found.append(Audited(what, every, asked or _known(), bool(asked)))
    for name in names:
        if name in targets:
            assert root is not None
            try:
                found.append(_of_target(root, engine, name, asked, on_event))
            except InputError as error:
                if not everything:
                    raise
                found.append(Audited(name, Audit(()), (), note=f"not read ({error.fix})"))
        elif not Path(name).exists():
            found.append(_of_image(settings, engine, name, asked, on_event, targets))
    if all(one.note for one in found):  # --all must not succeed where nothing was read
        raise InputError(
            f"the engine holds no image of a GPU target ({', '.join(one.name for one in found)}): "
            "nothing was audited",
            f"run builder build {found[0].name}, or name an image in a registry",
        )
    return tuple(found)


def _of_target(
    root: Path,
    engine: Callable[[bool], Engine],
    target: str,
    asked: tuple[Gpu, ...],
    on_event: OnEvent,
) -> Audited:
    spec = catalogue.load(root, target)
    accelerator = accelerators.find(spec.accelerator)
    if not asked and not accelerator.compute_capability:
        raise InputError(
            f"{target} is for {accelerator.name}: there is no GPU to audit it for",
            "name one with --gpu, or audit another target",
        )
    there = engine(True)
    image = there.image(f"{LOCAL_REPOSITORY}:{target}")
    if image is None:
        raise InputError(
            f"{target}: the engine holds no image of it to read", f"run builder build {target}"
        )
    with step(f"audit {target}", on_event):
        every = of_image(there.client, image.image_id)
    return Audited(target, every, asked or (_device(spec.accelerator),), True, spec.allow_ptx)


def _of_image(
    settings: Settings,
    engine: Callable[[bool], Engine],
    name: str,
    asked: tuple[Gpu, ...],
    on_event: OnEvent,
    targets: Sequence[str],
) -> Audited:
    elsewhere = "/" in name or settings.registry
    try:
        there: Engine | None = engine(not elsewhere)
    except OutsideError:  # reading from a registry needs no engine
        there = None
    image = there.image(name) if there else None
    secrets: tuple[str, ...] = ()
    with step(f"audit {name}", on_event):
        if there and image:
            every = of_image(there.client, image.image_id)
        elif elsewhere:
            short = "/" not in name and settings.registry
            place = f"{settings.registry}:{name}" if short else name
            read = of_registry(registry.parse(place), on_layer=_told(f"audit {name}", on_event))
            every, secrets = read.found, tuple(map(str, read.secrets))
        else:
            raise InputError(
                f"{name} is no target, no file or folder, and no image on the engine",
                f"targets are {', '.join(targets) or 'none'}; write HOST/REPOSITORY:TAG for an "
                "image in a registry",
            )
    return Audited(name, every, asked or _known(), bool(asked), secrets=secrets)


def _told(step: str, on_event: OnEvent) -> Callable[[registry.Descriptor, bool], None]:
    def tell(layer: registry.Descriptor, known: bool) -> None:
        what = "read before" if known else f"{layer.size / 1e6:,.1f} MB"
        on_event(StepLog(step, f"layer {layer.digest[7:19]}: {what}"))

    return tell


def _accelerator(root: Path | None, target: str) -> accelerators.Accelerator:
    assert root is not None
    return accelerators.find(catalogue.load(root, target).accelerator)


def _device(name: str) -> Gpu:
    """A GPU by name (v100) or compute capability (7.0). Raises InputError."""
    if re.fullmatch(r"\d+\.\d", name):
        return Gpu(name, compute_capability(name))
    known = accelerators.find(name)
    if not known.compute_capability:
        raise InputError(f"{known.name} is no GPU", "name a GPU, for example --gpu V100")
    return Gpu(known.name, compute_capability(known.compute_capability))


def _known() -> tuple[Gpu, ...]:
    """One GPU of each compute capability that images are made for."""
    first: dict[str, Gpu] = {}
    for one in accelerators.accelerators().values():
        if one.compute_capability and not one.refused:
            first.setdefault(one.compute_capability, _device(one.name))
    return tuple(first.values())
