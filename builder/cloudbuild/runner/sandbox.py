"""What one build has on the engine: a network, volumes and containers, under names of its own.

Steps see these things under the names of the hosted service (names.py). Nothing is privileged.
Everything carries the build's id and its owner as labels, so that the next run finds and removes
what a killed run left behind (builder/engine/containers.py).
"""

from __future__ import annotations

import contextlib
import io
import re
import tarfile
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import IO, TYPE_CHECKING, Any

from builder import registry
from builder.cloudbuild.runner.metadata import Caller, MetadataServer
from builder.cloudbuild.runner.names import NETWORK, Names
from builder.cloudbuild.runner.proxy import Proxy
from builder.core.errors import InputError, OutsideError
from builder.engine import containers, transfers

if TYPE_CHECKING:
    from builder.engine import Engine

WORKSPACE, HOME, OUTPUTS = "/workspace", "/builder/home", "/builder/outputs"
SCRIPTS = "/builder/scripts"
SOCKET = "/var/run/docker.sock"
SECRETS = "/run/secrets"
OUTPUT_LIMIT = 50 * 1024
"""Bytes of a step's `$BUILDER_OUTPUT/output` that are kept (API, Results.buildStepOutputs)."""

LABEL = "training-image-factory.cloudbuild"

_NO_PROGRAM = re.compile(
    r"(exec|stat)[^\n]*(executable file not found[^\n]*|no such file or directory|"
    r"permission denied|exec format error)"
)
_DIGEST = re.compile(r"digest: (sha256:[0-9a-f]{64})")  # the engine's last line about a push

OnLine = Callable[[str], None]


@dataclass(frozen=True)
class ContainerSpec:
    """One container to run.

    entrypoint, command: None keeps the image's own. environment: NAME=VALUE. volumes: the build's
    name of a volume -> path. index: of the step, for its `$BUILDER_OUTPUT`.
    """

    name: str
    image: str
    command: tuple[str, ...] | None = None
    entrypoint: tuple[str, ...] | None = None
    environment: tuple[str, ...] = ()
    workdir: str = WORKSPACE
    volumes: Mapping[str, str] = field(default_factory=dict)
    index: int = 0


@dataclass(frozen=True)
class Host:
    """What steps get of this machine and the hosted service would not give them.

    network: steps share the machine's own network. They reach its loopback address (a registry
    there), but no other step by name. secrets: file -> content, for /run/secrets: the certificates,
    proxies and indexes that builds get here (builder/core/network.py). logins: the docker command's
    configuration, for /builder/home/.docker/config.json. caller: whose login the metadata server
    gives to steps; None for no such server.
    """

    network: bool = False
    secrets: Mapping[str, bytes] = field(default_factory=dict, repr=False)
    logins: bytes = field(default=b"", repr=False)
    caller: Caller | None = None


class NotStarted(Exception):  # noqa: N818 - a program that is not there, as a shell sees it
    """A container whose program could not be started. code: 127 not found, 126 not a program."""

    def __init__(self, what: str, code: int) -> None:
        super().__init__(what)
        self.code = code


