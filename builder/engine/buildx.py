"""Building a Dockerfile with `docker buildx`.

The SDK's own build is the classic builder. It knows no secrets, no cache mounts and no
`COPY --link` (docker/docker-py#2230). So buildx runs as a child process, and its lines are read.

The same inputs give the same digest. BuildKit takes the `created` times from SOURCE_DATE_EPOCH. The
Dockerfile and the staged context fix the times of files. BuildKit's own way for files, the
exporter's `rewrite-timestamp`, is not used: it compresses every layer a second time, and refuses to
unpack what it exports.
"""

from __future__ import annotations

import json
import re
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

from builder.core import system
from builder.core.display import plain
from builder.core.docker_sdk import first_line
from builder.core.errors import OutsideError
from builder.core.events import OnEvent, RunningStep, ignore, step
from builder.core.files import EPOCH
from builder.engine.docker import PLATFORM, Engine

COMPRESSION_LEVEL: Final = 3
"""zstd's own default. TensorFlow's largest library (788 MB) on two busy cores: level 1 gives 161 MB
in 10 s, 3 gives 150 MB in 16 s, 7 gives 141 MB in 23 s, 12 gives 132 MB in 93 s."""

OLDEST_ENGINE: Final = (23, 0)
"""The first that knows COPY --link, which is of Dockerfile 1.4."""

_END_SECONDS: Final = 10
_LOST: Final = re.compile(
    r"code = (Unavailable|Canceled)|error reading from server|transport is closing|"
    r"Cannot connect to the Docker daemon|connection (refused|reset)|broken pipe|: EOF$|"
    r"no such file or directory.*docker\.sock|context canceled",
    re.IGNORECASE,
)
_STEP_ENDED: Final = re.compile(
    r'process ".*" did not complete successfully: (exit code: \d+)', re.DOTALL
)
_AGAIN: Final = "run the same command again: it goes on from BuildKit's cache"


@dataclass(frozen=True)
class BuildRequest:
    """One image to build. The result is known by the first of `tags`."""

    dockerfile: Path
    context: Path
    tags: tuple[str, ...]
    contexts: Mapping[str, str] = field(default_factory=dict)
    """Further named contexts (folders or images)."""
    build_args: Mapping[str, str] = field(default_factory=dict)
    secrets: Mapping[str, bytes] = field(default_factory=dict, repr=False)
    """Content by id, never in a layer."""
    destination: Literal["engine", "registry"] = "engine"
    """"engine" keeps the image on the engine, "registry" pushes it and keeps nothing. The layers of
    a base stay as they are. An engine without the containerd image store packs with gzip."""
    no_cache: bool = False


@dataclass(frozen=True)
class BuiltImage:
    digest: str | None
    """Of the manifest, None on an engine without the containerd image store."""
    image_id: str
    """The engine's name of the image (the same digest with that store); after a push to a registry,
    the digest of the image's configuration."""
    compressed_bytes: int | None
    unpacked_bytes: int | None


def build(engine: Engine, request: BuildRequest, on_event: OnEvent = ignore) -> BuiltImage:
    """Build one image. Return when it is on the engine or in the registry.

    Raises OutsideError for a step that failed, an engine that is gone, a full disk, a base or a
    registry that refused. Whatever ends the call ends the build, too. Finished steps stay in
    BuildKit's cache, and the next build goes on from there.
    """
    require(engine)
    with (
        step(f"build {request.tags[0]}", on_event) as building,
        tempfile.TemporaryDirectory(prefix="build-") as scratch,
        system.secret_files(request.secrets) as (paths, descriptors),
    ):
        metadata = Path(scratch) / "metadata.json"
        line = command(engine, request, metadata, paths)
        code, printed = _run(engine, line, descriptors, building)
        if code:
            raise _failed(engine, request, printed)
        return _built(engine, request, json.loads(metadata.read_text()))


def require(engine: Engine) -> None:
    """Raise OutsideError where this engine cannot build a Dockerfile, with what to install."""
    runs = f"{engine.product} {engine.version} at {engine.host} runs images, but does not build"
    others = "or use --engine private, or --registry with `builder build --to-registry`"
    docker = f"install Docker 23.0 or newer with buildx, {others}"
    if engine.product != "Docker":
        raise OutsideError(f"{runs} this Dockerfile", docker)
    if engine.release < OLDEST_ENGINE:
        raise OutsideError(f"{runs} this Dockerfile: it has no COPY --link", docker)
    if not engine.buildx_version:
        raise OutsideError(
            f"`{' '.join(engine.buildx)}` does not work: {runs} this Dockerfile",
            "install docker-buildx (Debian 13) or docker-buildx-plugin (Docker's own packages)",
        )


