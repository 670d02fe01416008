"""A namespace of a cluster as a test uses it: the command line, objects, the machines' servers."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest
from kubernetes import client, config
from urllib3.exceptions import HTTPError

from builder.jobs.backends.kubernetes.backend import Kubernetes
from builder.jobs.backends.kubernetes.settings import KubernetesSettings
from builder.jobs.backends.protocol import JobStatus
from tests.commands import COMMAND, environment

SECONDS = 90.0


@dataclass(frozen=True)
class Gate:
    """Holds programs of jobs until the test opens it: the cluster's DNS then knows its name.

    So no test depends on how long a machine takes for what comes before.
    """

    access: Access
    name: str

    @property
    def host(self) -> str:
        return f"{self.name}.{self.access.namespace}.svc.cluster.local"

    @property
    def shell(self) -> str:
        """A line of shell that waits."""
        return f"until nslookup {self.host} >/dev/null 2>&1; do sleep 0.3; done"

    def open(self) -> None:
        core, slices = self.access.core, client.DiscoveryV1Api(self.access.api)
        named = {"name": self.name, "labels": {"kubernetes.io/service-name": self.name}}
        service = {"clusterIP": "None", "ports": [{"port": 80}]}
        core.create_namespaced_service(self.access.namespace, {"metadata": named, "spec": service})
        nobody = {"addressType": "IPv4", "endpoints": [{"addresses": ["192.0.2.1"]}]}
        body = {"metadata": named, **nobody, "ports": [{"port": 80}]}
        slices.create_namespaced_endpoint_slice(self.access.namespace, body)


@dataclass(frozen=True)
class Access:
    """kubeconfig: its path. registry: HOST/PATH. own: whether the cluster is the tests' own."""

    kubeconfig: str
    registry: str
    own: bool = False
    namespace: str = "default"

    @property
    def image(self) -> str:
        """The image with a shell."""
        return f"{self.registry}/builder-tests:shell"

    # --- objects ----------------------------------------------------------------------------------

    @cached_property
    def api(self) -> client.ApiClient:
        return config.new_client_from_config(self.kubeconfig)

    @property
    def core(self) -> client.CoreV1Api:
        return client.CoreV1Api(self.api)

    @contextmanager
    def within(self) -> Iterator[Access]:
        """A new namespace, removed with all that is in it."""
        namespace = f"builder-tests-{uuid.uuid4().hex[:6]}"
        self.core.create_namespace({"metadata": {"name": namespace}})
        try:
            yield replace(self, namespace=namespace)
        finally:
            self.core.delete_namespace(namespace)

    @contextmanager
    def volume(self, folder: Path) -> Iterator[str]:
        """A claim on a folder of the machine, which each of the tests' own nodes has: its name."""
        claim, size = f"claim-{uuid.uuid4().hex[:6]}", {"storage": "1Gi"}
        both = {"accessModes": ["ReadWriteMany"], "storageClassName": ""}
        where = {"hostPath": {"path": str(folder)}, "capacity": size}
        self.core.create_persistent_volume({"metadata": {"name": claim}, "spec": {**both, **where}})
        wanted = {**both, "volumeName": claim, "resources": {"requests": size}}
        body = {"metadata": {"name": claim}, "spec": wanted}
        self.core.create_namespaced_persistent_volume_claim(self.namespace, body)
        try:
            yield claim
        finally:
            self.core.delete_namespaced_persistent_volume_claim(claim, self.namespace)
            self.core.delete_persistent_volume(claim)

    def pods(self, job: str, role: str = "") -> list[Any]:
        """Return a job's pods, by name."""
        labels = f"builder-job={job}" + (
            f",jobset.sigs.k8s.io/replicatedjob-name={role}" if role else ""
        )
        found = self.core.list_namespaced_pod(self.namespace, label_selector=labels).items
        return sorted(found, key=lambda pod: str(pod.metadata.name))

    def jobsets(self, job: str) -> list[dict[str, Any]]:
        """Return a job's JobSets."""
        api = client.CustomObjectsApi(self.api)
        where = ("jobset.x-k8s.io", "v1alpha2", self.namespace, "jobsets")
        found = api.list_namespaced_custom_object(*where, label_selector=f"builder-job={job}")
        return list(found["items"])

    def patch(self, jobset: str, spec: dict[str, Any]) -> None:
        """Change a JobSet's spec, as Kueue does."""
        api = client.CustomObjectsApi(self.api)
        where = ("jobset.x-k8s.io", "v1alpha2", self.namespace, "jobsets")
        api.patch_namespaced_custom_object(*where, jobset, {"spec": spec})

    # --- the command line -------------------------------------------------------------------------

    def describe(self, folder: Path, name: str, shell: str, more: str, image: str) -> str:
        """Write a job whose replicas run a line of shell. Returns its name."""
        lines = {"image": image, "machine": "n1-standard-8", "command": ["sh", "-c", shell]}
        text = "".join(f"{key}: {json.dumps(value)}\n" for key, value in lines.items())
        (folder / f"{name}.yaml").write_text(text + more)
        return name

    def start(self, verb: str, *words: str) -> subprocess.Popen[str]:
        """Start `builder job VERB ... --on kubernetes` in the working folder."""
        where = ["--on", "kubernetes", "--namespace", self.namespace]
        nodes = ["--nodes", "any"] if verb in ("submit", "render") else []
        return subprocess.Popen(
            [*COMMAND, "job", verb, *words, *where, *nodes],
            env=environment(KUBECONFIG=self.kubeconfig),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, verb: str, *words: str) -> tuple[int, str]:
        """Run it to its end: its exit code, and what it shows."""
        return ended(self.start(verb, *words))

    @cached_property
    def backend(self) -> Kubernetes:
        """What the commands ask, in this process."""
        named = KubernetesSettings(namespace=self.namespace, nodes="any")
        backend = Kubernetes(named)
        with pytest.MonkeyPatch.context() as patched:
            patched.setenv("KUBECONFIG", self.kubeconfig)
            assert backend.client
        return backend

    def until(self, job: str, fits: Callable[[JobStatus], object]) -> JobStatus:
        """Ask for a job's status until it is there and fits, and return it."""
        deadline, now = time.monotonic() + SECONDS, None
        while True:
            if found := self.backend.list(job, limit=1):
                now = self.backend.get(found[0].name)
                if fits(now):
                    return now
            assert time.monotonic() < deadline, now
            time.sleep(0.3)

    def follow(self, job: str) -> subprocess.Popen[str]:
        """Submit a job, follow it, and wait until it runs."""
        following = self.start("submit", job, "--logs", "--poll", "0.5")
        self.until(job, lambda now: now.state == "running")
        return following

    def printed(self, pod: Any, text: str) -> None:
        """Wait until a pod has printed a text."""
        deadline, log = time.monotonic() + SECONDS, ""
        while text not in log:
            assert time.monotonic() < deadline, log
            time.sleep(0.2)
            with suppress(client.ApiException):  # its container may not run yet
                log = self.core.read_namespaced_pod_log(pod.metadata.name, self.namespace)

    def gone(self, pod: Any) -> None:
        """Wait until a pod is ended from outside."""
        deadline = time.monotonic() + SECONDS
        while True:
            found = self.core.list_namespaced_pod(self.namespace).items
            (now,) = [each for each in found if each.metadata.uid == pod.metadata.uid] or [None]
            if now is None or now.metadata.deletion_timestamp:
                return
            assert time.monotonic() < deadline, now.status.phase
            time.sleep(0.2)

    def lose(self, pod: Any) -> None:
        """Take a pod away; the first process of a container ignores SIGTERM."""
        gone = {"grace_period_seconds": 1}
        self.core.delete_namespaced_pod(pod.metadata.name, self.namespace, **gone)

    # --- servers ----------------------------------------------------------------------------------

    @contextmanager
    def away(self, server: str) -> Iterator[None]:
        """Kill a server of the tests' own cluster, or a node. Afterwards it starts again; wait for
        the API server."""
        folder = Path(self.kubeconfig).parent
        mark = folder / f"{server}.away"
        mark.touch()
        os.kill(int((folder / f"{server}.pid").read_text()), signal.SIGKILL)
        try:
            yield
        finally:
            mark.unlink()
        deadline = time.monotonic() + SECONDS
        while True:
            try:
                self.core.read_namespace(self.namespace)
            except (client.ApiException, HTTPError):
                assert time.monotonic() < deadline
                time.sleep(0.5)
            else:
                return


def ended(process: subprocess.Popen[str]) -> tuple[int, str]:
    """Wait for a command's end: its exit code, and what it shows."""
    out, err = process.communicate(timeout=600)
    return process.returncode, out + err


def told(process: subprocess.Popen[str], text: str) -> str:
    """Read what a command says until a line of it has a text; `ended` has what comes then."""
    assert process.stderr
    shown = b""
    while text.encode() not in shown or not shown.endswith(b"\n"):
        one = os.read(process.stderr.fileno(), 1)  # a reader with a buffer would keep what follows
        assert one, f"ended without it: {shown!r}"
        shown += one
    return shown.decode()


def lines(shown: str) -> dict[str, list[str]]:
    """Return what each replica printed, from `builder job submit --logs`."""
    said: dict[str, list[str]] = {}
    for line in shown.splitlines():
        replica, bar, text = line.partition("| ")
        if bar:
            said.setdefault(replica.strip(), []).append(text)
    return said
