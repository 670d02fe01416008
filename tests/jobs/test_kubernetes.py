"""A job as a JobSet: what its pods get, how it ends, where it runs, what is refused."""

from __future__ import annotations

import json
import re
import string
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from builder import contract
from builder.core import project
from builder.core.errors import InputError
from builder.facts.cuda import OldestDriver
from builder.jobs import description, images, machines
from builder.jobs.backends.kubernetes import jobset
from builder.jobs.backends.kubernetes import pod as pods
from builder.jobs.backends.kubernetes.backend import Kubernetes
from builder.jobs.backends.kubernetes.settings import KubernetesSettings as Cluster
from builder.jobs.ready import JobImage
from tests.conftest import Run
from tests.jobs import jobfiles, jobset_rules
from tests.jobs.clusters import (
    ANY,
    GKE,
    container,
    environment,
    expanded,
    pod,
    ready,
    rendered,
    roles,
)
from trainer.loop import distribution

CHIEF = "image: v100\nmachine: n1-standard-8\naccelerators: 2 x V100\n"
WHOLE = Cluster(
    namespace="training", queue="gpus", service_account="trainer", pull_secret="registry"
)
TPU = "image: tpu\nmachine: ct5lp-hightpu-4t\n"
OTHERS = JobImage(f"h.example/jax@{jobfiles.DIGEST}", jobfiles.DIGEST)
TOKEN = "hf_" + 2 * string.ascii_letters[:20]
DISTRIBUTED = CHIEF + "replicas: {workers: 2, parameter_servers: 1, evaluator: 1}\n"


# --- every JobSet is one that a cluster takes -----------------------------------------------------


def machine_of(accelerator: str) -> str:
    if accelerator == "TPU":
        return "machine: ct5lp-hightpu-4t, topology: 2x2"
    if accelerator == "CPU":
        return "machine: n1-standard-8"
    return machines.nearest("n1-standard-8", machines.device(accelerator), 1).written


def test_the_jobs_of_this_project_and_every_target() -> None:
    root = project.find_root(Path(__file__).parent)
    targets = images.targets(root)
    for name in ("cats-and-dogs", "cluster", "digits", "tpu"):
        job = description.load(root, name)
        image = jobfiles.image(job.image)
        manifest = jobset.jobset(Kubernetes(GKE).check(job, image, targets), GKE)
        assert jobset_rules.problems(manifest) == []
        assert {container(manifest, role)["image"] for role in roles(manifest)} == {image.reference}
    for target, accelerator in targets.items():
        rendered(f"{{image: {target}, {machine_of(accelerator)}}}\n")


@pytest.mark.slow
@pytest.mark.parametrize("restarts", ["worker", "never"])
def test_jobsets_own_models_know_every_field(restarts: str) -> None:
    from kubeflow_trainer_api.models.jobset_v1alpha2_job_set import JobsetV1alpha2JobSet
    from kubeflow_trainer_api.models.jobset_v1alpha2_job_set_spec import JobsetV1alpha2JobSetSpec

    fields = JobsetV1alpha2JobSetSpec.model_fields
    known = {field.alias or name for name, field in fields.items()}
    assert jobset_rules.SPEC["properties"].keys() <= known
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
    promised = placement.promise(image.driver)[contract.ACCELERATOR]
    assert environment(manifest, "chief", 0)[contract.ACCELERATOR] == promised
    assert environment(manifest, "evaluator", 0)[contract.ACCELERATOR] == contract.CPU
    own = rendered(CHIEF + f"environment: {{{contract.ACCELERATOR}: cpu}}\n", image=image)
    assert environment(own, "chief", 0)[contract.ACCELERATOR] == "cpu"


@pytest.mark.parametrize("field", ["args", "command"])
def test_what_is_written_arrives_as_it_is_written(field: str) -> None:
    text = CHIEF + 'environment: {A: "$(JOB_COMPLETION_INDEX) $$ $"}\narguments: ["$(A)"]\n'
    manifest = rendered(text + 'command: [sh, "$(A)"]\n')
    assert environment(manifest, "chief", 3)["A"] == "$(JOB_COMPLETION_INDEX) $$ $"
    assert expanded(container(manifest)[field][-1], {"A": "no"}) == "$(A)"


