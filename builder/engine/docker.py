"""Builds through `docker buildx`, everything else through the docker SDK.

The SDK's own build is the classic builder, which knows no secrets, no cache mounts and no
`COPY --link` (docker/docker-py#2230), so buildx runs as a child and speaks through its rawjson.

The same inputs give the same digest. BuildKit takes the `created` times from SOURCE_DATE_EPOCH;
the times of files are the Dockerfile's and the staged context's to fix. Its own way for files, the
exporter's `rewrite-timestamp`, is not used: it compresses every layer a second time, and refuses to
unpack what it exports.
"""

import contextlib
import ctypes
import json
import os
import re
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from builder.core.errors import OutsideError
from builder.core.events import OnEvent, ignore
from builder.core.settings import Settings
from builder.core.templates import EPOCH
from builder.engine import private
from builder.engine.progress import Failure, Progress, Step

if TYPE_CHECKING:
    import docker

COMPRESSION_LEVEL = 3
"""zstd's own default. TensorFlow's largest library (788 MB) on two busy cores: level 1 gives 161 MB
in 10 s, 3 gives 150 MB in 16 s, 7 gives 141 MB in 23 s, 12 gives 132 MB in 93 s."""

# COPY --link is of Dockerfile 1.4 (Docker 23.0); --progress=rawjson of buildx 0.13.
OLDEST_ENGINE = (23, 0)
OLDEST_BUILDX = (0, 13)

_ANSWER_SECONDS = 10
_API_SECONDS = 600
_END_SECONDS = 10
_PR_SET_PDEATHSIG = 1
_LOST = re.compile(
    r"code = (Unavailable|Canceled)|error reading from server|transport is closing|"
    r"Cannot connect to the Docker daemon|connection (refused|reset)|broken pipe|: EOF$|"
    r"no such file or directory.*docker\.sock|context canceled",
    re.IGNORECASE,
)


class BuildFailed(OutsideError):  # noqa: N818 - reads like its siblings in builder.errors
    """A build that ended in a step of the Dockerfile. `log`: the last lines that the step printed,
    `line`: where it stands in the Dockerfile, from 1."""

    def __init__(self, message: str, fix: str, log: tuple[str, ...] = (), line: int | None = None):
        super().__init__(message, fix)
        self.log = log
        self.line = line


@dataclass(frozen=True)
class BuildRequest:
    """One image to build. The first of `tags` is the one that the result is known by.

    contexts: further named contexts (folders or images). secrets: content by id, never in a layer.
    destination: "engine" keeps the image here, "registry" pushes it and keeps nothing.
    force_compression: give every layer the same compression. False on a base that is there already:
    its layers stay as they are.
    """

    dockerfile: Path
    context: Path
    tags: tuple[str, ...]
    contexts: Mapping[str, str] = field(default_factory=dict)
    build_args: Mapping[str, str] = field(default_factory=dict)
    secrets: Mapping[str, bytes] = field(default_factory=dict, repr=False)
    destination: Literal["engine", "registry"] = "engine"
    no_cache: bool = False
    force_compression: bool = True


@dataclass(frozen=True)
class BuiltImage:
    """What a build made. Sizes in bytes; None where the engine cannot say.

    digest: of the manifest, None on an engine without the containerd image store.
    image_id: what the engine calls the image (there, the same digest); after a push to a registry
    the digest of its configuration.
    """

    reference: str
    digest: str | None
    image_id: str
    compressed_bytes: int | None
    unpacked_bytes: int | None
    steps: tuple[Step, ...] = ()


@dataclass(frozen=True)
class EngineImage:
    """An image on the engine. Sizes in bytes: `compressed_bytes` is what a pull transfers, None on
    an engine without the containerd image store."""

    reference: str
    image_id: str
    digest: str | None
    compressed_bytes: int | None
    unpacked_bytes: int
    labels: Mapping[str, str]
    environment: Mapping[str, str]
    entrypoint: tuple[str, ...]
    command: tuple[str, ...]
    user: str
    workdir: str
    created: str
    layers: tuple[str, ...]
    tags: tuple[str, ...]


