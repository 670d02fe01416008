"""A cluster of Kubernetes as a backend (builder/jobs/backends/protocol.py).

A job is a JobSet whose name holds the job's key, so the API server itself refuses a second one. A
failed job is submitted again under the name of the next attempt, and the old object stays. What a
JobSet cannot say is refused before; the API server and JobSet's webhook check the rest.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Final

from builder.core import settings
from builder.core.backends import Flags
from builder.core.errors import InputError, OutsideError
from builder.jobs import trials
from builder.jobs.backends.kubernetes import (
    client,
    gpudirect,
    jobset,
    logs,
    pod,
    section,
    status,
    volumes,
)
from builder.jobs.backends.kubernetes.client import JOBSETS, ClusterClient, ClusterRefused, Object
from builder.jobs.backends.kubernetes.settings import KubernetesSettings
from builder.jobs.backends.kubernetes.waits import WORKLOAD_OF, Around, looked_at, why_forbidden
from builder.jobs.backends.protocol import (
    AlreadySubmitted,
    GoneError,
    JobStatus,
    LogReader,
    UnansweredError,
    refreshed,
)
from builder.jobs.checks import check_no_plain_secrets, common
from builder.jobs.description.job import Job
from builder.jobs.machines import Placement
from builder.jobs.ready import KEY_LABEL, NAME_LABEL, STUDY_LABEL, JobImage, Ready

_ByJobSet = defaultdict[str, list[Object]]
KUEUE: Final = "kueue.x-k8s.io"
NAMES: Final = 50
"""JobSets that one request names: an address has some 8,000 characters."""
FOLDERS: Final = ("gs://", "s3://", "/")
"""How a job_dir may begin."""
METRICS: Final = "metrics.k8s.io/v1beta1"
STUDIES: Final = "studies/"
"""In the place of a JobSet's name: the hash of a study follows."""
NODES: Final = 8
"""So many nodes are looked at that may have lost a pod."""
_NO_RIGHT: Final = 'cannot create resource "pods"'
"""RBAC's words. Source: kubernetes, apiserver, responsewriters/errors.go."""
_QUOTA: Final = "exceeded quota"
"""The words of a ResourceQuota. Source: kubernetes, plugin/resourcequota/controller.go."""
_POD_FIX: Final = "mend what it names, or take another namespace: --namespace"
_POD_FIXES: Final = (
    ("must specify", "write kubernetes: {{requests: {{cpu: ..., memory: ...}}}} in the job's file"),
    ("PriorityClass", "kubectl get priorityclasses shows those that there are"),
    ("service account", "kubectl create sa NAME -n {namespace}, or name another account"),
    (_QUOTA, "end other jobs, or ask for a larger quota of the namespace"),
)
"""What mends a refusal of an admission plugin, by its words (kubernetes, plugin/pkg/admission)."""


def connect(root: Path, _job: Job | None, flags: Flags, _name: str | None) -> Kubernetes:
    """Return the cluster that the flags and the table [kubernetes] name. Raises InputError."""
    chosen = settings.load(root, tables={"kubernetes": flags})
    return Kubernetes(chosen.table("kubernetes", KubernetesSettings), root)


