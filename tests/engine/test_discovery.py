"""Which engines are taken, what is known of them, and what those without one are told."""

import hashlib
import json
import os
import socket
import socketserver
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from docker.errors import APIError

from builder.core import docker_sdk, files
from builder.core.docker_sdk import NoEngine
from builder.core.errors import OutsideError
from builder.core.settings import Settings
from builder.engine import Engine, discovery
from builder.engine.buildx import require
from tests.emulators.answers import Handler, Server, serving
from tests.emulators.web import LoopbackServer
from tests.emulators.web import answering as running


class OnSocket(Server):
    """Answers on a socket of this machine."""

    address_family = socket.AF_UNIX
    server_bind = socketserver.TCPServer.server_bind

    def __init__(self, path: Path, answers: dict[str, tuple[int, dict[str, str], bytes]]) -> None:
        handler = type("SocketHandler", (Handler,), {"disable_nagle_algorithm": False})
        LoopbackServer.__init__(self, str(path), handler)  # type: ignore[arg-type]
        self.answers, self.seen = answers, []


@contextmanager
def answering(info: dict[str, Any], components: tuple[str, ...] = ("Engine",)) -> Iterator[str]:
    """An engine's API on loopback that only says what it is."""
    version = {"ApiVersion": "1.41", "Components": [{"Name": name} for name in components]}
    answers = {
        path: (200, {"Content-Type": "application/json"}, json.dumps(content).encode())
        for path, content in {
            "/version": version,
            "/v1.41/version": version,
            "/v1.41/info": info,
        }.items()
    }
    with serving(answers) as server:
        yield server.address.replace("http", "tcp")