@dataclass(frozen=True)
class Disk:
    """The file system of the engine's data, in bytes."""

    path: Path
    free: int
    total: int


@dataclass(frozen=True)
class Engine:
    """A Docker engine that answered, and the buildx that fits it."""

    origin: Literal["machine", "private"]
    host: str
    """What DOCKER_HOST is set to."""
    version: str
    buildx: tuple[str, ...]
    """How buildx is called, without a subcommand."""
    buildx_version: str
    containerd_store: bool
    """Whether images are kept as a registry would get them (digests, compressed layers)."""
    data: Path
    """The engine's data root, on the engine's machine."""
    environment: Mapping[str, str] = field(default_factory=dict, repr=False)
    """The environment of client programs, whole."""

    @cached_property
    def client(self) -> "docker.DockerClient":
        """The SDK's client; calls wait for ten minutes at most."""
        return _client(self.host, self.environment, _API_SECONDS)

    # --- looking ----------------------------------------------------------------------------------

    def image(self, reference: str) -> EngineImage | None:
        """The image of this name, digest or id; None where the engine has none."""
        from docker.errors import NotFound

        api: Any = self.client.api
        try:
            # `manifests` (API 1.48) tells what the layers weigh compressed and unpacked
            answer = api._get(api._url("/images/{0}/json", reference), params={"manifests": 1})
            found: dict[str, Any] = api._result(answer, json=True)
        except NotFound:
            return None
        except Exception as error:
            raise self._not_answering(error) from error
        return _image(reference, found)

    def disk(self) -> Disk | None:
        """Where the engine keeps its images; None where that is another machine's."""
        if not self.host.startswith(("unix://", "npipe://")) or not self.data.is_dir():
            return None
        usage = shutil.disk_usage(self.data)
        return Disk(self.data, usage.free, usage.total)

    # --- building ---------------------------------------------------------------------------------

    def build(self, request: BuildRequest, on_event: OnEvent = ignore) -> BuiltImage:
        """Builds one image; returns when it is on the engine or in the registry.

        Raises BuildFailed for a step that failed, OutsideError for an engine that is gone, a full
        disk, a base or a registry that refused. Whatever ends the call ends the build, too; what
        was finished stays in BuildKit's cache and the next build goes on from there.
        """
        progress = Progress()
        with tempfile.TemporaryDirectory(prefix="build-") as scratch:
            metadata = Path(scratch) / "metadata.json"
            with _secrets(request.secrets) as secrets:
                command = self.command(request, metadata, secrets)
                code = self._run(command, tuple(secrets.values()), progress, on_event)
            if code:
                raise self._failed(request, progress)
            return self._built(request, json.loads(metadata.read_text()), progress.steps)

    def command(
        self, request: BuildRequest, metadata: Path, secrets: Mapping[str, int]
    ) -> list[str]:
        """buildx's command line; `secrets` are open files by id."""
        arguments = {"SOURCE_DATE_EPOCH": str(EPOCH), **request.build_args}
        return [
            *self.buildx,
            "build",
            "--progress=rawjson",
            f"--metadata-file={metadata}",
            "--provenance=false",  # an attestation would differ each time, and wrap in an index
            "--sbom=false",
            "--network=host",  # a proxy or an index on this machine's own address is reached
            f"--file={request.dockerfile}",
            f"--output={self._output(request)}",
            *(f"--tag={tag}" for tag in request.tags),
            *(f"--build-context={name}={value}" for name, value in request.contexts.items()),
            *(f"--build-arg={name}={value}" for name, value in arguments.items()),
            *(f"--secret=id={name},src=/proc/self/fd/{fd}" for name, fd in secrets.items()),
            *(["--no-cache"] if request.no_cache else []),
            str(request.context),
        ]

    def _output(self, request: BuildRequest) -> str:
        to_registry = request.destination == "registry"
        if not self.containerd_store:
            return "type=image,push=true" if to_registry else "type=docker"
        layers = f"compression=zstd,compression-level={COMPRESSION_LEVEL},oci-mediatypes=true"
        force = f"force-compression={str(request.force_compression).lower()}"
        # A push that stores nothing never needs the layers of a base that lies in the registry.
        place = "push=true,store=false,unpack=false" if to_registry else "store=true,unpack=true"
        return f"type=image,{layers},{force},{place}"

    def _run(
        self, command: list[str], files: tuple[int, ...], progress: Progress, on_event: OnEvent
    ) -> int:
        process = subprocess.Popen(
            command,
            env=dict(self.environment),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            pass_fds=files,
            preexec_fn=_end_with_parent,
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
        self, request: BuildRequest, metadata: Mapping[str, Any], steps: tuple[Step, ...]
    ) -> BuiltImage:
        reference = request.tags[0]
        config = str(metadata.get("containerimage.config.digest", ""))
        digest = metadata.get("containerimage.digest")
        if request.destination == "registry":
            return BuiltImage(reference, digest, config, None, None, steps)
        image = self.image(reference)
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

    # --- what went wrong --------------------------------------------------------------------------

    def _failed(self, request: BuildRequest, progress: Progress) -> OutsideError:
        failure, said = progress.failure, progress.error or "\n".join(progress.words[-3:])
        everything = "\n".join([said, *((failure.error, *failure.log) if failure else ())])
        if "no space left on device" in everything.lower():
            return self._full()
        if not self._answers():
            return OutsideError(
                "the engine ended in the middle of the build",
                "run the same command again: it goes on from BuildKit's cache",
            )
        if failure and re.match(r"exit code: \d+", failure.error):
            return _step_failed(request, failure)
        if _LOST.search(said) and (failure is None or "canceled" in failure.error):
            return OutsideError(
                f"the build was cut off: {_line(said)}",
                "run the same command again: it goes on from BuildKit's cache",
            )
        return OutsideError(f"{request.tags[0]}: {_line(said)}", self._remedy(request, said))

    def _remedy(self, request: BuildRequest, said: str) -> str:
        host = request.tags[0].partition("/")[0]
        if "tag does not exist" in said:
            return f"buildx {self.buildx_version} cannot push without keeping: install 0.29"
        if re.search(r"unauthorized|denied|forbidden|no basic auth|40[13]", said, re.I):
            return f"log in: docker login {host if '.' in host or ':' in host else ''}".rstrip()
        if re.search(r"dial tcp|i/o timeout|TLS handshake|x509", said):
            return "check that the engine reaches this registry (address, proxy, CA), and retry"
        if "failed to resolve source metadata" in said or "not found" in said:
            return "check that the image it starts from exists: its registry, name and digest"
        if "failed to read dockerfile" in said:
            return "builder render"
        return "run the same command again with --verbose to see every step"

    def _full(self) -> OutsideError:
        disk = self.disk()
        where = (
            f"{disk.free / 1e9:.1f} GB free of {disk.total / 1e9:.0f} on {disk.path}"
            if disk
            else ""
        )
        own = f"{Path(self.buildx[0]).with_name('docker')} --host {self.host}"
        call = own if self.origin == "private" else "docker"
        return OutsideError(
            f"the engine's disk is full{': ' if where else ''}{where}",
            f"free some space, for example: {call} system prune --all",
        )

    def _answers(self) -> bool:
        try:
            return bool(_client(self.host, self.environment, _ANSWER_SECONDS).ping())
        except Exception:
            return False

    def _not_answering(self, error: Exception) -> OutsideError:
        return OutsideError(
            f"the engine at {self.host} does not answer: {_line(str(error))}",
            "builder doctor shows its state; builder engine start starts the private one",
        )


