"""A job as a JobSet: its fields, its names, what the kubelet makes of it, what is refused."""

from __future__ import annotations

import json
import os
import random
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from builder import contract
from builder.core import project, yamlfile
from builder.core.errors import InputError
from builder.jobs import description, expected, images
from builder.jobs.places.kubernetes import checks, cluster, jobset
from builder.jobs.places.kubernetes.cluster import Cluster
from builder.jobs.ready import Image, Ready
from tests.emulators.kubernetes import admission
from tests.emulators.kubernetes.kubelet import expanded
from tests.jobs import jobfiles
from tests.jobs.test_job_command import Run, here, run  # noqa: F401
from trainer.loop import distribution

ROOT = project.find_root(Path(__file__).parent)
GKE, ANY = Cluster(), Cluster(nodes="any")
CHIEF = "image: v100\nmachine: n1-standard-8\naccelerators: 2 x V100\n"
DISTRIBUTED = CHIEF + "replicas: {workers: 2, parameter_servers: 1, evaluator: 1}\n"


def ready(text: str, where: Cluster = GKE, image: Image | None = None) -> Ready:
    """The job of this text, through every check."""
    job = jobfiles.job(text)
    image = image or jobfiles.image(job.image)
    own = {
        role: replace(one, digest=jobfiles.DIGEST)
        for role, one in jobfiles.own(job).items()
        if one.reference != image.reference
    }
    return checks.ready(job, image, where, targets=jobfiles.TARGETS, registry=True, own=own)


def rendered(text: str, where: Cluster = GKE, image: Image | None = None) -> dict[str, Any]:
    return jobset.jobset(ready(text, where, image), where)


