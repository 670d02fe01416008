"""Whether GPUs run what a person names: targets, images, folders, wheels.

builder/devicecode reads libraries and judges each one; here names are resolved, and a source is
refused. report.py says the result.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING

from builder import registry
from builder.config import image_yaml
from builder.core.errors import CheckFailed, FactoryError, InputError, OutsideError
from builder.core.events import OnEvent, RunningStep, ignore, step
from builder.core.settings import Settings
from builder.devicecode.pruning.rule import ComputeCapability, compute_capability
from builder.devicecode.verdict import Audit, Support, Verdict
from builder.facts import accelerators, frameworks, known_bad
from builder.facts.known_bad import Found
from builder.reading import images, tars
from builder.reading.images import Blobs, ImageContent
from builder.registry import Manifest, manifests
from builder.registry.manifests import OCI_MANIFEST

if TYPE_CHECKING:
    import docker

    from builder.engine import Engine

_FILE = re.compile(r"^(/|\.{1,2}/)|\.(whl|tar|tgz|gz|so[.\d]*)$")
"""What a person names as a file, and no image has for a name."""


@dataclass(frozen=True)
class Gpu:
    """A GPU by the name that a person used."""

    name: str
    capability: ComputeCapability


@dataclass(frozen=True)
class Audited:
    """One source (a target, an image, or paths) and the GPUs to judge it for."""

    name: str
    libraries: Audit
    devices: tuple[Gpu, ...]
    required: bool = False
    """Refuse the source if one of `devices` does not run it."""
    allow_ptx: bool = True
    """Whether kernels that the GPU's machine has to compile first count as running."""
    is_target: bool = False
    """Whether it is an image of the project."""
    note: str = ""
    """Why nothing could be read."""
    secrets: tuple[str, ...] = ()
    """What the image's layers hold that nobody should have, a line each."""

    @property
    def verdicts(self) -> tuple[tuple[Gpu, Verdict], ...]:
        return tuple((gpu, self.libraries.verdict(gpu.capability)) for gpu in self.devices)

    @cached_property
    def known_bad(self) -> tuple[tuple[Gpu, Found], ...]:
        """What is known to fail of the versions that installed the libraries, on each GPU."""
        installed = [each for each in self.libraries.libraries if each.version]
        packages = {each.package: each.version for each in installed}
        for framework in frameworks.every():  # its compiled half has its release, too
            for each in installed:
                if framework.module and re.search(rf"(^|/)({framework.module})", each.path):
                    packages.setdefault(min(framework.distributions), each.version)
        return tuple(
            (gpu, found)
            for gpu in self.devices
            for found in known_bad.find(packages, str(gpu.capability))
        )

    @property
    def refused(self) -> tuple[tuple[Gpu, Verdict], ...]:
        """The GPUs that were named and do not run it."""
        return tuple(
            (gpu, verdict)
            for gpu, verdict in self.verdicts
            if self.required and not passes(verdict, self.allow_ptx)
        )


def passes(verdict: Verdict, allow_ptx: bool) -> bool:
    """Tell whether a GPU runs every library. allow_ptx: it may compile for minutes before that."""
    return verdict.runs and (allow_ptx or verdict.status != Support.PTX)


def instead(verdict: Verdict, target: str = "") -> str:
    """Return what to do about a verdict that does not pass, in one line. target: "" where the
    source is none."""
    if verdict.instead:
        return f"take {verdict.instead}"
    if verdict.status == Support.NO_DEVICE_CODE:
        fix = "in the lock" if target else "among these files"
        return f"no library holds device code: check that the CUDA packages are {fix}"
    if not target:
        return "take a release whose libraries hold code for this GPU, or another GPU"
    return f"see builder audit {target}, and builder explain {target} for where it comes from"