def test_attempts_of_a_run_share_a_folder_and_runs_do_not() -> None:
    checked = ready(CHIEF + "job_dir: gs://b-b/{job}\npass_job_dir: true\n")
    numbers = ((1, 1), (1, 2), (2, 1), (2, 2))
    made = [jobset.jobset(checked, GKE, *pair)["metadata"] for pair in numbers]
    first, *others = [meta["annotations"]["builder-output"] for meta in made]
    assert len({meta["name"] for meta in made}) == 4
    assert others[0] == first != others[1] == others[2]
    assert first == f"gs://b-b/{made[0]['name']}"
    manifest = jobset.jobset(checked, GKE)
    assert environment(manifest, "chief", 0)["AIP_MODEL_DIR"] == f"{first}/model/"
    assert container(manifest)["args"] == [f"--job-dir={first}"]


# --- how it ends ----------------------------------------------------------------------------------


def ended(manifest: dict[str, Any], role: str, code: int, disrupted: bool = False) -> str:
    """Return what happens after a pod's end: its Job ignores it or counts it, all start again, or
    the JobSet fails. As kubernetes and jobset do it (pod_failure_policy.go, failure_policy.go)."""
    job, after = roles(manifest)[role], manifest["spec"].get("failurePolicy", {"rules": []})
    for rule in job.get("podFailurePolicy", {"rules": []})["rules"]:
        matched = disrupted if "onPodConditions" in rule else code in rule["onExitCodes"]["values"]
        message = "Pod a/b has condition DisruptionTarget matching" if disrupted else "Container"
        if matched and rule["action"] == "Ignore":
            return "ignore"
        if matched:
            actions = [
                each["action"]
                for each in after["rules"]
                for pattern in each.get("onJobFailureMessagePatterns", [""])
                if re.search(pattern, message)
            ]
            return "all" if actions[:1] == ["RestartJobSetAndIgnoreMaxRestarts"] else "fail"
    return "count" if job["backoffLimit"] else "fail"


@pytest.mark.parametrize(
    ("text", "restarts", "fault", "others", "stopped", "disrupted"),
    [
        (CHIEF, "worker", "fail", "fail", "count", "ignore"),
        (DISTRIBUTED, "worker", "count", "fail", "count", "all"),
        (DISTRIBUTED, "never", "fail", "fail", "fail", "fail"),
    ],
)
def test_restarts(
    text: str, restarts: str, fault: str, others: str, stopped: str, disrupted: str
) -> None:
    """Among several replicas, who loses a peer may end with 1, as NCCL's errors do."""
    manifest = rendered(text + f"scheduling: {{restarts: {restarts}, timeout: 2h}}\n")
    for role, job in roles(manifest).items():
        assert ended(manifest, role, contract.FAULT) == fault
        for code in (contract.USAGE, contract.OUTSIDE, contract.NOT_FINITE):
            assert ended(manifest, role, code) == others
        assert ended(manifest, role, contract.RESTART) == stopped
        assert ended(manifest, role, contract.RESTART, disrupted=True) == disrupted
        assert ended(manifest, role, contract.FAULT, disrupted=True) == disrupted
        assert job["activeDeadlineSeconds"] == 7200
    assert manifest["spec"]["successPolicy"]["targetReplicatedJobs"] == ["chief"]


@pytest.mark.parametrize(
    ("scheduling", "queue", "deadline", "noted"),
    [
        ("timeout: 2h", None, 7200, "timeout: it counts the wait for nodes"),
        ("timeout: 2h", "gpus", 7200, ""),
        ("strategy: flex-start, timeout: 2h, max_wait: 1h", None, 10_800, ""),
        ("strategy: flex-start, timeout: 2h, max_wait: 1h", "gpus", 7200, "scheduling.max_wait"),
        ("restarts: worker", None, 7 * 24 * 3600, ""),
    ],
)
def test_what_a_job_waits_for_nodes_is_part_of_its_time_without_a_queue(
    scheduling: str, queue: str | None, deadline: int, noted: str
) -> None:
    """A Job's time counts from its creation, and anew from when its queue lets it start."""
    text, on = CHIEF + f"scheduling: {{{scheduling}}}\n", Cluster(queue=queue)
    assert roles(rendered(text, on))["chief"]["activeDeadlineSeconds"] == deadline
    about = [note for note in ready(text, on).notes if "timeout" in note or "max_wait" in note]
    assert len(about) == bool(noted) and noted in "".join(about)