def roles(made: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The Job of each role."""
    return {one["name"]: one["template"]["spec"] for one in made["spec"]["replicatedJobs"]}


def pod(made: dict[str, Any], role: str = "chief") -> dict[str, Any]:
    return dict(roles(made)[role]["template"]["spec"])


def container(made: dict[str, Any], role: str = "chief") -> dict[str, Any]:
    return dict(pod(made, role)["containers"][0])


def environment(made: dict[str, Any], role: str, index: int) -> dict[str, str]:
    """The variables of one pod, as the kubelet sets them: in the order of the list."""
    found: dict[str, str] = {}
    for one in container(made, role)["env"]:
        if "valueFrom" in one:
            path = one["valueFrom"]["fieldRef"]["fieldPath"]
            assert path == "metadata.annotations['batch.kubernetes.io/job-completion-index']"
            found[one["name"]] = str(index)
        else:
            found[one["name"]] = expanded(one["value"], found)
    return found


def check(made: dict[str, Any]) -> None:
    """The published schemas, JobSet's webhook and the API server take it."""
    assert admission.problems(made) == []


# --- valid ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["cats-and-dogs", "cluster", "digits", "tpu"])
def test_the_jobs_of_this_project(name: str) -> None:
    job = description.load(ROOT, name)
    image = jobfiles.image(job.image)
    found = checks.ready(job, image, GKE, targets=images.targets(ROOT), registry=True)
    made = jobset.jobset(found, GKE)
    check(made)
    assert all(container(made, role)["image"] == image.reference for role in roles(made))


MACHINES = {
    "a100": "machine: a2-highgpu-1g\naccelerators: A100",
    "cpu": "machine: n1-standard-8",
    "h100": "machine: a3-highgpu-8g\naccelerators: 8 x H100",
    "l4": "machine: g2-standard-8\naccelerators: L4",
    "t4": "machine: n1-standard-8\naccelerators: T4",
    "tpu": "machine: ct5lp-hightpu-4t\ntopology: 2x2",
    "v100": "machine: n1-standard-8\naccelerators: V100",
}


@pytest.mark.parametrize("target", sorted(images.targets(ROOT)))
def test_every_target(target: str) -> None:
    made = rendered(f"image: {target}\n{MACHINES[target]}\n")
    check(made)


JOBS = int(os.environ.get("BUILDER_RANDOM_JOBS", "300"))
"""How many random jobs are rendered: BUILDER_RANDOM_JOBS=10000 takes minutes."""
MARKS = "$()xA \n:'\"-#{}[]%é/\\"


def random_job(dice: random.Random) -> tuple[str, str, Cluster]:
    """A job's text, the target of its image, and where it goes."""

    def words(letters: str, most: int) -> str:
        return "".join(dice.choices(letters, k=dice.randint(1, most)))

    def name(most: int) -> str:
        inside = words("abcdefghijklmnopqrstuvwxyz0123456789-", most)
        return f"n{inside}".rstrip("-")[:most].rstrip("-")

    def program() -> dict[str, Any]:
        """What a role may have of its own."""
        told = {
            "image": dice.choice([target, f"h.example/n{name(5)}@{jobfiles.DIGEST}"]),
            "command": [words(MARKS, 9)],
            "arguments": [words(MARKS, 9) for _ in range(dice.randint(0, 2))],
            "environment": {"V_0": words(MARKS, 9)} if dice.random() < 0.5 else {},
        }
        own = {key: value for key, value in told.items() if dice.random() < 0.2}
        return own | dice.choice([{}, {"machine": "n1-standard-8", "accelerators": "none"}])

    target = dice.choice(sorted(MACHINES))
    roles = {} if target == "tpu" else {"workers": 1000, "parameter_servers": 100, "evaluator": 9}
    told: dict[str, Any] = {
        "name": name(dice.choice([3, 20, 63])),
        "replicas": {
            role: {"count": dice.randint(1, dice.choice([3, most]))}
            | ({"machine": "n1-standard-8"} if role == "parameter_servers" else {})
            | program()
            for role, most in roles.items()
            if dice.random() < 0.4
        },
        "arguments": [words(MARKS, 12) for _ in range(dice.randint(0, 3))],
        "environment": {f"V_{number}": words(MARKS, 9) for number in range(dice.randint(0, 3))},
        "labels": {name(63): name(63) for _ in range(dice.randint(0, 2))},
        "scheduling": {
            "restarts": dice.choice(["worker", "job", "never"]),
            "strategy": dice.choice(["standard", "spot"]),
            "timeout": f"{dice.randint(1, 48)}h",
        },
    }
    if dice.random() < 0.5:
        told["job_dir"] = f"gs://b-{name(20)}/{{job}}"
    if dice.random() < 0.2:
        told["command"] = [words(MARKS, 9)]
    if dice.random() < 0.2:
        told["disk"] = {"size_gb": dice.randint(100, 900)}
    if dice.random() < 0.2:
        told["arguments"].append(f"--records=/gcs/b-{name(9)}/records")
    where = Cluster(
        namespace=dice.choice([None, name(63)]),
        queue=dice.choice([None, name(63)]),
        service_account=dice.choice([None, name(63)]),
        pull_secret=dice.choice([None, name(63)]),
    )
    free = target != "tpu" and told["scheduling"]["strategy"] == "standard"
    if free and "/gcs/" not in str(told["arguments"]):
        where = replace(where, nodes=dice.choice(["gke", "any"]))
    lines = [f"{key}: {json.dumps(value)}" for key, value in told.items()]
    return "\n".join([f"image: {target}", MACHINES[target], *lines, ""]), target, where


def test_random_jobs_are_valid_and_no_two_keys_share_a_name() -> None:
    dice, keys = random.Random(2026), dict[str, str]()
    for _ in range(JOBS):
        text, target, where = random_job(dice)
        found = ready(text, where, jobfiles.image(target))
        numbers = dice.choice([1, 2, 99]), dice.choice([1, 2, 99])
        made = jobset.jobset(found, where, *numbers)
        assert admission.problems(made) == [], text
        key = jobset.key(found, where)
        assert keys.setdefault(made["metadata"]["name"], key) == key
        wanted = (found.job.job_dir or "").replace("{job}", jobset.folder(found, where, numbers[0]))
        for role in roles(made):
            one, mine = container(made, role), found.job.of(role)
            assert [expanded(word, {}) for word in one.get("args", ())] == list(mine.arguments)
            variables = environment(made, role, 0)
            assert mine.environment.items() <= variables.items(), text
            assert not wanted or variables["AIP_MODEL_DIR"] == f"{wanted}/model/"
    assert len(keys) > 0.9 * JOBS


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        ("spec.network.subdomains", "a", "unknown field"),
        ("spec.replicatedJobs.0.template.spec.completion", 1, "unknown field|completion"),
        ("spec.replicatedJobs.0.template.spec.completions", "1", "not of type|valid integer"),
        ("spec.replicatedJobs.0.template.spec.template.spec.container", [], "container"),
        ("spec.replicatedJobs.0.template.spec.template.spec.restartPolicy", "OnFailure", "Never"),
        ("spec.replicatedJobs.0.name", "x" * 40, "63 characters"),
        ("spec.successPolicy.targetReplicatedJobs", ["boss"], "boss"),
        ("metadata.labels.team", "a-", "labels: team"),
        ("spec.replicatedJobs.0.template.spec.template.spec.volumes", [], "is no volume"),
    ],
)
def test_the_check_sees_what_a_cluster_refuses(path: str, value: Any, said: str) -> None:
    made = rendered(CHIEF)
    *steps, last = path.split(".")
    inside: Any = made
    for step in steps:
        inside = inside[int(step)] if step.isdigit() else inside[step]
    inside[last] = value
    assert re.search(said, "; ".join(admission.problems(made)))