def require(sources: Sequence[Audited]) -> None:
    """Raise CheckFailed where a source does not run on a GPU that was named, where its versions are
    known to fail there, or where a layer holds a secret."""
    refused = [(source, gpu, verdict) for source in sources for gpu, verdict in source.refused]
    if refused:
        source, gpu, verdict = refused[0]
        message = f"{source.name}: {gpu.name} {verdict}{_more(refused)}"
        raise CheckFailed(message, instead(verdict, source.name if source.is_target else ""))
    failing = [
        (f"{source.name}: {gpu.name}: {found}", found.row.fix)
        for source in sources
        for gpu, found in source.known_bad
        if source.required and found.row.fails
    ]
    if failing:
        message, fix = failing[0]
        raise CheckFailed(f"{message}{_more(failing)}", fix)
    secrets = [f"{source.name}: {secret}" for source in sources for secret in source.secrets]
    if secrets:
        raise CheckFailed(
            f"{secrets[0]}{_more(secrets)}",
            "a layer keeps what a later one deletes: build it again without it, and revoke it",
        )


def of_engine(
    client: docker.DockerClient,
    name: str,
    files: Mapping[str, Path] | None = None,
    store: Sequence[Path] = (),
) -> ImageContent:
    """Read an image on an engine, by reference or id.

    files: the files of layers that this machine has, by diff id. store: the folders in which the
    engine may keep blobs; a layer that is found there is read alone, because an engine gives out
    whole images only. Raises OutsideError.
    """
    from builder.engine import refusals

    def save() -> Blobs:
        stream = client.api.get_image(str(image.id), chunk_size=1 << 20)
        return images.archived(tars.stream(stream))

    with refusals(name):
        image = client.images.get(name)
        diff_ids = image.attrs["RootFS"].get("Layers") or ()
        configuration = manifests.of_engine(image.attrs.get("Config"), image.history())
        manifest = (image.attrs.get("Descriptor") or {}).get("digest") or str(image.id)
        stored = next(filter(None, (_stored(each, manifest, diff_ids) for each in store)), {})
        try:
            content = images.of_saved(diff_ids, save, {**stored, **(files or {})})
            return replace(content, configuration=configuration, image_id=str(image.id))
        except tars.BROKEN as error:
            raise OutsideError(
                f"{name}: the engine gives out an archive that cannot be read: {error}",
                "pull or build the image again",
            ) from error