# --- connecting -----------------------------------------------------------------------------------


def connect(settings: Settings, start: bool = True, on_event: OnEvent = ignore) -> Engine:
    """The engine to use: the machine's own, or the private one (`settings.engine` chooses).

    `start`: whether the private engine is started where it does not run. Raises OutsideError where
    there is no engine, or none that can build.
    """
    if settings.engine == "private":
        return _private(start, on_event)
    try:
        return _machine()
    except OutsideError as refused:
        if settings.engine == "machine":
            raise
        try:
            return _private(start, on_event)
        except OutsideError as error:
            raise OutsideError(
                f"{error.message} (and not this machine's own: {refused.message})", error.fix
            ) from error


def _machine() -> Engine:
    """The engine that `docker` on this machine talks to."""
    host, name = _machine_host()
    environment = dict(os.environ)
    if name:
        # not a builder of another driver that the user chose: images must arrive in the engine
        environment["BUILDX_BUILDER"] = name
    return _engine(host, ("docker", "buildx"), environment)


def _machine_host() -> tuple[str, str]:
    """The host, and the name of its builder: the context's (docker's default is "default")."""
    from docker.context import ContextAPI

    if os.environ.get("DOCKER_HOST"):
        return os.environ["DOCKER_HOST"], "default"
    context = ContextAPI.get_context(os.environ.get("DOCKER_CONTEXT") or None)
    if context is None:
        raise OutsideError(
            "docker's current context does not exist",
            "docker context use default, or builder with --engine private",
        )
    return context.Host or "unix:///var/run/docker.sock", context.Name


