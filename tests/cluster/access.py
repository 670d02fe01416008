"""A namespace of a cluster as a test uses it: the command line, objects, the machines' servers."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from kubernetes import client, config

from tests.commands import COMMAND, environment

SECONDS = 120.0


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
    def within(self, namespace: str) -> Iterator[Access]:
        """A new namespace, removed with all that is in it."""
        self.core.create_namespace({"metadata": {"name": namespace}})
        try:
            yield replace(self, namespace=namespace)
        finally:
            self.core.delete_namespace(namespace)

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

    def describe(self, folder: Path, name: str, shell: str, more: str) -> str:
        """Write a job whose replicas run a line of shell. Returns its name."""
        lines = {"image": self.image, "machine": "n1-standard-8", "command": ["sh", "-c", shell]}
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

    def run(self, verb: str, *words: str) -> tuple[int, str, str]:
        """Run it to its end: exit code, stdout, stderr."""
        process = self.start(verb, *words)
        out, err = process.communicate(timeout=600)
        return process.returncode, out, err

    def status(self, job: str) -> dict[str, Any]:
        """Return what `builder job status` says."""
        code, out, err = self.run("status", job, "--json")
        assert code == 0, err
        return dict(json.loads(out))

    def until(self, job: str, fits: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
        """Ask for a job's status until it fits, and return it."""
        deadline, now = time.monotonic() + SECONDS, self.status(job)
        while not fits(now):
            assert time.monotonic() < deadline, now
            time.sleep(0.5)
            now = self.status(job)
        return now

    # --- servers ----------------------------------------------------------------------------------

    @contextmanager
    def without(self, *words: str) -> Iterator[None]:
        """Stop each server of this cluster whose command has these words, for a while."""
        stopped = _servers(words)
        assert stopped, words
        for number in stopped:
            os.kill(number, signal.SIGSTOP)
        try:
            yield
        finally:
            for number in stopped:
                os.kill(number, signal.SIGCONT)

    def kill(self, *words: str) -> None:
        """Kill each server whose command has these words; its keeper starts it again."""
        for number in _servers(words):
            os.kill(number, signal.SIGKILL)


def _servers(words: tuple[str, ...]) -> list[int]:
    from builder.engine.private import daemon
    from builder.engine.private.instance import load
    from tests.cluster.keeper import folder

    found = []
    for number, _ in daemon.processes(load(folder())):
        line = (Path("/proc") / str(number) / "cmdline").read_bytes().decode().split("\0")
        if line[0] != "sh" and set(words) <= set(line):
            found.append(number)
    return found
