"""Docker's credentials: where they are found, and what a broken file or helper means."""

from __future__ import annotations

from pathlib import Path

import pytest

from builder.core.errors import InputError, OutsideError
from builder.registry.credentials import Credentials, credentials_for
from tests.registry.making import coded, docker_config
from tests.registry.server import PASSWORD, USER


def helper(folder: Path, name: str, script: str) -> None:
    path = folder / f"docker-credential-{name}"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


@pytest.mark.parametrize(
    ("key", "host"),
    [
        ("registry.example.com:5000", "registry.example.com:5000"),
        ("https://registry.example.com/v2/", "registry.example.com"),
        ("https://index.docker.io/v1/", "docker.io"),
    ],
)
def test_auths_of_the_configuration_file(tmp_path: Path, key: str, host: str) -> None:
    login = credentials_for(host, docker_config(tmp_path, {"auths": {key: {"auth": coded()}}}))
    assert login == Credentials(USER, PASSWORD, source=str(tmp_path / "config.json"))
    assert PASSWORD not in repr(login)


def test_no_file_another_host_and_an_empty_entry_mean_no_credentials(tmp_path: Path) -> None:
    assert credentials_for("a.example", {"DOCKER_CONFIG": str(tmp_path)}) is None
    environ = docker_config(tmp_path, {"auths": {"b.example": {"auth": coded()}, "a.example": {}}})
    assert credentials_for("a.example", environ) is None
    assert credentials_for("a.example", docker_config(tmp_path, {})) is None
    (tmp_path / ".docker").mkdir()
    docker_config(tmp_path / ".docker", {"auths": {"a.example": {"auth": coded()}}})
    assert credentials_for("a.example", {"HOME": str(tmp_path)}) is not None


def test_helpers_win_over_the_file_and_may_give_a_token(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = """printf '{"ServerURL": "%s", "Username": "%s", "Secret": "s"}'"""
    helper(tmp_path, "one", f"read host; {answer} $host helper")
    helper(tmp_path, "all", f"read host; {answer} $host store")
    helper(tmp_path, "none", "echo credentials not found in native keychain; exit 1")
    helper(tmp_path, "token", f"read host; {answer} $host '<token>'")
    helper(tmp_path, "broken", "echo token expired; exit 1")
    helpers = {f"{name}.example": name for name in ("one", "none", "token", "broken", "missing")}
    config = {
        "auths": {"one.example": {"auth": coded()}},
        "credHelpers": helpers,
        "credsStore": "all",
    }
    environ = docker_config(tmp_path, config)
    monkeypatch.setenv("PATH", environ["PATH"])
    for host, source, user in (("one", "one", "helper"), ("other", "all", "store")):
        login = credentials_for(f"{host}.example", environ)
        assert login == Credentials(user, "s", source=f"docker-credential-{source}")
    assert credentials_for("none.example", environ) is None
    login = credentials_for("token.example", environ)
    assert login and login.for_engine() == {"identitytoken": "s"}
    for name, reason in (("broken", "token expired"), ("missing", "docker-credential-missing")):
        with pytest.raises(OutsideError, match=rf"config\.json: .*{reason}") as caught:
            credentials_for(f"{name}.example", environ)
        assert caught.value.fix == f"run: docker login {name}.example"


@pytest.mark.parametrize(
    "content",
    ['{\n"auths": }\n', "[]", '{"auths": {"a.example": {"auth": "%%%"}}}', '{"auths": ["a"]}'],
)
def test_a_broken_configuration_names_the_file_and_the_login(tmp_path: Path, content: str) -> None:
    environ = docker_config(tmp_path, {})
    (tmp_path / "config.json").write_text(content)
    with pytest.raises(InputError, match=r"config\.json: cannot be read") as caught:
        credentials_for("a.example", environ)
    assert "run: docker login a.example" in caught.value.fix
