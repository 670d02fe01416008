"""A job as a JobSet: its fields, its names, what the kubelet makes of it, what is refused."""

from __future__ import annotations

import json
import os
import random
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from builder import contract
from builder.core import project
from builder.core.errors import InputError
from builder.facts.cuda import OldestDriver
from builder.jobs import description, expected, images
from builder.jobs.backends.kubernetes import checks, cluster, jobset
from builder.jobs.backends.kubernetes.cluster import Cluster
from builder.jobs.ready import Image
from tests.jobs import jobfiles, jobset_rules
from tests.jobs.clusters import ANY, GKE, ready
from tests.jobs.conftest import Run
from trainer.loop import distribution

ROOT = project.find_root(Path(__file__).parent)
CHIEF = "image: v100\nmachine: n1-standard-8\naccelerators: 2 x V100\n"
WHOLE = Cluster("training", "gpus", "trainer", pull_secret="registry")
DISTRIBUTED = CHIEF + "replicas: {workers: 2, parameter_servers: 1, evaluator: 1}\n"


def rendered(text: str, on: Cluster = GKE, image: Image | None = None) -> dict[str, Any]:
    manifest = jobset.jobset(ready(text, on, image), on)
    assert jobset_rules.problems(manifest) == []
    return manifest


def roles(manifest: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the Job of each role."""
    return {role["name"]: role["template"]["spec"] for role in manifest["spec"]["replicatedJobs"]}


def pod(manifest: dict[str, Any], role: str = "chief") -> dict[str, Any]:
    return dict(roles(manifest)[role]["template"]["spec"])


def container(manifest: dict[str, Any], role: str = "chief") -> dict[str, Any]:
    return dict(pod(manifest, role)["containers"][0])


def expanded(text: str, known: Mapping[str, str]) -> str:
    """Return what the kubelet makes of a text: third_party/forked/golang/expansion/expand.go."""

    def put(match: re.Match[str]) -> str:
        return "$" if match[0] == "$$" else known.get(match[1], match[0])

    return re.sub(r"\$\$|\$\(([^)]*)\)", put, text)


def environment(manifest: dict[str, Any], role: str, index: int) -> dict[str, str]:
    """Return the variables of one pod, as the kubelet sets them: in the order of the list."""
    variables: dict[str, str] = {}
    for variable in container(manifest, role)["env"]:
        if "valueFrom" in variable:
            path = variable["valueFrom"]["fieldRef"]["fieldPath"]
            assert path == "metadata.annotations['batch.kubernetes.io/job-completion-index']"
            variables[variable["name"]] = str(index)
        else:
            variables[variable["name"]] = expanded(variable["value"], variables)
    return variables


# --- valid ----------------------------------------------------------------------------------------

MACHINES = {
    "a100": "machine: a2-highgpu-1g\naccelerators: A100",
    "cpu": "machine: n1-standard-8",
    "h100": "machine: a3-highgpu-8g\naccelerators: 8 x H100",
    "l4": "machine: g2-standard-8\naccelerators: L4",
    "t4": "machine: n1-standard-8\naccelerators: T4",
    "tpu": "machine: ct5lp-hightpu-4t\ntopology: 2x2",
    "v100": "machine: n1-standard-8\naccelerators: V100",
    "v100-torch": "machine: n1-standard-8\naccelerators: V100",
}
JOBS = int(os.environ.get("BUILDER_RANDOM_JOBS", "200"))
"""How many random jobs are rendered: BUILDER_RANDOM_JOBS=10000 takes a minute."""
MARKS = "$()xA \n:'\"-#{}[]%é/\\"


def test_the_jobs_of_this_project_and_every_target() -> None:
    targets = images.targets(ROOT)
    for name in ("cats-and-dogs", "cluster", "digits", "tpu"):
        job = description.load(ROOT, name)
        image = jobfiles.image(job.image)
        checked = checks.ready(job, image, GKE, targets)
        manifest = jobset.jobset(checked, GKE)
        assert jobset_rules.problems(manifest) == []
        assert all(
            container(manifest, role)["image"] == image.reference for role in roles(manifest)
        )
    for target in targets:
        rendered(f"image: {target}\n{MACHINES[target]}\n")


def test_jobsets_own_models_know_every_field() -> None:
    from kubeflow_trainer_api.models.jobset_v1alpha2_job_set import JobsetV1alpha2JobSet
    from kubeflow_trainer_api.models.jobset_v1alpha2_job_set_spec import JobsetV1alpha2JobSetSpec

    fields = JobsetV1alpha2JobSetSpec.model_fields
    known = {field.alias or name for name, field in fields.items()}
    assert jobset_rules.SPEC["properties"].keys() <= known
    for restarts in ("worker", "job", "never"):
        manifest = rendered(DISTRIBUTED + f"scheduling: {{restarts: {restarts}}}\n", WHOLE)
        read = JobsetV1alpha2JobSet.from_dict(manifest)
        assert read is not None and lost(manifest, read.to_dict(), "JobSet") == []


def lost(value: Any, kept: Any, path: str) -> list[str]:
    """Return the fields that the models do not know: they left them out."""
    if isinstance(value, dict):
        names = [f"{path}.{name}" for name, value in value.items() if value and name not in kept]
        inside = (lost(value[name], kept[name], f"{path}.{name}") for name in value if name in kept)
        return [*names, *(text for texts in inside for text in texts)]
    if isinstance(value, list):
        pairs = enumerate(zip(value, kept, strict=True))
        return [text for n, (a, b) in pairs for text in lost(a, b, f"{path}[{n}]")]
    return []


def random_job(dice: random.Random) -> tuple[str, str, Cluster]:
    """Return a job's text, the target of its image, and where it goes."""

    def words(letters: str, most: int) -> str:
        return "".join(dice.choices(letters, k=dice.randint(1, most)))

    def name(most: int) -> str:
        inside = words("abcdefghijklmnopqrstuvwxyz0123456789-", most)
        return f"n{inside}".rstrip("-")[:most].rstrip("-")

    target = dice.choice(sorted(MACHINES))
    most = {} if target == "tpu" else {"workers": 1000, "parameter_servers": 100, "evaluator": 1}
    written: dict[str, Any] = {
        "name": name(dice.choice([3, 20, 63])),
        "replicas": {
            role: {"count": dice.randint(1, min(count, dice.choice([3, count])))}
            | ({"machine": "n1-standard-8"} if role == "parameter_servers" else {})
            for role, count in most.items()
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
        "job_dir": f"gs://b-{name(20)}/{{job}}",
        "command": [words(MARKS, 9)],
        "disk": {"size_gb": dice.randint(100, 900)},
    }
    for key in ("job_dir", "command", "disk"):
        if dice.random() < 0.6:
            del written[key]
    if dice.random() < 0.2:
        written["arguments"].append(f"--records=/gcs/b-{name(9)}/records")
    named = {key: dice.choice([None, name(63)]) for key in ("namespace", "queue", "pull_secret")}
    on = Cluster(**named, service_account=dice.choice([None, name(63)]))
    free = target != "tpu" and written["scheduling"]["strategy"] == "standard"
    if free and "/gcs/" not in str(written["arguments"]):
        on = replace(on, nodes=dice.choice(["gke", "any"]))
    lines = [f"{key}: {json.dumps(value)}" for key, value in written.items()]
    return "\n".join([f"image: {target}", MACHINES[target], *lines, ""]), target, on


def test_random_jobs_are_valid_and_no_two_keys_share_a_name() -> None:
    dice, keys = random.Random(2026), dict[str, str]()
    for _ in range(JOBS):
        text, target, on = random_job(dice)
        checked = ready(text, on, jobfiles.image(target))
        numbers = dice.choice([1, 2, 99]), dice.choice([1, 2, 99])
        manifest = jobset.jobset(checked, on, *numbers)
        assert jobset_rules.problems(manifest) == [], text
        key = jobset.key(checked, on)
        assert keys.setdefault(manifest["metadata"]["name"], key) == key
        folder = (checked.job.job_dir or "").replace(
            "{job}", jobset.folder(checked, on, numbers[0])
        )
        for role in roles(manifest):
            args, own = container(manifest, role).get("args", ()), checked.job
            assert [expanded(word, {}) for word in args] == list(own.arguments)
            variables = environment(manifest, role, 0)
            assert own.environment.items() <= variables.items(), text
            assert not folder or variables["AIP_MODEL_DIR"] == f"{folder}/model/"
    assert len(keys) > 0.9 * JOBS


def test_the_largest_cluster_and_the_longest_name() -> None:
    replicas = "{workers: 1000, parameter_servers: 199, evaluator: 1}"
    manifest = rendered(f"name: {'n' * 63}\n{CHIEF}replicas: {replicas}\n")
    for role, job in roles(manifest).items():
        config = environment(manifest, role, job["completions"] - 1)["TF_CONFIG"]
        assert len(f"TF_CONFIG={config}") < 131_072  # Linux: MAX_ARG_STRLEN, with the last byte


# --- what a pod gets ------------------------------------------------------------------------------


def test_each_pod_finds_itself_in_tf_config() -> None:
    manifest = rendered(DISTRIBUTED)
    name = manifest["metadata"]["name"]
    addresses = {
        "chief": [f"{name}-chief-0-0.{name}:2222"],
        "worker": [f"{name}-worker-0-0.{name}:2222", f"{name}-worker-0-1.{name}:2222"],
        "ps": [f"{name}-ps-0-0.{name}:2222"],
    }
    for role, job in roles(manifest).items():
        for index in range(job["completions"]):
            config = json.loads(environment(manifest, role, index)["TF_CONFIG"])
            assert config["cluster"] == addresses
            assert config["task"] == {"type": role, "index": index}
    read = distribution.cluster(
        environment(rendered(CHIEF + "replicas: {workers: 2}\n"), "worker", 1)
    )
    assert (read.role, read.task, len(read.tasks["worker"])) == ("worker", 1, 2)
    assert "TF_CONFIG" not in environment(rendered(CHIEF), "chief", 0)


def test_each_pod_is_told_which_accelerator_it_has() -> None:
    image = replace(jobfiles.image(), driver=OldestDriver("570", "12.8"))
    manifest = rendered(CHIEF + "replicas: {evaluator: {accelerators: none}}\n", image=image)
    placement = ready(CHIEF, image=image).placements[0]
    promised = expected.on_a_machine(placement, image.driver)[contract.ACCELERATOR]
    assert environment(manifest, "chief", 0)[contract.ACCELERATOR] == promised
    assert environment(manifest, "evaluator", 0)[contract.ACCELERATOR] == contract.CPU
    own = rendered(CHIEF + f"environment: {{{contract.ACCELERATOR}: cpu}}\n", image=image)
    assert environment(own, "chief", 0)[contract.ACCELERATOR] == "cpu"


def test_what_is_written_arrives_as_it_is_written() -> None:
    text = CHIEF + 'environment: {A: "$(JOB_COMPLETION_INDEX) $$ $"}\narguments: ["$(A)"]\n'
    manifest = rendered(text + 'command: [sh, "$(A)"]\n')
    assert environment(manifest, "chief", 3)["A"] == "$(JOB_COMPLETION_INDEX) $$ $"
    for field in ("args", "command"):
        assert expanded(container(manifest)[field][-1], {"A": "no"}) == "$(A)"


def test_attempts_of_a_run_share_a_folder_and_runs_do_not() -> None:
    checked = ready(CHIEF + "job_dir: gs://b-b/{job}\npass_job_dir: true\n")
    names, folders = set(), []
    for numbers in ((1, 1), (1, 2), (2, 1), (2, 2)):
        manifest = jobset.jobset(checked, GKE, *numbers)
        names.add(manifest["metadata"]["name"])
        folders.append(manifest["metadata"]["annotations"]["builder-output"])
    assert len(names) == 4 and folders[0] == folders[1] != folders[2] == folders[3]
    first = jobset.jobset(checked, GKE)
    assert folders[0] == f"gs://b-b/{first['metadata']['name']}"
    assert environment(first, "chief", 0)["AIP_MODEL_DIR"] == f"{folders[0]}/model/"
    assert container(first)["args"] == [f"--job-dir={folders[0]}"]


# --- how it ends ----------------------------------------------------------------------------------


def ended(manifest: dict[str, Any], role: str, code: int, disrupted: bool = False) -> str:
    """Return what happens after a pod's end: ignore, count, or the JobSet's rule that matches.

    As kubernetes does it (pkg/controller/job/pod_failure_policy.go), then JobSet.
    """
    job = roles(manifest)[role]
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
            return _of_jobset(manifest, "PodFailurePolicy", message)
    return "count" if job["backoffLimit"] else _of_jobset(manifest, "BackoffLimitExceeded", "")


def _of_jobset(manifest: dict[str, Any], reason: str, message: str) -> str:
    if "failurePolicy" not in manifest["spec"]:
        return "FailJobSet"
    for rule in manifest["spec"]["failurePolicy"]["rules"]:
        patterns = rule.get("onJobFailureMessagePatterns", [""])
        if reason in rule["onJobFailureReasons"] and any(
            re.search(pattern, message) for pattern in patterns
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
    manifest = rendered(DISTRIBUTED + f"scheduling: {{restarts: {restarts}, timeout: 2h}}\n")
    for role in roles(manifest):
        for code in (contract.FAULT, contract.USAGE, contract.OUTSIDE, contract.NOT_FINITE):
            assert ended(manifest, role, code) == fault
        assert ended(manifest, role, contract.RESTART) == stopped
        assert ended(manifest, role, contract.RESTART, disrupted=True) == disrupted
        assert ended(manifest, role, contract.FAULT, disrupted=True) == disrupted
        assert roles(manifest)[role]["activeDeadlineSeconds"] == 7200
    assert _of_jobset(manifest, "DeadlineExceeded", "") == "FailJobSet"
    assert manifest["spec"]["successPolicy"]["targetReplicatedJobs"] == ["chief"]
    if restarts == "worker":  # each has five of its own
        limits = {role: job["backoffLimit"] for role, job in roles(manifest).items()}
        assert limits == {"chief": 5, "worker": 10, "ps": 5, "evaluator": 5}


# --- nodes and rights -----------------------------------------------------------------------------


def test_gke_selects_machine_accelerator_and_spot() -> None:
    manifest = pod(rendered(CHIEF + "scheduling: {strategy: spot}\n"))
    assert manifest["nodeSelector"] == {
        "node.kubernetes.io/instance-type": "n1-standard-8",
        "cloud.google.com/gke-accelerator": "nvidia-tesla-v100",
        "cloud.google.com/gke-spot": "true",
    }
    keys = [toleration["key"] for toleration in manifest["tolerations"]]
    assert keys == ["nvidia.com/gpu", "cloud.google.com/gke-spot"]
    assert manifest["containers"][0]["resources"]["limits"] == {"nvidia.com/gpu": "2"}


def test_any_cluster_is_asked_for_gpus_alone() -> None:
    manifest = pod(rendered(CHIEF, ANY))
    assert "nodeSelector" not in manifest
    assert manifest["containers"][0]["resources"] == {"limits": {"nvidia.com/gpu": "2"}}
    assert "resources" not in container(rendered("image: cpu\nmachine: n1-standard-8\n", ANY))


def test_a_disk_accounts_a_queue_and_a_bucket_as_a_folder() -> None:
    text = CHIEF + "disk: {size_gb: 300}\narguments: {records: /gcs/b-b/cats, out: /gcs/c-c}\n"
    manifest = rendered(text, WHOLE)
    assert manifest["metadata"]["namespace"] == "training"
    assert manifest["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "gpus"
    assert pod(manifest)["serviceAccountName"] == "trainer"
    assert pod(manifest)["imagePullSecrets"] == [{"name": "registry"}]
    assert container(manifest)["resources"]["requests"]["ephemeral-storage"] == "300G"
    mounts = {mount["name"]: mount["mountPath"] for mount in container(manifest)["volumeMounts"]}
    drivers = {
        mounts[volume["name"]]: volume["csi"]["volumeAttributes"]["bucketName"]
        for volume in pod(manifest)["volumes"]
        if "csi" in volume
    }
    assert drivers == {"/gcs/b-b": "b-b", "/gcs/c-c": "c-c"}
    annotations = roles(manifest)["chief"]["template"]["metadata"]["annotations"]
    assert annotations == {"gke-gcsfuse/volumes": "true"}
    assert manifest["metadata"]["name"] != rendered(text)["metadata"]["name"]


def test_a_proven_image_has_no_root_and_what_nobody_tried_may_write() -> None:
    manifest = rendered(CHIEF)
    assert pod(manifest)["securityContext"]["runAsNonRoot"] is True
    assert container(manifest)["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "readOnlyRootFilesystem": True,
    }
    mounts = [mount["mountPath"] for mount in container(manifest)["volumeMounts"]]
    assert mounts == ["/dev/shm", "/tmp"]
    assert pod(manifest)["volumes"][0]["emptyDir"] == {"medium": "Memory"}
    foreign = ready(CHIEF, image=Image(f"docker.io/me/own@{jobfiles.DIGEST}", jobfiles.DIGEST))
    manifest = jobset.jobset(foreign, GKE)
    assert container(manifest)["securityContext"]["readOnlyRootFilesystem"] is False
    assert "runAsNonRoot" not in pod(manifest)["securityContext"]
    assert any("may run as root" in note for note in foreign.notes)
    own = container(rendered(CHIEF + "command: [sh]\n"))
    assert own["securityContext"]["readOnlyRootFilesystem"] is False


# --- refused --------------------------------------------------------------------------------------

TPU = "image: tpu\nmachine: ct5lp-hightpu-4t\n"
TPU_AND_CPU = "topology: 2x2\nreplicas: {evaluator: {machine: n1-standard-8}}\n"
STUDY = "study: {metric: m, trials: 1, parameters: {r: {min: 0.1, max: 1}}}\n"


@pytest.mark.parametrize(
    ("text", "on", "line", "problem", "fix"),
    [
        (CHIEF + "environment:\n  JOB_COMPLETION_INDEX: 1\n", GKE, 4, "Kubernetes sets", "remove"),
        (CHIEF + "environment: {API_KEY: abc}\n", GKE, 4, "looks like a secret", "{secret: NAME"),
        (CHIEF + "environment: {A: hf_" + 20 * "x" + "}\n", GKE, 4, "like a secret", "kubectl"),
        (CHIEF + "scheduling: {strategy: flex-start, timeout: 8d}\n", GKE, 4, "7 days", "7d"),
        (CHIEF + "scheduling: {strategy: flex-start}\n", ANY, 4, "outside of GKE", "--nodes gke"),
        (CHIEF + "kubernetes: {reservation: mine}\n", ANY, 4, "is GKE's", "--nodes gke"),
        (CHIEF + "kubernetes: {topology: {required: a/b}}\n", GKE, 4, "Kueue's", "--queue"),
        (CHIEF + "scheduling: {strategy: spot}\n", ANY, 4, "outside of GKE", "--nodes gke"),
        (CHIEF + "arguments: {a: /gcs/b-b/c}\n", ANY, 4, "/gcs/b-b: a bucket is a", "gs://b-b"),
        (TPU + "topology: 2x2\n", ANY, 2, "a TPU is a node of GKE", "--nodes gke"),
        (TPU + "topology: 4x4\n", GKE, 1, "more than one ct5lp-hightpu-4t", "2x2"),
        (TPU + TPU_AND_CPU, GKE, 4, "ct5lp-hightpu-4t is one replica", "remove"),
        ("image: tpu\nmachine: cloud-tpu\naccelerators: 8 x TPU-v3\n", GKE, 3, "TPU-v3", "2x2"),
        ("image: t4\nmachine: n1-standard-8\naccelerators: V100\n", GKE, 1, "T4", "image: v100"),
        (CHIEF + STUDY, GKE, 4, "a study is not one JobSet", "builder job local"),
    ],
)
def test_what_a_jobset_cannot_say(
    tmp_path: Path, text: str, on: Cluster, line: int, problem: str, fix: str
) -> None:
    path = tmp_path / "cats.yaml"
    path.write_text(text)
    job = description.parse(text, path)
    with pytest.raises(InputError) as error:
        checks.ready(job, jobfiles.image(job.image), on, jobfiles.TARGETS)
    assert f"cats.yaml:{line}: " in error.value.message and problem in error.value.message
    assert fix in error.value.fix


def test_what_is_not_rendered_is_said() -> None:
    text = CHIEF + "disk: {type: pd-ssd}\nnetwork: projects/1/global/networks/a\n"
    text += "vertex: {web_access: true}\n"
    notes = ready(text + "service_account: a@p-1.iam.gserviceaccount.com\n").notes
    ignored = {note.partition(":")[0] for note in notes}
    assert ignored >= {"disk.type", "network", "service_account", "vertex.web_access"}


# --- settings and the command ---------------------------------------------------------------------


def test_flag_environment_and_table(tmp_path: Path) -> None:
    (tmp_path / "builder.toml").write_text('[kubernetes]\nqueue = "file"\nnamespace = "file"\n')
    environ = {"BUILDER_KUBERNETES_QUEUE": "environment", "BUILDER_KUBERNETES_NODES": "any"}
    loaded = cluster.load(tmp_path, {"namespace": "flag", "queue": None}, environ)
    assert loaded == Cluster("flag", "environment", None, "any")
    for line, problem, fix in (
        ("queue = 1", "builder.toml:2: kubernetes.queue: expected one text", "queue ="),
        ('nodes = "eks"', "builder.toml:2: kubernetes.nodes: 'eks'", "gke | any"),
        ('service_account = "a@b.iam"', "kubernetes.service_account: 'a@b.iam'", "not Google's"),
    ):
        (tmp_path / "builder.toml").write_text(f"[kubernetes]\n{line}\n")
        with pytest.raises(InputError) as error:
            cluster.load(tmp_path, {}, {})
        assert problem in error.value.message and fix in error.value.fix


def test_the_command_writes_yaml(run: Run, here: Path) -> None:
    image = f"us-docker.pkg.dev/p-1/t/own@{jobfiles.DIGEST}"
    text = f"image: {image}\nmachine: n1-standard-8\nenvironment: {{A: 'on', B: 1_000}}\n"
    (here / "jobs" / "own.yaml").write_text(text)
    (here / "builder.toml").write_text('[kubernetes]\nnamespace = "training"\n')
    code, out, err = run("job", "render", "own", "--on", "kubernetes", "--queue", "gpus")
    assert code == 0 and "not an image of ours" in err
    older = YAML(typ="safe", pure=True)
    older.version = "1.1"  # as kubectl reads it
    manifest = older.load(out)
    assert jobset_rules.problems(manifest) == []
    assert manifest["metadata"]["namespace"] == "training" and container(manifest)["image"] == image
    values = environment(manifest, "chief", 0)
    assert (values["A"], values["B"]) == ("on", "1_000")


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (("cats", "--on", "kubernetes"), "t/i:v100 is not known by its digest"),
        (("tuned", "--on", "kubernetes"), "tuned.yaml:7: study: a study is not one JobSet"),
        (("cats", "--on", "kubernetes", "--region", "us-central1"), "--region"),
        (("cats", "--on", "kubernetes", "--queue", "G"), "--queue: 'G' is not a name"),
    ],
)
def test_the_command_refuses(run: Run, words: tuple[str, ...], problem: str) -> None:
    code, out, err = run("job", "render", *words)
    assert (code, out) == (2, "") and problem in err and "fix:" in err