def _private(start: bool, on_event: OnEvent) -> Engine:
    endpoint = private.start(on_event=on_event) if start else private.status().endpoint
    if endpoint is None:
        raise OutsideError("no engine is running", "builder engine start")
    # What the user has set up for another engine must not reach this one; logins stay.
    foreign = (
        "DOCKER_CONTEXT",
        "DOCKER_TLS",
        "DOCKER_TLS_VERIFY",
        "DOCKER_CERT_PATH",
        "BUILDX_BUILDER",
    )
    own = {name: value for name, value in os.environ.items() if name not in foreign}
    # What it is needs no question: the factory chose its programs and wrote its configuration.
    return Engine(
        origin="private",
        host=endpoint.host,
        version=endpoint.version,
        buildx=(str(endpoint.buildx),),
        buildx_version=endpoint.buildx_version,
        containerd_store=True,
        data=endpoint.data,
        environment={**own, **endpoint.environment, **_CLIENTS},
    )


_CLIENTS = {"BUILDX_METADATA_PROVENANCE": "disabled", "DOCKER_CLI_HINTS": "false"}


def _engine(host: str, buildx: tuple[str, ...], environment: Mapping[str, str]) -> Engine:
    """Asks the machine's engine and its buildx who they are. Raises OutsideError for old ones."""
    socket = host.removeprefix("unix://")
    if host.startswith("unix://") and not Path(socket).exists():
        raise OutsideError(f"no Docker engine at {socket}", "start it, or install Docker")
    try:
        client = _client(host, environment, _ANSWER_SECONDS)
        info: dict[str, Any] = client.info()
    except Exception as error:
        raise OutsideError(
            f"the Docker engine at {host} does not answer: {_line(str(error))}",
            "start it, allow this user to reach it (group docker), or use --engine private",
        ) from error
    version = str(info.get("ServerVersion", ""))
    if _version(version) < OLDEST_ENGINE:
        raise OutsideError(
            f"the Docker engine at {host} is {version}, which knows no COPY --link",
            "install Docker 23.0 or newer, or use --engine private",
        )
    whole = {**environment, **_CLIENTS}
    return Engine(
        origin="machine",
        host=host,
        version=version,
        buildx=buildx,
        buildx_version=_buildx_version(buildx, whole),
        containerd_store=["driver-type", "io.containerd.snapshotter.v1"]
        in (info.get("DriverStatus") or []),
        data=Path(info.get("DockerRootDir") or "/var/lib/docker"),
        environment=whole,
    )


