"""A checked job as one JobSet (jobset.x-k8s.io/v1alpha2): plain values for `kubectl apply`.

These functions are pure. Each role is a replicated Job whose pods have an index (pod.py). The
object's name holds the job's key, so that the same description means the same object.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from builder import contract
from builder.jobs.backends.kubernetes import pod, section
from builder.jobs.backends.kubernetes.pod import CONTAINER, JobIdentity, Role
from builder.jobs.backends.kubernetes.settings import KubernetesSettings
from builder.jobs.machines import Pool
from builder.jobs.ready import (
    KEY_LABEL,
    KEY_LENGTH,
    NAME_LABEL,
    RUN_LABEL,
    TRIAL_LABEL,
    Ready,
    given,
    key_of,
)

API: Final = "jobset.x-k8s.io/v1alpha2"
ATTEMPT_LABEL: Final = "builder-attempt"
"""The label with the number of the submission: one that failed is submitted again by the next."""
OUTPUT: Final = "builder-output"
"""The annotation that says where a job writes."""
QUEUE_LABEL: Final = "kueue.x-k8s.io/queue-name"
MAX_RUN: Final = "provreq.kueue.x-k8s.io/maxRunDurationSeconds"
"""How long the nodes of a ProvisioningRequest are needed. Source: Google Cloud, GKE, Run a
large-scale workload with flex-start with queued provisioning."""
EXCLUSIVE: Final = "alpha.jobset.sigs.k8s.io/exclusive-topology"
"""One Job in each domain of this label: a slice of a TPU is a node pool. Source: JobSet, concepts,
exclusive job to topology placement."""

NAME_LENGTH: Final = 63 - len("-r99-a99") - len("-evaluator-0-999-abcde")
"""A pod's name has 63 characters: the JobSet's, the role, two indexes and five random letters.
The numbers of a run and of an attempt stay below 100.
JobSet checks that in its webhook only (jobset_webhook.go)."""
RESTARTS: Final = 5
"""Restarts of a replica: as many as `builder job local` makes."""

_FAULTS: Final = [contract.FAULT, contract.USAGE, contract.OUTSIDE, contract.NOT_FINITE]


def key(ready: Ready, cluster: KubernetesSettings) -> str:
    """Return a hash of all that the JobSet asks for: image, machines, arguments, namespace."""
    neutral = JobIdentity(ready.job.id, ready.job.output(ready.job.id), {})
    return key_of(_jobset(ready, cluster, neutral))


def folder(ready: Ready, cluster: KubernetesSettings, run: int = 1) -> str:
    """Return what replaces {job} in job_dir: the job's name, cut, a trial's number, its key, and a
    later run."""
    trial = f"-t{ready.job.labels[TRIAL_LABEL]}" if TRIAL_LABEL in ready.job.labels else ""
    short = ready.job.id[: NAME_LENGTH - KEY_LENGTH - 1 - len(trial)].rstrip("-")
    return f"{short}{trial}-{key(ready, cluster)}" + (f"-r{run}" if run > 1 else "")


def jobset(
    ready: Ready, cluster: KubernetesSettings, run: int = 1, attempt: int = 1
) -> dict[str, Any]:
    """Return the JobSet of an attempt; all attempts of a run write to one folder."""
    labels = {
        KEY_LABEL: key(ready, cluster),
        NAME_LABEL: ready.job.id,
        RUN_LABEL: str(run),
        ATTEMPT_LABEL: str(attempt),
    }
    own = folder(ready, cluster, run)
    name = own + (f"-a{attempt}" if attempt > 1 else "")
    return _jobset(ready, cluster, JobIdentity(name, ready.job.output(own), labels))


def _jobset(ready: Ready, cluster: KubernetesSettings, identity: JobIdentity) -> dict[str, Any]:
    queue = given(**{QUEUE_LABEL: cluster.queue})
    metadata = given(
        name=identity.name,
        namespace=cluster.namespace,
        annotations=_annotations(ready, cluster, identity),
        labels={**ready.job.labels, **identity.labels, **queue},
    )
    network = {
        "enableDNSHostnames": True,
        "subdomain": identity.name,
        "publishNotReadyAddresses": True,
    }
    roles = [
        {
            "name": pool.role,
            "replicas": 1,
            "template": {"spec": _job(Role(ready, cluster, identity, pool, placement))},
        }
        for pool, placement in ready.pools
    ]
    spec = given(
        network=network,
        successPolicy={"operator": "All", "targetReplicatedJobs": ["chief"]},
        failurePolicy=_failure_policy(ready),
        ttlSecondsAfterFinished=section.of(ready.job).ttl,
        replicatedJobs=roles,
    )
    return {"apiVersion": API, "kind": "JobSet", "metadata": metadata, "spec": spec}


def pods(body: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield a pod of each role of a JobSet, as its Job makes them: for a dry run."""
    meta = body["metadata"]
    for role in body["spec"]["replicatedJobs"]:
        made = role["template"]["spec"]["template"]
        own = {"name": f"{meta['name']}-{role['name']}-0-0-trial", "namespace": meta["namespace"]}
        yield {"apiVersion": "v1", "kind": "Pod", **made, "metadata": {**made["metadata"], **own}}