def test_the_largest_cluster_and_the_longest_name() -> None:
    replicas = "{workers: 1000, parameter_servers: 199, evaluator: 1000}"
    made = rendered(f"name: {'n' * 63}\n{CHIEF}replicas: {replicas}\n")
    check(made)
    for role, job in roles(made).items():
        config = environment(made, role, job["completions"] - 1)["TF_CONFIG"]
        assert len(f"TF_CONFIG={config}") < 131_072  # Linux: MAX_ARG_STRLEN, with the last byte


# --- the cluster ----------------------------------------------------------------------------------


def test_each_pod_finds_itself_in_tf_config() -> None:
    made = rendered(DISTRIBUTED)
    name = made["metadata"]["name"]
    addresses = {
        "chief": [f"{name}-chief-0-0.{name}:2222"],
        "worker": [f"{name}-worker-0-0.{name}:2222", f"{name}-worker-0-1.{name}:2222"],
        "ps": [f"{name}-ps-0-0.{name}:2222"],
    }
    for role, job in roles(made).items():
        for index in range(job["completions"]):
            found = json.loads(environment(made, role, index)["TF_CONFIG"])
            assert found["cluster"] == addresses
            assert found["task"] == {"type": role, "index": index}


def test_the_trainer_reads_what_a_pod_gets() -> None:
    made = rendered(CHIEF + "replicas: {workers: 2}\n")
    found = distribution.cluster(environment(made, "worker", 1))
    assert (found.role, found.task, len(found.tasks["worker"])) == ("worker", 1, 2)


def test_each_pod_is_told_which_accelerator_it_has() -> None:
    image = replace(jobfiles.image(), cuda="12.8")
    made = rendered(CHIEF + "replicas: {evaluator: {accelerators: none}}\n", image=image)
    placement = ready(CHIEF, image=image).placements[0]
    wanted = expected.on_a_machine(placement, "12.8")[contract.ACCELERATOR]
    assert environment(made, "chief", 0)[contract.ACCELERATOR] == wanted
    assert environment(made, "evaluator", 0)[contract.ACCELERATOR] == contract.CPU
    own = rendered(CHIEF + f"environment: {{{contract.ACCELERATOR}: cpu}}\n", image=image)
    assert environment(own, "chief", 0)[contract.ACCELERATOR] == "cpu"


def test_one_replica_is_no_cluster() -> None:
    assert "TF_CONFIG" not in environment(rendered(CHIEF), "chief", 0)


def test_what_is_written_arrives_as_it_is_written() -> None:
    text = CHIEF + 'environment: {A: "$(JOB_COMPLETION_INDEX) $$ $"}\narguments: ["$(A)"]\n'
    made = rendered(text + 'command: [sh, "$(A)"]\n')
    assert environment(made, "chief", 3)["A"] == "$(JOB_COMPLETION_INDEX) $$ $"
    assert [expanded(one, {"A": "no"}) for one in container(made)["args"]] == ["$(A)"]
    assert [expanded(one, {"A": "no"}) for one in container(made)["command"]] == ["sh", "$(A)"]


def test_the_job_dir_has_the_objects_name() -> None:
    made = rendered(CHIEF + "job_dir: gs://b-b/{job}\npass_job_dir: true\n")
    folder = f"gs://b-b/{made['metadata']['name']}"
    assert environment(made, "chief", 0)["AIP_MODEL_DIR"] == f"{folder}/model/"
    assert container(made)["args"] == [f"--job-dir={folder}"]


# --- how it ends ----------------------------------------------------------------------------------


