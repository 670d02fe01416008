"""Kueue in the tests' own cluster, for as long as the tests of queues need it.

Its webhooks are asked about each pod and each JobSet, so no other test has it.
"""

from __future__ import annotations

import base64
import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from kubernetes import client

from builder.core import files
from builder.core.errors import OutsideError
from builder.engine.private import daemon
from builder.jobs.backends.kubernetes.backend import KUEUE
from tests.cluster import configuration
from tests.cluster.access import SECONDS, Access
from tests.cluster.programs import Kueue

VERSION = f"{KUEUE}/v1beta2"
_NAMESPACE, _PORT = "kueue-system", 9444
_PROGRAM = 'mount --bind "$1" /etc; exec "$2" --config "$3/kueue.json" --kubeconfig "$3/kubeconfig"'
"""Without certificates of its own, Kueue reads those of its metrics in a fixed folder of /etc."""
_METRICS = "kueue/metrics/certs"


@contextmanager
def running(access: Access, kueue: Kueue) -> Iterator[None]:
    """Install Kueue and run it. Afterwards no webhook of it is asked."""
    folder, api = Path(access.kubeconfig).parent, access.backend.client
    objects = _installed(access, kueue)
    api.create("/api/v1/namespaces", {"metadata": {"name": _NAMESPACE}})
    for item in objects:
        api.create(configuration.path(item), item)
    log = folder / "kueue.log"
    for plural in (item["spec"]["names"]["plural"] for item in objects if "spec" in item):
        _until(partial(api.get, f"/apis/{VERSION}/{plural}"), log)
    process = _started(folder, kueue, _configuration(access, kueue))
    try:
        flavor = {"apiVersion": VERSION, "kind": "ResourceFlavor", "metadata": {"name": "tried"}}
        _until(lambda: api.create(configuration.path(flavor), flavor, dryRun="All"), log)
        yield
    finally:
        for item in objects:
            if "webhooks" in item:
                api.delete(f"{configuration.path(item)}/{item['metadata']['name']}")
        process.send_signal(signal.SIGTERM)
        process.wait()


def create(access: Access, kind: str, name: str, spec: dict[str, Any]) -> None:
    """Create an object of Kueue; a LocalQueue in the namespace."""
    metadata = {"name": name}
    if kind == "LocalQueue":
        metadata["namespace"] = access.namespace
    body = {"apiVersion": VERSION, "kind": kind, "metadata": metadata, "spec": spec}
    access.backend.client.create(configuration.path(body), body)


def stop(access: Access, queue: str) -> None:
    """Let a LocalQueue admit no job from now on."""
    api, (group, version) = client.CustomObjectsApi(access.api), VERSION.split("/")
    where = (group, version, access.namespace, "localqueues", queue)
    api.patch_namespaced_custom_object(*where, {"spec": {"stopPolicy": "Hold"}})


def _address(access: Access) -> str:
    return str(urlsplit(access.backend.client.server).hostname)


def _installed(access: Access, kueue: Kueue) -> list[dict[str, Any]]:
    certificate = (Path(access.kubeconfig).parent / "tls.crt").read_bytes()
    objects, server = kueue.manifests(), f"https://{_address(access)}:{_PORT}"
    configuration.by_address(objects, server, base64.b64encode(certificate).decode())
    for item in objects:
        if "webhooks" in item:  # as in its release: JobSet's have the same names
            item["metadata"]["name"] = f"kueue-{item['metadata']['name']}"
    return objects


def _configuration(access: Access, kueue: Kueue) -> dict[str, Any]:
    """Return what its release is configured with, by its address and without other servers."""
    where = {"host": _address(access), "port": _PORT}
    return {
        **kueue.configuration(),
        "namespace": _NAMESPACE,
        "health": {"healthProbeBindAddress": "0"},
        "metrics": {"bindAddress": "0"},
        "webhook": {**where, "certDir": str(Path(access.kubeconfig).parent)},
        "leaderElection": {"leaderElect": False},
        "internalCertManagement": {"enable": False},
        "featureGates": {"VisibilityOnDemand": False},
    }


def _started(folder: Path, kueue: Kueue, config: dict[str, Any]) -> subprocess.Popen[bytes]:
    files.write(folder / "kueue.json", json.dumps(config))
    etc = folder / "kueue-etc"
    (etc / _METRICS).mkdir(parents=True)
    for name in ("tls.crt", "tls.key"):
        (etc / _METRICS / name).symlink_to(folder / name)
    command = ["unshare", "--mount", "sh", "-ec", _PROGRAM, "kueue", str(etc), str(kueue.program)]
    identity = json.loads((folder / "kubeconfig").read_text())["users"][0]["user"]["token"]
    with (folder / "kueue.log").open("ab") as log:
        return subprocess.Popen(
            [*command, str(folder)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env={**os.environ, daemon.MARK: identity},
            start_new_session=True,
        )


def _until(asked: Callable[[], object], log: Path) -> None:
    """Ask the API server again until it does not refuse: resources and webhooks take a while."""
    deadline = time.monotonic() + SECONDS
    while True:
        try:
            asked()
        except OutsideError as refused:
            said = log.read_text(errors="replace")[-1500:] if log.exists() else ""
            assert time.monotonic() < deadline, f"{refused.message}: {said}"
            time.sleep(0.3)
        else:
            return