def test_each_replica_has_five_restarts() -> None:
    limits = {role: job["backoffLimit"] for role, job in roles(rendered(DISTRIBUTED)).items()}
    assert limits == {"chief": 5, "worker": 10, "ps": 5, "evaluator": 5}


# --- nodes and rights -----------------------------------------------------------------------------


def test_gke_selects_the_machine_and_any_cluster_is_asked_for_gpus_alone() -> None:
    spot = CHIEF + "scheduling: {strategy: spot}\nkubernetes: {reservation: mine}\n"
    manifest = pod(rendered(spot))
    assert manifest["nodeSelector"] == {
        "node.kubernetes.io/instance-type": "n1-standard-8",
        "cloud.google.com/gke-accelerator": "nvidia-tesla-v100",
        "cloud.google.com/gke-spot": "true",
        "cloud.google.com/reservation-name": "mine",
        "cloud.google.com/reservation-affinity": "specific",
    }
    keys = [toleration["key"] for toleration in manifest["tolerations"]]
    assert keys == ["nvidia.com/gpu", "cloud.google.com/gke-spot"]
    resources = {"cpu": "4800m", "memory": "18432Mi"}
    limits = {"nvidia.com/gpu": "2"}
    assert manifest["containers"][0]["resources"] == {"requests": resources, "limits": limits}
    manifest = pod(rendered(spot, ANY))
    assert "nodeSelector" not in manifest
    assert manifest["containers"][0]["resources"] == {"limits": limits}
    text = spot + "disk: {type: pd-ssd}\nnetwork: projects/1/global/networks/a\n"
    text += "vertex: {web_access: true}\nservice_account: a@p-1.iam.gserviceaccount.com\n"
    ignored = {note.partition(":")[0] for note in ready(text, ANY).notes}
    assert ignored >= {
        *("strategy", "kubernetes.reservation", "disk.type", "network", "service_account"),
        "vertex.web_access",
    }
    assert "resources" not in container(rendered("image: cpu\nmachine: n1-standard-8\n", ANY))


def test_requests_and_limits_as_written_on_any_cluster() -> None:
    """Where a quota asks for them, no pod without them can be created."""
    own = "kubernetes: {requests: {cpu: 500m, memory: 16Gi}, limits: {cpu: 4}}\n"
    for on in (ANY, GKE):
        wanted = container(rendered(CHIEF + own, on))["resources"]
        gpu = {"nvidia.com/gpu": wanted["limits"].get("nvidia.com/gpu")}
        assert wanted["requests"] == {"cpu": "500m", "memory": "16Gi"}
        assert wanted["limits"] == {"cpu": "4"} | {k: v for k, v in gpu.items() if v}
    half = container(rendered(CHIEF + "kubernetes: {requests: {cpu: 2}}\n"))["resources"][
        "requests"
    ]
    assert half["cpu"] == "2" and half["memory"].endswith("Mi")  # the machine's, as before


def test_a_pod_fits_its_machine_and_leaves_no_room_for_a_second() -> None:
    """GKE keeps 6% of the first vCPU, 1% of the next and so on, 25% of the first 4 GiB ...; from
    1.37 on less. Half a vCPU and half a GiB are left to DaemonSets."""
    cpu_steps = ((1, 0.06), (1, 0.01), (2, 0.005), (float("inf"), 0.0025))
    memory_steps = ((4, 0.25), (4, 0.20), (8, 0.10), (112, 0.06), (float("inf"), 0.02))

    def allocatable(total: float, steps: tuple[tuple[float, float], ...]) -> float:
        rest, left = total, total
        for amount, share in steps:
            left -= min(rest, amount) * share
            rest -= min(rest, amount)
        return left

    for placement in machines.combinations():
        size = machines.size(placement.machine)
        if placement.machine.startswith(("cloud-tpu", "a4x")):
            continue  # no node of GKE has it; arm64
        assert size is not None and pods.SHARE > 0.5, placement
        cpu, memory = allocatable(size[0], cpu_steps), allocatable(size[1], memory_steps)
        assert pods.SHARE * size[0] < cpu - 0.5, placement
        assert pods.SHARE * size[1] < memory - 0.1 - 0.4, placement  # 0.1: for evictions


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
    foreign = ready(CHIEF, image=JobImage(f"docker.io/me/own@{jobfiles.DIGEST}", jobfiles.DIGEST))
    manifest = jobset.jobset(foreign, GKE)
    assert container(manifest)["securityContext"]["readOnlyRootFilesystem"] is False
    assert "runAsNonRoot" not in pod(manifest)["securityContext"]
    assert any("may run as root" in note for note in foreign.notes)
    own = container(rendered(CHIEF + "command: [sh]\n"))
    assert own["securityContext"]["readOnlyRootFilesystem"] is False