def ended(made: dict[str, Any], role: str, code: int, disrupted: bool = False) -> str:
    """What happens after a pod's end: ignore, count, or the rule of the JobSet that matches.

    As kubernetes does it (pkg/controller/job/pod_failure_policy.go), then JobSet.
    """
    job = roles(made)[role]
    for index, rule in enumerate(job.get("podFailurePolicy", {"rules": []})["rules"]):
        if "onPodConditions" in rule:
            matched, why = disrupted, "Pod ns/p has condition DisruptionTarget"
        else:
            matched = code in rule["onExitCodes"]["values"]
            why = f"Container trainer for pod ns/p failed with exit code {code}"
        if matched and rule["action"] == "Ignore":
            return "ignore"
        if matched:
            message = f"{why} matching FailJob rule at index {index}"
            return _of_jobset(made, "PodFailurePolicy", message)
    return "count" if job["backoffLimit"] else _of_jobset(made, "BackoffLimitExceeded", "")


def _of_jobset(made: dict[str, Any], reason: str, message: str) -> str:
    if "failurePolicy" not in made["spec"]:
        return "FailJobSet"
    for rule in made["spec"]["failurePolicy"]["rules"]:
        patterns = rule.get("onJobFailureMessagePatterns", [""])
        if reason in rule["onJobFailureReasons"] and any(
            re.search(one, message) for one in patterns
        ):
            return str(rule["action"])
    return "RestartJobSet"


@pytest.mark.parametrize(
    ("restarts", "fault", "stopped", "disrupted"),
    [
        ("worker", "FailJobSet", "count", "ignore"),
        ("job", "FailJobSet", "RestartJobSet", "RestartJobSetAndIgnoreMaxRestarts"),
        ("never", "FailJobSet", "FailJobSet", "FailJobSet"),
    ],
)
def test_restarts(restarts: str, fault: str, stopped: str, disrupted: str) -> None:
    made = rendered(DISTRIBUTED + f"scheduling: {{restarts: {restarts}, timeout: 2h}}\n")
    for role in roles(made):
        for code in (contract.FAULT, contract.USAGE, contract.OUTSIDE, contract.NOT_FINITE):
            assert ended(made, role, code) == fault
        assert ended(made, role, contract.RESTART) == stopped
        assert ended(made, role, contract.RESTART, disrupted=True) == disrupted
        assert ended(made, role, contract.FAULT, disrupted=True) == disrupted
        assert roles(made)[role]["activeDeadlineSeconds"] == 7200
    assert _of_jobset(made, "DeadlineExceeded", "") == "FailJobSet"
    assert made["spec"]["successPolicy"]["targetReplicatedJobs"] == ["chief"]


def test_each_worker_has_its_own_restarts() -> None:
    made = rendered(DISTRIBUTED + "scheduling: {restarts: worker}\n")
    limits = {role: job["backoffLimit"] for role, job in roles(made).items()}
    assert limits == {"chief": 5, "worker": 10, "ps": 5, "evaluator": 5}


# --- nodes and rights -----------------------------------------------------------------------------


def test_gke_selects_machine_accelerator_and_spot() -> None:
    made = pod(rendered(CHIEF + "scheduling: {strategy: spot}\n"))
    assert made["nodeSelector"] == {
        "node.kubernetes.io/instance-type": "n1-standard-8",
        "cloud.google.com/gke-accelerator": "nvidia-tesla-v100",
        "cloud.google.com/gke-spot": "true",
    }
    assert [one["key"] for one in made["tolerations"]] == [
        "nvidia.com/gpu",
        "cloud.google.com/gke-spot",
    ]
    resources = made["containers"][0]["resources"]
    assert resources == {"requests": {"cpu": "4800m"}, "limits": {"nvidia.com/gpu": "2"}}


def test_gke_selects_a_tpu_by_type_and_topology() -> None:
    made = pod(rendered("image: tpu\nmachine: ct5lp-hightpu-4t\ntopology: 2x2\n"))
    assert made["nodeSelector"] == {
        "cloud.google.com/gke-tpu-accelerator": "tpu-v5-lite-podslice",
        "cloud.google.com/gke-tpu-topology": "2x2",
    }
    assert made["containers"][0]["resources"] == {"limits": {"google.com/tpu": "4"}}


