"""Requests of Docker's clients, with a build's names for the hosted ones."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from cloudbuild_local.runner.names import Names

LABELS = {"build": "1"}
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
    ("method", "path", "filters", "becomes"),
    [
        ("GET", "/containers/json", {}, {"label": ["build=1"]}),
        (
            "GET",
            "/containers/json",
            {"label": ["a=b"], "name": ["^/?db$"], "volume": ["vol1", "/workspace"]},
            {
                "label": ["a=b", "build=1"],
                "name": ["^/?cb-1-db$"],
                "volume": ["cb-1-vol1", "/workspace"],
            },
        ),
        ("GET", "/networks", {"name": ["bridge"]}, {"name": ["bridge"]}),
        ("GET", "/networks", {"name": ["build"]}, {"name": ["cb-1-.*build"]}),
        ("POST", "/images/prune", {"dangling": ["0"]}, {"dangling": ["0"], "label": ["build=1"]}),
        ("POST", "/build/prune", {}, {"id": ["cb-1-"]}),
    ],
)
def test_lists_and_removals_are_of_the_build(
    method: str, path: str, filters: Any, becomes: Any
) -> None:
    old_form = {key: dict.fromkeys(values, True) for key, values in filters.items()}
    for form in (filters, old_form):
        target = translated(method, f"{path}?filters={json.dumps(form)}")
        (sent,) = parse_qs(urlsplit(target).query)["filters"]
        assert {key: list(values) for key, values in json.loads(sent).items()} == becomes


def test_a_container_gets_the_build_s_volumes_network_and_label() -> None:
    binds = [
        "/workspace/sub:/x",
        "/tmp/cache:/cache:ro",
        "/var/run/docker.sock:/var/run/docker.sock",
        "/dev:/dev",
        "vol1:/data:ro",
    ]
    host = {"Binds": binds, "NetworkMode": "cloudbuild", "VolumesFrom": ["step_0:ro"]}
    body = NAMES.body("POST", "/v1.41/containers/create?name=db", {"HostConfig": host})
    assert body["Labels"] == LABELS
    assert body["HostConfig"]["Binds"] == [
        "/data/cb-1-.workspace/sub:/x",
        "/data/cb-1-.worker/tmp/cache:/cache:ro",
        "/tmp/proxy/s:/var/run/docker.sock",
        "/dev:/dev",
    ]
    assert body["HostConfig"]["Mounts"] == [
        {
            "Type": "volume",
            "Source": "cb-1-vol1",
            "Target": "/data",
            "ReadOnly": True,
            "VolumeOptions": {"Labels": LABELS},
        }
    ]
    assert body["HostConfig"]["NetworkMode"] == "cb-1-cloudbuild"
    assert body["HostConfig"]["VolumesFrom"] == ["cb-1-step_0:ro"]
    network = body["NetworkingConfig"]["EndpointsConfig"]["cb-1-cloudbuild"]
    assert network["Aliases"] == ["db"]


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


def test_answers_have_the_hosted_names() -> None:
    answer = b'{"Name":"/cb-1-db","Mounts":[{"Source":"/data/cb-1-.workspace/sub"}]}'
    assert NAMES.answer("/containers/db/json", answer) == (
        b'{"Name":"/db","Mounts":[{"Source":"/workspace/sub"}]}'
    )
    listed = b'[{"Name":"bridge"},{"Name":"cb-1-cloudbuild"},{"Name":"of-somebody"}]'
    assert json.loads(NAMES.answer("/v1.41/networks?filters=x", listed)) == [
        {"Name": "bridge"},
        {"Name": "cloudbuild"},
    ]
    assert not NAMES.has_names("/v1.41/containers/db/logs?follow=1")
    assert not NAMES.has_names("/v1.41/containers/db/wait"), "its head comes first, its end later"
