"""Requests of Docker's clients, with a build's names for the hosted ones."""

from __future__ import annotations

import pytest

from cloudbuild_local.runner.names import Names

NAMES = Names(
    "cb-1-",
    "build=1",
    {"/workspace": "/data/cb-1-.workspace", "/var/run/docker.sock": "/tmp/proxy/s"},
    "/data/cb-1-.worker",
)


def translated(method: str, target: str) -> str:
    return NAMES.target(method, target, unnamed="unnamed_1")


@pytest.mark.parametrize(
    ("method", "target", "becomes"),
    [
        ("GET", "/v1.41/containers/db/json", "/v1.41/containers/cb-1-db/json"),
        ("GET", "/containers/0123456789ab/json", "/containers/0123456789ab/json"),
        ("POST", "/v1.41/containers/cb-1-step_0/kill", "/v1.41/containers/cb-1-step_0/kill"),
        ("POST", "/containers/create?name=db", "/containers/create?name=cb-1-db"),
        ("POST", "/containers/create", "/containers/create?name=cb-1-unnamed_1"),
        ("POST", "/containers/db/rename?name=e", "/containers/cb-1-db/rename?name=cb-1-e"),
        ("DELETE", "/volumes/vol1?force=1", "/volumes/cb-1-vol1?force=1"),
        ("GET", "/networks/cloudbuild", "/networks/cb-1-cloudbuild"),
        ("GET", "/networks/bridge", "/networks/bridge"),
        ("POST", "/build?networkmode=cloudbuild", "/build?networkmode=cb-1-cloudbuild"),
        ("POST", "/build?t=a&t=b", "/build?t=a&t=b"),
        ("POST", "/build?networkmode=default", "/build?networkmode=default"),
        ("POST", "/commit?container=db", "/commit?container=cb-1-db"),
        ("GET", "/images/db/json", "/images/db/json"),
        ("HEAD", "/_ping", "/_ping"),
    ],
)
def test_names_in_a_request_s_path(method: str, target: str, becomes: str) -> None:
    assert translated(method, target) == becomes


@pytest.mark.parametrize(
    ("mode", "becomes"),
    [("host", "host"), ("none", "none"), ("container:step_1", "container:cb-1-step_1")],
)
def test_network_modes(mode: str, becomes: str) -> None:
    body = NAMES.body("POST", "/containers/create", {"HostConfig": {"NetworkMode": mode}})
    assert body["HostConfig"]["NetworkMode"] == becomes
    assert body["NetworkingConfig"] == {"EndpointsConfig": {}}


def test_a_container_is_connected_under_its_name() -> None:
    body = NAMES.body("POST", "/networks/cloudbuild/connect", {"Container": "db"})
    assert body["Container"] == "cb-1-db"
    assert body["EndpointConfig"]["Aliases"] == ["db"]
    body = NAMES.body("POST", "/networks/cloudbuild/disconnect", {"Container": "db"})
    assert body == {"Container": "cb-1-db"}