def test_any_cluster_is_asked_for_gpus_alone() -> None:
    made = pod(rendered(CHIEF, ANY))
    assert "nodeSelector" not in made
    assert made["containers"][0]["resources"] == {"limits": {"nvidia.com/gpu": "2"}}
    assert "resources" not in container(rendered("image: cpu\nmachine: n1-standard-8\n", ANY))


def test_a_disk_a_pull_secret_and_a_bucket_as_a_folder() -> None:
    text = CHIEF + "disk: {size_gb: 300}\narguments: {records: /gcs/b-b/cats, out: /gcs/c-c}\n"
    made = rendered(text, Cluster(pull_secret="registry"))
    assert pod(made)["imagePullSecrets"] == [{"name": "registry"}]
    assert container(made)["resources"]["requests"]["ephemeral-storage"] == "300G"
    mounts = {one["name"]: one["mountPath"] for one in container(made)["volumeMounts"]}
    drivers = {
        mounts[one["name"]]: one["csi"]["volumeAttributes"]["bucketName"]
        for one in pod(made)["volumes"]
        if "csi" in one
    }
    assert drivers == {"/gcs/b-b": "b-b", "/gcs/c-c": "c-c"}
    assert roles(made)["chief"]["template"]["metadata"]["annotations"] == {
        "gke-gcsfuse/volumes": "true"
    }
    check(made)


def test_attempts_of_a_run_share_a_folder_and_runs_do_not() -> None:
    found = ready(CHIEF + "job_dir: gs://b-b/{job}\n")
    names, folders = set(), []
    for numbers in ((1, 1), (1, 2), (2, 1), (2, 2)):
        made = jobset.jobset(found, GKE, *numbers)
        names.add(made["metadata"]["name"])
        folders.append(made["metadata"]["annotations"]["builder-output"])
    assert len(names) == 4 and folders[0] == folders[1] != folders[2] == folders[3]