@pytest.fixture
def buildx(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Puts a `docker` on the PATH whose buildx says this version; nothing works without it."""
    monkeypatch.setenv("PATH", str(tmp_path))

    def says(version: str) -> None:
        program = tmp_path / "docker"
        program.write_text(f"#!/bin/sh\necho github.com/docker/buildx v{version} abcdef\n")
        program.chmod(0o755)

    return says


def connected(host: str, monkeypatch: pytest.MonkeyPatch) -> Engine:
    monkeypatch.setenv("DOCKER_HOST", host)
    return discovery.connect(Settings(engine="machine"))


@pytest.mark.parametrize("version", ["20.10.24+dfsg1", "26.1.5", "29.0.0"])
def test_an_engine_without_buildx_is_taken_and_says_so_when_it_shall_build(
    version: str, buildx: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    with answering({"ServerVersion": version, "Architecture": "x86_64"}) as host:
        engine = connected(host, monkeypatch)
        assert (engine.product, engine.version, engine.architecture) == ("Docker", version, "amd64")
        assert engine.buildx_version == "" and not engine.rootless
        missing = "no COPY --link" if version.startswith("20") else "`docker buildx` does not work"
        with pytest.raises(OutsideError, match=missing) as refused:
            require(engine)
        assert "install" in refused.value.fix
        buildx("0.13.1")
        assert connected(host, monkeypatch).buildx_version == "0.13.1"


def test_podman_and_an_engine_without_root_on_arm(
    buildx: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    info = {
        "ServerVersion": "5.4.2",
        "Architecture": "aarch64",
        "SecurityOptions": ["name=seccomp", "name=rootless"],
    }
    with answering(info, ("Podman Engine", "Conmon")) as host:
        engine = connected(host, monkeypatch)
    assert (engine.product, engine.architecture, engine.rootless) == ("Podman", "arm64", True)
    with pytest.raises(OutsideError, match=r"Podman 5.4.2 .* does not build this Docker"):
        require(engine)


def test_an_engine_that_is_too_old_or_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    with (
        answering({"ServerVersion": "19.03.15"}) as host,
        pytest.raises(OutsideError, match=r"is 19\.03\.15") as refused,
    ):
        connected(host, monkeypatch)
    assert refused.value.fix.startswith("install Docker 20.10 or newer")
    with pytest.raises(OutsideError, match="does not answer") as refused:
        connected(host, monkeypatch)  # which has ended
    assert not isinstance(refused.value, NoEngine)
    assert refused.value.fix.startswith("check DOCKER_HOST")


def test_who_may_not_reach_the_running_engine_is_not_told_to_install_one(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Root is refused nothing, so the refusal and the user are put in their places."""

    def refused() -> Engine:
        fix = docker_sdk._remedy("unix:///var/run/docker.sock", "PermissionError(13, ...denied)")
        raise OutsideError("the Docker engine at unix:///var/run/docker.sock does not answer", fix)

    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with monkeypatch.context() as patched, pytest.raises(OutsideError, match="needs root") as error:
        patched.setattr(discovery, "_machine", refused)
        discovery.connect(Settings())
    assert "does not answer" in error.value.message
    assert "install" not in error.value.fix
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/docker.sock")
    with pytest.raises(NoEngine, match=r"no Docker engine at .*; the private engine needs root"):
        discovery.connect(Settings())


@pytest.mark.parametrize("name", ["docker.sock", "podman/podman.sock"])
def test_an_engine_without_root_is_found_by_its_socket(
    name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for variable in ("DOCKER_HOST", "DOCKER_CONTEXT"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr(docker_sdk, "_SOCKET", tmp_path / "none.sock")
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).touch()
    assert docker_sdk.machine_host() == (f"unix://{tmp_path / name}", "default")


def test_the_current_context_of_docker_says_where_its_engine_listens(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for variable in ("DOCKER_HOST", "DOCKER_CONTEXT"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    for name in ("far", "named"):
        file = tmp_path / f"contexts/meta/{hashlib.sha256(name.encode()).hexdigest()}/meta.json"
        endpoint = {"docker": {"Host": f"tcp://{name}:2375", "SkipTLSVerify": False}}
        files.write(file, json.dumps({"Name": name, "Metadata": {}, "Endpoints": endpoint}))
    (tmp_path / "config.json").write_text('{"currentContext": "far"}')
    assert docker_sdk.machine_host() == ("tcp://far:2375", "far")
    monkeypatch.setenv("DOCKER_CONTEXT", "named")
    assert docker_sdk.machine_host() == ("tcp://named:2375", "named")
    monkeypatch.setenv("DOCKER_CONTEXT", "gone")
    with pytest.raises(OutsideError, match="current context does not exist"):
        docker_sdk.machine_host()


def test_an_engine_on_a_socket_is_asked_as_one_elsewhere_is(tmp_path: Path) -> None:
    answers: dict[str, tuple[int, dict[str, str], bytes]] = {
        "/version": (200, {}, b'{"ApiVersion": "1.48", "Version": "28.5.2"}'),
        "/images/none:x/json?manifests=1": (404, {}, b'{"message": "No such image"}'),
        "/images/full:x/json?manifests=1": (500, {}, b'{"message": "no space left"}'),
    }
    answers |= {f"/v1.48{path}": answer for path, answer in answers.items()}
    with serving(answers) as server, running(OnSocket(tmp_path / "s", answers)):
        for host in (f"unix://{tmp_path}/s", server.address.replace("http", "tcp")):
            engine = Engine("machine", host, "28.5.2", (), "", True, tmp_path)
            assert engine.answers() and engine.image("none:x") is None
            with pytest.raises(OutsideError, match=r"does not answer: .*no space left"):
                engine.image("full:x")
    assert not Engine("machine", f"unix://{tmp_path}/gone", "1", (), "", True, tmp_path).answers()


def test_a_refusal_of_crun_over_cgroups_names_the_other_runtime() -> None:
    for said, fix in (
        ("crun: cgroup: unsupported mix of versions: OCI runtime error", 'runtime = "runc"'),
        ("crun: executable file not found", "builder doctor"),
    ):
        with pytest.raises(OutsideError) as caught, docker_sdk.refusals("training:cpu"):
            raise APIError(said)
        assert fix in caught.value.fix
