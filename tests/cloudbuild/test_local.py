"""`builder cloud validate` and `run-local`: cloudbuild-local with the factory's engines."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests.conftest import Run


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


@pytest.mark.parametrize("words", [["validate"], ["run-local", "--dry-run"]])
def test_without_the_package_the_error_names_the_fix(
    words: list[str], run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "cloudbuild_local", None)
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