def test_namespace_queue_and_account() -> None:
    made = rendered(CHIEF, Cluster("training", "gpus", "trainer"))
    assert made["metadata"]["namespace"] == "training"
    assert made["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "gpus"
    assert pod(made)["serviceAccountName"] == "trainer"
    assert made["metadata"]["name"] != rendered(CHIEF)["metadata"]["name"]


def test_a_proven_image_has_no_root_and_writes_to_tmp_only() -> None:
    made = rendered(CHIEF)
    assert pod(made)["securityContext"]["runAsNonRoot"] is True
    assert container(made)["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "readOnlyRootFilesystem": True,
    }
    mounts = [one["mountPath"] for one in container(made)["volumeMounts"]]
    assert mounts == ["/dev/shm", "/tmp"]
    assert pod(made)["volumes"][0]["emptyDir"] == {"medium": "Memory"}


def test_what_nobody_tried_read_only_may_write() -> None:
    foreign = Image(f"docker.io/me/own@{jobfiles.DIGEST}", jobfiles.DIGEST)
    found = ready(CHIEF, image=foreign)
    made = jobset.jobset(found, GKE)
    assert container(made)["securityContext"]["readOnlyRootFilesystem"] is False
    assert "runAsNonRoot" not in pod(made)["securityContext"]
    assert any("may run as root" in note for note in found.notes)
    own = container(rendered(CHIEF + "command: [sh]\n"))
    assert own["securityContext"]["readOnlyRootFilesystem"] is False


# --- refused --------------------------------------------------------------------------------------

TPU_AND_CPU = "topology: 2x2\nreplicas: {evaluator: {machine: n1-standard-8}}\n"
TPU = "image: tpu\nmachine: ct5lp-hightpu-4t\n"


@pytest.mark.parametrize(
    ("text", "where", "line", "said", "fix"),
    [
        (CHIEF + "labels: {team_: a}\n", GKE, 4, "no label of Kubernetes", "begin and end"),
        (CHIEF + "labels: {team: a-}\n", GKE, 4, "no label of Kubernetes", "begin and end"),
        (CHIEF + "environment:\n  JOB_COMPLETION_INDEX: 1\n", GKE, 5, "Kubernetes sets", "remove"),
        (CHIEF + "scheduling: {strategy: flex-start}\n", GKE, 4, "flex-start", "spot"),
        (CHIEF + "scheduling: {strategy: spot}\n", ANY, 4, "outside of GKE", "--nodes gke"),
        (CHIEF + "job_dir: /mnt/jobs\n", GKE, 4, "on this machine", "gs://"),
        (CHIEF + "arguments: {a: /gcs/b-b/c}\n", ANY, 4, "/gcs/b-b: a bucket is a", "gs://b-b"),
        (TPU + "topology: 2x2\n", ANY, 2, "a TPU is a node of GKE", "--nodes gke"),
        (TPU + "topology: 4x4\n", GKE, 2, "more than one ct5lp-hightpu-4t", "2x2"),
        (TPU + TPU_AND_CPU, GKE, 4, "ct5lp-hightpu-4t is one replica", "remove"),
        ("image: tpu\nmachine: cloud-tpu\naccelerators: 8 x TPU-v3\n", GKE, 3, "TPU-v3", "2x2"),
        ("image: t4\nmachine: n1-standard-8\naccelerators: V100\n", GKE, 1, "T4", "image: v100"),
        (
            CHIEF + "replicas: {workers: 1000, parameter_servers: 1000}\n",
            GKE,
            4,
            "do not fit the variable TF_CONFIG",
            "at most 1200",
        ),
        (
            CHIEF + "study: {metric: m, trials: 1, parameters: {r: {min: 0.1, max: 1}}}\n",
            GKE,
            4,
            "a study is not one JobSet",
            "--on kubernetes runs it",
        ),
    ],
)
def test_what_a_jobset_cannot_say(
    tmp_path: Path, text: str, where: Cluster, line: int, said: str, fix: str
) -> None:
    path = tmp_path / "cats.yaml"
    path.write_text(text)
    job = description.parse(text, path)
    image = jobfiles.image(job.image)
    with pytest.raises(InputError) as error:
        checks.ready(job, image, where, targets=jobfiles.TARGETS, registry=True)
    assert f"cats.yaml:{line}: " in error.value.message and said in error.value.message
    assert fix in error.value.fix


def test_an_image_without_a_digest_or_a_registry() -> None:
    job = jobfiles.job(CHIEF)
    tag = replace(jobfiles.image(), digest=None, reference="h.example/t:v100")
    with pytest.raises(InputError, match="not known by its digest") as error:
        checks.ready(job, tag, GKE, targets={}, registry=True)
    assert "builder image v100 --push" in error.value.fix
    with pytest.raises(InputError, match="no registry is named"):
        checks.ready(job, jobfiles.image(), GKE, targets={}, registry=False)


def test_what_is_not_rendered_is_said() -> None:
    text = CHIEF + "disk: {type: pd-ssd}\nnetwork: projects/1/global/networks/a\n"
    notes = ready(text + "service_account: a@p-1.iam.gserviceaccount.com\n").notes
    assert {one.partition(":")[0] for one in notes} >= {"disk.type", "network", "service_account"}


# --- settings and the command ---------------------------------------------------------------------


def test_flag_environment_and_table(tmp_path: Path) -> None:
    (tmp_path / "builder.toml").write_text('[kubernetes]\nqueue = "file"\nnamespace = "file"\n')
    environ = {"BUILDER_KUBERNETES_QUEUE": "environment", "BUILDER_KUBERNETES_NODES": "any"}
    found = cluster.load(tmp_path, {"namespace": "flag", "queue": None}, environ)
    assert found == Cluster("flag", "environment", None, "any")


@pytest.mark.parametrize(
    ("line", "said", "fix"),
    [
        ('queues = "a"', "builder.toml:2: kubernetes.queues: unknown setting", "write queue"),
        ("queue = 1", "builder.toml:2: kubernetes.queue: expected text", "in quotes"),
        ('nodes = "eks"', "builder.toml:2: kubernetes.nodes: 'eks'", "gke or any"),
        ('service_account = "a@b.iam"', "kubernetes.service_account: 'a@b.iam'", "not Google's"),
        ('namespace = "A"', "builder.toml:2: kubernetes.namespace: 'A'", "training"),
    ],
)
def test_a_wrong_setting_names_its_line(tmp_path: Path, line: str, said: str, fix: str) -> None:
    (tmp_path / "builder.toml").write_text(f"[kubernetes]\n{line}\n")
    with pytest.raises(InputError) as error:
        cluster.load(tmp_path, {}, {})
    assert said in error.value.message and fix in error.value.fix


def test_the_command_writes_yaml(run: Run, here: Path) -> None:  # noqa: F811
    image = f"us-docker.pkg.dev/p-1/t/own@{jobfiles.DIGEST}"
    text = f"image: {image}\nmachine: n1-standard-8\nenvironment: {{A: 'on', B: 1_000}}\n"
    (here / "jobs" / "own.yaml").write_text(text)
    (here / "builder.toml").write_text('[kubernetes]\nnamespace = "training"\n')
    code, out, err = run("job", "render", "own", "--to", "jobset", "--queue", "gpus")
    assert code == 0 and "not an image of ours" in err
    made = YAML(typ="safe").load(out)
    check(made)
    assert made["metadata"]["namespace"] == "training" and container(made)["image"] == image
    older = YAML(typ="safe", pure=True)
    older.version = "1.1"  # as kubectl reads it
    variables = container(older.load(out))["env"]
    assert {one["name"]: one.get("value") for one in variables} | {"A": "on", "B": "1_000"} == {
        one["name"]: one.get("value") for one in variables
    }


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("cats", "--to", "jobset"), "t/i:v100 is not known by its digest"),
        (("tuned", "--to", "jobset"), "tuned.yaml:7: study: a study is not one JobSet"),
        (("cats", "--to", "jobset", "--region", "us-central1"), "--region: --to jobset has no"),
        (("cats", "--queue", "gpus"), "--queue: --to vertex has no queue"),
        (("cats", "--to", "jobset", "--queue", "G"), "--queue: 'G' is not what is expected"),
    ],
)
def test_the_command_refuses(run: Run, words: tuple[str, ...], said: str) -> None:  # noqa: F811
    code, out, err = run("job", "render", *words)
    assert (code, out) == (2, "") and said in err and "fix:" in err