@dataclass(frozen=True)
class Kubernetes:
    title = "Kubernetes"
    name = "kubernetes"

    cluster: KubernetesSettings
    root: Path = Path()
    """The project's folder, which has what this machine knows of studies."""

    @cached_property
    def client(self) -> ClusterClient:
        """Return the API server; a job is rendered without one. Raises InputError."""
        return client.load(self.cluster.context)

    @property
    def location(self) -> str:
        return f"the namespace {self.namespace} of {self.client.context}"

    @property
    def namespace(self) -> str:
        return self.cluster.namespace or self.client.namespace

    # --- submitting -------------------------------------------------------------------------------

    def check(self, job: Job, image: JobImage, targets: Mapping[str, str]) -> Ready:
        problems, placements, notes = common(job, image, targets, FOLDERS)
        with problems.at(("machine",)):
            _check_tpus(placements, self.cluster)
        with problems.at(("kubernetes",)):
            if section.of(job).topology and not self.cluster.queue:
                raise InputError("topology is Kueue's, and no queue is named", "give --queue")
        with problems.at(("kubernetes", "volumes")):
            volumes.check_paths(job)
        with problems.at(("kubernetes", "gpudirect")):
            gpudirect.check(job, self.cluster.nodes)
        with problems.at(("job_dir",)):
            volumes.check_job_dir(job)
        with problems.at(("environment",)):
            _check_environment(job)
        problems.stop()
        notes += _notes(job, image, placements, self.cluster)
        return Ready(job, image, "", placements, None, tuple(notes))

    def preflight(self, ready: Ready, run: int = 1, attempt: int = 1) -> dict[str, Any]:
        """Let the API server check the JobSet and a pod of each role; nothing is created."""
        body = jobset.jobset(ready, self._resolved, run, attempt)
        try:
            self.client.create(self._path(), body, dryRun="All")
        except ClusterRefused as error:
            if error.reason != "AlreadyExists":
                raise
        for one in jobset.pods(body):
            self._try_pod(one)
        return body

    def _try_pod(self, one: Object) -> None:
        """Let the API server check a pod, if this user may create any. Raises OutsideError."""
        path = self.client.path("v1", "pods", namespace=self.namespace)
        try:
            self.client.create(path, one, dryRun="All")
        except ClusterRefused as error:
            if error.code not in (403, 422) or _NO_RIGHT in error.message:
                return
            why = why_forbidden(error.message)
            if _QUOTA in why and self.cluster.queue:
                return  # the queue waits
            fix = next((fix for words, fix in _POD_FIXES if words in why), _POD_FIX)
            role = one["metadata"]["name"].rsplit("-", 4)[1]
            what = f"the cluster refuses the pods of {role}: {why}"
            raise OutsideError(what, fix.format(namespace=self.namespace)) from error

    def key(self, ready: Ready) -> str:
        return jobset.key(ready, self._resolved)

    def render(self, ready: Ready) -> dict[str, Any]:
        return jobset.jobset(ready, self.cluster)

    def submit(self, ready: Ready, run: int = 1, attempt: int = 1) -> JobStatus:
        """Create the JobSet of an attempt of a run. Two commands at once mean the same object, and
        the cluster refuses the second. Raises AlreadySubmitted, LostAnswer, OutsideError."""
        body = jobset.jobset(ready, self._resolved, run, attempt)
        try:
            return status.read(self.client.create(self._path(), body), (), ())
        except ClusterRefused as error:
            if error.code == 403 and _QUOTA in error.message:
                fix = "ask for a larger quota of the namespace"
                raise OutsideError(error.message, fix) from error
            if error.reason != "AlreadyExists":
                raise
        raise AlreadySubmitted(self.get(f"{self.namespace}/{body['metadata']['name']}"))

    # --- asking -----------------------------------------------------------------------------------

    def with_key(self, key: str) -> tuple[JobStatus, ...]:
        return self._read(self._found(f"{KEY_LABEL}={key}"))

    def list(self, name: str | None = None, limit: int = 20) -> tuple[JobStatus, ...]:
        """A study is one job, whose trials are rows."""
        return self._listed(NAME_LABEL + (f"={name}" if name else ""), limit)

    def _listed(self, selector: str, limit: int) -> tuple[JobStatus, ...]:
        groups: dict[str, list[Object]] = {}
        for item in self._found(selector):
            study = item["metadata"]["labels"].get(STUDY_LABEL)
            groups.setdefault(study or item["metadata"]["name"], []).append(item)
        some = list(groups.values())[:limit]
        read = iter(self._read([item for group in some for item in group]))
        return tuple(self._one([next(read) for _ in group]) for group in some)

    def find(self, name: str) -> JobStatus:
        """Whole names are NAMESPACE/NAME."""
        if "/" in name:
            return self.get(name)
        if newest := self.list(name, limit=1) or self._listed(f"{STUDY_LABEL}={name}", limit=1):
            return newest[0] if newest[0].trials else self.get(newest[0].name)
        try:
            return self.get(f"{self.namespace}/{name}")
        except ClusterRefused as error:
            if error.code != 404 or "JobSet:" in error.message:
                raise
            raise OutsideError(
                f"no job is called {name} in {self.location}",
                "builder job list --on kubernetes shows all; --namespace asks another one",
            ) from None

    def get(self, name: str) -> JobStatus:
        if trials := self._trials(name):
            return self._one(trials)
        item = self.client.get(self._path(name))
        jobs, pods = self._children([item])
        mine = (item, jobs[item["metadata"]["name"]], pods[item["metadata"]["name"]])
        return status.read(*mine, self._around(*mine))

    def cancel(self, job: JobStatus) -> JobStatus:
        """Delete the JobSet, which ends its pods with SIGTERM."""
        now = refreshed(self, job)
        if now.active:
            active = (trial.name for trial in self._trials(job.name) if trial.active)
            for name in active if now.trials else (job.name,):
                self.client.delete(self._path(name), propagationPolicy="Foreground")
            now = refreshed(self, replace(now, state="cancelling"))
            if now.trials and now.state != "cancelling":
                now = replace(now, state="cancelled")
        return now

    def logs(self, job: JobStatus) -> LogReader:
        namespace, _, short = job.name.partition("/")
        study = f"{STUDY_LABEL}={short.removeprefix(STUDIES)}"
        selector = study if job.trials else f"{status.JOBSET}={short}"
        return logs.ClusterLog(self.client, namespace, selector)

    # --- requests ---------------------------------------------------------------------------------

    @property
    def _resolved(self) -> KubernetesSettings:
        return self.cluster.model_copy(update={"namespace": self.namespace})

    def _path(self, name: str = "") -> str:
        """Return the path of a JobSet by NAMESPACE/NAME, or of all of this namespace."""
        namespace, _, short = name.partition("/")
        return self.client.path(JOBSETS, "jobsets", short, namespace or self.namespace)

    def _found(self, selector: str, namespace: str = "") -> Sequence[Object]:
        """Return the JobSets with these labels, the newest first."""
        jobsets = self.client.items(self._path(f"{namespace}/"), labelSelector=selector)
        jobsets.sort(key=lambda item: item["metadata"]["name"])
        jobsets.sort(key=lambda item: item["metadata"]["creationTimestamp"], reverse=True)
        return jobsets

    def _read(self, jobsets: Sequence[Object]) -> tuple[JobStatus, ...]:
        jobs, pods = self._children(jobsets)
        named = ((item, item["metadata"]["name"]) for item in jobsets)
        return tuple(status.read(item, jobs[name], pods[name]) for item, name in named)

    def _trials(self, name: str) -> tuple[JobStatus, ...]:
        """Return the jobs of a study's trials, the newest first; () for the name of another job.
        Raises GoneError where none is left."""
        namespace, _, short = name.partition("/")
        if not short.startswith(STUDIES):
            return ()
        found = self._found(f"{STUDY_LABEL}={short.removeprefix(STUDIES)}", namespace)
        if not found:
            raise GoneError(f"{name}: no trial of it is there", "builder job list shows all")
        return self._read(found)

    def _one(self, jobs: Sequence[JobStatus]) -> JobStatus:
        """Return a job, or the study whose trials these are."""
        labels = jobs[0].labels
        if STUDY_LABEL not in labels:
            return jobs[0]
        folder = trials.folder_of(self.root, labels[NAME_LABEL], self.name)
        study = trials.gathered(jobs, trials.kept(folder))
        return replace(study, display_name=labels[NAME_LABEL])

    def _children(self, jobsets: Sequence[Object]) -> tuple[_ByJobSet, _ByJobSet]:
        namespace = next((item["metadata"]["namespace"] for item in jobsets), "")
        names = [item["metadata"]["name"] for item in jobsets]
        found: list[_ByJobSet] = []
        for version, resource in (("batch/v1", "jobs"), ("v1", "pods")):
            path = self.client.path(version, resource, namespace=namespace)
            grouped: _ByJobSet = defaultdict(list)
            for first in range(0, len(names), NAMES):
                some = ",".join(names[first : first + NAMES])
                for child in self.client.items(path, labelSelector=f"{status.JOBSET} in ({some})"):
                    grouped[child["metadata"]["labels"][status.JOBSET]].append(child)
            found.append(grouped)
        return found[0], found[1]

    def _around(self, item: Object, jobs: Sequence[Object], pods: Sequence[Object]) -> Around:
        now, namespace = status.read(item, jobs, pods), item["metadata"]["namespace"]
        known = [status.PodStatus.read(pod) for pod in pods]
        waits = next((pod.name for pod in known if pod.waits or (pod.stuck and not pod.node)), "")
        about = ["involvedObject.kind=Job"]
        if now.state == "expired":
            about.append("involvedObject.kind=Pod")
        elif now.active and (waits or not jobs):
            about.append(f"involvedObject.name={waits or item['metadata']['name']}")
        path = self.client.path("v1", "events", namespace=namespace)
        events = [event for fields in about for event in self._seen(path, fieldSelector=fields)]
        doubtful = {pod.node for pod in known if pod.node and pod.doubtful}
        nodes = {
            name: node
            for name in sorted(doubtful)[: NODES if now.active else 0]
            for node in self._seen(f"/api/v1/nodes/{name}")
        }
        workloads = self._workloads(item) if now.state == "queued" else ()
        runs = any(pod.started and pod.end is None for pod in known)
        return Around(events, nodes, workloads, self._metrics(item) if runs and now.active else ())

    def _metrics(self, item: Object) -> Sequence[Object]:
        namespace, name = item["metadata"]["namespace"], item["metadata"]["name"]
        path = self.client.path(METRICS, "pods", namespace=namespace)
        try:
            return self._seen(path, labelSelector=f"{status.JOBSET}={name}")
        except UnansweredError:
            return ()  # of an addition to the API server, which is down by itself

    def _workloads(self, item: Object) -> Sequence[Object]:
        """Return Kueue's Workload of a JobSet; where it has not looked at that, all others after
        it."""
        namespace, label = item["metadata"]["namespace"], f"{WORKLOAD_OF}={item['metadata']['uid']}"
        for group in self._seen(f"/apis/{KUEUE}"):
            version = group["preferredVersion"]["groupVersion"]
            path = self.client.path(version, "workloads", namespace=namespace)
            own = self._seen(path, labelSelector=label)
            if all(map(looked_at, own)):
                return own
            return [*own, *self._seen(path, labelSelector=WORKLOAD_OF)]
        return ()

    def _seen(self, path: str, **query: str) -> Sequence[Object]:
        """Return a list of objects, or one; [] where there is none, or it may not be looked at."""
        try:
            return self.client.items(path, **query) if query else [self.client.get(path)]
        except ClusterRefused as error:
            if error.code not in (403, 404):
                raise
            return []


