"""How the processes of a cluster find each other: the image turns the service's variables into the
framework's, for each backend that jobs run on."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from builder.config import compatibility, image_yaml
from builder.image import start
from builder.image.start.training_image_rendezvous import variables
from builder.jobs.backends.local.replicas import LocalJob, replicas
from builder.jobs.machines import Pool
from tests import ROOT
from tests.jobs.test_kubernetes import CHIEF, environment, rendered, roles

PRINT = "import json, os; print(json.dumps(dict(os.environ)))"
CLUSTER = (Pool("chief"), Pool("worker", 2), Pool("evaluator"))


def expected(framework: str, host: str, rank: int, count: int) -> dict[str, str]:
    """Return what a framework reads in one process of a cluster."""
    if framework == "jax":
        return {
            "JAX_COORDINATOR_ADDRESS": f"{host}:2222",
            "JAX_NUM_PROCESSES": str(count),
            "JAX_PROCESS_ID": str(rank),
        }
    return {
        "MASTER_ADDR": host,
        "MASTER_PORT": "2222",
        "RANK": str(rank),
        "WORLD_SIZE": str(count),
        "LOCAL_RANK": "0",
    }


@pytest.fixture(params=["torch", "jax"])
def framework(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def image(tmp_path: Path, framework: str) -> Path:
    """The start hook's folder, as an image with a framework has it."""
    stack = compatibility.resolve(image_yaml.load(ROOT, f"v100-{framework}"))
    for name, content in start.files(stack).items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return tmp_path / start.FOLDER


def started(image: Path, **environment: str) -> dict[str, str]:
    """Return the environment that a program sees at its first line."""
    done = subprocess.run(
        [sys.executable, "-c", PRINT],
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(image), **environment},
        capture_output=True, text=True, check=True, timeout=60,
    )  # fmt: skip
    assert done.stderr == ""
    seen: dict[str, str] = json.loads(done.stdout)
    return seen


def joined(framework: str, environment: dict[str, str]) -> dict[str, str]:
    """Return the framework's variables among these."""
    names = expected(framework, "", 0, 0)
    return {name: environment[name] for name in names if name in environment}


def test_on_this_machine_each_process_has_its_rank(
    tmp_path: Path, image: Path, framework: str
) -> None:
    job = LocalJob("digits", "an-image", tmp_path, pools=CLUSTER)
    made = {replica.name: replica.environment for replica in replicas(job, "abc")}
    chief = "cmle-training-workerpool0-abc-0"
    for rank, name in enumerate(("chief-0", "worker-0", "worker-1")):
        seen = joined(framework, started(image, **made[name]))
        assert seen == expected(framework, chief, rank, 3)
    assert joined(framework, started(image, **made["evaluator-0"])) == {}, "it trains nothing"
    (alone,) = replicas(LocalJob("digits", "an-image", tmp_path), "abc")
    assert joined(framework, started(image, **alone.environment)) == {}
    own = "RANK" if framework == "torch" else "JAX_PROCESS_ID"
    seen = started(image, **made["worker-0"], **{own: "5"})
    assert joined(framework, seen)[own] == "5", "what is set already stays"


def test_on_kubernetes_each_process_has_its_rank(image: Path, framework: str) -> None:
    manifest = rendered(CHIEF + "replicas: {workers: 2}\n")
    name = manifest["metadata"]["name"]
    seen = []
    for role, job in roles(manifest).items():
        for index in range(job["completions"]):
            own = {**environment(manifest, role, index), "TRAINING_ACCELERATOR": "none"}
            seen.append(joined(framework, started(image, **own)))
    chief = f"{name}-chief-0-0.{name}"
    assert seen == [expected(framework, chief, rank, 3) for rank in range(3)]


@pytest.mark.parametrize("text", ["{", "[]", '{"cluster": {"worker": [1, 2]}, "task": {}}'])
def test_on_vertex_cluster_spec_is_enough(text: str, image: Path, framework: str) -> None:
    spec = {
        "cluster": {"workerpool0": ["pool0-0:2222"], "workerpool1": ["pool1-0:2222"]},
        "task": {"type": "workerpool1", "index": 0},
    }
    seen = started(image, CLUSTER_SPEC=json.dumps(spec))
    assert joined(framework, seen) == expected(framework, "pool0-0", 1, 2)
    torchrun = [value for name, value in sorted(seen.items()) if name.startswith("PET_")]
    assert torchrun == (["pool0-0", "2222", "2", "1"] if framework == "torch" else [])
    assert joined(framework, started(image, TF_CONFIG=text)) == {}, "no program ends for it"


def test_a_framework_that_reads_tf_config_brings_nothing() -> None:
    assert variables({}, {"TF_CONFIG": "{}"}) == {}
    cpu = compatibility.resolve(image_yaml.load(ROOT, "cpu"))
    assert start.files(cpu) == {}
    v100 = compatibility.resolve(image_yaml.load(ROOT, "v100"))
    assert f"{start.FOLDER}/rendezvous.json" not in start.files(v100)