def test_yaml_that_older_readers_read_alike() -> None:
    told = {"on": ["yes", "Off", "1_000", "12:30:00", "0777", "2026-11-22", "1.5e3", "=", "text"]}
    older = YAML(typ="safe", pure=True)
    older.version = "1.1"
    assert older.load(yamlfile.dump(told)) == told


OWN_PROGRAMS = DISTRIBUTED.replace("workers: 2", "workers: {count: 2, arguments: [--worker]}")
OWN_PROGRAMS = OWN_PROGRAMS.replace(
    "evaluator: 1",
    "evaluator: {count: 1, accelerators: none, image: HOST/judge, environment: {A: /gcs/data/x}}",
)


def test_a_role_with_a_program_of_its_own() -> None:
    judge = Image(f"host.example/judge@{jobfiles.DIGEST}", jobfiles.DIGEST)
    own = {"evaluator": judge}
    job = jobfiles.job(OWN_PROGRAMS + "arguments: [--steps=5]\n")
    found = checks.ready(
        job, jobfiles.image("v100"), GKE, targets=jobfiles.TARGETS, registry=True, own=own
    )
    made = jobset.jobset(found, GKE)
    check(made)
    assert container(made)["args"] == ["--steps=5"] == container(made, "ps")["args"]
    assert container(made, "worker")["args"] == ["--worker"]
    assert container(made, "evaluator")["image"] == judge.reference
    mounts = [one["mountPath"] for one in container(made, "evaluator")["volumeMounts"]]
    assert "/gcs/data" in mounts
    assert "/gcs/data" not in [one["mountPath"] for one in container(made)["volumeMounts"]]
    assert any("evaluator" not in note and "not an image of ours" in note for note in found.notes)


def test_an_image_of_its_own_needs_its_digest_and_reduction_server_is_vertex_ais() -> None:
    job = jobfiles.job(OWN_PROGRAMS)
    with pytest.raises(InputError, match=r"replicas.evaluator.image: host"):
        checks.ready(
            job,
            jobfiles.image("v100"),
            GKE,
            targets=jobfiles.TARGETS,
            registry=True,
            own={"evaluator": Image("host.example/judge:1")},
        )
    text = CHIEF + "replicas:\n  workers: 2\n  reduction_servers: {image: HOST/r}\n"
    with pytest.raises(InputError, match="Reduction Server is Vertex AI's own"):
        ready(text)


def test_what_only_vertex_ai_has_is_told_and_left_out() -> None:
    found = ready(CHIEF + "vertex: {web_access: true, reservation: any}\n")
    assert "vertex.web_access: Vertex AI's own, not rendered" in found.notes
    assert "vertex.reservation: Vertex AI's own, not rendered" in found.notes
