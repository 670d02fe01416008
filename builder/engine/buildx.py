"""Building an image through `docker buildx`.

The SDK's own build is the classic builder. It knows no secrets, no cache mounts and no
`COPY --link` (docker/docker-py#2230). So buildx runs as a child process and reports in its rawjson
format.

The same inputs give the same digest. BuildKit takes the `created` times from SOURCE_DATE_EPOCH. The
Dockerfile and the staged context fix the times of files. BuildKit's own way for files, the
exporter's `rewrite-timestamp`, is not used: it compresses every layer a second time, and refuses to
unpack what it exports.
"""

import json
import re
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from builder.core import system
from builder.core.errors import OutsideError
from builder.core.events import OnEvent
from builder.core.templates import EPOCH
from builder.engine.progress import BuildStep, Failure, Progress, first_line, numbers

if TYPE_CHECKING:
    from builder.engine.docker import Engine

PLATFORM = "linux/amd64"
"""What every image is for, on whatever machine it is built."""

COMPRESSION_LEVEL = 3
"""zstd's own default. TensorFlow's largest library (788 MB) on two busy cores: level 1 gives 161 MB
in 10 s, 3 gives 150 MB in 16 s, 7 gives 141 MB in 23 s, 12 gives 132 MB in 93 s."""

OLDEST_ENGINE = (23, 0)
"""The first that knows COPY --link, which is of Dockerfile 1.4."""
OLDEST_BUILDX = (0, 13)
"""The first that knows --progress=rawjson."""

_END_SECONDS = 10
_LOST = re.compile(
    r"code = (Unavailable|Canceled)|error reading from server|transport is closing|"
    r"Cannot connect to the Docker daemon|connection (refused|reset)|broken pipe|: EOF$|"
    r"no such file or directory.*docker\.sock|context canceled",
    re.IGNORECASE,
)


class BuildFailed(OutsideError):  # noqa: N818 - reads like its siblings in builder.core.errors
    """A build that failed in a step of the Dockerfile.

    log: the last lines that the step printed. line: the step's line in the Dockerfile, from 1.
    """

    def __init__(self, message: str, fix: str, log: tuple[str, ...] = (), line: int | None = None):
        super().__init__(message, fix)
        self.log = log
        self.line = line


@dataclass(frozen=True)
class BuildRequest:
    """One image to build. The result is known by the first of `tags`.

    contexts: further named contexts (folders or images). secrets: content by id, never in a layer.
    destination: "engine" keeps the image on the engine, "registry" pushes it and keeps nothing. The
    layers of a base stay as they are. compression: of new layers, or with "gzip", which alone
    Docker before 23.0 reads, of all. An engine without the containerd image store packs with gzip.
    """

    dockerfile: Path
    context: Path
    tags: tuple[str, ...]
    contexts: Mapping[str, str] = field(default_factory=dict)
    build_args: Mapping[str, str] = field(default_factory=dict)
    secrets: Mapping[str, bytes] = field(default_factory=dict, repr=False)
    destination: Literal["engine", "registry"] = "engine"
    no_cache: bool = False
    compression: Literal["zstd", "gzip"] = "zstd"


@dataclass(frozen=True)
class BuiltImage:
    """What a build made. Sizes in bytes; None where the engine does not know them.

    digest: of the manifest, None on an engine without the containerd image store. image_id: the
    engine's name of the image (the same digest with that store); after a push to a registry, the
    digest of the image's configuration.
    """

    reference: str
    digest: str | None
    image_id: str
    compressed_bytes: int | None
    unpacked_bytes: int | None
    steps: tuple[BuildStep, ...] = ()


def build(engine: "Engine", request: BuildRequest, on_event: OnEvent) -> BuiltImage:
    """See Engine.build."""
    require(engine)
    progress = Progress()
    with tempfile.TemporaryDirectory(prefix="build-") as scratch:
        metadata = Path(scratch) / "metadata.json"
        with system.handed(request.secrets) as secrets:
            line = command(engine, request, metadata, secrets.paths)
            code = _run(engine, line, secrets.descriptors, progress, on_event)
        if code:
            raise _failed(engine, request, progress)
        return _built(engine, request, json.loads(metadata.read_text()), progress.steps)


def require(engine: "Engine") -> None:
    """Raise OutsideError where this engine cannot build a Dockerfile, with what to install."""
    own = "or use --engine private, or --registry with `builder build --to-registry`"
    if engine.product != "Docker":
        raise OutsideError(
            f"{engine.product} at {engine.host} runs images, but does not build this Dockerfile",
            f"install Docker 23.0 or newer with buildx, {own}",
        )
    if engine.release < OLDEST_ENGINE:
        raise OutsideError(
            f"Docker {engine.version} at {engine.host} runs images, but does not build this"
            " Dockerfile: it has no COPY --link",
            f"install Docker 23.0 or newer with buildx, {own}",
        )
    called = " ".join(engine.buildx)
    if not engine.buildx_version:
        raise OutsideError(
            f"`{called}` does not work: the engine runs images, but does not build this Dockerfile",
            "install docker-buildx (Debian 13) or docker-buildx-plugin (Docker's own packages)",
        )
    if numbers(engine.buildx_version) < OLDEST_BUILDX:
        raise OutsideError(
            f"buildx {engine.buildx_version} is too old: it has no --progress=rawjson",
            f"install buildx 0.13 or newer, {own}",
        )