def test_what_only_a_cluster_has() -> None:
    own = "priority: high, ttl: 7d, grace: 5m, node_selector: {pool: a}"
    own += ", tolerations: [{key: dedicated, value: ml, effect: NoSchedule}, {key: any}]"
    own += ", reservation: projects/p-12345/reservations/r, topology: {required: a/b}"
    flex = "scheduling: {strategy: flex-start, timeout: 2h}\n"
    manifest = rendered(CHIEF + flex + f"kubernetes: {{{own}}}\n", Cluster(queue="gpus"))
    assert manifest["spec"]["ttlSecondsAfterFinished"] == 7 * 24 * 3600
    annotation = "provreq.kueue.x-k8s.io/maxRunDurationSeconds"
    assert manifest["metadata"]["annotations"][annotation] == "7200"
    template = roles(manifest)["chief"]["template"]["metadata"]
    assert template["annotations"] == {"kueue.x-k8s.io/podset-required-topology": "a/b"}
    spec = pod(manifest)
    assert (spec["priorityClassName"], spec["terminationGracePeriodSeconds"]) == ("high", 300)
    assert spec["nodeSelector"].items() >= {
        ("cloud.google.com/reservation-name", "r"),
        ("cloud.google.com/reservation-project", "p-12345"),
        ("cloud.google.com/gke-flex-start", "true"),
        ("pool", "a"),
    }
    assert spec["tolerations"][1:] == [
        {
            "key": "cloud.google.com/gke-queued",
            "operator": "Equal",
            "value": "true",
            "effect": "NoSchedule",
        },
        {"key": "dedicated", "operator": "Equal", "value": "ml", "effect": "NoSchedule"},
        {"key": "any", "operator": "Exists"},
    ]
    bare = rendered(CHIEF + flex)
    assert "annotations" not in bare["metadata"] and len(pod(bare)["tolerations"]) == 1


def test_a_secret_is_named_and_its_value_stands_nowhere() -> None:
    text = CHIEF + "environment: {WANDB_API_KEY: {secret: wandb, key: api-key}, A: b}\n"
    variables = {variable["name"]: variable for variable in container(rendered(text))["env"]}
    reference = {"secretKeyRef": {"name": "wandb", "key": "api-key"}}
    assert variables["WANDB_API_KEY"]["valueFrom"] == reference and variables["A"]["value"] == "b"
    for harmless in ("TOKEN: /var/token", "MAX_TOKENS: abc", "KEY: abc", "API_KEY: ''"):
        rendered(CHIEF + f"environment: {{{harmless}}}\n")


# --- TPU ------------------------------------------------------------------------------------------


def test_a_tpu_pod_may_lock_memory_and_nothing_else() -> None:
    image = replace(jobfiles.image("tpu"), entrypoint=("python", "-m", "trainer.task"))
    manifest = rendered(TPU + "topology: 2x2\narguments: {steps: 3}\n", image=image)
    own = container(manifest)
    shell, option, script, *words = [expanded(word, {}) for word in own["command"]]
    assert (shell, option) == ("/bin/sh", "-c")
    assert script == 'ulimit -l 68719476736 && exec "$@"'
    assert words == ["sh", "python", "-m", "trainer.task"] and own["args"] == ["--steps=3"]
    assert own["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"], "add": ["SYS_RESOURCE"]},
        "readOnlyRootFilesystem": True,
        "runAsUser": 0,
    }
    assert "runAsNonRoot" not in pod(manifest)["securityContext"]
    unknown = ready(TPU + "topology: 2x2\n", image=OTHERS)
    assert any("RLIMIT_MEMLOCK" in note for note in unknown.notes)


