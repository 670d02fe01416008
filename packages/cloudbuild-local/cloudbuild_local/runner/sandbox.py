"""What one build has on the engine: a network, volumes and containers, under names of its own.

Steps know these things by the names of Cloud Build (names.py). Nothing is privileged. Everything
carries the build's id as a label, so that the next run removes what a killed run left behind.
"""

from __future__ import annotations

import contextlib
import io
import tarfile
import tempfile
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, Any

from docker.errors import APIError
from docker.types import Mount

from cloudbuild_local.errors import BuildFailedError
from cloudbuild_local.reader.build import Step
from cloudbuild_local.runner import state
from cloudbuild_local.runner.engine import Engine, MissingError, explained, reason_of
from cloudbuild_local.runner.names import NETWORK, Names
from cloudbuild_local.runner.plan import HOME, OUTPUTS, WORKSPACE, PlannedStep
from cloudbuild_local.runner.proxy import Proxy

SCRIPTS, SECRETS = "/builder/scripts", "/run/secrets"
SOCKET = "/var/run/docker.sock"
OUTPUT_LIMIT = 50 * 1024
"""Bytes of a step's `$BUILDER_OUTPUT/output` that are kept (API, Results.buildStepOutputs)."""

LABEL = "cloudbuild-local"


@dataclass(frozen=True)
class Host:
    """What steps get of this machine, and would not get in Cloud Build."""

    network: bool = False
    """Steps share this machine's network. They reach its loopback address (a registry there), but
    no other step by name."""
    secrets: Mapping[str, bytes] = field(default_factory=dict, repr=False)
    """File -> content, for /run/secrets."""
    logins: bytes = field(default=b"", repr=False)
    """Docker's configuration for /builder/home/.docker/config.json."""


