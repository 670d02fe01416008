"""What the pods of a job mount: memory, folders of their own, buckets, persistent volumes.

Sources: Kubernetes, Persistent volumes, and Configure a security context (fsGroup); Google Cloud,
GKE, Cloud Storage FUSE CSI driver, ephemeral volumes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from builder.core.errors import InputError
from builder.jobs.backends.kubernetes import section
from builder.jobs.description.job import Job
from builder.jobs.ready import given

_BUCKET: Final = re.compile(r"(?:^|[=:,\s])/gcs/([a-z0-9][a-z0-9._-]{1,220}[a-z0-9])(?=/|$)")
"""A bucket as a folder, as Vertex AI mounts it."""
_TAKEN: Final = ("/app", "/dev", "/etc", "/gcs", "/opt", "/proc", "/run", "/sys", "/tmp", "/usr")
"""Folders that an image or the pod itself has something in."""
GROUP: Final = {"fsGroup": 1000, "fsGroupChangePolicy": "OnRootMismatch"}
"""The group that may write to persistent volumes, which belong to root else: each process of the
pod is in it, whatever user the image names."""


@dataclass(frozen=True)
class Mount:
    """A volume of a pod, and where its container sees it."""

    name: str
    source: Mapping[str, Any]
    path: str
    read_only: bool = False

    @property
    def volume(self) -> dict[str, Any]:
        return {"name": self.name, **self.source}

    @property
    def mount(self) -> dict[str, Any]:
        return given(name=self.name, mountPath=self.path, readOnly=self.read_only)


def buckets(job: Job) -> tuple[str, ...]:
    """Return the buckets that a job names as folders, /gcs/BUCKET, each once."""
    words = (*job.arguments, *(job.command or ()), *job.variables.values(), job.job_dir or "")
    return tuple(dict.fromkeys(name for word in words for name in _BUCKET.findall(word)))


def of(job: Job, read_only: bool) -> list[Mount]:
    """Return what each pod of a job mounts: memory for /dev/shm, which is 64 MB else, a /tmp beside
    a read-only root, each bucket that is a folder, and what the job names."""
    mounts = [Mount("shm", {"emptyDir": {"medium": "Memory"}}, "/dev/shm")]
    if read_only:
        mounts.append(Mount("tmp", {"emptyDir": {}}, "/tmp"))
    options = "implicit-dirs,file-mode=777,dir-mode=777"  # the image's user is not root
    for number, bucket in enumerate(buckets(job)):
        attributes = {"bucketName": bucket, "mountOptions": options}
        driver = {"driver": "gcsfuse.csi.storage.gke.io", "volumeAttributes": attributes}
        mounts.append(Mount(f"bucket-{number}", {"csi": driver}, f"/gcs/{bucket}"))
    for number, (path, own) in enumerate(section.of(job).volumes.items()):
        claim = {"persistentVolumeClaim": {"claimName": own.claim}}
        mounts.append(Mount(f"volume-{number}", claim, path, own.read_only))
    return mounts


def check_paths(job: Job) -> None:
    """Raise InputError for a volume that would hide what an image or a pod has."""
    for path in section.of(job).volumes:
        if path.startswith(tuple(f"{taken}/" for taken in _TAKEN)) or path in _TAKEN:
            raise InputError(f"{path} would hide what lies there", "mount it at /mnt/NAME")


def check_job_dir(job: Job) -> None:
    """Raise InputError for a job_dir that is a folder of the container alone: it ends with it."""
    place = job.job_dir or ""
    if not place.startswith("/") or place.startswith("/gcs/"):
        return
    volumes = section.of(job).volumes
    for path, own in volumes.items():
        if place == path or place.startswith(f"{path}/"):
            if own.read_only:
                raise InputError(f"{place}: the volume at {path} is read-only", "remove read_only")
            return
    folder = "/".join(place.split("/")[:3])
    raise InputError(
        f"{place}: no volume is mounted there, so it would end with its pod",
        f"write kubernetes: {{volumes: {{{folder}: CLAIM}}}}",
    )