class Sandbox:
    """A context manager: makes the build's network and volumes, and removes all at the end."""

    def __init__(
        self, engine: Engine, build_id: str, with_socket: bool = True, host: Host | None = None
    ) -> None:
        self.engine = engine
        self.host = host or Host()
        self.build_id = build_id
        self.labels = containers.labels(LABEL, build_id)
        mine = f"{LABEL}={build_id}"
        self.names = Names(f"cloudbuild-{build_id[:8]}-", self.labels, mine)
        self.network = self.names.own(NETWORK)
        self.with_socket = with_socket
        self.proxy: Proxy | None = None
        self.metadata: MetadataServer | None = None
        self.api: Any = engine.client.api
        self.left: list[str] = []
        self.holder = ""
        self._volumes: dict[str, str] = {}
        self._lock = threading.Lock()

    def __enter__(self) -> Sandbox:
        with self._explained("network"):
            containers.sweep(self.engine.client, LABEL)
            self.api.create_network(self.network, driver="bridge", labels=self.labels)
        if self.host.caller:
            with self._explained("network"):
                (pool,) = self.api.inspect_network(self.network)["IPAM"]["Config"]
            self.metadata = MetadataServer(self.host.caller, pool["Subnet"], pool["Gateway"])
            self.names = replace(
                self.names, hosts=self.metadata.hosts, environment=self.metadata.environment
            )
        return self

    def __exit__(self, *_: object) -> None:
        self.left += containers.remove(self.engine.client, f"{LABEL}={self.build_id}")
        for server in (self.proxy, self.metadata):
            if server:
                server.close()

    # --- volumes ----------------------------------------------------------------------------------

    def volume(self, name: str) -> str:
        """The engine's name of a volume of this build. Makes the volume if it is new.

        The name of a volume that the file does not name begins with a dot.
        """
        with self._lock:
            if name not in self._volumes:
                own = self.names.own(name)
                with self._explained(f"volume {name}"):
                    self.api.create_volume(own, labels=self.labels)
                self._volumes[name] = own
            return self._volumes[name]

    def hold(self, image: str, scripts: Mapping[int, bytes], steps: tuple[int, ...]) -> None:
        """Make the holder: a container with every volume, which is never started.

        Files come in and out through the holder, not through the steps' own containers. Engines
        refuse archives of a container with a mount behind a symbolic link, and /var/run is such a
        link in most images.
        """
        from docker.types import Mount

        places = [(".workspace", WORKSPACE), (".home", HOME), (".scripts", SCRIPTS)]
        places += [(f".outputs-{n}", f"{OUTPUTS}/{n}") for n in steps]
        places += [(".secrets", SECRETS)] if self.host.secrets else []
        mounts = [
            Mount(path, self.volume(name), type="volume", no_copy=True) for name, path in places
        ]
        with self._explained("workspace"):
            self.holder = self._never_started(image, "holder", mounts)
            self._serve(image)
            self.api.put_archive(self.holder, "/builder", _builder_folder(scripts, steps))
            if self.host.secrets:
                self.api.put_archive(self.holder, SECRETS, _files(self.host.secrets, 0o444))
            if self.host.logins:
                config = {".docker/config.json": self.host.logins}
                self.api.put_archive(self.holder, HOME, _files(config, 0o600))

    def _never_started(self, image: str, name: str, mounts: list[Any]) -> str:
        made = self.api.create_container(
            image,
            entrypoint=["/never-started"],
            name=self.names.own(name),
            labels=self.labels,
            host_config=self.api.create_host_config(mounts=mounts),
        )
        return str(made["Id"])

    def _serve(self, image: str) -> None:
        """Put the proxy between the steps and the engine, if the engine sees this machine's files.

        It does not if this program itself runs in a container, or the engine on another machine.
        """
        from docker.errors import APIError
        from docker.types import Mount

        if not self.with_socket:
            return
        if self.engine.host.startswith("unix://"):
            engine = self.engine.host.removeprefix("unix://")
            proxy = Proxy(engine, self.labels[containers.OWNER])
            try:
                proxy.serve(self._named(proxy.socket))
                probe = [Mount(SOCKET, proxy.socket, type="bind")]
                self.discard(self._never_started(image, "probe", probe))
                self.proxy = proxy
                return
            except APIError as error:
                proxy.close()
                if "bind source path" not in _said(error):
                    raise
        self.left.append("steps asked the engine itself: the names of the service were not there")

    def _named(self, socket: str) -> Names:
        """The translation of what steps say to the engine. socket: the proxy's."""
        volumes = {WORKSPACE: ".workspace", HOME: ".home", "/": ".worker"}
        places = {
            path: self.api.inspect_volume(self.volume(name))["Mountpoint"]
            for path, name in volumes.items()
        }
        worker = places.pop("/")
        sockets = dict.fromkeys((SOCKET, SOCKET.removeprefix("/var")), socket)
        return replace(self.names, paths={**places, **sockets}, worker=worker)

    def fill(self, path: str, archive: IO[bytes]) -> None:
        """Unpack a tar (or tar.gz) into a folder of the holder."""
        with self._explained(path):
            self.api.put_archive(self.holder, path, archive)

    def read(self, path: str) -> Iterator[tuple[tarfile.TarInfo, IO[bytes] | None]]:
        """The members below a path of the holder, each file with its content. None if no path."""
        from docker.errors import NotFound

        with self._explained(path):
            try:
                chunks, _ = self.api.get_archive(self.holder, path)
            except NotFound:
                return
        with tempfile.TemporaryFile() as spool:
            for chunk in chunks:
                spool.write(chunk)
            spool.seek(0)
            with tarfile.open(fileobj=spool) as tar:
                for member in tar:
                    yield member, tar.extractfile(member) if member.isfile() else None

    # --- images -----------------------------------------------------------------------------------

    def find(self, image: str) -> str | None:
        """The digest of an image on the engine, or its id if it has no digest."""
        found = self.engine.image(image)
        return None if found is None else found.digest or found.image_id

    def pull(self, image: str, on_line: OnLine) -> None:
        """Pull an image. Raises OutsideError."""
        from docker.errors import APIError, DockerException

        name, tag = image, None
        if "@" not in image:
            head, colon, last = image.rpartition(":")
            name, tag = (head, last) if colon and "/" not in last else (image, "latest")
        try:
            stream = self.api.pull(
                name, tag=tag, stream=True, decode=True, auth_config=self._login(image)
            )
            for one in transfers.told(stream):
                if one.status and not one.layer:
                    on_line(one.status)
        except (APIError, DockerException, transfers.Refused) as error:
            said = _said(error)
            raise OutsideError(
                f"{image}: cannot be pulled: {said}", _pull_fix(image, said)
            ) from None

    def push(self, image: str, on_line: OnLine) -> str:
        """Push an image. Returns its digest, read back from the registry. Raises OutsideError."""
        from docker.errors import APIError, DockerException

        where = registry.parse(image)
        tag = where.tag or "latest"
        name = image if where.tag is None else image.rpartition(":")[0]
        digest = ""
        try:
            stream = self.api.push(
                name, tag=tag, stream=True, decode=True, auth_config=self._login(image)
            )
            for one in transfers.told(stream):
                if one.status and not one.layer:
                    on_line(one.status)
                    if match := _DIGEST.search(one.status):
                        digest = match[1]
        except (APIError, DockerException, transfers.Refused) as error:
            raise OutsideError(
                f"{image}: not pushed: {_said(error)}", _push_fix(where.host)
            ) from None
        with registry.Registry(where.host) as there:
            known = there.head(where.repository, tag)
        if known is None or known != digest:
            raise OutsideError(
                f"{image}: the registry has {known or 'nothing'} where {digest or 'it'} was pushed",
                "another push took the tag meanwhile; push again",
            )
        return known

    def _login(self, image: str) -> dict[str, str] | None:
        try:
            known = registry.credentials_for(registry.parse(image).host)
        except InputError:
            return None
        return known.for_engine() if known else {}

    # --- containers -------------------------------------------------------------------------------

    def create(self, spec: ContainerSpec) -> str:
        """Make a container, ready to start. Returns its id. Raises OutsideError."""
        from docker.types import Mount

        own = (
            (WORKSPACE, ".workspace", False),
            (HOME, ".home", False),
            (OUTPUTS, f".outputs-{spec.index}", False),
            (SCRIPTS, ".scripts", True),
            *(((SECRETS, ".secrets", True),) if self.host.secrets else ()),
        )
        mounts = [
            Mount(path, self.volume(name), type="volume", no_copy=True, read_only=fixed)
            for path, name, fixed in own
        ]
        mounts += [
            Mount(path, self.volume(name), type="volume") for name, path in spec.volumes.items()
        ]
        if self.with_socket:
            mounts.append(Mount(SOCKET, self._engine_socket(), type="bind"))
        with self._explained(spec.image):
            made = self.api.create_container(
                spec.image,
                command=None if spec.command is None else list(spec.command),
                entrypoint=None if spec.entrypoint is None else list(spec.entrypoint),
                environment=[*self.names.environment, *spec.environment],
                working_dir=spec.workdir,
                name=self.names.own(spec.name),
                # A name of its own, also on the machine's network: the factory in a step tells
                # owners apart by host and process. With the machine's name, it would take the
                # containers of another step for those of an ended process.
                hostname=self.names.own(spec.name),
                labels=self.labels,
                host_config=self.api.create_host_config(
                    mounts=mounts,
                    network_mode="host" if self.host.network else self.network,
                    extra_hosts=dict(one.split(":", 1) for one in self.names.hosts),
                ),
                networking_config=None if self.host.network else self._known_as(spec.name),
            )
        return str(made["Id"])

    def _known_as(self, name: str) -> Any:
        """The build's network, with a container's own name on it."""
        endpoint = self.api.create_endpoint_config(aliases=[name])
        return self.api.create_networking_config({self.network: endpoint})

    def _engine_socket(self) -> str:
        """The path of the socket that steps get, on the engine's machine."""
        if self.proxy:
            return self.proxy.socket
        host = self.engine.host
        return host.removeprefix("unix://") if host.startswith("unix://") else SOCKET

    def start(self, container: str, on_line: OnLine) -> Callable[[], None]:
        """Start a container. Returns a function that hands its lines to `on_line` to the end.

        Raises NotStarted for a program that the image does not have, else OutsideError.
        """
        from docker.errors import APIError

        with self._explained("start"):
            stream = containers.Attached(self.api, container)
            try:
                self.api.start(container)
            except APIError as error:
                stream.close()
                if match := _NO_PROGRAM.search(_said(error)):
                    code = 126 if "permission" in match[0] or "format" in match[0] else 127
                    raise NotStarted(match[0], code) from None
                raise

        def follow() -> None:
            with self._explained("the step's log"), contextlib.closing(stream):
                for line in containers.lines(stream):
                    on_line(line)

        return follow

    def kill(self, container: str) -> None:
        """Kill a container that may have ended."""
        with contextlib.suppress(Exception):
            self.api.kill(container)

    def exit_code(self, container: str) -> int:
        """Wait for a container's end. Returns its exit code."""
        with self._explained("exit code"):
            return int(self.api.wait(container)["StatusCode"])

    def output(self, index: int) -> bytes:
        """The first 50 KB of what a step wrote to `$BUILDER_OUTPUT/output`."""
        for _, content in self.read(f"{OUTPUTS}/{index}/output"):
            if content:
                return content.read(OUTPUT_LIMIT)
        return b""

    def discard(self, container: str) -> None:
        """Remove a container. Its volumes stay."""
        with contextlib.suppress(Exception):
            self.api.remove_container(container, force=True, v=False)

    @contextlib.contextmanager
    def _explained(self, what: str) -> Iterator[None]:
        from docker.errors import APIError, DockerException
        from requests.exceptions import RequestException
        from urllib3.exceptions import HTTPError

        try:
            yield
        except (APIError, DockerException, RequestException, HTTPError, OSError) as error:
            raise OutsideError(
                f"{what}: the engine refused: {_said(error)}",
                "builder doctor shows the engine's state",
            ) from None


