"""The audit of a project's targets beside anything else: on which GPUs do the libraries run?"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from builder.audit import sources
from builder.audit.audited import Audited, Gpu, gpu_named
from builder.config import image_yaml
from builder.core.errors import InputError
from builder.core.events import OnEvent, ignore, step
from builder.core.settings import Settings
from builder.devicecode.verdict import Audit
from builder.engine import Engine
from builder.facts import accelerators
from builder.reading.images import ImageContent


def audit(
    root: Path | None,
    targets: Mapping[str, str],
    settings: Settings,
    engine: Callable[[bool], Engine],
    names: Sequence[str],
    everything: bool = False,
    gpus: Sequence[str] = (),
    on_event: OnEvent = ignore,
) -> tuple[Audited, ...]:
    """Read and judge targets, images and paths.

    root: the project's, None outside of one. targets: see `image_content`. engine: connects to
    an engine, and starts the private one if it is called with True. A target is judged for its
    own accelerator, anything else for every known GPU; `gpus` names others. everything: also
    audit the project's GPU targets, and note those that the engine holds no image of. Raises
    InputError for a name that leads nowhere and where nothing could be read, OutsideError for
    what the engine or the registry refuses.
    """
    chosen = tuple(map(gpu_named, gpus))
    if root and everything:
        names = (*names, *(spec.name for spec in image_yaml.load_all(root) if _is_for_gpu(spec)))
    if not names:
        raise InputError(
            "nothing to audit is named",
            "name a target, an image, a folder or wheels, or write --all",
        )

    def read(name: str) -> Audited:
        try:
            spec = image_yaml.load(root, name) if root and name in targets else None
            devices = chosen if chosen or not spec else (_own_gpu(spec),)
            content = image_content(settings, engine, name, on_event, targets)
        except InputError as error:
            if not (everything and name in targets):
                raise
            return Audited(name, Audit(()), (), note=f"not read ({error.fix})")
        source = sources.audited(name, content, devices)
        return replace(source, allow_ptx=spec.allow_ptx, is_target=True) if spec else source

    audited = sources.audit(names, read, chosen, on_event, targets)
    if all(source.note for source in audited):  # --all must not succeed where nothing was read
        raise InputError(
            f"the engine holds no image of a GPU target ({', '.join(s.name for s in audited)}): "
            "nothing was audited",
            f"run builder build {audited[0].name}, or name an image in a registry",
        )
    return audited


def _own_gpu(spec: image_yaml.ImageSpec) -> Gpu:
    """Return the GPU that a target is for. Raises InputError where it is for none."""
    if _is_for_gpu(spec):
        return gpu_named(spec.accelerator)
    raise InputError(
        f"{spec.name} is for {spec.accelerator}: there is no GPU to audit it for",
        "name one with --gpu, or audit another target",
    )


def gpu_of(root: Path | None, name: str, gpu: str | None) -> Gpu | None:
    """Return the GPU to judge an image for: a target's own where none is named. root: the
    project's, None outside of one. Raises InputError."""
    if gpu:
        return gpu_named(gpu)
    spec = image_yaml.load(root, name) if root and name in image_yaml.targets(root) else None
    return gpu_named(spec.accelerator) if spec and _is_for_gpu(spec) else None


def image_content(
    settings: Settings,
    engine: Callable[[bool], Engine],
    name: str,
    on_event: OnEvent,
    targets: Mapping[str, str],
) -> ImageContent:
    """Read a target's image, or any other in files, on the engine or in a registry.

    targets: the project's, each with the ID of the image that it built, or "". Another project may
    have moved the tag. They are on the engine, which is started for them alone. Raises InputError,
    OutsideError.
    """
    if name not in targets:
        on_engine = partial(_reader, engine, False)
        return sources.of_name(name, on_engine, on_event, settings.registry, targets)
    read = _reader(engine, True)
    with step(f"read {name}", on_event):
        if targets[name] and (content := read(targets[name])):
            return content
    fix = f"run builder build {name}"
    raise InputError(f"{name}: the engine holds no image of it to read", fix)


def _reader(engine: Callable[[bool], Engine], start: bool) -> sources.ReadOnEngine:
    """Return what reads an engine's images, once it is connected. Raises OutsideError."""
    connected = engine(start)

    def read(name: str) -> ImageContent | None:
        if image := connected.image(name):
            return sources.of_engine(connected.client, image.image_id, store=connected.blobs)
        return None

    return read


def _is_for_gpu(spec: image_yaml.ImageSpec) -> bool:
    return accelerators.find(spec.accelerator).kind == "gpu"
