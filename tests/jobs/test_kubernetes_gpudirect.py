"""GPUDirect as one line of a job's file: what its pods get on each machine, what is refused."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from builder.core.errors import InputError
from builder.jobs.backends.kubernetes.settings import KubernetesSettings as Cluster
from builder.jobs.ready import JobImage
from tests.jobs import jobfiles
from tests.jobs.clusters import ANY, GKE, container, environment, pod, ready, rendered, roles

IMAGE = JobImage(f"h.example/torch@{jobfiles.DIGEST}", jobfiles.DIGEST)
MACHINES = {
    "TCPX": ("a3-highgpu-8g", "H100"),
    "TCPXO": ("a3-megagpu-8g", "H100-mega"),
    "RDMA": ("a3-ultragpu-8g", "H200"),
    "RDMA of A4": ("a4-highgpu-8g", "B200"),
}
LIBRARIES = "/home/kubernetes/bin/nvidia/lib64"


def described(kind: str, line: str = "gpudirect: true") -> str:
    machine, gpu = MACHINES[kind]
    return (
        f"image: h.example/torch\nmachine: {machine}\naccelerators: 8 x {gpu}\n"
        f"replicas: {{workers: 1}}\ncommand: [python, train.py]\nkubernetes: {{{line}}}\n"
    )


def made(kind: str, line: str = "gpudirect: true") -> dict[str, Any]:
    return rendered(described(kind, line), image=IMAGE)


OTHER = described("TCPX").replace("a3-highgpu-8g", "a2-highgpu-1g").replace("8 x H100", "A100")


def annotations(manifest: dict[str, Any]) -> dict[str, str]:
    return dict(roles(manifest)["worker"]["template"]["metadata"]["annotations"])


def networks(manifest: dict[str, Any]) -> list[tuple[str, str]]:
    """Return the interfaces of a pod and their networks."""
    listed = json.loads(annotations(manifest)["networking.gke.io/interfaces"])
    return [(each["interfaceName"], each["network"]) for each in listed]


def of_node(manifest: dict[str, Any], mounts: list[dict[str, Any]]) -> dict[str, str]:
    """Return the folders of the node that a container mounts, and where."""
    volumes = pod(manifest)["volumes"]
    assert len({each["name"] for each in volumes}) == len(volumes)
    paths = {each["name"]: each["hostPath"]["path"] for each in volumes if "hostPath" in each}
    return {paths[each["name"]]: each["mountPath"] for each in mounts if each["name"] in paths}


@pytest.mark.parametrize(
    ("kind", "first", "interfaces"),
    [
        ("TCPX", ("eth1", "vpc1"), 5),
        ("TCPXO", ("eth1", "vpc1"), 9),
        ("RDMA", ("eth2", "rdma-0"), 9),
        ("RDMA of A4", ("eth2", "rdma-0"), 9),
    ],
)
def test_each_pod_has_the_networks_of_its_machine(
    kind: str, first: tuple[str, str], interfaces: int
) -> None:
    found = networks(made(kind))
    assert found[:2] == [("eth0", "default"), first] and len(found) == interfaces
    assert annotations(made(kind))["networking.gke.io/default-interface"] == "eth0"


@pytest.mark.parametrize(
    ("kind", "image", "capabilities", "last"),
    [
        ("TCPX", "gpudirect-tcpx/tcpgpudmarxd-dev:v2.0.15", ["NET_ADMIN"], "nvidia-uvm"),
        (
            "TCPXO",
            "gpudirect-tcpxo/tcpgpudmarxd-dev:v1.0.21",
            ["NET_ADMIN", "NET_BIND_SERVICE"],
            "dmabuf_import_helper",
        ),
    ],
)
def test_a_daemon_starts_before_the_program_and_ends_with_it(
    kind: str, image: str, capabilities: list[str], last: str
) -> None:
    manifest = made(kind)
    (daemon,) = pod(manifest)["initContainers"]
    assert daemon["restartPolicy"] == "Always", "a sidecar, else the job never ends"
    assert daemon["image"] == f"us-docker.pkg.dev/gce-ai-infra/{image}"
    assert daemon["securityContext"]["capabilities"] == {"add": capabilities}
    devices = annotations(manifest)[f"devices.gke.io/container.{daemon['name']}"].splitlines()
    assert devices[0] == "- path: /dev/nvidia0" and devices[-1] == f"- path: /dev/{last}"
    mounted = of_node(manifest, daemon["volumeMounts"])
    assert mounted[LIBRARIES] == "/usr/local/nvidia/lib64" and mounted["/sys"] == "/hostsysfs"
    assert "initContainers" not in pod(made("RDMA"))


@pytest.mark.parametrize(
    ("kind", "mounted"),
    [
        ("TCPX", {LIBRARIES: "/usr/local/nvidia/lib64", "/run/tcpx": "/tmp"}),
        (
            "TCPXO",
            {
                LIBRARIES: "/usr/local/nvidia/lib64",
                "/dev/aperture_devices": "/dev/aperture_devices",
            },
        ),
        (
            "RDMA",
            {"/home/kubernetes/bin/nvidia": "/usr/local/nvidia"}
            | {"/home/kubernetes/bin/gib": "/usr/local/gib"},
        ),
    ],
)
def test_the_program_finds_the_plugin_of_its_node(kind: str, mounted: dict[str, str]) -> None:
    manifest = made(kind)
    own = container(manifest)
    assert of_node(manifest, own["volumeMounts"]) == mounted
    paths = [each["mountPath"] for each in own["volumeMounts"]]
    assert len(set(paths)) == len(paths), "a path is mounted once"
    variables = environment(manifest, "worker", 0)
    assert variables["LD_LIBRARY_PATH"] == "/usr/local/nvidia/lib64"
    assert ("NCCL_PROTO" in variables) == (kind == "TCPX"), "else the plugin's script sets it"
    added = ["IPC_LOCK"] if kind == "TCPX" else None
    assert own["securityContext"]["capabilities"].get("add") == added
    assert own["securityContext"]["runAsUser"] == 0


def test_the_plugins_script_sets_the_variables_before_the_program(tmp_path: Path) -> None:
    """As the kubelet starts it; the script is a stand-in for Google's."""
    words = [word.replace("$$", "$") for word in container(made("TCPXO"))["command"]]
    assert words[3:] == ["/usr/local/nvidia/lib64/nccl-env-profile.sh", "python", "train.py"]
    profile = tmp_path / "profile.sh"
    started = [*words[:3], str(profile), "sh", "-c", 'echo "$NCCL_PROTO $1"', "sh", "a b"]
    done = subprocess.run(started, capture_output=True, text=True, check=False)
    assert done.returncode == 3 and "the nodes have no plugin" in done.stderr
    profile.write_text("export NCCL_PROTO=Simple,LL128\nfalse\n")
    done = subprocess.run(started, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "Simple,LL128 a b\n")


