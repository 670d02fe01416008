"""JobSets as job files: a round trip for random jobs, a ledger of every field, what is refused."""

from __future__ import annotations

import copy
import random
import re
from pathlib import Path
from typing import Any

import pytest

from builder.core import yamlfile
from builder.core.errors import InputError
from builder.jobs import description, ledger
from builder.jobs.checks import place
from builder.jobs.places.kubernetes import importing, jobset
from tests.jobs import jobfiles
from tests.jobs.test_job_command import Run, here, run  # noqa: F401
from tests.jobs.test_kubernetes import JOBS, random_job, ready, rendered

CLUSTER = """\
image: v100
machine: n1-standard-8
accelerators: 2 x V100
replicas: {workers: 2, parameter_servers: {count: 1, machine: n1-highmem-8}, evaluator: 1}
arguments: [--steps=10, "$HOME"]
environment: {A: "1"}
job_dir: gs://my-bucket/jobs/one
disk: {size_gb: 200}
scheduling: {strategy: spot, timeout: 2h, restarts: job}
labels: {team: vision}
"""


def imported(tmp_path: Path, made: Any) -> ledger.Imported:
    path = tmp_path / "old.yaml"
    path.write_text(yamlfile.dump(made))
    return importing.imported(ledger.read(path), path)


def test_random_jobs_come_back_as_they_were(tmp_path: Path) -> None:
    dice = random.Random(4)
    for _ in range(JOBS // 3):
        text, target, where = random_job(dice)
        job = ready(text, where, jobfiles.image(target))
        found = imported(tmp_path, jobset.jobset(job, where))
        again, first = jobfiles.job(found.text), job.job
        assert (again.command, again.arguments) == (first.command, first.arguments), text
        assert [(pool.role, pool.count, place(pool)) for pool in again.pools] == [
            (pool.role, pool.count, place(pool)) for pool in first.pools
        ], text
        assert (again.environment, again.labels) == (first.environment, first.labels), text
        assert again.scheduling == first.scheduling, text
        unlike = [line for line in found.ledger if line.fate in ("dropped", "added")]
        assert unlike == [], (text, unlike)
        assert all("factory's own" in line.why for line in found.having("changed")), found.ledger


def test_what_belongs_to_the_cluster_is_a_note(tmp_path: Path) -> None:
    from builder.jobs.places.kubernetes.cluster import Cluster

    where = Cluster("training", "gpus", "trainer", pull_secret="registry")
    assert imported(tmp_path, rendered(CLUSTER, where)).notes == (
        "submit it with --namespace training",
        "submit it with --queue gpus",
        "submit it with --service-account trainer",
        "submit it with --pull-secret registry",
    )


def test_what_kubectl_gets_and_what_a_file_cannot_say(tmp_path: Path) -> None:
    made = rendered(CLUSTER)
    made["metadata"] |= {"uid": "1", "resourceVersion": "7"}
    made["status"] = {"restarts": 1}
    made["spec"]["ttlSecondsAfterFinished"] = 600
    pod = made["spec"]["replicatedJobs"][1]["template"]["spec"]["template"]["spec"]
    pod["priorityClassName"] = "high"
    found = imported(tmp_path, made)
    assert {line.field: line.why for line in found.having("dropped")} == {
        "metadata.uid": "the cluster writes it",
        "metadata.resourceVersion": "the cluster writes it",
        "status": "the cluster writes it",
        "spec.ttlSecondsAfterFinished": "600: a job's file does not have it",
        "spec.replicatedJobs[1].template.spec.template.spec.priorityClassName": (
            "'high': a job's file does not have it"
        ),
    }


def test_a_jobset_that_somebody_else_wrote(tmp_path: Path) -> None:
    pod = {
        "restartPolicy": "Never",
        "nodeSelector": {
            "node.kubernetes.io/instance-type": "g2-standard-8",
            "cloud.google.com/gke-accelerator": "nvidia-l4",
        },
        "containers": [
            {
                "name": "main",
                "image": "docker.io/me/train:1",
                "args": ["--epochs=3"],
                "resources": {"limits": {"nvidia.com/gpu": 1}},
            }
        ],
    }
    job = {"completions": 1, "backoffLimit": 0, "template": {"spec": pod}}
    made = {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {"name": "theirs"},
        "spec": {"replicatedJobs": [{"name": "chief", "template": {"spec": job}}]},
    }
    found = imported(tmp_path, made)
    read = jobfiles.job(found.text)
    assert (read.machine, read.image, read.scheduling.restarts) == (
        "g2-standard-8",
        "docker.io/me/train:1",
        "never",
    )
    assert read.accelerators is not None and read.accelerators.type == "NVIDIA_L4"
    changed = {line.field: line.why for line in found.having("changed")}
    container = "spec.replicatedJobs[0].template.spec.template.spec.containers[0]"
    assert changed[f"{container}.name"] == "'main' becomes 'trainer'"


def _sidecar(made: dict[str, Any]) -> None:
    pod = made["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]
    pod["containers"].append(copy.deepcopy(pod["containers"][0]))


def _other(made: dict[str, Any]) -> None:
    pod = made["spec"]["replicatedJobs"][1]["template"]["spec"]["template"]["spec"]
    pod["containers"][0]["args"] = ["other"]


def _replaced(made: dict[str, Any]) -> None:
    for one in made["spec"]["replicatedJobs"]:
        one["template"]["spec"]["template"]["spec"]["containers"][0]["args"] = ["$(A)"]


def _no_machine(made: dict[str, Any]) -> None:
    one = made["spec"]["replicatedJobs"][0]["template"]
    del one["metadata"], one["spec"]["template"]["spec"]["nodeSelector"]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (_sidecar, "each role is one Job with one container"),
        (_other, "worker has another program than the chief"),
        (_replaced, r"the kubelet replaces \$\(NAME\)"),
        (_no_machine, "chief names no machine"),
        (lambda m: m["spec"]["replicatedJobs"][0].update(name="leader"), "is no JobSet whose"),
        (lambda m: m["spec"].clear(), "is no JobSet whose"),
        (lambda m: m["spec"]["replicatedJobs"].pop(0), "there is a chief"),
    ],
)
def test_what_is_refused(tmp_path: Path, change: Any, said: str) -> None:
    made = rendered(CLUSTER)
    change(made)
    with pytest.raises(InputError) as caught:
        imported(tmp_path, made)
    assert re.search(said, caught.value.message) and caught.value.fix
    assert "\n" not in caught.value.message


def test_the_command(run: Run, here: Path) -> None:  # noqa: F811
    (here / "old.yaml").write_text(yamlfile.dump(rendered(CLUSTER)))
    code, _, err = run("job", "import", "old.yaml", "-o", "jobs/new.yaml")
    assert code == 0 and "kept: " in err
    assert description.load(here, "new").replicas.workers.count == 2  # type: ignore[union-attr]
    assert run("job", "import", "old.yaml", "--region", "us-central1")[0] == 2
