"""A replica as a container: how it is made, and how it ended."""

from __future__ import annotations

import contextlib
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Any

from builder.engine import containers
from builder.jobs.backends.local import folder
from builder.jobs.backends.local.replicas import GCS, JOB, METRICS, RECORDS, LocalJob, Replica

if TYPE_CHECKING:
    import docker
    from docker.models.containers import Container
    from docker.types import Mount


def network_of(identity: str) -> str:
    """Return the name of a job's network."""
    return f"job-{identity}"


def machine_gpus(client: docker.DockerClient) -> tuple[str, ...]:
    """Return the ids of the GPUs that the engine gives to containers; () without their runtime."""
    if "nvidia" not in (client.info().get("Runtimes") or {}):
        return ()
    gpus = sorted(Path("/proc/driver/nvidia/gpus").glob("*"))
    return tuple(str(index) for index in range(len(gpus)))


def create(
    client: docker.DockerClient, image: str, job: LocalJob, replica: Replica, identity: str
) -> Container:
    """Create the container of a replica; it is not started yet."""
    from docker.types import DeviceRequest, LogConfig

    network, environment = network_of(identity), dict(replica.environment)
    environment.setdefault("HOME", "/tmp")
    options: dict[str, Any] = {"user": folder.user()}
    if replica.gpus:
        gpus = DeviceRequest(device_ids=list(replica.gpus), capabilities=[["gpu"]])
        options["device_requests"] = [gpus]
    if job.command is not None:
        options["entrypoint"] = list(job.command)
    return client.containers.create(
        image,
        list(replica.arguments) or None,
        name=f"job-{identity}-{replica.name}",
        hostname=replica.host,
        network=network,
        networking_config={network: client.api.create_endpoint_config(aliases=[replica.host])},
        labels=containers.labels(folder.LABEL, identity),
        environment=environment,
        mounts=_mounts(job),
        shm_size=job.shm,
        log_config=LogConfig(
            type=LogConfig.types.JSON, config={"max-size": "20m", "max-file": "2"}
        ),
        **options,
    )


def _mounts(job: LocalJob) -> list[Mount]:
    from docker.types import Mount

    folders = {
        JOB: job.folder.parent if job.trial else job.folder,
        RECORDS: job.records,
        GCS: job.buckets if job.buckets.is_dir() else None,
        METRICS: job.trial.metrics if job.trial else None,
    }
    return [
        Mount(target, str(source.absolute()), "bind", read_only=target == RECORDS)
        for target, source in folders.items()
        if source is not None
    ]


def send(container: Container, name: str) -> None:
    """Send a signal; a container that has ended already is no error."""
    from docker.errors import APIError

    with contextlib.suppress(APIError):
        container.kill(name)


def wait(container: Container) -> tuple[int, bool]:
    """Wait for a container's end. Returns its exit code, and whether it ran out of memory.

    137 for a container that somebody removed.
    """
    from docker.errors import NotFound

    try:
        code = int(container.wait(timeout=60)["StatusCode"])
        container.reload()
        return code, bool(container.attrs["State"].get("OOMKilled"))
    except NotFound:
        return 137, False


def has_succeeded(container: Container) -> bool:
    """Tell whether a container has ended with 0; one that somebody removed has not."""
    from docker.errors import NotFound

    with contextlib.suppress(NotFound):
        container.reload()
        state = container.attrs["State"]
        return bool(state["Status"] == "exited" and state["ExitCode"] == 0)
    return False


def described(code: int, out_of_memory: bool = False) -> str:
    """Return an exit code in words."""
    if out_of_memory:
        return "ran out of memory"
    if code > 128:
        with contextlib.suppress(ValueError):
            return f"ended with exit code {code} ({signal.Signals(code - 128).name})"
    return f"failed with exit code {code}"
