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
    """Rendered, imported and rendered again: the same JobSet, with the same name and key."""
    dice = random.Random(4)
    for _ in range(JOBS // 6):
        text, target, where = random_job(dice)
        made = jobset.jobset(ready(text, where, jobfiles.image(target)), where)
        found = imported(tmp_path, made)
        again = jobset.jobset(ready(found.text, where, jobfiles.image(target)), where)
        assert again == made, (text, found.text)
        assert {line.fate for line in found.ledger} == {"kept"}, (text, found.ledger)


OWN_PROGRAMS = f"""\
image: v100
machine: n1-standard-8
accelerators: 2 x V100
command: [python, -m, trainer.task]
arguments: [--steps=10]
environment: {{A: "1"}}
job_dir: gs://b-b/{{job}}
pass_job_dir: true
replicas:
  workers: {{count: 3, arguments: [--worker], environment: {{A: "2", B: "3"}}}}
  parameter_servers: {{count: 2, machine: n1-highmem-8, image: v100, arguments: []}}
  evaluator:
    count: 1
    accelerators: none
    image: h.example/judge@{jobfiles.DIGEST}
    command: [judge]
    environment: {{}}
"""


def test_each_role_keeps_its_own_program(tmp_path: Path) -> None:
    found = imported(tmp_path, rendered(OWN_PROGRAMS))
    job = jobfiles.job(found.text)
    assert job.command == ("python", "-m", "trainer.task") and job.pass_job_dir
    assert job.of("worker").arguments == ("--worker",)
    assert job.of("worker").environment == {"A": "2", "B": "3"}
    assert job.of("worker").command == job.command
    server = job.replicas.parameter_servers
    assert server is not None and (server.image, server.command) == (job.image, None)
    assert job.of("ps").arguments == ()  # the image's own program, and nothing passed but a folder
    assert (job.of("evaluator").command, job.of("evaluator").environment) == (("judge",), {})
    assert job.of("evaluator").image.startswith("h.example/judge@")
    assert (job.id, job.job_dir) == ("cats", "gs://b-b/{job}")
    assert rendered(found.text.replace(job.image, "v100")) == rendered(OWN_PROGRAMS)
    assert not found.having("dropped") and not found.having("added")


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
        "spec.ttlSecondsAfterFinished": "the object stays until it is deleted",
        "spec.replicatedJobs[worker].template.spec.template.spec.priorityClassName": (
            "'high': a job's file does not have it"
        ),
    }


GPU = {
    "node.kubernetes.io/instance-type": "g2-standard-8",
    "cloud.google.com/gke-accelerator": "nvidia-l4",
}


def theirs(name: str, pods: int | None = None, **own: Any) -> dict[str, Any]:
    """A replicated Job as other people write one."""
    container: dict[str, Any] = {"name": "main", "image": "docker.io/me/train:1"}
    container |= {"args": ["--epochs=3"], "resources": {"limits": {"nvidia.com/gpu": 1}}}
    pod = {"restartPolicy": "Never", "nodeSelector": GPU, "containers": [container | own]}
    job: dict[str, Any] = {"backoffLimit": 0, "template": {"spec": pod}}
    if pods is not None:
        job |= {"completions": pods, "parallelism": pods}
    return {"name": name, "template": {"spec": job}}


def of_theirs(*jobs: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {"name": "theirs", "labels": {"app.kubernetes.io/name": "x", "team": "a"}},
        "spec": {"replicatedJobs": list(jobs), **more},
    }


def told(found: ledger.Imported, fate: Any) -> dict[str, str]:
    return {line.field: line.why for line in found.having(fate)}


def test_a_jobset_that_somebody_else_wrote(tmp_path: Path) -> None:
    found = imported(tmp_path, of_theirs(theirs("chief")))
    read = jobfiles.job(found.text)
    assert (read.id, read.machine, read.image, read.scheduling.restarts) == (
        "theirs",
        "g2-standard-8",
        "docker.io/me/train:1",
        "never",
    )
    assert read.accelerators is not None and read.accelerators.type == "NVIDIA_L4"
    container = "spec.replicatedJobs[chief].template.spec.template.spec.containers[0]"
    assert told(found, "changed")[f"{container}.name"] == "'main' becomes 'trainer'"
    assert read.labels == {"team": "a"}
    assert set(told(found, "dropped")) == {"metadata.labels.app.kubernetes.io/name"}


@pytest.mark.parametrize(
    ("jobs", "roles", "changed"),
    [
        ([theirs("tensorflow", 4)], {"chief": 1, "worker": 3}, ["tensorflow"]),
        ([theirs("workers", 2) | {"replicas": 3}], {"chief": 1, "worker": 5}, ["workers"]),
        ([theirs("node", 1)], {"chief": 1}, ["node"]),
        (
            [theirs("workers", 2), theirs("eval"), theirs("Leader")],
            {"chief": 1, "worker": 2, "evaluator": 1},
            ["workers", "eval", "Leader"],
        ),
        (
            [theirs("parameter-servers", 2), theirs("worker", 3)],
            {"chief": 1, "worker": 2, "ps": 2},
            ["parameter-servers"],
        ),
    ],
)
def test_roles_by_other_names(
    tmp_path: Path, jobs: list[dict[str, Any]], roles: dict[str, int], changed: list[str]
) -> None:
    found = imported(tmp_path, of_theirs(*jobs))
    assert {pool.role: pool.count for pool in jobfiles.job(found.text).pools} == roles
    names = {f"spec.replicatedJobs[{one}].name" for one in changed}
    assert {key for key, why in told(found, "changed").items() if "it plays" in why} == names
    split = "spec.replicatedJobs[chief]" in told(found, "added")
    assert split == (not any(one["name"] in ("Leader", "node") for one in jobs))


