"""A target of each other framework, from its files to a job: assembled, proven, pushed, verified,
sent to a cluster. tests/pipeline/test_pipeline.py goes this way with TensorFlow."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from builder.config import image_yaml
from builder.core.project import tag_of
from builder.engine import Engine
from builder.image import content_store, program
from builder.pipeline.make import prepare
from builder.prove import suites
from tests.conftest import Run
from tests.emulators import kubernetes as cluster
from tests.registry import server
from tests.registry.server import RegistryServer

pytestmark = [pytest.mark.engine, pytest.mark.network, pytest.mark.long]

JOB = "image: {}\nmachine: n1-standard-8\naccelerators: 2 x V100\nreplicas: {{workers: 1}}\n"


@pytest.mark.parametrize("target", ["v100-torch", "v100-jax"])
def test_a_target_is_proven_pushed_and_sent(
    target: str,
    copy: Path,
    builder: Run,
    engine: Engine,
    registry_server: RegistryServer,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    repository = f"frameworks/{target}"
    monkeypatch.chdir(copy)
    monkeypatch.setenv("BUILDER_REGISTRY", f"{registry_server.host}/{repository}")

    code, out, err = builder("image", target, "--push", "--json")
    assert code == 0, err
    (made,) = json.loads(out)
    seen = checks(made["receipt"])
    suite = suites.of_spec(image_yaml.load(copy, target))
    assert tuple(seen) == tuple(check.name for check in suite.checks)
    runs = seen["training"]
    assert runs["first"]["exit_code"] == 137
    assert runs["second"]["resumed_at"] >= runs["first"]["last_checkpoint"] > 0
    assert runs["loss"]["last"] < 0.5 * runs["loss"]["first"] and runs["accuracy"] > 0.9
    assert seen["stopping"]["last_checkpoint"] == seen["stopping"]["last_step"]
    assert seen["outputs"]["model"]["inputs"] == [[1, 1, 8, 8]]

    code, out, err = builder("prove", target, "--json")
    assert code == 0, err
    answers = {check["check"]: check["status"] for check in json.loads(out)["checks"]}
    others = {name for name, status in answers.items() if status != "passed"}
    assert others <= {"start", "installed"}, "ours are compared with their locks"

    planned = prepare(copy, target)
    base = planned.committed_base
    assert base, "images/layers.lock has every layer"
    implied = program.assemble(planned.image, base, content_store.of_this_machine())
    assert made["digest"] == implied.digest
    where = f"docker://{registry_server.host}/{repository}:{target}"
    pushed = json.loads(server.skopeo("inspect", "--tls-verify=false", where))
    assert pushed["Digest"] == implied.digest
    assert pushed["Layers"] == [layer.blob.digest for layer in implied.layers]

    code, out, err = builder("verify", target, "--json")
    assert code == 0, err
    assert json.loads(out)["digest"] == implied.digest

    (copy / "jobs").mkdir()
    (copy / "jobs/digits.yaml").write_text(JOB.format(target))
    with cluster.running(copy) as kubernetes:
        monkeypatch.setenv("KUBECONFIG", str(kubernetes.kubeconfig()))
        code, _, err = builder("job", "submit", "digits", "--on", "kubernetes")
        assert code == 0, err
        (manifest,) = kubernetes.jobsets()
    assert f"{registry_server.host}/{repository}@{implied.digest}" in json.dumps(manifest)
    engine.client.images.remove(f"training:{tag_of(copy, target)}")


def checks(receipt: dict[str, Any]) -> dict[str, Any]:
    """Return what each check of a receipt saw; all of them passed."""
    assert all(check["passed"] for check in receipt["checks"])
    return {check["name"]: check["seen"] for check in receipt["checks"]}
