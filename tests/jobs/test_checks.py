"""What is refused before a job is sent, each with the nearest thing that works."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from builder.core import project
from builder.core.errors import InputError
from builder.jobs import description, machines
from builder.jobs.aiplatform import render
from builder.jobs.places.vertex import checks, messages
from builder.jobs.ready import Image
from tests.jobs import jobfiles
from tests.jobs.jobfiles import TARGETS

ROOT = project.find_root(Path(__file__).parent)
BASE = "image: v100\nregion: us-central1\nmachine: n1-standard-8\naccelerators: 2 x V100\n"


def refused(text: str, target: str = "v100", image: Image | None = None) -> tuple[str, str]:
    job = jobfiles.job(text)
    with pytest.raises(InputError) as caught:
        checks.ready(job, image or jobfiles.image(target), job.region, targets=TARGETS)
    return caught.value.message, caught.value.fix


def test_every_job_of_the_project_passes() -> None:
    for name in description.names(ROOT):
        job = description.load(ROOT, name)
        assert checks.ready(job, jobfiles.image(job.image), job.region, targets=TARGETS)


@pytest.mark.parametrize(
    ("text", "said", "fix"),
    [
        (BASE.replace("2 x", "3 x"), "takes 1, 2, 4 or 8 x V100, not 3", "4 x V100"),
        (BASE.replace("us-central1", "europe-west1"), "has no V100", "europe-west4"),
        (BASE.replace("n1-standard-8", "g2-standard-8"), "takes no V100", "n1-standard-8"),
        (BASE.replace("region: us-central1\n", ""), "no region is known", "add region"),
        (BASE + "job_dir: /data/out\n", "is on this machine", "gs://"),
        (BASE + "network: projects/my-project/global/networks/vpc\n", "by its number", "vpc"),
        (BASE + "network: vpc\n", "not the name of a network", "projects/NUMBER"),
        (
            BASE + "service_account: a@b.iam.gserviceaccount.com\n"
            "tensorboard: projects/p/locations/us-east1/tensorboards/1\n",
            "the TensorBoard is in us-east1",
            "region: us-east1",
        ),
        (
            BASE + "replicas: {workers: {count: 2, accelerators: 5 x V100}}\n",
            "not 5",
            "4 x V100",
        ),
    ],
)
def test_refusals(text: str, said: str, fix: str) -> None:
    message, way_out = refused(text)
    assert said in message and fix in way_out
    assert message.startswith("jobs/cats.yaml")


CPU = "image: cpu\nregion: us-central1\nmachine: n1-standard-8\n"


@pytest.mark.parametrize(
    ("region", "near"), [("us-centrall1", "write us-central1"), ("mars-north1", "known: ")]
)
def test_a_region_that_does_not_exist_without_accelerators_too(region: str, near: str) -> None:
    message, fix = refused(CPU.replace("us-central1", region), "cpu")
    assert message.startswith("jobs/cats.yaml: region: ") and "is no region" in message
    assert near in fix


def test_each_region_of_the_table_has_the_form_of_a_region() -> None:
    for region in machines.offer().regions:
        machines.check_region(machines.place("n1-standard-8"), region)
        assert machines._REGION.fullmatch(region)


FLEX = "scheduling: {strategy: flex-start}\n"
A2 = "image: a100\nregion: us-central1\nmachine: a2-highgpu-1g\naccelerators: A100\n"
TPU = "image: tpu\nregion: europe-west4\nmachine: cloud-tpu\naccelerators: {count} x TPU-v3\n"
V5E = "image: tpu\nregion: us-west1\nmachine: ct5lp-hightpu-{count}t\ntopology: 2x4\n"
SPOT = "scheduling: {strategy: spot}\n"


@pytest.mark.parametrize(
    ("text", "target", "said", "fix"),
    [
        (BASE + FLEX, "v100", "flex-start takes machines with L4", "strategy: standard"),
        (
            A2 + FLEX.replace("}", ", timeout: 8d}"),
            "a100",
            "7 days at most",
            "timeout: 7d",
        ),
        (
            A2.replace("a2-highgpu-1g", "a2-highgpu-2g").replace("A100", "2 x A100")
            + "replicas: {workers: {count: 1, machine: a2-highgpu-1g, accelerators: A100}}\n"
            + FLEX,
            "a100",
            "the same machine in every pool",
            "the chief's machine",
        ),
        (TPU.replace("{count}", "32") + SPOT, "tpu", "is a TPU pod", "a smaller TPU"),
        (V5E.replace("{count}", "4") + SPOT, "tpu", "is a TPU pod", "a smaller TPU"),
    ],
)
def test_what_spot_and_flex_start_cannot_do(text: str, target: str, said: str, fix: str) -> None:
    message, way_out = refused(text, target)
    assert said in message and fix in way_out
    assert message.startswith("jobs/cats.yaml")


def test_what_spot_and_flex_start_can_do() -> None:
    for text, target in (
        (A2 + FLEX, "a100"),
        (TPU.replace("{count}", "8") + SPOT, "tpu"),
        (V5E.replace("{count}", "8") + SPOT, "tpu"),
        (V5E.replace("{count}", "4"), "tpu"),
    ):
        assert jobfiles.ready(text, target)


def test_all_at_once_each_at_its_line(tmp_path: Path) -> None:
    file = tmp_path / "jobs" / "cats.yaml"
    file.parent.mkdir()
    file.write_text(BASE.replace("2 x", "3 x") + "network: vpc\njob_dir: /data\n")
    job = description.load(tmp_path, "cats")
    with pytest.raises(InputError) as caught:
        checks.ready(job, jobfiles.image(), job.region, targets=TARGETS)
    where = [line.split(": ")[0] for line in caught.value.message.splitlines()]
    assert where == ["jobs/cats.yaml:4", "jobs/cats.yaml:5", "jobs/cats.yaml:6"]


@pytest.mark.parametrize(
    ("target", "accelerators", "said", "fix"),
    [
        ("v100", "machine: n1-standard-8\naccelerators: T4\n", "an image for V100", "image: t4"),
        ("cpu", "machine: n1-standard-8\naccelerators: V100\n", "an image for CPU", "image: v100"),
        ("t4", "machine: g2-standard-4\naccelerators: L4\n", "an image for T4", "image: l4"),
        ("tpu", "machine: n1-standard-8\n", "no accelerator", "image: cpu"),
        (
            "v100",
            "machine: n1-standard-4\naccelerators: P100\n",
            "n1-standard-4 with 1 x P100",
            "images/p100/image.yaml",
        ),
        ("tpu", "machine: tpu7x-standard-4t\ntopology: 2x2x1\n", "JAX only", "1 x TPU"),
    ],
)
def test_the_image_is_for_what_the_machine_carries(
    target: str, accelerators: str, said: str, fix: str
) -> None:
    message, way_out = refused(f"image: {target}\nregion: us-central1\n{accelerators}", target)
    assert said in message and fix in way_out


def test_a_pruned_image_says_why_it_cannot_run_elsewhere() -> None:
    text = BASE.replace("2 x V100", "T4")
    assert "its device code for other GPUs is taken out" in refused(text)[0]
    whole = replace(jobfiles.image(), pruned=False)
    assert "device code" not in refused(text, image=whole)[0]


@pytest.mark.parametrize(
    ("target", "machine"),
    [
        ("a100", "machine: a2-ultragpu-2g\naccelerators: 2 x A100-80GB\n"),
        ("a100", "machine: a2-highgpu-2g\naccelerators: 2 x A100\n"),
        ("tpu", "machine: cloud-tpu\naccelerators: 8 x TPU-v3\n"),
        ("tpu", "machine: ct5lp-hightpu-4t\ntopology: 2x2\n"),
        ("h100", "machine: a3-highgpu-8g\naccelerators: 8 x H100\n"),
    ],
)
def test_one_image_serves_every_size_of_its_accelerator(target: str, machine: str) -> None:
    assert jobfiles.ready(f"image: {target}\nregion: us-central1\n{machine}", target)


def test_what_is_possible_and_worth_a_word() -> None:
    notes = jobfiles.ready("image: v100\nregion: us-central1\nmachine: n1-standard-8\n").notes
    assert any("computes on the CPU" in note for note in notes)
    assert any("no job_dir" in note for note in notes)
    two = jobfiles.ready(BASE + "replicas: {workers: 2}\n").notes
    assert any("restarts: job" in note for note in two)
    lone = jobfiles.ready(BASE + "scheduling: {strategy: spot, restarts: never}\n").notes
    assert any("taken away" in note for note in lone)
    p100 = "image: p100\nregion: us-central1\nmachine: n1-standard-8\naccelerators: P100\n"
    assert any("2026-09-15" in note for note in jobfiles.ready(p100, "p100").notes)
    foreign = Image(f"docker.io/tensorflow/tensorflow@{jobfiles.DIGEST}", jobfiles.DIGEST)
    job = jobfiles.job(BASE)
    assert any("not an image of ours" in n for n in checks.ready(job, foreign, job.region).notes)


def test_a_region_that_is_not_on_record_is_a_note_for_cpus_only() -> None:
    text = "image: cpu\nregion: africa-south1\nmachine: n1-standard-8\n"
    assert any("africa-south1 is not in the table" in n for n in jobfiles.ready(text, "cpu").notes)
    assert "is no region" in refused(BASE.replace("us-central1", "africa-south1"))[0]


def test_vertex_pulls_from_artifact_registry_and_docker_hub_only() -> None:
    for reference in ("localhost:5000/training", "quay.io/team/training"):
        image = replace(jobfiles.image(), reference=f"{reference}@{jobfiles.DIGEST}")
        message, fix = refused(BASE, image=image)
        assert "cannot pull from" in message and "docker.pkg.dev" in fix
    for reference in ("docker.io/team/training", "gcr.io/p/training", "eu.gcr.io/p/training"):
        image = replace(jobfiles.image(), reference=f"{reference}@{jobfiles.DIGEST}")
        job = jobfiles.job(BASE)
        assert checks.ready(job, image, job.region)


def test_a_tpu_is_one_replica() -> None:
    text = "image: tpu\nregion: us-central1\nmachine: cloud-tpu\naccelerators: 8 x TPU-v2\n"
    message, fix = refused(text + "replicas: {workers: 1}\n", "tpu")
    assert "one replica in one pool" in message and "remove replicas" in fix


def test_a_disk_that_the_machine_does_not_take() -> None:
    text = "image: h200\nregion: us-central1\nmachine: a3-ultragpu-8g\naccelerators: 8 x H200\n"
    message, fix = refused(text + "disk: {type: pd-ssd}\n", "h200")
    assert "hyperdisk-balanced only" in message and "hyperdisk-balanced" in fix


def test_job_ids() -> None:
    job = jobfiles.job(BASE, "cats-and-dogs")
    assert render.job_id(job) == "cats_and_dogs"
    assert messages.display_name(job, "abc") == "cats-and-dogs-abc"
    long = jobfiles.job(BASE + f"name: {'a' * 63}\n")
    assert len(messages.display_name(long, "x" * 100)) == 128
