"""A replica as a container: what the engine is asked for, and how a container ended."""

from __future__ import annotations

import contextlib
import signal
from datetime import datetime
from typing import TYPE_CHECKING, Any

from builder.engine import containers
from builder.jobs.backends.local import folder
from builder.jobs.backends.local.replicas import GCS, JOB, METRICS, RECORDS, LocalJob, Replica

if TYPE_CHECKING:
    import docker
    from docker.models.containers import Container


def network_of(identity: str) -> str:
    """The name of a job's network."""
    return f"job-{identity}"


def labels(job: LocalJob, identity: str) -> dict[str, str]:
    """The labels of everything that one run creates on the engine."""
    own = {folder.FOLDER_LABEL: str(job.folder.absolute())}
    return {**containers.labels(folder.LABEL, identity), **own}


def spec(job: LocalJob, replica: Replica, identity: str) -> dict[str, Any]:
    """One replica's container as plain values; `create` makes it."""
    place = job.folder.parent if job.trial else job.folder
    mounts = [{"target": JOB, "source": str(place.absolute())}]
    if job.records is not None:
        records = {"target": RECORDS, "source": str(job.records.absolute()), "read_only": True}
        mounts.append(records)  # type: ignore[arg-type]
    if job.buckets is not None:
        mounts.append({"target": GCS, "source": str(job.buckets.absolute())})
    if job.trial is not None:
        mounts.append({"target": METRICS, "source": str(job.trial.metrics.absolute())})
    environment = dict(replica.environment)
    user = folder.user()
    if user is not None:
        environment.setdefault("HOME", "/tmp")
    return {
        "name": f"job-{identity}-{replica.name}",
        "hostname": replica.host,
        "network": network_of(identity),
        "image": job.image,
        "entrypoint": None if job.command is None else list(job.command),
        "command": list(replica.arguments) or None,
        "environment": environment,
        "mounts": mounts,
        "user": user,
        "gpus": list(replica.gpus),
        "shm_size": job.shm,
    }


def create(
    client: docker.DockerClient, wanted: dict[str, Any], labels: dict[str, str]
) -> Container:
    """Create the container of a `spec`; it is not started yet."""
    from docker.types import DeviceRequest, LogConfig, Mount

    options: dict[str, Any] = {}
    if wanted["user"] is not None:
        options["user"] = wanted["user"]
    if wanted["gpus"]:
        options["device_requests"] = [
            DeviceRequest(device_ids=wanted["gpus"], capabilities=[["gpu"]])
        ]
    if wanted["entrypoint"] is not None:
        options["entrypoint"] = wanted["entrypoint"]
    mounts = [
        Mount(one["target"], one["source"], "bind", read_only=one.get("read_only", False))
        for one in wanted["mounts"]
    ]
    endpoint = client.api.create_endpoint_config(aliases=[wanted["hostname"]])
    return client.containers.create(
        wanted["image"],
        wanted["command"],
        name=wanted["name"],
        hostname=wanted["hostname"],
        network=wanted["network"],
        networking_config={wanted["network"]: endpoint},
        labels=labels,
        environment=wanted["environment"],
        mounts=mounts,
        shm_size=wanted["shm_size"],
        log_config=LogConfig(
            type=LogConfig.types.JSON, config={"max-size": "20m", "max-file": "2"}
        ),
        **options,
    )


def send(container: Container, name: str) -> None:
    """Send a signal; a container that has ended already is no error."""
    from docker.errors import APIError

    with contextlib.suppress(APIError):
        container.kill(name)


def wait(container: Container) -> tuple[int, bool]:
    """Wait for a container's end: its exit code, and whether it ran out of memory.

    137 for a container that somebody removed.
    """
    from docker.errors import NotFound

    try:
        code = int(container.wait(timeout=60)["StatusCode"])
        container.reload()
        return code, bool(container.attrs["State"].get("OOMKilled"))
    except NotFound:
        return 137, False


def end_of(container: Container) -> tuple[datetime, int] | None:
    """When a container ended, and with which exit code.

    None while it runs, and for a container that somebody removed.
    """
    from docker.errors import NotFound

    try:
        container.reload()
    except NotFound:
        return None
    state = container.attrs["State"]
    if state.get("Running") or not state.get("FinishedAt"):
        return None
    return datetime.fromisoformat(state["FinishedAt"]), int(state["ExitCode"])


def described(code: int, out_of_memory: bool = False) -> str:
    """An exit code in words."""
    if out_of_memory:
        return "ran out of memory"
    if code > 128:
        with contextlib.suppress(ValueError):
            return f"ended with exit code {code} ({signal.Signals(code - 128).name})"
    return f"failed with exit code {code}"