class Sandbox:
    """A context manager: makes the build's network, and removes all that is the build's."""

    def __init__(self, engine: Engine, build_id: str, with_socket: bool, host: Host) -> None:
        """with_socket: give steps the engine's socket."""
        self.engine, self.api, self.host = engine, engine.api, host
        self.build_id = build_id
        self.names = Names(f"cloudbuild-{build_id[:8]}-", f"{LABEL}={build_id}")
        self.network = self.names.own(NETWORK)
        self.with_socket = with_socket
        self.left: list[str] = []
        self.holder = ""
        self._folder = Path()
        self._proxy: Proxy | None = None
        self._volumes: dict[str, str] = {}
        self._lock = threading.Lock()
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Sandbox:
        with state.abandoned(self.engine.host) as ids, explained("what a killed run left"):
            for build_id in ids:
                self.engine.remove(f"{LABEL}={build_id}")
        with self._stack as stack:
            folder = state.folder_of(self.build_id, self.engine.host)
            self._folder = stack.enter_context(folder)
            stack.callback(self._remove)
            with explained("network"):
                self.api.create_network(self.network, driver="bridge", labels=self.names.labels)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _remove(self) -> None:
        with explained("what the build made"):
            try:
                self.left += self.engine.remove(self.names.label)
            except KeyboardInterrupt:  # nobody else will remove the rest
                self.left += self.engine.remove(self.names.label)
                raise

    def volume(self, name: str) -> str:
        """Return the engine's name of a volume of this build. Make the volume if it is new.

        The name of a volume that the file does not name begins with a dot.
        """
        with self._lock:
            if name not in self._volumes:
                own = self.names.own(name)
                with explained(f"volume {name}"):
                    self.api.create_volume(own, labels=self.names.labels)
                self._volumes[name] = own
            return self._volumes[name]

    def hold(self, image: str, steps: list[Step]) -> None:
        """Make the holder: a container with every volume, which is never started.

        Files come in and out through the holder, not through the steps' own containers. Engines
        refuse archives of a container with a mount behind a symbolic link, and /var/run is such a
        link in most images.
        """
        places = [(".workspace", WORKSPACE), (".home", HOME), (".scripts", SCRIPTS)]
        places += [(f".outputs-{step.index}", f"{OUTPUTS}/{step.index}") for step in steps]
        places += [(".secrets", SECRETS)] if self.host.secrets else []
        mounts = [self._mount(name, path) for name, path in places]
        with explained("workspace"):
            self.holder = self._never_started(image, "holder", mounts)
            self._serve(image)
        outputs = {f"outputs/{step.index}/": b"" for step in steps}
        scripts = {f"scripts/step-{step.index}": _script(step) for step in steps if step.script}
        self.fill("/builder", _tar(outputs, 0o777))  # for whoever the image's user is
        self.fill("/builder", _tar(scripts, 0o755))
        if self.host.secrets:
            self.fill(SECRETS, _tar(self.host.secrets, 0o444))
        if self.host.logins:
            self.fill(HOME, _tar({".docker/config.json": self.host.logins}, 0o600))

    def _mount(self, name: str, path: str, *, fixed: bool = False) -> Mount:
        """Return the mount of a volume that the file does not name, empty at first."""
        return Mount(path, self.volume(name), type="volume", no_copy=True, read_only=fixed)

    def _never_started(self, image: str, name: str, mounts: list[Mount]) -> str:
        container = self.api.create_container(
            image,
            entrypoint=["/never-started"],
            name=self.names.own(name),
            labels=self.names.labels,
            host_config=self.api.create_host_config(mounts=mounts),
        )
        return str(container["Id"])

    def _serve(self, image: str) -> None:
        """Put the proxy between the steps and the engine, if the engine sees this machine's files.

        It does not if this program itself runs in a container, or the engine on another machine.
        """
        if not self.with_socket:
            return
        if self.engine.socket:
            socket = str(self._folder / "s")
            proxy = Proxy(socket, self.engine.socket, self._named(socket))
            self._stack.callback(proxy.close)
            try:
                probe = [Mount(SOCKET, socket, type="bind")]
                self.discard(self._never_started(image, "probe", probe))
                self._proxy = proxy
                return
            except APIError as error:
                if "bind source path" not in reason_of(error):
                    raise
        self.left.append("steps got the engine's own socket: the names of the service do not work")

    def _named(self, socket: str) -> Names:
        """Return the translation for the proxy. socket: the proxy's."""
        volumes = {WORKSPACE: ".workspace", HOME: ".home", "/": ".worker"}
        paths = {
            path: self.api.inspect_volume(self.volume(name))["Mountpoint"]
            for path, name in volumes.items()
        }
        worker = paths.pop("/")
        sockets = dict.fromkeys((SOCKET, SOCKET.removeprefix("/var")), socket)
        return replace(self.names, paths={**paths, **sockets}, worker=worker)

    def fill(self, path: str, archive: IO[bytes] | bytes) -> None:
        """Unpack a tar into a folder of the holder."""
        with explained(path):
            self.api.put_archive(self.holder, path, archive)

    def read(self, path: str) -> Iterator[tuple[tarfile.TarInfo, IO[bytes]]]:
        """Yield the files below a path of the holder, each with its content."""
        try:
            with explained(path):
                chunks, _ = self.api.get_archive(self.holder, path)
        except MissingError:
            return
        with tempfile.TemporaryFile() as spool:
            with explained(path):
                spool.writelines(chunks)
            spool.seek(0)
            with tarfile.open(fileobj=spool) as tar:
                for member in tar:
                    if member.isfile() and (content := tar.extractfile(member)):
                        yield member, content

    def output(self, index: int) -> bytes:
        """Return the first 50 KB of what a step wrote to `$BUILDER_OUTPUT/output`."""
        for _, content in self.read(f"{OUTPUTS}/{index}/output"):
            return content.read(OUTPUT_LIMIT)
        return b""

    def create(
        self,
        planned: PlannedStep,
        entrypoint: tuple[str, ...] | None,
        arguments: tuple[str, ...] | None,
        secrets: tuple[str, ...],
    ) -> str:
        """Make the container of a step, ready to start. Return its id. Raises OutsideError.

        entrypoint, arguments: None keeps the image's own. secrets: NAME=VALUE.
        """
        index, name = planned.step.index, f"step_{planned.step.index}"
        mounts = [
            self._mount(".workspace", WORKSPACE),
            self._mount(".home", HOME),
            self._mount(f".outputs-{index}", OUTPUTS),
            self._mount(".scripts", SCRIPTS, fixed=True),
            *([self._mount(".secrets", SECRETS, fixed=True)] if self.host.secrets else []),
            *(Mount(v.path, self.volume(v.name), type="volume") for v in planned.volumes),
        ]
        if self.with_socket:
            socket = self._proxy.socket if self._proxy else self.engine.socket or SOCKET
            mounts.append(Mount(SOCKET, socket, type="bind"))
        with explained(planned.image):
            container = self.api.create_container(
                planned.image,
                command=None if arguments is None else list(arguments),
                entrypoint=None if entrypoint is None else list(entrypoint),
                environment=[*planned.environment, *secrets],
                working_dir=planned.workdir,
                name=self.names.own(name),
                # A name of its own, also on the machine's network: programs in a step may tell
                # machines apart by it.
                hostname=self.names.own(name),
                labels=self.names.labels,
                host_config=self.api.create_host_config(
                    mounts=mounts,
                    network_mode="host" if self.host.network else self.network,
                ),
                networking_config=None if self.host.network else self._known_as(name),
            )
        return str(container["Id"])

    def _known_as(self, name: str) -> Any:
        """Return the build's network, with a container's own name on it."""
        endpoint = self.api.create_endpoint_config(aliases=[name])
        return self.api.create_networking_config({self.network: endpoint})

    def start(self, container: str) -> None:
        """Start a container. Raises BuildFailedError, as for a program that its image lacks."""
        try:
            self.api.start(container)
        except APIError as error:
            what = f"cannot be started: {reason_of(error)}"
            raise BuildFailedError(what, "correct the step's entrypoint, or its args") from None

    def kill(self, container: str) -> None:
        """Kill a container that may have ended."""
        with contextlib.suppress(Exception):
            self.api.kill(container)

    def exit_code(self, container: str) -> int:
        """Wait for a container's end. Return its exit code."""
        with explained("exit code"):
            return int(self.api.wait(container)["StatusCode"])

    def discard(self, container: str) -> None:
        """Remove a container. Its volumes stay."""
        with contextlib.suppress(Exception):
            self.api.remove_container(container, force=True, v=False)


def _script(step: Step) -> bytes:
    """Return a step's script as a program. Without a `#!` line, /bin/sh runs it."""
    begin = "" if step.script.startswith("#!") else "#!/bin/sh\n"
    return (begin + step.script).encode()


def _tar(files: Mapping[str, bytes], mode: int) -> bytes:
    """Return a tar of files with this mode; a name that ends with a slash is a folder's."""
    result = io.BytesIO()
    with tarfile.open(fileobj=result, mode="w") as tar:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.type = tarfile.DIRTYPE if name.endswith("/") else tarfile.REGTYPE
            info.size, info.mode = len(content), mode
            tar.addfile(info, io.BytesIO(content))
    return result.getvalue()