def test_an_image_of_ours_has_one_tmp_and_runs_as_root() -> None:
    """As Google's manifests do: the daemon's socket lies in /tmp and belongs to root."""
    whole = described("TCPX").replace("h.example/torch", "h100").replace("command", "arguments")
    own = rendered(whole)
    paths = [each["mountPath"] for each in container(own)["volumeMounts"]]
    assert sorted(paths) == ["/dev/shm", "/tmp", "/usr/local/nvidia/lib64"]
    assert "runAsNonRoot" not in pod(own)["securityContext"]
    assert container(own)["securityContext"]["readOnlyRootFilesystem"] is True


def test_networks_and_the_daemons_version_of_ones_own_cluster() -> None:
    names = [f"gpu-nic-{number}" for number in range(4)]
    manifest = made("TCPX", f"gpudirect: {{networks: [{', '.join(names)}], daemon: v2.0.12}}")
    assert [network for _, network in networks(manifest)] == ["default", *names]
    assert pod(manifest)["initContainers"][0]["image"].endswith(":v2.0.12")


def test_nothing_of_it_without_the_line_or_on_other_machines() -> None:
    for line in ("gpudirect: false", "priority: high"):
        assert "hostPath" not in json.dumps(made("TCPXO", line))
    text = described("TCPX").replace(
        "{workers: 1}", "{evaluator: {machine: n1-standard-8, accelerators: none}}"
    )
    manifest = rendered(text, image=IMAGE)
    assert "initContainers" in pod(manifest) and "initContainers" not in pod(manifest, "evaluator")


def test_a_note_says_what_the_nodes_need_and_that_it_was_never_run() -> None:
    notes = ready(described("TCPXO"), image=IMAGE).notes
    assert any("plugin v1.0.15 for NCCL 2.28.7" in note and "never run" in note for note in notes)
    unknown = ready(described("RDMA").replace("command: [python, train.py]\n", ""), image=IMAGE)
    assert any("what the image starts is not known" in note for note in unknown.notes)


@pytest.mark.parametrize(
    ("text", "on", "problem", "fix"),
    [
        (OTHER, GKE, "a2-highgpu-1g has no GPUDirect", "a3-megagpu-8g"),
        (described("TCPX"), ANY, "needs nodes of GKE", "--nodes gke"),
        (described("TCPX", "gpudirect: {networks: [a]}"), GKE, "has 4 networks, and 1", "kubectl"),
    ],
)
def test_where_there_is_none(text: str, on: Cluster, problem: str, fix: str) -> None:
    with pytest.raises(InputError) as error:
        ready(text, on, IMAGE)
    assert problem in error.value.message and fix in error.value.fix
