"""Every JobSet that is rendered is one that a cluster takes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from builder.core import project
from builder.core.settings import KubernetesSettings as Cluster
from builder.jobs import description, images
from builder.jobs.backends.kubernetes import checks, jobset
from tests.jobs import jobfiles, jobset_rules
from tests.jobs.clusters import GKE, container, environment, rendered, roles

ROOT = project.find_root(Path(__file__).parent)
CHIEF = "image: v100\nmachine: n1-standard-8\naccelerators: 2 x V100\n"
DISTRIBUTED = CHIEF + "replicas: {workers: 2, parameter_servers: 1, evaluator: 1}\n"
WHOLE = Cluster(
    namespace="training", queue="gpus", service_account="trainer", pull_secret="registry"
)
MACHINES = {
    "b200-torch": "machine: a4-highgpu-8g\naccelerators: 8 x B200",
    "a100": "machine: a2-highgpu-1g\naccelerators: A100",
    "cpu": "machine: n1-standard-8",
    "h100": "machine: a3-highgpu-8g\naccelerators: 8 x H100",
    "l4": "machine: g2-standard-8\naccelerators: L4",
    "t4": "machine: n1-standard-8\naccelerators: T4",
    "tpu": "machine: ct5lp-hightpu-4t\ntopology: 2x2",
    "v100": "machine: n1-standard-8\naccelerators: V100",
    "h100-torch": "machine: a3-highgpu-8g\naccelerators: 8 x H100",
    "t4-torch": "machine: n1-standard-8\naccelerators: T4",
    "v100-torch": "machine: n1-standard-8\naccelerators: V100",
    "v100-jax": "machine: n1-standard-8\naccelerators: V100",
    "h100-jax": "machine: a3-highgpu-8g\naccelerators: 8 x H100",
    "cpu-jax": "machine: n1-standard-8",
    "tpu-jax": "machine: ct5lp-hightpu-4t\ntopology: 2x2",
}


def test_the_jobs_of_this_project_and_every_target() -> None:
    targets = images.targets(ROOT)
    for name in ("cats-and-dogs", "cluster", "digits", "tpu"):
        job = description.load(ROOT, name)
        image = jobfiles.image(job.image)
        checked = checks.ready(job, image, GKE, targets)
        manifest = jobset.jobset(checked, GKE)
        assert jobset_rules.problems(manifest) == []
        assert all(
            container(manifest, role)["image"] == image.reference for role in roles(manifest)
        )
    for target in targets:
        rendered(f"image: {target}\n{MACHINES[target]}\n")


@pytest.mark.slow
def test_jobsets_own_models_know_every_field() -> None:
    from kubeflow_trainer_api.models.jobset_v1alpha2_job_set import JobsetV1alpha2JobSet
    from kubeflow_trainer_api.models.jobset_v1alpha2_job_set_spec import JobsetV1alpha2JobSetSpec

    fields = JobsetV1alpha2JobSetSpec.model_fields
    known = {field.alias or name for name, field in fields.items()}
    assert jobset_rules.SPEC["properties"].keys() <= known
    for restarts in ("worker", "never"):
        manifest = rendered(DISTRIBUTED + f"scheduling: {{restarts: {restarts}}}\n", WHOLE)
        read = JobsetV1alpha2JobSet.from_dict(manifest)
        assert read is not None and lost(manifest, read.to_dict(), "JobSet") == []


def lost(value: Any, kept: Any, path: str) -> list[str]:
    """Return the fields that the models do not know: they left them out."""
    if isinstance(value, dict):
        names = [f"{path}.{name}" for name, value in value.items() if value and name not in kept]
        inside = (lost(value[name], kept[name], f"{path}.{name}") for name in value if name in kept)
        return [*names, *(text for texts in inside for text in texts)]
    if isinstance(value, list):
        pairs = enumerate(zip(value, kept, strict=True))
        return [text for n, (a, b) in pairs for text in lost(a, b, f"{path}[{n}]")]
    return []


def test_the_largest_cluster_and_the_longest_name() -> None:
    replicas = "{workers: 1000, parameter_servers: 199, evaluator: 1}"
    manifest = rendered(f"name: {'n' * 63}\n{CHIEF}replicas: {replicas}\n")
    for role, job in roles(manifest).items():
        config = environment(manifest, role, job["completions"] - 1)["TF_CONFIG"]
        assert len(f"TF_CONFIG={config}") < 131_072  # Linux: MAX_ARG_STRLEN, with the last byte
