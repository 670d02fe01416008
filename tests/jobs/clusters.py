"""Jobs for a cluster as tests write them, and a loopback cluster to run them on."""

from __future__ import annotations

from builder.jobs.backends.kubernetes import checks
from builder.jobs.backends.kubernetes.cluster import Cluster
from builder.jobs.ready import Image, Ready
from tests.jobs import jobfiles

GKE, ANY = Cluster(), Cluster(nodes="any")
JOB = "image: v100\nmachine: n1-standard-8\naccelerators: 2 x V100\njob_dir: gs://b-b/jobs/{job}\n"


def ready(text: str, cluster: Cluster = GKE, image: Image | None = None) -> Ready:
    """Return the job of this text, through every check."""
    job = jobfiles.job(text)
    return checks.ready(job, image or jobfiles.image(job.image), cluster, jobfiles.TARGETS)
