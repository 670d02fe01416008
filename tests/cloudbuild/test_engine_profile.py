"""`run-local --engine-profile hosted`: a small build on the engine of a worker."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from builder.cli import cloud_local
from builder.cli.cloud import cloud_app
from builder.core.errors import InputError
from builder.engine import Engine
from builder.engine.private.place import data_home
from tests.registry.server import registry

BUILD = """
steps:
- name: b
  id: engine
  script: docker version --format '{{.Server.Version}} {{.Server.APIVersion}}'
- name: b
  id: build
  script: |
    docker build --tag made .
    docker run --rm -v /workspace:/workspace made cat /workspace/file
options: {machineType: E2_MEDIUM}
"""


@pytest.mark.engine
@pytest.mark.network
@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="the private engine needs root")
def test_a_build_on_the_engine_of_a_worker(
    engine: Engine, steps_image: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(cloud_local, "_end_on_signals", lambda: None)  # pytest's own signals stay
    before = sorted(data_home().iterdir())
    with registry(tmp_path / "registry") as server:
        name = f"{server.host}/steps:1"
        api: Any = engine.client.api
        api.tag(steps_image, f"{server.host}/steps", "1")
        said = list(api.push(name, stream=True, decode=True))
        engine.client.images.remove(name)
        assert not [line for line in said if "error" in line]
        folder = tmp_path / "source"
        folder.mkdir()
        (folder / "Dockerfile").write_text(f"FROM {name}\n")
        (folder / "file").write_text("seen\n")
        Path("cloudbuild.yaml").write_text(BUILD)
        words = ["--engine-profile", "hosted", "--map", f"b={name}", "--source", str(folder)]
        done = CliRunner().invoke(cloud_app, ["run-local", *words, "--json"])
    assert done.exit_code == 0, done.stderr
    assert 'Step #0 - "engine": 20.10.24+dfsg1 1.41\n' in done.stderr
    assert 'Step #1 - "build": seen\n' in done.stderr
    memory = json.loads(done.stdout)["memory"]
    assert memory["limit"] == 3_000_000_000, "the machine's 4 GB without its system's"
    assert 0 <= memory["peak"] <= memory["limit"]
    assert set(data_home().iterdir()) - set(before) <= {data_home() / "docker-20.10"}


def test_an_engine_and_a_profile_exclude_each_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("cloudbuild.yaml").write_text("steps: [{name: a}]")
    words = ["--engine", "machine", "--engine-profile", "hosted"]
    done = CliRunner().invoke(cloud_app, ["run-local", *words])
    assert isinstance(done.exception, InputError)
    assert done.exception.fix == "leave one out"
