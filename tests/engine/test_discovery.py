"""Which engines are taken, what is known of them, and what those without one are told."""

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from docker.errors import APIError

from builder.core import docker_sdk
from builder.core.docker_sdk import NoEngine
from builder.core.errors import OutsideError
from builder.core.settings import Settings
from builder.engine import Engine, discovery
from builder.engine.buildx import require
from tests.emulators.answers import serving


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
    monkeypatch.setattr(
        "docker.context.ContextAPI.get_context",
        lambda name: type("Context", (), {"Host": f"unix://{tmp_path}/none.sock", "Name": "x"}),
    )
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).touch()
    assert docker_sdk.machine_host() == (f"unix://{tmp_path / name}", "default")


def test_a_refusal_of_crun_over_cgroups_names_the_other_runtime() -> None:
    for said, fix in (
        ("crun: cgroup: unsupported mix of versions: OCI runtime error", 'runtime = "runc"'),
        ("crun: executable file not found", "builder doctor"),
    ):
        with pytest.raises(OutsideError) as caught, docker_sdk.refusals("training:cpu"):
            raise APIError(said)
        assert fix in caught.value.fix