# --- checks ---------------------------------------------------------------------------------------


def _check_tpus(placements: tuple[Placement, ...], cluster: KubernetesSettings) -> None:
    for placement in (each for each in placements if each.on_tpu):
        name = placement.device.name if placement.device else ""
        if name not in pod.TPUS:
            raise InputError(
                f"{name} is not rendered for GKE",
                f"write a machine of {', '.join(pod.TPUS)}: ct5lp-hightpu-4t, topology: 2x2",
            )
        if cluster.nodes != "gke":
            raise InputError("a TPU needs nodes of GKE, and nodes is any", "give --nodes gke")


def _check_environment(job: Job) -> None:
    if pod.INDEX in job.environment:
        raise InputError(f"{pod.INDEX} cannot be set: Kubernetes sets it", "remove it")
    for name, secret in job.secrets.items():
        if secret.key is None:
            what = f"{name}: a Secret of Kubernetes has a name and a key"
            raise InputError(what, f"write {name}: {{secret: NAME, key: KEY}}")
    check_no_plain_secrets(
        job,
        "write {name}: {{secret: NAME, key: KEY}}, and make it: kubectl create secret generic NAME "
        "--from-literal=KEY=...",
    )


def _notes(
    job: Job, image: JobImage, placements: tuple[Placement, ...], cluster: KubernetesSettings
) -> list[str]:
    """Return what the description says and a JobSet does not, and what the cluster has to bring."""
    plan, any_node = job.scheduling, cluster.nodes != "gke"
    unused = {
        **{name: getattr(job, name) for name in ("network", "tensorboard")},
        **dict.fromkeys(job.elsewhere("kubernetes"), True),
        "disk.type": job.disk.type,
        "scheduling.max_wait": plan.max_wait and cluster.queue,
        "service_account": job.service_account and not cluster.service_account,
        f"strategy: {plan.strategy}": any_node and plan.strategy != "standard",
        "kubernetes.reservation": any_node and section.of(job).reservation,
        "/gcs": any_node and volumes.buckets(job),
    }
    notes = [
        f"{name}: not rendered, this cluster has no such thing" for name in unused if unused[name]
    ]
    if not cluster.queue and {"timeout", "max_wait"} & plan.model_fields_set == {"timeout"}:
        notes.append("timeout: it counts the wait for nodes, too; with --queue, from the start on")
    if job.study is not None:
        notes.append(
            f"study: each of its {job.study.trials} trials is a JobSet like this, with its number "
            "and its own --NAME=VALUE; this command asks for them, to the end"
        )
    if direct := gpudirect.note(job):
        notes.append(direct)
    if (job.job_dir or "").startswith("s3://"):
        notes.append("job_dir: the program itself writes to s3://; the packaged trainer does not")
    if image.accelerator is None:
        notes.append("not an image of ours: it may run as root, and may write anywhere")
    unknown = not (job.command or image.entrypoint)
    if unknown and section.of(job).gpudirect:
        notes.append(
            "gpudirect: what the image starts is not known, so NCCL's variables are not "
            "set by the plugin's script: write command"
        )
    if unknown and any(placement.on_tpu for placement in placements):
        notes.append(
            "a TPU's driver locks memory, and what the image starts is not known: write command, "
            "or let the program raise the limit itself (resource.RLIMIT_MEMLOCK)"
        )
    return notes
