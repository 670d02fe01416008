"""Persistent volumes of a job in a cluster, and the folder that it writes to."""

from __future__ import annotations

import pytest

from builder.core.errors import InputError
from tests.jobs.clusters import ANY, JOB, container, environment, pod, ready, rendered
from tests.jobs.jobfiles import checked, image, job

RUNS = "kubernetes: {volumes: {/mnt/runs: runs, /mnt/data: {claim: cats, read_only: true}}}\n"
CHIEF = JOB.partition("job_dir")[0]


def test_a_volume_is_mounted_where_the_file_says_and_the_image_may_write_there() -> None:
    manifest = rendered(CHIEF + RUNS, ANY)
    claims = {
        each["name"]: each["persistentVolumeClaim"]["claimName"]
        for each in pod(manifest)["volumes"]
        if "persistentVolumeClaim" in each
    }
    mounts = {
        claims[each["name"]]: (each["mountPath"], each.get("readOnly", False))
        for each in container(manifest)["volumeMounts"]
        if each["name"] in claims
    }
    assert mounts == {"runs": ("/mnt/runs", False), "cats": ("/mnt/data", True)}
    assert pod(manifest)["securityContext"]["fsGroup"] == 1000
    assert "fsGroup" not in pod(rendered(CHIEF, ANY))["securityContext"]


def test_a_job_writes_to_a_folder_of_its_volume() -> None:
    manifest = rendered(f"{CHIEF}{RUNS}job_dir: /mnt/runs/{{job}}\npass_job_dir: true\n", ANY)
    folder = f"/mnt/runs/{manifest['metadata']['name']}"
    assert manifest["metadata"]["annotations"]["builder-output"] == folder
    assert environment(manifest, "chief", 0)["AIP_CHECKPOINT_DIR"] == f"{folder}/checkpoints/"
    assert container(manifest)["args"] == [f"--job-dir={folder}"]


def test_a_bucket_of_another_cloud_is_the_programs_own_affair() -> None:
    text = CHIEF + "job_dir: s3://my-bucket/{job}\n"
    assert environment(rendered(text), "chief", 0)["AIP_MODEL_DIR"].startswith("s3://my-bucket/")
    assert any("the program itself writes to s3://" in note for note in ready(text).notes)


def test_a_bucket_as_a_folder_may_be_the_jobs_folder() -> None:
    mounts = container(rendered(CHIEF + "job_dir: /gcs/b-b/{job}\n"))["volumeMounts"]
    assert "/gcs/b-b" in [each["mountPath"] for each in mounts]


@pytest.mark.parametrize(
    ("more", "line", "problem", "fix"),
    [
        ("job_dir: /mnt/runs/{job}\n", 4, "no volume is mounted there", "{/mnt/runs: CLAIM}"),
        (RUNS + "job_dir: /mnt/running/{job}\n", 5, "no volume is", "{/mnt/running: CLAIM}"),
        (RUNS + "job_dir: /mnt/data/x\n", 5, "is read-only", "remove read_only"),
        ("kubernetes: {volumes: {/tmp/a: b}}\n", 4, "would hide", "/mnt/NAME"),
        ("kubernetes: {volumes: {mnt: b}}\n", 4, "not a folder of a container", "/mnt/NAME"),
        ("kubernetes: {volumes: {/mnt/../a: b}}\n", 4, "not a folder of a container", "/mnt/NAME"),
        ("kubernetes: {volumes: {/mnt/a: {}}}\n", 4, "claim: is missing", "claim: runs"),
    ],
)
def test_what_would_be_lost_or_hidden_is_refused(
    more: str, line: int, problem: str, fix: str
) -> None:
    with pytest.raises(InputError) as error:
        ready(CHIEF + more, ANY)
    assert f"cats.yaml:{line}: " in error.value.message and problem in error.value.message
    assert fix in error.value.fix


@pytest.mark.parametrize("folder", ["/mnt/runs/{job}", "s3://my-bucket/{job}"])
def test_vertex_ai_mounts_neither(folder: str) -> None:
    with pytest.raises(InputError, match="do not mount it"):
        checked(job(CHIEF + f"region: us-central1\njob_dir: {folder}\n"), image())
