"""Docker's credentials: where they are found, and what a broken file or helper means."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from builder.core.errors import InputError, OutsideError
from builder.registry import Credentials, credentials_for
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
        ("index.docker.io", "docker.io"),
    ],
)
def test_auths_of_the_configuration_file(tmp_path: Path, key: str, host: str) -> None:
    login = credentials_for(host, docker_config(tmp_path, {"auths": {key: {"auth": coded()}}}))
    assert login is not None
    assert (login.username, login.password) == (USER, PASSWORD)
    assert login.source == str(tmp_path / "config.json")
    assert PASSWORD not in repr(login)


def test_no_file_another_host_and_an_empty_entry_mean_no_credentials(tmp_path: Path) -> None:
    assert credentials_for("a.example", {"DOCKER_CONFIG": str(tmp_path)}) is None
    environ = docker_config(tmp_path, {"auths": {"b.example": {"auth": coded()}, "a.example": {}}})
    assert credentials_for("a.example", environ) is None
    (tmp_path / ".docker").mkdir()
    docker_config(tmp_path / ".docker", {"auths": {"a.example": {"auth": coded()}}})
    assert credentials_for("a.example", {"HOME": str(tmp_path)}) is not None


def test_a_helper_for_the_host_wins_over_the_store_and_over_auths(tmp_path: Path) -> None:
    answer = '{"ServerURL": "%s", "Username": "%s", "Secret": "s"}'
    helper(tmp_path, "one", f"read host; printf '{answer}' $host helper")
    helper(tmp_path, "all", f"read host; printf '{answer}' $host store")
    environ = docker_config(
        tmp_path,
        {
            "auths": {"a.example": {"auth": coded()}},
            "credHelpers": {"a.example": "one"},
            "credsStore": "all",
        },
    )
    assert credentials_for("a.example", environ) == Credentials(
        "helper", "s", source="docker-credential-one"
    )
    assert credentials_for("b.example", environ) == Credentials(
        "store", "s", source="docker-credential-all"
    )


def test_a_helper_may_know_nothing_or_give_an_identity_token(tmp_path: Path) -> None:
    helper(tmp_path, "none", "echo credentials not found in native keychain; exit 1")
    helper(tmp_path, "token", """echo '{"Username": "<token>", "Secret": "refresh"}'""")
    environ = docker_config(tmp_path, {"credHelpers": {"a.example": "none", "b.example": "token"}})
    assert credentials_for("a.example", environ) is None
    login = credentials_for("b.example", environ)
    assert login and login.for_engine() == {"identitytoken": "refresh"}


@pytest.mark.parametrize(
    ("script", "message", "fix"),
    [
        (None, "docker-credential-x, which is not on the PATH", "install docker-credential-x"),
        (
            "echo 'token expired'; exit 1",
            "docker-credential-x failed: token expired",
            "run: gcloud auth configure-docker us-docker.pkg.dev",
        ),
        ("echo nonsense", "docker-credential-x answered no JSON object", "try by hand"),
    ],
)
def test_a_broken_helper_is_one_line(
    tmp_path: Path, script: str | None, message: str, fix: str
) -> None:
    if script:
        helper(tmp_path, "x", script)
    environ = docker_config(tmp_path, {"credHelpers": {"us-docker.pkg.dev": "x"}})
    with pytest.raises(OutsideError) as caught:
        credentials_for("us-docker.pkg.dev", environ)
    assert message in caught.value.message
    assert fix in caught.value.fix


def test_a_broken_configuration_names_file_line_and_login(tmp_path: Path) -> None:
    environ = docker_config(tmp_path, {"auths": {"a.example": {"auth": "%%%"}}})
    with pytest.raises(InputError) as caught:
        credentials_for("a.example", environ)
    assert caught.value.fix == "run: docker login a.example"
    (tmp_path / "config.json").write_text('{\n"auths": }\n')
    with pytest.raises(InputError, match=r"config\.json:2: not JSON"):
        credentials_for("a.example", environ)


@pytest.mark.parametrize(
    ("known", "entry"),
    [
        (Credentials(USER, PASSWORD), {"auth": coded()}),
        (Credentials(identity_token="refresh"), {"identitytoken": "refresh"}),
        (Credentials(registry_token="token"), {"registrytoken": "token"}),
    ],
)
def test_what_is_written_for_docker_reads_back(
    tmp_path: Path, known: Credentials, entry: dict[str, str]
) -> None:
    assert known.for_config() == entry
    login = credentials_for("a.example", docker_config(tmp_path, {"auths": {"a.example": entry}}))
    assert login == replace(known, source=str(tmp_path / "config.json"))


@pytest.mark.parametrize(
    "config",
    [
        {"auths": ["a.example"]},
        {"credHelpers": ["a.example"]},
        {"auths": {"a.example": ["user"]}},
        {"auths": {"a.example": {"auth": ["x"]}}},
    ],
)
def test_a_configuration_of_another_shape_is_named(tmp_path: Path, config: object) -> None:
    with pytest.raises(InputError, match=r"config\.json: .*: not a"):
        credentials_for("a.example", docker_config(tmp_path, config))  # type: ignore[arg-type]
