"""What is refused before a job is sent, each with the nearest thing that works."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from builder import contract
from builder.core.errors import InputError
from builder.core.settings import Settings
from builder.jobs import checks, description, images
from builder.jobs.backends.vertex import messages
from builder.jobs.ready import JobImage
from tests import ROOT
from tests.jobs import jobfiles

BASE = "image: v100\nregion: us-central1\nmachine: n1-standard-8\naccelerators: 2 x V100\n"


def refused(text: str, target: str = "v100", image: JobImage | None = None) -> tuple[str, str]:
    with pytest.raises(InputError) as caught:
        jobfiles.checked(jobfiles.job(text), image or jobfiles.image(target))
    return caught.value.message, caught.value.fix


MIXED = BASE + "replicas: {workers: {count: 2, machine: MACHINE, accelerators: 1 x GPU}}\n"


@pytest.fixture(scope="module")
def v100() -> JobImage:
    """The image of the target as this project has locked it, pruned to 7.x."""
    described = jobfiles.job(BASE)
    return images.local_image(ROOT, described, Settings(registry=jobfiles.REPOSITORY))[0]


def test_one_image_serves_roles_whose_gpus_it_has_kernels_for(v100: JobImage) -> None:
    text = MIXED.replace("MACHINE", "n1-standard-8").replace("GPU", "T4")
    ready = jobfiles.checked(jobfiles.job(text), v100)
    [note] = [note for note in ready.notes if "kernels" in note]
    assert note == "v100 is proven for V100; its libraries have kernels for T4, too"
    pools = messages.body(ready)["jobSpec"]["workerPoolSpecs"]
    told = [pool["containerSpec"]["env"] for pool in pools]
    promised = [
        each["value"] for env in told for each in env if each["name"] == contract.ACCELERATOR
    ]
    assert [value.split(",")[:2] for value in promised] == [
        ["V100:2", "capability=7.0"],
        ["T4:1", "capability=7.5"],
    ]


def test_a_role_with_a_gpu_that_the_image_has_no_kernels_for_is_refused(v100: JobImage) -> None:
    text = MIXED.replace("MACHINE", "g2-standard-8").replace("GPU", "L4")
    message, fix = refused(text, image=v100)
    assert "v100 has no kernels for L4; a role of the job runs on g2-standard-8" in message
    assert "that the image serves: V100, T4" in fix


def test_every_job_of_the_project_passes() -> None:
    for name in description.names(ROOT):
        job = description.load(ROOT, name)
        assert jobfiles.checked(job, jobfiles.image(job.image))
        records = contract.options(job.arguments)[contract.RECORDS]
        assert records.startswith("gs://") or (ROOT / records).is_dir()
    assert checks.committed(ROOT) == ()


@pytest.mark.parametrize(
    ("text", "target", "problem", "fix"),
    [
        (BASE.replace("2 x", "3 x"), "v100", "no n1-standard-8 with 3 x V100", "4 x V100"),
        (BASE.replace("us-central1", "europe-west1"), "v100", "has no V100", "europe-west4"),
        (BASE.replace("region: us-central1\n", ""), "v100", "no region is known", "add region"),
        (BASE + "environment: {API_KEY: abc}\n", "v100", "looks like a secret", "gcloud secrets"),
        (
            BASE + "replicas: {workers: {count: 2, accelerators: 5 x V100}}\n",
            *("v100", "with 5 x V100", "4 x V100"),
        ),
    ],
)
def test_what_the_service_does_not_take(text: str, target: str, problem: str, fix: str) -> None:
    message, way_out = refused(text, target)
    assert problem in message and fix in way_out
    assert message.startswith("jobs/cats.yaml")


@pytest.mark.parametrize(
    ("target", "accelerators", "problem", "fix"),
    [
        ("v100", "machine: n1-standard-8\naccelerators: T4\n", "an image for V100", "image: t4"),
        ("cpu", "machine: n1-standard-8\naccelerators: V100\n", "an image for CPU", "image: v100"),
        ("tpu", "machine: n1-standard-8\n", "no accelerator", "image: cpu"),
        (
            *("v100", "machine: n1-standard-4\naccelerators: P100\n"),
            *("n1-standard-4 with 1 x P100", "images/p100/image.yaml"),
        ),
        ("tpu", "machine: tpu7x-standard-4t\ntopology: 2x2x1\n", "JAX only", "such as TPU"),
        ("tpu", "machine: ct5lp-hightpu-4t\ntopology: 4x4\n", "one of them alone", "topology: 2x2"),
    ],
)
def test_the_image_is_for_what_the_machine_carries(
    target: str, accelerators: str, problem: str, fix: str
) -> None:
    message, way_out = refused(f"image: {target}\nregion: us-central1\n{accelerators}", target)
    assert problem in message and fix in way_out


def test_what_is_possible_and_worth_a_word() -> None:
    notes = jobfiles.ready("image: v100\nregion: us-central1\nmachine: n1-standard-8\n").notes
    assert any("computes on the CPU" in note for note in notes)
    assert any("no job_dir" in note for note in notes)
    lone = jobfiles.ready(BASE + "scheduling: {strategy: spot, restarts: never}\n").notes
    assert any("taken away" in note for note in lone)
    p100 = "image: p100\nregion: us-central1\nmachine: n1-standard-8\naccelerators: P100\n"
    assert any("2026-09-15" in note for note in jobfiles.ready(p100, "p100").notes)
    foreign = JobImage(f"docker.io/tensorflow/tensorflow@{jobfiles.DIGEST}", jobfiles.DIGEST)
    notes = jobfiles.checked(jobfiles.job(BASE), foreign).notes
    assert any("not an image of ours" in note for note in notes)


def test_vertex_pulls_from_artifact_registry_and_docker_hub_only() -> None:
    images = {
        host: replace(jobfiles.image(), reference=f"{host}/team/training@{jobfiles.DIGEST}")
        for host in ("localhost:5000", "quay.io", "docker.io", "eu.gcr.io")
    }
    for host in ("localhost:5000", "quay.io"):
        message, fix = refused(BASE, image=images[host])
        assert "cannot pull from" in message and "docker.pkg.dev" in fix
    for target, machine in (  # an image serves every size of its accelerator
        ("a100", "machine: a2-ultragpu-2g\naccelerators: 2 x A100-80GB\n"),
        ("tpu-jax", "machine: ct5lp-hightpu-4t\ntopology: 4x4\n"),
    ):
        assert jobfiles.ready(f"image: {target}\nregion: us-central1\n{machine}", target)
    for image in (images["docker.io"], images["eu.gcr.io"]):
        assert jobfiles.checked(jobfiles.job(BASE), image)
    elsewhere = "http://127.0.0.1:9"  # an emulator takes images from anywhere
    assert jobfiles.checked(jobfiles.job(BASE), images["quay.io"], endpoint=elsewhere)


def test_files_in_jobs_are_checked_together_and_all_of_a_job_at_once(tmp_path: Path) -> None:
    folder = tmp_path / "jobs"
    folder.mkdir()
    stale = "jobs/schema.json: not today's schema; write it with builder job schema"
    (folder / "cats.yaml").write_text(BASE)
    assert checks.committed(tmp_path) == ()
    (folder / "schema.json").write_text("{}")
    assert checks.committed(tmp_path) == (stale,)
    (folder / "schema.json").write_text(description.schema_text())
    (folder / "dogs.yaml").write_text(BASE.replace("2 x V100", "3 x V100"))
    (folder / "birds.yaml").write_text(BASE.replace("us-central1", "europe-west1"))
    birds, dogs = checks.committed(tmp_path)
    assert birds == "jobs/birds.yaml:2: region: europe-west1 has no V100 for training"
    assert dogs == "jobs/dogs.yaml:4: accelerators: training has no n1-standard-8 with 3 x V100"
    workers = "replicas: {workers: {accelerators: 5 x V100}}\n"
    wrong = BASE.replace("2 x", "3 x") + workers + "environment: {API_KEY: abc}\n"
    (folder / "cats.yaml").write_text(wrong)
    with pytest.raises(InputError) as caught:
        jobfiles.checked(description.load(tmp_path, "cats"), jobfiles.image())
    where = [line.split(": ")[0] for line in caught.value.message.splitlines()]
    assert where == ["jobs/cats.yaml:4", "jobs/cats.yaml:5", "jobs/cats.yaml:6"]