def _builder_folder(scripts: Mapping[int, bytes], steps: tuple[int, ...]) -> bytes:
    """/builder as a tar: a folder for the results of each step, and the scripts, for any user."""
    result = io.BytesIO()
    with tarfile.open(fileobj=result, mode="w") as tar:
        for n in steps:
            info = tarfile.TarInfo(f"outputs/{n}")
            info.type, info.mode = tarfile.DIRTYPE, 0o777  # whoever the image's user is
            tar.addfile(info)
        for n, script in scripts.items():
            info = tarfile.TarInfo(f"scripts/step-{n}")
            info.size, info.mode = len(script), 0o755
            tar.addfile(info, io.BytesIO(script))
    return result.getvalue()


def _files(files: Mapping[str, bytes], mode: int) -> bytes:
    """A tar of files with this mode."""
    result = io.BytesIO()
    with tarfile.open(fileobj=result, mode="w") as tar:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size, info.mode = len(content), mode
            tar.addfile(info, io.BytesIO(content))
    return result.getvalue()


def _said(error: Exception) -> str:
    """The engine's own message, without the SDK's words around it."""
    return _line(getattr(error, "explanation", None) or error)


def _line(said: object) -> str:
    lines = (line.strip() for line in str(said).splitlines())
    return next((line for line in lines if line), "no reason given")[:300]


def _pull_fix(image: str, said: str) -> str:
    if "invalid tar header" in said:
        return "its layers are packed with zstd, which Docker reads since 23.0: push it with gzip"
    short = re.sub(r"[@:][^/]*$", "", image)
    return f"log in to its registry, or name an image of this engine: --map {short}=LOCAL"


def _push_fix(host: str) -> str:
    return f"{registry.login_command(host)}, or call with --no-push"