def _stored(store: Path, digest: str, diff_ids: Sequence[str]) -> dict[str, Path]:
    """Return the files of an image's layers in containerd's content store, by diff id; none where
    it has no manifest of this digest, or may not be read. A file's content is its diff id's
    business: of_saved takes no other."""

    def get(digest: str) -> Manifest | None:
        return Manifest((store / digest.removeprefix("sha256:")).read_bytes(), OCI_MANIFEST)

    try:
        layers = images.find_image(digest, get, digest).layers
        found = zip(diff_ids, layers, strict=True)
        paths = {diff_id: store / layer.digest.removeprefix("sha256:") for diff_id, layer in found}
        return {diff_id: path for diff_id, path in paths.items() if os.access(path, os.R_OK)}
    except (OSError, ValueError, FactoryError):
        return {}


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
    """Read and judge targets, images and paths. Paths are taken together, as one image would hold
    them.

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
    names = tuple(dict.fromkeys(names))
    if not names:
        raise InputError(
            "nothing to audit is named",
            "name a target, an image, a folder or wheels, or write --all",
        )
    sources = []
    local = [Path(name) for name in names if name not in targets and Path(name).exists()]
    if local:
        with step("audit " + ", ".join(map(str, local[:3])), on_event):
            content = images.of_paths(local)
        name = str(local[0]) if len(local) == 1 else f"{local[0]} and {len(local) - 1} more"
        sources.append(_audited(name, content, chosen))
    for name in names:
        if Path(name) in local:
            continue
        try:
            spec = image_yaml.load(root, name) if root and name in targets else None
            devices = chosen if chosen or not spec else (_own_gpu(spec),)
            content = image_content(settings, engine, name, on_event, targets)
            source = _audited(name, content, devices)
            if spec:
                source = replace(source, allow_ptx=spec.allow_ptx, is_target=True)
            sources.append(source)
        except InputError as error:
            if not (everything and name in targets):
                raise
            sources.append(Audited(name, Audit(()), (), note=f"not read ({error.fix})"))
    if all(source.note for source in sources):  # --all must not succeed where nothing was read
        raise InputError(
            f"the engine holds no image of a GPU target ({', '.join(s.name for s in sources)}): "
            "nothing was audited",
            f"run builder build {sources[0].name}, or name an image in a registry",
        )
    return tuple(sources)


def _own_gpu(spec: image_yaml.ImageSpec) -> Gpu:
    """Return the GPU that a target is for. Raises InputError where it is for none."""
    if _is_for_gpu(spec):
        return gpu_named(spec.accelerator)
    raise InputError(
        f"{spec.name} is for {spec.accelerator}: there is no GPU to audit it for",
        "name one with --gpu, or audit another target",
    )


def _audited(name: str, content: ImageContent, gpus: tuple[Gpu, ...]) -> Audited:
    secrets = tuple(map(str, content.secrets))
    libraries = Audit(content.libraries)
    return Audited(name, libraries, gpus or _known_gpus(), bool(gpus), secrets=secrets)


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
    """Read an image in files, on the engine or in a registry.

    targets: the project's, each with the ID of the image that it built, or "". Another project may
    have moved the tag. They are on the engine, which is started for them alone. Raises InputError,
    OutsideError.
    """
    is_target = name in targets
    if not is_target and Path(name).exists():
        return images.of_archive(Path(name))
    if not is_target and _FILE.search(name):
        raise InputError(f"{name}: no such file or folder", "correct the path")
    in_registry = not is_target and ("/" in name or settings.registry)
    connected: Engine | None = None
    try:
        connected = engine(is_target)
    except OutsideError as error:  # to read from a registry needs no engine
        if not in_registry:
            raise OutsideError(
                f"{name} may be an image, but no engine runs that could hold it: {error.message}",
                f"{error.fix}; or write HOST/REPOSITORY:TAG for an image in a registry",
            ) from error
    on_engine = targets.get(name, name)
    image = connected.image(on_engine) if connected and on_engine else None
    with step(f"read {name}", on_event) as running:
        if connected and image:
            return of_engine(connected.client, image.image_id, store=connected.blobs)
        if in_registry:
            reference = registry.parse(name if "/" in name else f"{settings.registry}:{name}")
            return images.of_registry(reference, on_layer=partial(_log_layer, running))
    if is_target:
        fix = f"run builder build {name}"
        raise InputError(f"{name}: the engine holds no image of it to read", fix)
    raise InputError(
        f"{name} is no target, no file or folder, and no image on the engine",
        f"targets are {', '.join(targets) or 'none'}; write HOST/REPOSITORY:TAG for an image in a "
        "registry",
    )


def _log_layer(running: RunningStep, layer: registry.Descriptor, known: bool) -> None:
    size = "read before" if known else f"{layer.size / 1e6:,.1f} MB"
    running.log(f"layer {layer.digest[7:19]}: {size}")


def _is_for_gpu(spec: image_yaml.ImageSpec) -> bool:
    return accelerators.find(spec.accelerator).kind == "gpu"


def gpu_named(name: str) -> Gpu:
    """Return a GPU by name (v100) or compute capability (7.0). Raises InputError."""
    if re.fullmatch(r"\d+\.\d", name):
        return Gpu(name, compute_capability(name))
    called, capability = accelerators.gpu(name)
    return Gpu(called, compute_capability(capability))


def _known_gpus() -> tuple[Gpu, ...]:
    """Return one GPU of each compute capability that images are made for."""
    first: dict[str, Gpu] = {}
    for known in accelerators.accelerators().values():
        if known.compute_capability and not known.refused:
            first.setdefault(known.compute_capability, gpu_named(known.name))
    return tuple(first.values())


def _more(several: Sequence[object]) -> str:
    return f" (and {len(several) - 1} more)" if len(several) > 1 else ""