def command(
    engine: Engine, request: BuildRequest, metadata: Path, secrets: Mapping[str, str]
) -> list[str]:
    """Return buildx's command line. secrets: id -> path of a file."""
    arguments = {"SOURCE_DATE_EPOCH": str(EPOCH), **request.build_args}
    return [
        *engine.buildx,
        "build",
        f"--platform={PLATFORM}",
        "--progress=plain",
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


def _output(engine: Engine, request: BuildRequest) -> str:
    to_registry = request.destination == "registry"
    if not engine.containerd_store:
        return "type=image,push=true" if to_registry else "type=docker"
    layers = f"compression=zstd,compression-level={COMPRESSION_LEVEL},oci-mediatypes=true"
    # A push that stores nothing never needs the layers of a base that lies in the registry.
    target = "push=true,store=false,unpack=false" if to_registry else "store=true,unpack=true"
    return f"type=image,{layers},force-compression=false,{target}"


def _run(
    engine: Engine, command: list[str], files: tuple[int, ...], building: RunningStep
) -> tuple[int, str]:
    """Run buildx to its end; return its exit code and lines. What ends this call ends buildx."""
    process = subprocess.Popen(
        system.ending_with_parent(command),
        env=dict(engine.environment),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        pass_fds=files,
    )
    assert process.stderr is not None
    lines = []
    try:
        for printed in process.stderr:
            # a progress bar overwrites its line: keep its last state
            line = plain(printed.decode(errors="replace").rstrip().rpartition("\r")[2])
            lines.append(line)
            if line:
                building.log(line)
        return process.wait(), "\n".join(lines)
    except BaseException:
        process.terminate()  # on SIGTERM it tells BuildKit to stop
        try:
            process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        raise


def _built(engine: Engine, request: BuildRequest, metadata: Mapping[str, Any]) -> BuiltImage:
    reference = request.tags[0]
    if request.destination == "registry":
        config = str(metadata.get("containerimage.config.digest", ""))
        return BuiltImage(metadata.get("containerimage.digest"), config, None, None)
    image = engine.image(reference)
    if image is None:
        raise OutsideError(
            f"{reference}: built, but the engine no longer has it",
            "another run may have removed it; run the same command again",
        )
    return BuiltImage(image.digest, image.image_id, image.compressed_bytes, image.unpacked_bytes)


# --- what a failure means -------------------------------------------------------------------------


def _failed(engine: Engine, request: BuildRequest, printed: str) -> OutsideError:
    """Return the error of a build that failed. printed: buildx's lines; its error is the last."""
    error = printed[printed.rfind("\nERROR: ") + 1 :]
    message = re.sub(r"^((ERROR|failed to build|failed to solve): )+", "", error)
    if "no space left on device" in printed.lower():
        return engine.disk_full()
    if not engine.answers():
        return OutsideError("the engine ended in the middle of the build", _AGAIN)
    if ended := _STEP_ENDED.match(message):
        return _step_failed(request, ended[1], printed)
    if _LOST.search(message) and not re.search(r"(?m)^#\d+ ERROR: (?!.*canceled)", printed):
        return OutsideError(f"the build was cut off: {first_line(message)}", _AGAIN)
    fix = _remedy(engine, request, message)
    return OutsideError(f"{request.tags[0]}: {first_line(message)}", fix)


def _step_failed(request: BuildRequest, reason: str, printed: str) -> OutsideError:
    """Return the error of a step, from what buildx repeats at the end of a build.

    It repeats the last lines of the step below its name, and its line in the Dockerfile.
    """
    line = re.search(r"(?m)^\s*(\d+) \| >>> ", printed)
    tail = re.search(r"(?ms)^-{6}\n > (.*?):\n(.*?)^-{6}$", printed)
    place = f"{request.dockerfile}:{line[1]}" if line else str(request.dockerfile)
    name, log = tail.groups() if tail else ("a step", "")
    last = re.sub(r"^(#\d+ )?\d+\.\d+ ", "", (log.splitlines() or [""])[-1])
    return OutsideError(
        f"{place}: {first_line(name)} ended with {reason}" + (f": {last}" if last else ""),
        "see the step's log above, or run again with --verbose",
    )


def _remedy(engine: Engine, request: BuildRequest, message: str) -> str:
    host = request.tags[0].partition("/")[0]
    if "tag does not exist" in message:
        return f"buildx {engine.buildx_version} cannot push without keeping: install 0.29"
    if re.search(r"unauthorized|denied|forbidden|no basic auth|40[13]", message, re.IGNORECASE):
        return f"log in: docker login {host if '.' in host or ':' in host else ''}".rstrip()
    if re.search(r"dial tcp|i/o timeout|TLS handshake|x509", message):
        return "check that the engine reaches this registry (address, proxy, CA), and retry"
    if "failed to resolve source metadata" in message or "not found" in message:
        return "check that the image it starts from exists: its registry, name and digest"
    if "failed to read dockerfile" in message:
        return "builder render"
    return "run the same command again with --verbose to see every step"