def command(
    engine: "Engine", request: BuildRequest, metadata: Path, secrets: Mapping[str, str]
) -> list[str]:
    """buildx's command line. secrets: id -> path of a file."""
    arguments = {"SOURCE_DATE_EPOCH": str(EPOCH), **request.build_args}
    return [
        *engine.buildx,
        "build",
        f"--platform={PLATFORM}",
        "--progress=rawjson",
        f"--metadata-file={metadata}",
        "--provenance=false",  # an attestation would differ each time, and wrap in an index
        "--sbom=false",
        "--network=host",  # steps reach a proxy or an index on this machine's own address
        f"--file={request.dockerfile}",
        f"--output={_output(engine, request)}",
        *(f"--tag={tag}" for tag in request.tags),
        *(f"--build-context={name}={value}" for name, value in request.contexts.items()),
        *(f"--build-arg={name}={value}" for name, value in arguments.items()),
        *(f"--secret=id={name},src={path}" for name, path in secrets.items()),
        *(["--no-cache"] if request.no_cache else []),
        str(request.context),
    ]


def _output(engine: "Engine", request: BuildRequest) -> str:
    to_registry = request.destination == "registry"
    if not engine.containerd_store:
        return "type=image,push=true" if to_registry else "type=docker"
    layers = f"compression=zstd,compression-level={COMPRESSION_LEVEL},oci-mediatypes=true"
    forced = "false"
    if request.compression == "gzip":  # also of what an earlier build left in the cache
        layers, forced = "compression=gzip,oci-mediatypes=true", "true"
    # A push that stores nothing never needs the layers of a base that lies in the registry.
    place = "push=true,store=false,unpack=false" if to_registry else "store=true,unpack=true"
    return f"type=image,{layers},force-compression={forced},{place}"


def _run(
    engine: "Engine",
    command: list[str],
    files: tuple[int, ...],
    progress: Progress,
    on_event: OnEvent,
) -> int:
    process = subprocess.Popen(
        system.ending_with_parent(command),
        env=dict(engine.environment),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        pass_fds=files,
        text=True,
        errors="replace",
    )
    assert process.stderr is not None
    try:
        for line in process.stderr:
            for event in progress.feed(line):
                on_event(event)
        code = process.wait()
    except BaseException:
        _end(process)
        raise
    for event in progress.finish():
        on_event(event)
    return code


def _built(
    engine: "Engine",
    request: BuildRequest,
    metadata: Mapping[str, Any],
    steps: tuple[BuildStep, ...],
) -> BuiltImage:
    reference = request.tags[0]
    config = str(metadata.get("containerimage.config.digest", ""))
    digest = metadata.get("containerimage.digest")
    if request.destination == "registry":
        return BuiltImage(reference, digest, config, None, None, steps)
    image = engine.image(reference)
    if image is None:
        raise OutsideError(
            f"{reference}: built, but the engine no longer has it",
            "another run may have removed it; run the same command again",
        )
    return BuiltImage(
        reference,
        image.digest,
        image.image_id,
        image.compressed_bytes,
        image.unpacked_bytes,
        steps,
    )


def _failed(engine: "Engine", request: BuildRequest, progress: Progress) -> OutsideError:
    failure, said = progress.failure, progress.error or "\n".join(progress.words[-3:])
    everything = "\n".join([said, *((failure.error, *failure.log) if failure else ())])
    if "no space left on device" in everything.lower():
        return full(engine)
    if not engine.answers():
        return OutsideError(
            "the engine ended in the middle of the build",
            "run the same command again: it goes on from BuildKit's cache",
        )
    if failure and re.match(r"exit code: \d+", failure.error):
        return _step_failed(request, failure)
    if _LOST.search(said) and (failure is None or "canceled" in failure.error):
        return OutsideError(
            f"the build was cut off: {first_line(said)}",
            "run the same command again: it goes on from BuildKit's cache",
        )
    return OutsideError(f"{request.tags[0]}: {first_line(said)}", _remedy(engine, request, said))


def _remedy(engine: "Engine", request: BuildRequest, said: str) -> str:
    host = request.tags[0].partition("/")[0]
    if "tag does not exist" in said:
        return f"buildx {engine.buildx_version} cannot push without keeping: install 0.29"
    if re.search(r"unauthorized|denied|forbidden|no basic auth|40[13]", said, re.I):
        return f"log in: docker login {host if '.' in host or ':' in host else ''}".rstrip()
    if re.search(r"dial tcp|i/o timeout|TLS handshake|x509", said):
        return "check that the engine reaches this registry (address, proxy, CA), and retry"
    if "failed to resolve source metadata" in said or "not found" in said:
        return "check that the image it starts from exists: its registry, name and digest"
    if "failed to read dockerfile" in said:
        return "builder render"
    return "run the same command again with --verbose to see every step"


def full(engine: "Engine") -> OutsideError:
    """The error of an engine whose disk is full, with what is free there."""
    disk = engine.disk()
    where = (
        f"{disk.free / 1e9:.1f} GB free of {disk.total / 1e9:.0f} on {disk.path}" if disk else ""
    )
    own = f"{Path(engine.buildx[0]).with_name('docker')} --host {engine.host}"
    call = own if engine.origin == "private" else "docker"
    return OutsideError(
        f"the engine's disk is full{': ' if where else ''}{where}",
        f"free some space, for example: {call} system prune --all",
    )


def _step_failed(request: BuildRequest, failure: Failure) -> BuildFailed:
    where = f"{request.dockerfile}:{failure.line}" if failure.line else str(request.dockerfile)
    said = f": {failure.log[-1]}" if failure.log else ""
    return BuildFailed(
        f"{where}: {failure.step} ended with {failure.error}{said}",
        "see the step's log above, or run again with --verbose",
        failure.log,
        failure.line,
    )


# --- the child ------------------------------------------------------------------------------------


def _end(process: subprocess.Popen[str]) -> None:
    """End buildx with SIGTERM first: then it tells BuildKit to stop."""
    process.terminate()
    try:
        process.wait(_END_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
