"""Jobs that start on real clusters: rights of a TPU, requests, secrets, and the fields of a job's
file that only a cluster has. Each is held against the rules of the API."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import cel
import pytest

from builder.core.errors import InputError
from builder.jobs import machines
from builder.jobs.backends.kubernetes import nodes, status
from builder.jobs.backends.kubernetes.backend import Kubernetes
from builder.jobs.backends.kubernetes.cluster import Cluster
from builder.jobs.machines import Size
from builder.jobs.ready import Image
from tests.emulators.kubernetes import server
from tests.emulators.kubernetes.objects import Script
from tests.jobs import jobfiles
from tests.jobs.clusters import GKE, ready
from tests.jobs.test_kubernetes import CHIEF, container, expanded, pod, rendered, roles

QUEUE = Cluster(queue="gpus")
OTHERS = Image(f"h.example/jax@{jobfiles.DIGEST}", jobfiles.DIGEST)
TPU = "image: tpu\nmachine: ct5lp-hightpu-4t\ntopology: 2x2\n"


# --- the rules of the CRD -------------------------------------------------------------------------

IMMUTABLE = ("failurePolicy", "network", "startupPolicy", "successPolicy", "volumeClaimPolicies")
"""The fields of a JobSet's spec with the rule `self == oldSelf`."""
EXCLUSIVE = (
    "!(has(self.startupPolicy) && self.startupPolicy.startupPolicyOrder == 'InOrder' "
    "&& self.replicatedJobs.exists(x, has(x.dependsOn)))"
)
"""The rule of the spec. Source: JobSet 0.12.0, its CRD, x-kubernetes-validations."""
EVERY_LINE = [
    "scheduling: {strategy: flex-start, timeout: 2h, restarts: job}",
    "environment: {WANDB_API_KEY: {secret: wandb, key: api-key}}",
    "kubernetes: {priority: high, ttl: 7d, grace: 5m, node_selector: {pool: a},"
    " tolerations: [{key: b}], topology: {preferred: c}}",
    "kubernetes: {reservation: mine}\nreplicas: {workers: 3, parameter_servers: 1, evaluator: 1}",
]


@pytest.mark.parametrize("line", EVERY_LINE)
def test_the_crds_own_rules_take_every_line_and_its_cancelling(
    line: str,
    loopback: server.Cluster,
) -> None:
    manifest = rendered(CHIEF + line + "\n", QUEUE)
    assert cel.evaluate(EXCLUSIVE, {"self": manifest["spec"]}) is True
    loopback.objects.script = lambda pod: Script(code=None)
    backend = Kubernetes(QUEUE)
    job = backend.submit(ready(CHIEF + line + "\n", QUEUE))
    before = loopback.objects.list("jobsets")[0]["spec"]
    backend.cancel(job)
    after = loopback.objects.list("jobsets")[0]["spec"]
    assert after != before and after["suspend"] is True
    for name in set(IMMUTABLE) & before.keys():
        rule = {"self": after[name], "oldSelf": before[name]}
        assert cel.evaluate("self == oldSelf", rule) is True
    broken = {**manifest["spec"], "startupPolicy": {"startupPolicyOrder": "InOrder"}}
    broken["replicatedJobs"] = [{**broken["replicatedJobs"][0], "dependsOn": [{"name": "x"}]}]
    assert cel.evaluate(EXCLUSIVE, {"self": broken}) is False


# --- TPU ------------------------------------------------------------------------------------------


def test_a_tpu_pod_may_lock_memory_and_nothing_else() -> None:
    image = replace(jobfiles.image("tpu"), entrypoint=("python", "-m", "trainer.task"))
    manifest = rendered(TPU + "arguments: {steps: 3}\n", image=image)
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
    command = container(rendered(TPU + "command: [python, own.py]\n", image=image))["command"]
    assert command[-2:] == ["python", "own.py"]
    unknown = ready(TPU.replace("image: tpu", "image: h.example/jax"), image=OTHERS)
    assert any("RLIMIT_MEMLOCK" in note for note in unknown.notes)