@pytest.mark.parametrize(
    ("machine", "topology", "accelerator", "hosts", "chips"),
    [
        ("ct5lp-hightpu-4t", "4x4", "tpu-v5-lite-podslice", 4, 4),
        ("ct6e-standard-8t", "2x4", "tpu-v6e-slice", 1, 8),
        ("tpu7x-standard-4t", "2x2x4", "tpu7x", 4, 4),
    ],
)
def test_a_slice_of_several_hosts_is_one_replica_with_a_pod_for_each(
    machine: str, topology: str, accelerator: str, hosts: int, chips: int
) -> None:
    text = f"image: h.example/jax\nmachine: {machine}\ntopology: {topology}\n"
    manifest = rendered(text, image=OTHERS)
    job, selector = roles(manifest)["chief"], pod(manifest)["nodeSelector"]
    assert job["completions"] == job["parallelism"] == hosts
    assert container(manifest)["resources"]["limits"] == {"google.com/tpu": str(chips)}
    assert selector["cloud.google.com/gke-tpu-accelerator"] == accelerator
    assert selector["cloud.google.com/gke-tpu-topology"] == topology
    exclusive = manifest["metadata"].get("annotations", {})
    assert ("alpha.jobset.sigs.k8s.io/exclusive-topology" in exclusive) == (hosts > 1)


# --- refused --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "on", "line", "problem", "fix"),
    [
        (CHIEF + "environment:\n  JOB_COMPLETION_INDEX: 1\n", GKE, 4, "Kubernetes sets", "remove"),
        (CHIEF + "environment: {API_KEY: abc}\n", GKE, 4, "looks like a secret", "{secret: NAME"),
        (CHIEF + "environment: {B: {secret: a}}\n", GKE, 4, "a name and a key", "{secret: NAME"),
        (
            CHIEF + f"environment: {{A: {TOKEN}}}\n",
            GKE,
            4,
            "like a secret",
            "kubectl",
        ),
        (CHIEF + "kubernetes: {topology: {required: a/b}}\n", GKE, 4, "Kueue's", "--queue"),
        (CHIEF + "kubernetes: {ttl: 1s}\n", GKE, 4, "before anybody has read", "5m or more"),
        (CHIEF + "kubernetes: {requests: {memory: 16}}\n", GKE, 4, "not an amount", "16Gi"),
        (CHIEF + "kubernetes: {limits: {memory: 16GB}}\n", GKE, 4, "not an amount", "16Gi"),
        (CHIEF + "kubernetes: {requests: {cpu: two}}\n", GKE, 4, "number of processors", "500m"),
        (TPU + "topology: 2x2\n", ANY, 2, "a TPU needs nodes of GKE", "--nodes gke"),
        ("image: tpu\nmachine: cloud-tpu\naccelerators: 8 x TPU-v3\n", GKE, 2, "TPU-v3", "2x2"),
        ("image: t4\nmachine: n1-standard-8\naccelerators: V100\n", GKE, 1, "T4", "image: v100"),
    ],
)
def test_what_a_jobset_cannot_say(
    tmp_path: Path, text: str, on: Cluster, line: int, problem: str, fix: str
) -> None:
    path = tmp_path / "cats.yaml"
    path.write_text(text)
    with pytest.raises(InputError) as error:
        job = description.parse(text, path)
        Kubernetes(on).check(job, jobfiles.image(job.image), jobfiles.TARGETS)
    assert f"cats.yaml:{line}: " in error.value.message and problem in error.value.message
    assert fix in error.value.fix


# --- the command ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (("cats", "--on", "kubernetes", "--region", "us-central1"), "--region"),
        (("cats", "--on", "kubernetes", "--queue", "G"), "--queue: 'G' is not a name"),
    ],
)
def test_the_command_writes_yaml_or_refuses(words: Any, problem: str, run: Run, here: Path) -> None:
    image = f"us-docker.pkg.dev/p-1/t/own@{jobfiles.DIGEST}"
    text = f"image: {image}\nmachine: n1-standard-8\nenvironment: {{A: 'on', B: 1_000}}\n"
    (here / "jobs" / "own.yaml").write_text(text)
    (here / "builder.toml").write_text('[kubernetes]\nnamespace = "training"\n')
    code, out, err = run("job", "render", "own", "--on", "kubernetes", "--queue", "gpus")
    assert code == 0 and "not an image of ours" in err
    manifest = yaml.safe_load(out)  # YAML 1.1, as kubectl reads it
    assert jobset_rules.problems(manifest) == []
    assert manifest["metadata"]["namespace"] == "training" and container(manifest)["image"] == image
    values = environment(manifest, "chief", 0)
    assert (values["A"], values["B"]) == ("on", "1_000")
    code, out, err = run("job", "render", *words)
    assert (code, out) == (2, "") and problem in err and "fix:" in err
