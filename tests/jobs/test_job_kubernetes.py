"""A rendered JobSet in earnest: its pods as containers on this machine's engine, by their host
names, environment, rights and mounts. And Debian's own kubectl against the loopback API server."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from builder.core import yamlfile
from builder.engine import Engine, containers
from builder.jobs import submission
from builder.jobs.backends.kubernetes import jobset
from builder.jobs.backends.kubernetes.backend import Kubernetes
from builder.jobs.ready import Image
from tests.debian import tool
from tests.emulators.kubernetes import server
from tests.emulators.kubernetes.objects import Script
from tests.jobs import jobfiles
from tests.jobs.clusters import ANY, loopback, ready  # noqa: F401
from tests.jobs.test_job_local import left, shell  # noqa: F401
from tests.jobs.test_kubernetes import container, environment, expanded, pod, roles

FOREIGN = f"docker.io/me/shell@{jobfiles.DIGEST}"
MEETING = r"""
image: cpu
machine: n1-standard-4
arguments:
- |
  case $(hostname) in *-chief-*) ;; *)
    CHIEF=${TF_CONFIG#*\"chief\": [\"}; CHIEF=${CHIEF%%:*}
    while :; do echo met $(hostname) | nc -w 1 $CHIEF 2222; sleep 0.1; done
  esac
  echo "index $JOB_COMPLETION_INDEX $A"; grep CapEff /proc/self/status
  df -m /dev/shm | tail -1; touch /x && echo writes
  until [ "$(sort -u /dev/shm/heard | wc -l)" = 3 ]; do
    timeout 2 nc -l -p 2222 >> /dev/shm/heard
  done
  sort -u /dev/shm/heard
environment: {A: "$(PATH) $$"}
replicas: {workers: 2, evaluator: 1}
"""


@pytest.fixture
def network(engine: Engine) -> Iterator[str]:
    labels = containers.labels("tests.kubernetes", f"k{os.getpid()}")
    network = engine.client.networks.create(f"kubernetes-{os.getpid()}", labels=labels)
    yield network.name
    network.remove()
    assert left(engine) == []


def start(engine: Engine, network: str, manifest: Any, role: str, index: int, image: str) -> Any:
    """Start one pod of a JobSet, as a kubelet would."""
    spec, own, name = pod(manifest, role), container(manifest, role), manifest["metadata"]["name"]
    secure, host = own["securityContext"], f"{name}-{role}-0-{index}"
    variables = environment(manifest, role, index)
    words = {
        key: [expanded(word, variables) for word in own.get(key, ())] for key in ("command", "args")
    }
    endpoint = engine.client.api.create_endpoint_config(aliases=[f"{host}.{name}"])
    memory = [mount["mountPath"] for mount in own["volumeMounts"]]
    assert not secure["allowPrivilegeEscalation"] and "runAsNonRoot" not in spec["securityContext"]
    container_ = engine.client.containers.create(
        image,
        words["args"] or None,
        hostname=host,
        network=network,
        networking_config={network: endpoint},
        labels=containers.labels("tests.kubernetes", f"k{os.getpid()}"),
        environment=variables,
        tmpfs=dict.fromkeys(memory, "rw,exec,mode=1777"),
        read_only=secure["readOnlyRootFilesystem"],
        cap_drop=secure["capabilities"]["drop"],
        security_opt=["no-new-privileges"],
        **({"entrypoint": words["command"]} if words["command"] else {}),
    )
    container_.start()
    return container_


@pytest.mark.engine
def test_pods_meet_under_their_host_names_and_have_no_rights(
    engine: Engine,
    network: str,
    shell: str,  # noqa: F811
) -> None:
    """The chief hears from each worker at the address that TF_CONFIG names; the evaluator, which is
    no member of the cluster, knows it, too."""
    checked = ready(MEETING, ANY, Image(FOREIGN, jobfiles.DIGEST))
    manifest = jobset.jobset(checked, ANY)
    name, running = manifest["metadata"]["name"], {}
    try:
        for role, job in roles(manifest).items():
            for index in range(job["completions"]):
                running[f"{role}-{index}"] = start(engine, network, manifest, role, index, shell)
        code = running["chief-0"].wait(timeout=120)["StatusCode"]
        lines = running["chief-0"].logs().decode().splitlines()
    finally:
        for each in running.values():
            each.remove(force=True)
    assert code == 0, lines
    hosts = {f"{name}-worker-0-0", f"{name}-worker-0-1", f"{name}-evaluator-0-0"}
    assert {line for line in lines if line.startswith("met ")} == {f"met {host}" for host in hosts}
    assert "index 0 $(PATH) $$" in lines and "CapEff:\t0000000000000000" in lines
    shm = next(line for line in lines if line.endswith("/dev/shm"))
    assert int(shm.split()[1]) > 64 and "writes" in lines  # nobody has tried this image read-only


@pytest.mark.network
def test_debians_kubectl_and_the_factory_mean_the_same_objects(
    loopback: server.Cluster,  # noqa: F811
    tmp_path: Path,
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