def test_what_of_theirs_is_dropped_says_why(tmp_path: Path) -> None:
    secret = {"name": "KEY", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}
    env = [secret, {"name": "AIP_X", "value": "1"}, {"name": "a.b", "value": "2"}]
    host = {"name": "FIRST", "value": "theirs-leader-0-0.theirs:1"}
    leader = theirs("leader", env=[*env, host], args=["$(date)", "--n=$$A"])
    found = imported(tmp_path, of_theirs(leader, startupPolicy={"startupPolicyOrder": "InOrder"}))
    read = jobfiles.job(found.text)
    assert read.environment == {"FIRST": "theirs-leader-0-0.theirs:1"}
    assert read.arguments == ("$(date)", "--n=$A")
    dropped = {key.rpartition(".env")[2]: why for key, why in told(found, "dropped").items()}
    assert dropped["[KEY].valueFrom.secretKeyRef.name"].startswith("a job's file has plain values")
    assert {"[AIP_X].value", "[a.b].value"} <= set(dropped)
    assert dropped["spec.startupPolicy.startupPolicyOrder"] == "all roles start at once"
    assert found.notes == (
        "leader names the host theirs-leader-0-0: the new hosts stand in TF_CONFIG",
    )


def test_a_tpu_of_gke_is_a_machine_and_a_topology(tmp_path: Path) -> None:
    selector = {
        "cloud.google.com/gke-tpu-accelerator": "tpu-v5-lite-podslice",
        "cloud.google.com/gke-tpu-topology": "2x2",
    }
    job = theirs("slice", resources={"limits": {"google.com/tpu": 4}})
    job["template"]["spec"]["template"]["spec"]["nodeSelector"] = selector
    read = jobfiles.job(imported(tmp_path, of_theirs(job)).text)
    assert (read.machine, read.topology) == ("ct5lp-hightpu-4t", "2x2")


def _chief(made: dict[str, Any]) -> dict[str, Any]:
    pod = made["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]
    found: dict[str, Any] = pod["containers"][0]
    return found


def _sidecar(made: dict[str, Any]) -> None:
    pod = made["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]
    pod["containers"].append(copy.deepcopy(pod["containers"][0]))


def _tpu(made: dict[str, Any]) -> None:
    pod = made["spec"]["replicatedJobs"][1]["template"]["spec"]["template"]["spec"]
    pod["nodeSelector"]["cloud.google.com/gke-tpu-topology"] = "2x2"


def _machine(made: dict[str, Any]) -> None:
    made["spec"]["replicatedJobs"][0]["template"]["metadata"]["annotations"] = {
        "builder-machine": "n1-standard-16"
    }
    _chief(made)["resources"]["limits"] = {"nvidia.com/gpu": "1"}


def _variables(made: dict[str, Any]) -> None:
    pod = made["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]
    pod["containers"][0]["env"] += [{"name": f"A{n}", "value": "b"} for n in range(101)]


def _replaced(made: dict[str, Any]) -> None:
    for one in made["spec"]["replicatedJobs"]:
        one["template"]["spec"]["template"]["spec"]["containers"][0]["args"] = ["$(A)"]


def _no_machine(made: dict[str, Any]) -> None:
    one = made["spec"]["replicatedJobs"][0]["template"]
    del one["metadata"], one["spec"]["template"]["spec"]["nodeSelector"]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (_sidecar, "chief has 2 containers in 1 pods"),
        (_tpu, "worker: a job with a TPU is one replica"),
        (_machine, "old.yaml: chief: n1-standard-16 takes 2, 4 or 8 x V100, not 1"),
        (_variables, r"old.yaml: environment: 10\d variables: a container takes 100"),
        (_replaced, r"the kubelet replaces \$\(A\)"),
        (_no_machine, "chief names no machine"),
        (lambda m: m["spec"]["replicatedJobs"][0].update(name="boss"), "are called boss, worker"),
        (lambda m: m["spec"]["replicatedJobs"][2].update(name="workers"), "each once"),
        (lambda m: m["spec"]["replicatedJobs"][0]["template"]["spec"].update(completions=2), "2 p"),
        (lambda m: m["spec"].clear(), "is no JobSet with"),
        (lambda m: m["spec"].update(replicatedJobs=3), "replicatedJobs: expected a list"),
        (lambda m: m["spec"].update(replicatedJobs=[]), "are called nothing"),
        (lambda m: m.pop("metadata"), "is no JobSet with"),
        (lambda m: m["metadata"].update(labels=["a"]), "metadata.labels: expected `name: value`"),
        (lambda m: m["metadata"].update(labels={"a": [1]}), "metadata.labels: expected a text"),
        (lambda m: _chief(m).update(args="x"), r"containers\[0\].args: expected a list"),
        (lambda m: _chief(m).update(env=[{"value": "x"}]), r"env: expected a name in each"),
        (lambda m: _chief(m)["resources"].update(limits={"nvidia.com/gpu": "2.5"}), "no whole"),
        (lambda m: _chief(m).pop("image"), "old.yaml: image: is missing"),
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
