"""`builder doctor` on machines of every kind: each finding has its remedy, none is a traceback."""

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from builder import doctor
from builder.core.errors import OutsideError
from builder.core.settings import Settings
from builder.doctor import Finding
from builder.engine import Engine, NoEngine, docker


def engine(**changes: Any) -> Engine:
    """An engine that everything is right with."""
    found: dict[str, Any] = {
        "origin": "machine",
        "host": "unix:///var/run/docker.sock",
        "version": "28.5.2",
        "buildx": ("docker", "buildx"),
        "buildx_version": "0.29.1",
        "containerd_store": True,
        "data": Path("/"),
    }
    return Engine(**found | changes)


def found(monkeypatch: pytest.MonkeyPatch, answer: Engine | OutsideError) -> dict[str, Finding]:
    """The findings by name where this engine answers, or this refusal does."""

    def connect(settings: Settings, start: bool) -> Engine:
        assert not start
        if isinstance(answer, OutsideError):
            raise answer
        return answer

    monkeypatch.setattr(doctor, "connect", connect)
    return {finding.name: finding for finding in doctor.examine(Settings())}


def test_a_machine_that_nothing_is_wrong_with(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = found(monkeypatch, engine())
    ok = [name for name, finding in seen.items() if finding.state == "ok"]
    assert {"python", "engine", "buildx", "image store", "platform"} <= set(ok)
    assert all(finding.remedy for finding in seen.values() if finding.state == "bad")


def test_an_engine_of_debian_12(monkeypatch: pytest.MonkeyPatch) -> None:
    old = engine(version="20.10.24+dfsg1", buildx_version="", containerd_store=False)
    seen = found(monkeypatch, old)
    assert seen["engine"].state == "ok"
    assert seen["buildx"].state == "note" and "install" in seen["buildx"].remedy
    assert seen["image store"].state == "note" and not seen["image store"].remedy
    newer = found(monkeypatch, engine(version="26.1.5", containerd_store=False))
    assert "containerd-snapshotter" in newer["image store"].remedy


def test_podman_without_root_on_arm(monkeypatch: pytest.MonkeyPatch) -> None:
    other = engine(product="Podman", version="5.4.2", architecture="arm64", rootless=True)
    seen = found(monkeypatch, other)
    assert seen["engine"].seen.startswith("Podman 5.4.2, this machine's own, without root")
    assert seen["buildx"].state == "note"
    assert seen["platform"].state == "note" and "emulated" in seen["platform"].seen
    assert "amd64" in seen["platform"].remedy


def test_data_that_this_user_does_not_see(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(path: Path) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    monkeypatch.setattr(docker.shutil, "disk_usage", refused)
    seen = found(monkeypatch, engine(data=Path("/var/lib/docker")))
    assert seen["disk"].state == "note" and "/var/lib/docker" in seen["disk"].seen
    assert seen["disk"].remedy
    assert found(monkeypatch, engine(host="tcp://far:2375"))["disk"].state == "note"


@pytest.mark.parametrize("user", [0, 1000])
def test_no_engine_at_all(monkeypatch: pytest.MonkeyPatch, user: int) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: user)
    why = NoEngine("no Docker engine at /var/run/docker.sock; the private engine does not run", "x")
    seen = found(monkeypatch, why)["engine"]
    assert seen.state == ("note" if user == 0 else "bad")
    assert seen.remedy.startswith("to start it now" if user == 0 else "install Docker")


def test_an_engine_that_is_there_and_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    why = OutsideError("the engine does not answer: denied", "let this user reach it")
    seen = found(monkeypatch, why)["engine"]
    assert (seen.state, seen.seen, seen.remedy) == ("bad", why.message, why.fix)


def test_what_the_system_refuses_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused() -> None:
        raise PermissionError(errno.EACCES, "Permission denied", "/etc/thing")

    monkeypatch.setattr(doctor.network, "discover", refused)
    seen = found(monkeypatch, engine())["network"]
    assert (seen.state, seen.seen) == ("bad", "/etc/thing: Permission denied")
    assert seen.remedy.startswith("let this user")