@pytest.mark.parametrize(
    ("machine", "topology", "accelerator", "hosts", "chips"),
    [
        ("ct5lp-hightpu-4t", "4x4", "tpu-v5-lite-podslice", 4, 4),
        ("ct6e-standard-4t", "4x8", "tpu-v6e-slice", 8, 4),
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
    manifest["metadata"]["namespace"] = "default"
    (pool,) = status.read(manifest, (), ()).pools
    assert (pool.count, pool.machine, pool.topology) == (1, machine, topology)


def test_tensorflow_runs_on_one_host_of_a_v5e() -> None:
    for machine, topology in (("ct5lp-hightpu-4t", "4x4"), ("ct6e-standard-4t", "2x2")):
        with pytest.raises(InputError) as error:
            ready(f"image: tpu\nmachine: {machine}\ntopology: {topology}\n")
        assert "cats.yaml: image" in error.value.message and "JAX" in error.value.fix


# --- requests -------------------------------------------------------------------------------------


def test_gke_keeps_of_a_node_what_it_publishes() -> None:
    """Of 4 vCPUs 80m; of 64 GiB 5.48 GiB; of 15 GiB 2.5, and 100 MiB for evictions."""
    assert nodes.allocatable(4, nodes._CPU_STEPS) == pytest.approx(3.92)
    assert nodes.allocatable(64, nodes._MEMORY_STEPS) == pytest.approx(64 - 5.48)
    assert nodes.requested(Size(4, 15)) == (3028, 10406)


def test_a_pod_fits_its_machine_and_leaves_no_room_for_a_second() -> None:
    for placement in machines.combinations():
        size = machines.size(placement.machine)
        if placement.machine.startswith(("cloud-tpu", "a4x")):
            continue  # no node of GKE has it; arm64
        assert size is not None, placement
        cpu, memory = nodes.requested(size)
        assert 500 * size.vcpus < cpu < 1000 * nodes.allocatable(size.vcpus, nodes._CPU_STEPS)
        assert 0 < memory < 1024 * nodes.allocatable(size.memory, nodes._MEMORY_STEPS)
    manifest = rendered("image: h100\nmachine: a3-highgpu-8g\naccelerators: 8 x H100\n")
    requests = container(manifest)["resources"]["requests"]
    assert requests == {"cpu": "186169m", "memory": "1683386Mi"}


def test_a_node_whose_driver_is_too_old_takes_no_pod_with_gpus() -> None:
    """The floor is 525: a node with the label needs more than 524, one without it may try."""
    node = pod(rendered(CHIEF))["affinity"]["nodeAffinity"]
    (unknown, new_enough) = node["requiredDuringSchedulingIgnoredDuringExecution"][
        "nodeSelectorTerms"
    ]
    label = "nvidia.com/cuda.driver-version.major"
    assert unknown == {"matchExpressions": [{"key": label, "operator": "DoesNotExist"}]}
    assert new_enough == {"matchExpressions": [{"key": label, "operator": "Gt", "values": ["524"]}]}
    assert "affinity" not in pod(rendered("image: cpu\nmachine: n1-standard-8\n"))
    assert "affinity" not in pod(rendered(CHIEF, image=OTHERS))


# --- secrets --------------------------------------------------------------------------------------


def test_a_secret_is_named_and_its_value_stands_nowhere() -> None:
    text = CHIEF + "environment: {WANDB_API_KEY: {secret: wandb, key: api-key}, A: b}\n"
    manifest = rendered(text)
    variables = {variable["name"]: variable for variable in container(manifest)["env"]}
    reference = {"secretKeyRef": {"name": "wandb", "key": "api-key"}}
    assert variables["WANDB_API_KEY"]["valueFrom"] == reference and variables["A"]["value"] == "b"
    for harmless in ("TOKEN: /var/token", "MAX_TOKENS: abc", "KEY: abc", "API_KEY: ''"):
        rendered(CHIEF + f"environment: {{{harmless}}}\n")
    for wrong in ("{secret: A b, key: k}", "{secret: a, key: 'a b'}", "{secret: a, x: y}"):
        with pytest.raises(InputError) as error:
            ready(CHIEF + f"environment: {{B: {wrong}}}\n")
        assert "cats.yaml:4: environment" in error.value.message
        assert error.value.fix == "write {secret: NAME, key: KEY}"
    for other in ("{secret: a}", "{secret: a_b, key: k}"):
        with pytest.raises(InputError, match="a Secret of Kubernetes has a name"):
            ready(CHIEF + f"environment: {{B: {other}}}\n")


# --- the table kubernetes -------------------------------------------------------------------------


def field(text: str, cluster: Cluster = GKE, more: str = "") -> dict[str, Any]:
    return rendered(CHIEF + f"kubernetes: {{{text}}}\n{more}", cluster)


def test_priority_ttl_and_grace() -> None:
    manifest = field("priority: high, ttl: 7d, grace: 5m")
    assert pod(manifest)["priorityClassName"] == "high"
    assert pod(manifest)["terminationGracePeriodSeconds"] == 300
    assert manifest["spec"]["ttlSecondsAfterFinished"] == 7 * 24 * 3600
    bare = rendered(CHIEF)
    assert "ttlSecondsAfterFinished" not in bare["spec"] and "priorityClassName" not in pod(bare)


def test_own_selectors_and_tolerations_and_a_reservation() -> None:
    manifest = pod(
        field(
            "node_selector: {pool: a}, reservation: projects/p-12345/reservations/r,"
            "tolerations: [{key: dedicated, value: ml, effect: NoSchedule}, {key: any}]"
        )
    )
    assert manifest["nodeSelector"] == {
        "node.kubernetes.io/instance-type": "n1-standard-8",
        "cloud.google.com/gke-accelerator": "nvidia-tesla-v100",
        "cloud.google.com/reservation-name": "r",
        "cloud.google.com/reservation-affinity": "specific",
        "cloud.google.com/reservation-project": "p-12345",
        "pool": "a",
    }
    assert manifest["tolerations"][1:] == [
        {"key": "dedicated", "operator": "Equal", "value": "ml", "effect": "NoSchedule"},
        {"key": "any", "operator": "Exists"},
    ]
    short = pod(field("reservation: r"))["nodeSelector"]
    assert "cloud.google.com/reservation-project" not in short


def test_topology_and_flex_start_in_a_queue() -> None:
    manifest = field("topology: {required: cloud.google.com/gce-topology-block}", QUEUE)
    template = roles(manifest)["chief"]["template"]["metadata"]
    assert template["annotations"] == {
        "kueue.x-k8s.io/podset-required-topology": "cloud.google.com/gce-topology-block"
    }
    flex = "scheduling: {strategy: flex-start, timeout: 2h}\n"
    manifest = rendered(CHIEF + flex, QUEUE)
    annotation = "provreq.kueue.x-k8s.io/maxRunDurationSeconds"
    assert manifest["metadata"]["annotations"][annotation] == "7200"
    assert pod(manifest)["nodeSelector"]["cloud.google.com/gke-flex-start"] == "true"
    keys = [toleration["key"] for toleration in pod(manifest)["tolerations"]]
    assert keys == ["nvidia.com/gpu", "cloud.google.com/gke-queued"]
    alone = rendered(CHIEF + flex)
    assert "annotations" not in alone["metadata"] and len(pod(alone)["tolerations"]) == 1
    manifest["metadata"]["namespace"] = "default"
    assert status.read(manifest, (), ()).strategy == "flex-start"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("priority: High", "'High' is not a name"),
        ("ttl: soon", "not a length of time"),
        ("topology: {}", "either required or preferred"),
        ("topology: {required: a, preferred: b}", "either required or preferred"),
        ("reservation: a/b", "'a/b' is not a reservation"),
        ("node_selector: {'a b': c}", "'a b' is not a label"),
        ("tolerations: [{key: a, effect: No}]", "effect"),
        ("priorty: high", "priorty"),
    ],
)
def test_what_is_wrong_in_the_table(text: str, problem: str) -> None:
    with pytest.raises(InputError) as error:
        ready(CHIEF + f"kubernetes: {{{text}}}\n", QUEUE)
    assert "cats.yaml:4: kubernetes" in error.value.message and problem in error.value.message
    assert error.value.fix


def test_what_the_cluster_has_to_bring_is_said() -> None:
    notes = ready(CHIEF + "job_dir: gs://b-b/{job}\n").notes
    assert any(note.startswith("gs:// without a service account") for note in notes)
    bound = ready(CHIEF + "job_dir: gs://b-b/{job}\n", Cluster(service_account="trainer")).notes
    assert not any("without a service account" in note for note in bound)
    text = "image: h100\nmachine: a3-highgpu-8g\naccelerators: 8 x H100\nreplicas: {workers: 1}\n"
    assert any("GPUDirect" in note for note in ready(text).notes)
    assert not any("GPUDirect" in note for note in ready(text.partition("replicas")[0]).notes)
