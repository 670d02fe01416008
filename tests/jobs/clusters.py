"""Jobs for a cluster as tests write them, and what the kubelet makes of their JobSets."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from builder.jobs.backends.kubernetes import jobset
from builder.jobs.backends.kubernetes.backend import Kubernetes
from builder.jobs.backends.kubernetes.settings import KubernetesSettings as Cluster
from builder.jobs.ready import JobImage, Ready
from tests.jobs import jobfiles, jobset_rules

GKE, ANY = Cluster(), Cluster(nodes="any")
JOB = "image: v100\nmachine: n1-standard-8\naccelerators: 2 x V100\njob_dir: gs://b-b/jobs/{job}\n"


def ready(text: str, cluster: Cluster = GKE, image: JobImage | None = None) -> Ready:
    """Return the job of this text, through every check."""
    job = jobfiles.job(text)
    return Kubernetes(cluster).check(job, image or jobfiles.image(job.image), jobfiles.TARGETS)


def rendered(text: str, on: Cluster = GKE, image: JobImage | None = None) -> dict[str, Any]:
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
