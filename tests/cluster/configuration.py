"""What a small cluster is configured with: the command of each server, the files of each node.

Pure values. All servers act as one administrator; the authority of JobSet's webhooks and of the API
server is a certificate for the bridge's address.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from builder.engine.private.instance import EngineInstance
from builder.engine.private.programs import Software
from tests.cluster.programs import Programs

ZONES = ("UTC", "Asia/Tokyo")
"""The time zone of each node: containerd stamps lines with its own."""
DNS_DOMAIN = "cluster.local"
_API, _ETCD, _KUBELET, _WEBHOOKS = 6443, 2379, 10250, 9443
_NODE = """
set -e
mount --bind "$1/kubelet" /var/lib/kubelet
mount --bind "$1/log" /var/log
mount --bind "$1/containerd" /run/containerd
"$2" --config "$1/containerd.toml" &
exec "$3" kubelet --config "$1/kubelet.json" --kubeconfig "$4" \
  --hostname-override "${1##*/}" --node-ip "$5"
"""
"""A node: containerd and a kubelet with mounts and process numbers of their own. Their fixed paths
lead to the node's folder, and when the kubelet ends, the kernel ends and unmounts all of it."""
HIDDEN = ("/var/lib/kubelet", "/run/containerd")
"""Folders of the machine over which a node mounts its own."""


@dataclass(frozen=True)
class Cluster:
    """A cluster on this machine. instance: its folders, bridge and control group. images: the
    address of the registry with the image `pause:1`."""

    instance: EngineInstance
    software: Software
    programs: Programs
    images: str

    @property
    def folder(self) -> Path:
        return self.instance.data / "cluster"

    @property
    def address(self) -> str:
        """The bridge's address: of the API server, of each node, of DNS."""
        assert self.instance.network is not None
        return str(next(self.instance.network.hosts()))

    @property
    def server(self) -> str:
        return f"https://{self.address}:{_API}"

    @property
    def kubeconfig(self) -> Path:
        return self.folder / "kubeconfig"

    @property
    def nodes(self) -> tuple[str, ...]:
        return tuple(f"node-{number}" for number in range(len(ZONES)))

    @property
    def certificate(self) -> Path:
        return self.folder / "tls.crt"

    @property
    def token(self) -> str:
        return self.instance.identity


def commands(cluster: Cluster) -> dict[str, list[str]]:
    """Return the command of each server; the order is that in which they start."""
    folder, kube = cluster.folder, str(cluster.programs.kube)
    config, key = f"--kubeconfig={cluster.kubeconfig}", folder / "tls.key"
    etcd, peers = (f"http://{cluster.address}:{port}" for port in (_ETCD, _ETCD + 1))
    return {
        "etcd": [
            *(kube, "etcd", f"--data-dir={folder}/etcd", "--unsafe-no-fsync", "--logger=zap"),
            *(f"--listen-client-urls={etcd}", f"--advertise-client-urls={etcd}"),
            *(f"--listen-peer-urls={peers}", f"--initial-advertise-peer-urls={peers}"),
            f"--initial-cluster=default={peers}",
        ],
        "kube-apiserver": [
            *(kube, "kube-apiserver", f"--etcd-servers={etcd}", f"--secure-port={_API}"),
            *(f"--bind-address={cluster.address}", f"--advertise-address={cluster.address}"),
            *(f"--tls-cert-file={cluster.certificate}", f"--tls-private-key-file={key}"),
            *(f"--token-auth-file={folder}/tokens.csv", "--authorization-mode=RBAC"),
            f"--service-cluster-ip-range={_services(cluster)}",
            f"--service-account-issuer={cluster.server}",
            f"--service-account-key-file={key}",
            f"--service-account-signing-key-file={key}",
            "--kubelet-preferred-address-types=InternalIP",
            "--default-not-ready-toleration-seconds=10",
            "--default-unreachable-toleration-seconds=10",
        ],
        "kube-controller-manager": [
            *(kube, "kube-controller-manager", config, "--leader-elect=false"),
            *("--secure-port=0", f"--root-ca-file={cluster.certificate}"),
            f"--service-account-private-key-file={key}",
            "--node-monitor-grace-period=12s",
        ],
        "kube-scheduler": [
            *(kube, "kube-scheduler", config, "--leader-elect=false", "--secure-port=0"),
        ],
        "jobset": [
            *(str(cluster.programs.jobset), f"--config={folder}/jobset.json"),
            *(config, "--health-probe-bind-address=0", "--metrics-bind-address=0"),
        ],
        **{name: _node(cluster, name) for name in cluster.nodes},
    }


def _node(cluster: Cluster, name: str) -> list[str]:
    parts = [str(cluster.software.bin / "containerd"), str(cluster.programs.kube)]
    script = ["sh", "-c", _NODE, "node", str(cluster.folder / name), *parts]
    zone = f"TZ={ZONES[cluster.nodes.index(name)]}"
    own = ["env", zone, "unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
    return [*own, *script, str(cluster.kubeconfig), cluster.address]


def files(cluster: Cluster) -> dict[str, str]:
    """Return the text of each file by its path below the cluster's folder."""
    texts: dict[str, Any] = {
        "kubeconfig": kubeconfig(cluster),
        "tokens.csv": f"{cluster.token},admin,admin,system:masters\n",
        "jobset.json": _jobset(cluster),
    }
    for number, name in enumerate(cluster.nodes):
        texts |= {
            f"{name}/containerd.toml": _containerd(cluster, name),
            f"{name}/kubelet.json": _kubelet(cluster, number),
            f"{name}/cni/cluster.conflist": _network(cluster, number),
        }
    return {
        path: text if isinstance(text, str) else json.dumps(text, indent=1)
        for path, text in texts.items()
    }


def kubeconfig(cluster: Cluster) -> dict[str, Any]:
    """Return the administrator's access."""
    where = {"server": cluster.server, "certificate-authority": str(cluster.certificate)}
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "cluster",
        "clusters": [{"name": "cluster", "cluster": where}],
        "users": [{"name": "admin", "user": {"token": cluster.token}}],
        "contexts": [{"name": "cluster", "context": {"cluster": "cluster", "user": "admin"}}],
    }


