"""A rendered JobSet in earnest: its pods as containers on this machine's engine, by their host
names, environment, rights and mounts. And Debian's own kubectl against the loopback API server."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

import pytest

from builder.core import yamlfile
from builder.jobs import submission
from builder.jobs.backends.kubernetes.backend import Kubernetes
from tests.debian import tool
from tests.emulators.kubernetes import server
from tests.emulators.kubernetes.objects import Script
from tests.jobs.clusters import ANY, ready


@pytest.mark.network
def test_debians_kubectl_and_the_factory_mean_the_same_objects(
    loopback: server.Cluster, tmp_path: Path
) -> None:
    kubectl = tool("kubectl", ("kubernetes-client",), suite="forky")
    loopback.objects.script = lambda pod: Script(("one", "two"), None)
    backend, wanted = Kubernetes(ANY), ready("image: cpu\nmachine: n1-standard-4\n", ANY)
    file, bad = tmp_path / "job.yaml", tmp_path / "bad.yaml"
    file.write_text(yamlfile.dump(backend.render(wanted)))
    bad.write_text(file.read_text().replace("completionMode", "completionMood"))

    def run(*words: str, code: int = 0) -> str:
        command = [kubectl, "--cache-dir", tmp_path / "cache", *words]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        assert done.returncode == code, done.stderr
        return done.stdout + done.stderr

    for command in ("create", "apply"):
        assert "(server dry run)" in run(command, "-f", str(file), "--dry-run=server")
    assert loopback.jobsets() == []
    assert "completionMood" in run("create", "-f", str(bad), code=1)
    assert "created" in run("apply", "-f", str(file), "--namespace", "default")
    run("delete", "-f", str(file), "--namespace", "default")  # the newest of its name counts
    sent = submission.submit(backend, wanted, submission.Memory(tmp_path))
    assert sent.created  # the namespace is part of the key, and render has not asked for it
    name = sent.job.display_name
    assert name in run("get", "jobset", "-o", "name")
    lines = run("logs", "-l", f"jobset.sigs.k8s.io/jobset-name={name}", "--prefix", "--tail=-1")
    assert [line.split()[-1] for line in lines.splitlines()] == ["one", "two"]
    waiting = subprocess.Popen(
        [kubectl, "wait", "--for=condition=Completed", f"jobset/{name}", "--timeout=30s"]
    )
    time.sleep(0.5)
    (manifest,) = (each for each in loopback.jobsets() if each["metadata"]["name"] == name)
    for pod_ in loopback.objects.pods(manifest):
        loopback.objects.end(pod_, 0)
    loopback.objects.settle(manifest)
    assert waiting.wait(30) == 0 and backend.find("cats").state == "succeeded"
    run("delete", "jobset", "-l", "builder-job=cats")
    assert loopback.objects.list("pods") == [] == loopback.jobsets()