def _buildx_version(command: tuple[str, ...], environment: Mapping[str, str]) -> str:
    try:
        done = subprocess.run(
            [*command, "version"], env=environment, capture_output=True, text=True, timeout=30
        )
        said = done.stdout
    except (OSError, subprocess.TimeoutExpired):
        said = ""
    match = re.search(r"buildx v?(\d+\.\d+\S*)", said)
    if not match:
        raise OutsideError(
            f"`{' '.join(command)}` does not work: the engine is there, its builder is not",
            "install docker-buildx (Debian) or docker-buildx-plugin (Docker's own packages)",
        )
    if _version(match[1]) < OLDEST_BUILDX:
        raise OutsideError(
            f"buildx {match[1]} is too old: it has no --progress=rawjson",
            "install buildx 0.13 or newer, or use --engine private",
        )
    return match[1]


def _client(host: str, environment: Mapping[str, str], timeout: int) -> "docker.DockerClient":
    import docker

    return docker.DockerClient.from_env(
        environment={**environment, "DOCKER_HOST": host}, timeout=timeout
    )


@contextlib.contextmanager
def refusals(image: str, fix: str = "run `builder build` first") -> Iterator[None]:
    """What the SDK raises about a container of `image`, as an OutsideError of one line.

    fix: what to do where the engine has no such image.
    """
    import requests
    from docker.errors import APIError, ImageNotFound

    try:
        yield
    except ImageNotFound:
        raise OutsideError(f"the engine holds no image {image}", fix) from None
    except APIError as error:
        said = error.explanation or error
        raise OutsideError(f"the engine refused: {said}", "see `builder doctor`") from error
    except requests.exceptions.RequestException as error:
        raise OutsideError(
            f"the engine does not answer: {error}", "see `builder engine status`"
        ) from error


# --- the child ------------------------------------------------------------------------------------


@contextlib.contextmanager
def _secrets(secrets: Mapping[str, bytes]) -> Iterator[dict[str, int]]:
    """Each secret as an open file in memory: whatever ends this process, none lies on a disk."""
    with contextlib.ExitStack() as stack:
        files = {}
        for name, content in secrets.items():
            file = stack.enter_context(os.fdopen(os.memfd_create(f"secret-{name}"), "wb"))
            file.write(content)
            file.flush()
            files[name] = file.fileno()
        yield files


_LIBC = ctypes.CDLL(None)


def _end_with_parent() -> None:
    """In the child: whatever kills the factory ends the build."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def _end(process: subprocess.Popen[str]) -> None:
    """buildx tells BuildKit to stop when it is asked to end."""
    process.terminate()
    try:
        process.wait(_END_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


# --- reading --------------------------------------------------------------------------------------


def _image(reference: str, found: Mapping[str, Any]) -> EngineImage:
    config = found.get("Config") or {}
    descriptor = found.get("Descriptor") or {}
    manifests = [
        m for m in found.get("Manifests") or [] if m.get("Kind") == "image" and m["Available"]
    ]
    sizes = [m["Size"]["Content"] for m in manifests]
    unpacked = [m["ImageData"]["Size"]["Unpacked"] for m in manifests]
    pairs = (entry.partition("=") for entry in config.get("Env") or [])
    return EngineImage(
        reference=reference,
        image_id=found["Id"],
        digest=descriptor.get("digest"),
        compressed_bytes=sizes[0] if sizes else None,
        unpacked_bytes=unpacked[0] if unpacked else int(found.get("Size") or 0),
        labels=dict(config.get("Labels") or {}),
        environment={name: value for name, _, value in pairs},
        entrypoint=tuple(config.get("Entrypoint") or ()),
        command=tuple(config.get("Cmd") or ()),
        user=config.get("User") or "",
        workdir=config.get("WorkingDir") or "/",
        created=found.get("Created") or "",
        layers=tuple((found.get("RootFS") or {}).get("Layers") or ()),
        tags=tuple(found.get("RepoTags") or ()),
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


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", text)[:2])


def _line(text: str) -> str:
    """The first line that says something, not too long."""
    return next((line.strip() for line in text.splitlines() if line.strip()), "no message")[:400]