def _annotations(
    ready: Ready, cluster: KubernetesSettings, identity: JobIdentity
) -> dict[str, str]:
    annotations = {OUTPUT: identity.job_dir} if identity.job_dir else {}
    if ready.job.scheduling.strategy == "flex-start" and cluster.queue:
        annotations[MAX_RUN] = str(ready.job.scheduling.timeout)
    if any(placement.hosts > 1 for placement in ready.placements):
        annotations[EXCLUSIVE] = "cloud.google.com/gke-nodepool"
    return annotations


def _job(role: Role) -> dict[str, Any]:
    count, plan = role.pool.count * role.placement.hosts, role.ready.job.scheduling
    # seconds from its creation, so that it waits in them for machines; or from its queue's word on
    deadline = plan.timeout + (0 if role.cluster.queue else plan.max_wait or 0)
    return {
        "completionMode": "Indexed",
        "completions": count,
        "parallelism": count,
        "activeDeadlineSeconds": deadline,
        **_failures(role.ready, role.pool),
        "template": pod.template(role),
    }


def _failures(ready: Ready, pool: Pool) -> dict[str, Any]:
    """Return how often a Job's pods start again, and after which ends.

    The first rule that matches counts. Other ends, 143 for example, count towards the limit. A
    replica that loses its peers ends as it likes, often with 1: among several, 1 is no fault.
    """
    if ready.job.scheduling.restarts == "never":
        return {"backoffLimit": 0}
    several = _several(ready)
    condition = {"type": "DisruptionTarget", "status": "True"}
    disrupted = {"action": "FailJob" if several else "Ignore", "onPodConditions": [condition]}
    faults = [code for code in _FAULTS if not (several and code == contract.FAULT)]
    fault = {
        "action": "FailJob",
        "onExitCodes": {"containerName": CONTAINER, "operator": "In", "values": faults},
    }
    return {
        "backoffLimit": RESTARTS * pool.count,
        "podFailurePolicy": {"rules": [disrupted, fault]},
    }


def _failure_policy(ready: Ready) -> dict[str, Any] | None:
    """Return what a Job that failed does to the others; None: the JobSet fails.

    A disruption of one replica is the end of all, who lose a peer. So all start again, as new Jobs
    whose limits and delays are new, too: the ends of the others count for nothing.
    Source: JobSet, keps/262-ConfigurableFailurePolicy, onJobFailureMessagePatterns.
    """
    if ready.job.scheduling.restarts == "never" or not _several(ready):
        return None
    disrupted = {
        "name": "disrupted",
        "action": "RestartJobSetAndIgnoreMaxRestarts",
        "onJobFailureReasons": ["PodFailurePolicy"],
        "onJobFailureMessagePatterns": ["has condition DisruptionTarget"],
    }
    rules = [disrupted, {"name": "failed", "action": "FailJobSet"}]
    return {"restartStrategy": "BlockingRecreate", "rules": rules}


def _several(ready: Ready) -> bool:
    return sum(pool.count * placement.hosts for pool, placement in ready.pools) > 1
