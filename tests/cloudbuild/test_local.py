"""`builder cloud validate` and `run-local`: cloudbuild-local with the factory's engines."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from builder import cli
from builder.engine import Engine
from builder.engine.private.instance import data_home
from tests.registry.server import registry

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs `builder ...` in a project. Returns exit code, stdout and stderr."""
    monkeypatch.chdir(project)
    monkeypatch.setattr(signal, "signal", lambda *_: None)  # pytest's own signals stay

    def call(*words: str) -> tuple[int, str, str]:
        monkeypatch.setattr("sys.argv", ["builder", *words])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        streams = capsys.readouterr()
        return int(ended.value.code or 0), streams.out, streams.err

    return call


def test_options_are_handed_on(run: Run) -> None:
    Path("cloudbuild.yaml").write_text("steps: [{name: a, args: x}]\n")
    assert run("cloud", "validate")[0] == 0
    assert run("cloud", "validate", "--strict", "cloudbuild.yaml")[0] == 2
    code, out, err = run("--quiet", "cloud", "validate", "--json", "--substitutions", "_A=1")
    assert (code, json.loads(out)["valid"], err) == (2, False, "")
    code, out, _ = run("cloud", "run-local", "--map", "a=mine", "--dry-run", "--no-source")
    assert (code, json.loads(out)["steps"][0]["image"]) == (0, "mine")
    assert run("cloud", "run-local", "gone.yaml", "--dry-run")[0] == 2
    code, _, err = run("cloud", "run-local", "--engine", "machine", "--engine-profile", "hosted")
    assert (code, "exclude each other" in err) == (2, True)


def test_without_the_package_the_error_names_the_fix(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "cloudbuild_local", None)
    for words in (["validate"], ["run-local", "--dry-run"]):
        code, _, err = run("cloud", *words)
        error, fix = err.splitlines()
        assert code == 2
        assert error.startswith("error: cloudbuild-local is not installed")
        assert fix.startswith("fix:   pip install ./packages/cloudbuild-local")


@pytest.mark.engine
def test_a_build_on_this_machine_s_engine(
    run: Run, steps_image: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy.example.com:3128")
    text = "steps: [{name: b, script: 'cat /run/secrets/network; echo 1 > out'}]\n"
    text += "artifacts: {objects: {location: 'gs://bucket', paths: [out]}}\n"
    Path("cloudbuild.yaml").write_text(text)
    words = ["--map", f"b={steps_image}", "--host-configuration", "--json"]
    code, out, err = run("cloud", "run-local", *words)
    assert code == 0, err
    assert "export HTTPS_PROXY=http://proxy.example.com:3128\n" in err
    assert json.loads(out)["status"] == "SUCCESS"
    assert Path("build/cloudbuild/artifacts/bucket/out").read_text() == "1\n"
    Path("cloudbuild.yaml").write_text("steps: [{name: b, script: exit 5}]")
    code, _, err = run("cloud", "run-local", *words[:2])
    assert (code, "non-zero status: 5" in err) == (4, True)


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


@pytest.mark.long
@pytest.mark.engine
@pytest.mark.network
@pytest.mark.root
def test_a_build_on_the_engine_of_a_worker(
    run: Run, engine: Engine, steps_image: str, tmp_path: Path
) -> None:
    before = set(data_home().iterdir())
    with registry(tmp_path / "registry") as server:
        name = f"{server.host}/steps:1"
        docker: Any = engine.client.api
        docker.tag(steps_image, f"{server.host}/steps", "1")
        messages = list(docker.push(name, stream=True, decode=True))
        engine.client.images.remove(name)
        assert not [message for message in messages if "error" in message]
        Path("source").mkdir()
        Path("source/Dockerfile").write_text(f"FROM {name}\n")
        Path("source/file").write_text("from the source\n")
        Path("cloudbuild.yaml").write_text(BUILD)
        words = ["--engine-profile", "hosted", "--map", f"b={name}", "--source", "source", "--json"]
        code, out, err = run("cloud", "run-local", *words)
    assert code == 0, err
    assert 'Step #0 - "engine": 20.10.24+dfsg1 1.41\n' in err
    assert 'Step #1 - "build": from the source\n' in err
    memory = json.loads(out)["memory"]
    assert memory["limit"] == 3_000_000_000, "the machine's 4 GB without its system's"
    assert 0 <= memory["peak"] <= memory["limit"]
    assert set(data_home().iterdir()) - before <= {data_home() / "docker-20.10"}