def _services(cluster: Cluster) -> str:
    """Return addresses for services, which nothing here leads to pods."""
    assert cluster.instance.network is not None
    return str(list(cluster.instance.network.subnets(new_prefix=24))[-1])


def _jobset(cluster: Cluster) -> dict[str, Any]:
    return {
        "apiVersion": "config.jobset.x-k8s.io/v1alpha1",
        "kind": "Configuration",
        "leaderElection": {"leaderElect": False},
        "internalCertManagement": {"enable": False},
        "webhook": {"host": cluster.address, "port": _WEBHOOKS, "certDir": str(cluster.folder)},
    }


def installed(cluster: Cluster, authority: str) -> list[dict[str, Any]]:
    """Return JobSet's objects with webhooks by address, since no proxy leads to services.

    authority: the certificate, in Base64.
    """
    objects = cluster.programs.manifests()
    for webhook in by_address(objects, f"https://{cluster.address}:{_WEBHOOKS}", authority):
        if "pod" in webhook["name"]:  # as in JobSet's release: only its own pods
            wanted = {"key": "jobset.sigs.k8s.io/jobset-name", "operator": "Exists"}
            webhook["objectSelector"] = {"matchExpressions": [wanted]}
    return objects


def by_address(
    objects: Iterable[dict[str, Any]], server: str, authority: str
) -> list[dict[str, Any]]:
    """Let the webhooks among objects be asked at an address and not at a service; return them."""
    webhooks = [each for item in objects for each in item.get("webhooks", ())]
    for webhook in webhooks:
        url = server + webhook["clientConfig"]["service"]["path"]
        webhook["clientConfig"] = {"url": url, "caBundle": authority}
    return webhooks


def path(item: dict[str, Any]) -> str:
    """Return where the API server takes an object."""
    namespace = item["metadata"].get("namespace")
    where = f"/namespaces/{namespace}" if namespace else ""
    plural = f"{item['kind'].lower()}s".replace("ys", "ies")
    return f"/apis/{item['apiVersion']}{where}/{plural}"


# --- a node ---------------------------------------------------------------------------------------


def _containerd(cluster: Cluster, name: str) -> str:
    folder, bin_ = cluster.folder / name, cluster.software.bin
    return f"""
version = 3
root = "{folder}/root"
state = "/run/containerd/state"
disabled_plugins = ["io.containerd.nri.v1.nri"]
[grpc]
address = "/run/containerd/containerd.sock"
[plugins."io.containerd.cri.v1.images".pinned_images]
sandbox = "{cluster.images}/pause:1"
[plugins."io.containerd.cri.v1.runtime"]
restrict_oom_score_adj = true
netns_mounts_under_state_dir = true
[plugins."io.containerd.cri.v1.runtime".cni]
bin_dirs = ["{cluster.programs.plugins}"]
conf_dir = "{folder}/cni"
[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc.options]
BinaryName = "{bin_}/runc"
"""


def _kubelet(cluster: Cluster, number: int) -> dict[str, Any]:
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "authentication": {"anonymous": {"enabled": True}, "webhook": {"enabled": False}},
        "authorization": {"mode": "AlwaysAllow"},
        "address": cluster.address,
        "port": _KUBELET + number,
        "healthzPort": 0,
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": f"{cluster.instance.cgroup}/{cluster.nodes[number]}",
        "failCgroupV1": False,
        "failSwapOn": False,
        "oomScoreAdj": 0,  # a lower one needs CAP_SYS_RESOURCE
        "containerRuntimeEndpoint": "unix:///run/containerd/containerd.sock",
        "clusterDNS": [cluster.address],
        "clusterDomain": DNS_DOMAIN,
        "resolvConf": "",
        "nodeStatusUpdateFrequency": "4s",
        "evictionHard": {"memory.available": "50Mi", "nodefs.available": "1%"},
        "imageGCHighThresholdPercent": 100,
        "serializeImagePulls": False,
        "volumePluginDir": "/var/lib/kubelet/volume-plugins",
    }


def _network(cluster: Cluster, number: int) -> dict[str, Any]:
    """Return CNI's network: the bridge with a part of its 256 addresses for each node."""
    assert cluster.instance.network is not None
    subnet = next(cluster.instance.network.subnets(new_prefix=24))
    first = 10 + 100 * number
    part = {
        "subnet": str(subnet),
        "rangeStart": str(subnet[first]),
        "rangeEnd": str(subnet[first + 99]),
        "gateway": cluster.address,
    }
    ipam = {
        "type": "host-local",
        "dataDir": "/run/containerd/addresses",
        "ranges": [[part]],
        "routes": [{"dst": "0.0.0.0/0"}],
    }
    bridge = {"type": "bridge", "bridge": cluster.instance.bridge, "isGateway": True, "ipam": ipam}
    return {"cniVersion": "1.0.0", "name": "cluster", "plugins": [bridge]}
