"""The example of a backend of another distribution: examples/slurm, found by its entry point."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests import commands
from tests.emulators import slurm
from tests.emulators.slurm import Cluster
from tests.jobs.slurm import SOURCE, install, registry

JOB = """\
machine: n1-standard-8
accelerators: 2 x V100
replicas: {workers: 1, evaluator: 1}
command: [python3, -m, train]
arguments: {steps: 100}
labels: {team: vision}
kubernetes: {priority: high}
scheduling: {timeout: 90m}
slurm: {gpu: tesla-v100}
"""
SLURM, FOLLOW = ("--on", "slurm"), ("--logs", "--poll", "0.1")
pytestmark = pytest.mark.slow
Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with slurm.running(tmp_path / "cluster") as cluster:
        yield cluster


@pytest.fixture
def image() -> Iterator[str]:
    with registry() as reference:
        yield reference


@pytest.fixture
def project(tmp_path: Path, image: str) -> Path:
    folder = tmp_path / "project"
    (folder / "jobs").mkdir(parents=True)
    (folder / "builder.toml").write_text('[slurm]\npartition = "gpu"\n')
    (folder / "jobs" / "cats.yaml").write_text(f"{JOB}image: {image}\n")
    return folder


@pytest.fixture
def run(tmp_path: Path, project: Path, cluster: Cluster) -> Run:
    """Run `builder` on a login node, with the example installed."""
    path = f"{install(tmp_path / 'site')}:{commands.environment()['PYTHONPATH']}"

    def call(*words: str) -> subprocess.CompletedProcess[str]:
        return commands.builder(*words, root=project, PATH=cluster.path, PYTHONPATH=path)

    return call


def test_it_is_small() -> None:
    lines = [path.read_text().splitlines() for path in SOURCE.glob("training_slurm/*.py")]
    assert sum(map(len, lines)) <= 400


def test_a_job_is_sent_by_digest_and_followed_to_its_end(
    run: Run, cluster: Cluster, image: str
) -> None:
    sent = run("job", "submit", "cats", *SLURM, "--account", "vision", *FOLLOW)
    assert sent.returncode == 0, sent.stderr
    assert "outputs are lost" not in sent.stderr
    for unused in ("labels", "kubernetes.priority"):
        assert f"note: {unused}: Slurm has no such thing" in sent.stderr
    assert "chief-0     | hello" in sent.stderr and "cats-" in sent.stderr
    (job,) = cluster.jobs()
    asked = {name: job["options"][name] for name in ("--nodes", "--time", "--gpus-per-node")}
    assert asked == {"--nodes": "3", "--time": "90", "--gpus-per-node": "tesla-v100:2"}
    assert (job["options"]["--partition"], job["options"]["--account"]) == ("gpu", "vision")
    steps = {Path(step["options"]["--output"]).stem: step for step in cluster.steps()}
    assert sorted(steps) == ["chief-0", "evaluator-0", "worker-0"]
    host, _, digest = image.partition("/team/trainer@")
    enroot = f"{host}#team/trainer:{digest}"
    for step in steps.values():
        assert step["options"]["--container-image"] == enroot
        assert step["command"] == ["python3", "-m", "train", "--steps=100"]
        own = step["environment"]
        assert own["TRAINING_ACCELERATOR"] == "V100:2,capability=7.0"
        assert own["AIP_MODEL_DIR"] == "/job/model/"
        assert {"TF_CONFIG", "TRAINING_ACCELERATOR"} <= {
            *step["options"]["--container-env"].split(",")
        }
    config = json.loads(steps["worker-0"]["environment"]["TF_CONFIG"])
    port = 20000 + int(job["id"])
    assert config["cluster"] == {"chief": [f"node0:{port}"], "worker": [f"node1:{port}"]}
    assert config["task"] == {"type": "worker", "index": 0}
    assert steps["evaluator-0"]["options"]["--relative"] == "2"
    again = run("job", "submit", "cats", *SLURM, "--account", "vision")
    assert "it succeeded before" in again.stderr and len(cluster.jobs()) == 1


def test_it_is_asked_without_a_name_where_it_has_run_and_cancelled(
    run: Run, cluster: Cluster
) -> None:
    cluster.does(stays=True)
    assert run("job", "submit", "cats", *SLURM).returncode == 0
    status = run("job", "status", "cats")  # it got the job last
    assert re.search(r"cats-\w+: (running|pending)", status.stderr) and "1 x chief" in status.stderr
    ended = run("job", "cancel", "cats", *SLURM, "--json")
    assert json.loads(ended.stdout)["state"] == "cancelled"
    assert json.loads(ended.stdout)["exit_code"] == 143
    cluster.is_("forgetful")  # squeue has forgotten it, the accounts have not
    assert "cancelled" in run("job", "list", *SLURM).stderr


def test_the_first_replica_that_fails_ends_the_job_and_why_says_so(
    run: Run, cluster: Cluster, project: Path
) -> None:
    cluster.does(code=7, of="worker-0")
    sent = run("job", "submit", "cats", *SLURM, *FOLLOW)
    assert sent.returncode == 7 and "worker-0: failed, exit code 7" in sent.stderr, sent.stderr
    cluster.is_("accounts")  # it keeps none
    (log,) = project.glob("build/slurm/cats-*/worker-0.log")
    log.write_text("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB\n")
    why = json.loads(run("job", "why", "cats", "--json").stdout)
    line, left = why["evidence"]
    assert (why["ending"], why["certainty"]) == ("device-memory", "certain")
    assert line["where"].startswith("worker-0, ") and "CUDA out of memory" in line["text"]
    assert left == {"where": "what the job left", "text": "exit code 7"}


def test_an_answer_that_is_lost_leaves_one_job_and_a_full_cluster_says_why(
    run: Run, cluster: Cluster
) -> None:
    cluster.is_("answers")
    cluster.is_("full")
    sent = run("job", "submit", "cats", *SLURM)
    assert sent.returncode == 0 and "waits: Resources" in sent.stderr, sent.stderr
    assert "pending already" in run("job", "submit", "cats", *SLURM).stderr
    assert len(cluster.jobs()) == 1


def test_what_is_sent_is_shown_and_what_the_cluster_refuses_has_its_words(run: Run) -> None:
    shown = run("job", "render", "cats", *SLURM)
    assert shown.stdout.startswith("#!/bin/bash\n#SBATCH --job-name=cats-")
    checked = subprocess.run(["bash", "-n"], input=shown.stdout, text=True, capture_output=True)
    assert (checked.returncode, checked.stderr) == (0, "")
    refused = run("job", "submit", "cats", *SLURM, "--partition", "nowhere")
    assert refused.returncode == 3 and "Invalid partition name specified" in refused.stderr
    assert "slurm 24.05.4" in run("doctor", *SLURM).stdout
    doctor = run("doctor", "--job", "cats", *SLURM, "--partition", "nowhere")
    assert doctor.returncode == 4 and "Invalid partition name specified" in doctor.stdout


def test_its_flags_settings_and_section_are_known_as_ours_are(run: Run, project: Path) -> None:
    page = run("job", "submit", "--help").stdout
    assert "local, vertex (default), kubernetes or slurm" in page.replace("\n", " ")
    assert "--partition" in page and "slurm: the partition." in page
    assert "--partition" not in run("job", "status", "--help").stdout
    other = run("job", "render", "cats", "--on", "kubernetes", "--partition", "gpu")
    assert "error: --partition is an option of --on slurm" in other.stderr
    (project / "builder.toml").write_text('[slurm]\npartitions = "gpu"\n')
    assert "builder.toml:2: slurm.partitions: unknown key" in run("job", "list").stderr
    (project / "builder.toml").write_text("")
    job = project / "jobs" / "cats.yaml"
    job.write_text(job.read_text().replace("gpu:", "gpus:"))
    assert "jobs/cats.yaml:9: slurm.gpus: unknown key" in run("job", "render", "cats").stderr
    run("job", "schema")
    schema = json.loads((project / "jobs" / "schema.json").read_text())
    assert "gpu" in schema["$defs"]["Section"]["properties"]


def test_one_that_cannot_be_loaded_is_named(run: Run, tmp_path: Path) -> None:
    (points,) = (tmp_path / "site").glob("*/entry_points.txt")
    points.write_text(points.read_text().replace("training_slurm:", "training_slum:"))
    broken = run("job", "list")
    assert broken.returncode == 3
    assert "training-slurm registers slurm, which cannot be loaded" in broken.stderr


def test_the_page_of_builder_imports_no_backend(run: Run, tmp_path: Path) -> None:
    (points,) = (tmp_path / "site").glob("*/entry_points.txt")
    points.write_text(points.read_text().replace("training_slurm:", "training_slum:"))
    assert run("--help").returncode == 0
