"""Old AI Platform configurations as today's jobs: nothing is lost without a word."""

from __future__ import annotations

from pathlib import Path

import pytest

from builder.core.errors import InputError
from builder.jobs import machines
from builder.jobs.aiplatform import convert
from builder.jobs.aiplatform import render as legacy
from builder.jobs.aiplatform.convert import Converted
from builder.jobs.description import Job
from tests.jobs import jobfiles
from tests.jobs.jobfiles import TARGETS
from tests.jobs.test_vertex import POST, POSTS_CONFIG, load

TUNING = """\
trainingInput:
  scaleTier: CUSTOM
  masterType: complex_model_m_v100
  workerType: complex_model_m_v100
  workerCount: "9"
  parameterServerType: large_model
  parameterServerCount: "3"
  evaluatorType: standard
  evaluatorCount: "1"
  region: us-central1
  jobDir: gs://my-bucket/job
  args: [--epochs, "10"]
  runtimeVersion: "1.15"
  pythonVersion: "3.7"
  pythonModule: trainer.task
  packageUris: ['gs://my-bucket/p.tar.gz']
  serviceAccount: a@b.iam.gserviceaccount.com
  network: projects/123/global/networks/vpc
  scheduling: {maxRunningTime: 7200s, maxWaitTime: 3600s}
  hyperparameters:
    goal: MAXIMIZE
    hyperparameterMetricTag: accuracy
    maxTrials: 30
    maxParallelTrials: 3
    enableTrialEarlyStopping: true
    algorithm: RANDOM_SEARCH
    params:
    - {parameterName: rate, type: DOUBLE, minValue: 0.001, maxValue: 0.1, scaleType: UNIT_LOG_SCALE}
    - {parameterName: layers, type: INTEGER, minValue: 1, maxValue: 5}
    - {parameterName: batch, type: DISCRETE, discreteValues: [16, 32]}
    - {parameterName: optimizer, type: CATEGORICAL, categoricalValues: [adam, sgd]}
labels: {team: vision}
"""


CUSTOM = "trainingInput: {scaleTier: CUSTOM"


def converted(text: str, **more: object) -> Converted:
    return convert.convert(text, Path("config.yaml"), targets=TARGETS, **more)  # type: ignore[arg-type]


def job(found: Converted) -> Job:
    return jobfiles.job(found.text)


def refused(text: str, **more: object) -> tuple[str, str]:
    with pytest.raises(InputError) as caught:
        converted(text, **more)
    return caught.value.message, caught.value.fix


def test_the_posts_config_there_and_back() -> None:
    arguments = jobfiles.job(POST).arguments
    found = converted(POSTS_CONFIG, region="asia-east1", arguments=arguments)
    now = job(found)
    assert (now.image, now.region, now.machine) == ("v100", "asia-east1", "n1-standard-8")
    assert now.accelerators is not None
    assert (now.accelerators.type, now.accelerators.count) == ("V100", 2)
    assert now.arguments == arguments
    _, again = legacy.config(jobfiles.ready(found.text))
    assert again == load(POSTS_CONFIG)


def test_everything_of_a_large_job() -> None:
    found = converted(TUNING)
    now = job(found)
    pools = {
        pool.role: (pool.count, pool.machine, pool.accelerator, pool.accelerators)
        for pool in now.pools
    }
    assert pools["chief"][:2] == (1, "n1-standard-16")
    assert pools["chief"][2] is not None and pools["chief"][3] == 4
    assert pools["worker"] == (9, "n1-standard-16", *pools["chief"][2:])
    assert pools["ps"] == (3, "n1-highmem-8", None, 0)
    assert pools["evaluator"] == (1, "n1-standard-4", None, 0)
    assert now.pass_job_dir and now.job_dir == "gs://my-bucket/job"
    assert now.arguments == ("--epochs", "10")
    assert now.scheduling.timeout == 7200
    assert now.labels == {"team": "vision"}
    study = now.study
    assert study is not None
    assert (study.trials, study.parallel, study.algorithm) == (30, 3, "random")
    assert (study.metric, study.early_stopping) == ("accuracy", "curve")
    assert {name: one.kind for name, one in study.parameters.items()} == {
        "rate": "double",
        "layers": "integer",
        "batch": "discrete",
        "optimizer": "categorical",
    }
    for word in (
        "runtimeVersion",
        "pythonVersion",
        "packageUris",
        "maxWaitTime",
        "chief",
        "jobDir",
    ):
        assert any(word in note for note in found.notes), word
    for note in found.notes:
        assert f"# {note}" in found.text


def test_what_it_converts_to_is_on_offer() -> None:
    for machine in ("complex_model_l_gpu", "standard_gpu", "complex_model_m_gpu", "n1-highcpu-8"):
        found = converted(
            f"trainingInput: {{scaleTier: CUSTOM, masterType: {machine}, region: us-central1}}\n"
        )
        for pool in job(found).pools:
            machines.place(
                pool.machine,
                pool.accelerator,
                pool.accelerators,
            )
    k80 = converted("trainingInput: {scaleTier: CUSTOM, masterType: complex_model_l_gpu}\n")
    assert any("8 x K80 on n1-standard-32 is not offered" in note for note in k80.notes)


@pytest.mark.parametrize("tier", ["BASIC", "STANDARD_1", "PREMIUM_1", "BASIC_GPU", "BASIC_TPU"])
def test_a_tier_is_its_preset(tier: str) -> None:
    found = converted(f"trainingInput:\n  scaleTier: {tier}\n  region: us-central1\n")
    assert job(found).preset == tier
    assert any(note.startswith(f"{tier} was ") for note in found.notes)


def test_an_image_of_its_own_is_kept_and_one_in_container_registry_is_told() -> None:
    text = (
        "trainingInput:\n  scaleTier: CUSTOM\n  masterType: n1-standard-4\n"
        "  masterConfig: {imageUri: 'gcr.io/p/i:1', containerCommand: [python], "
        "containerArgs: [--x], diskConfig: {bootDiskType: pd-ssd, bootDiskSizeGb: 200}}\n"
    )
    found = converted(text)
    now = job(found)
    assert now.image == "gcr.io/p/i:1"
    assert (now.command, now.arguments) == (("python",), ("--x",))
    assert (now.disk.type, now.disk.size_gb) == ("pd-ssd", 200)
    assert any("no pushes since 2025-03-18" in note for note in found.notes)
    assert job(converted(text, image="cpu")).image == "cpu"


def test_a_region_that_lost_the_accelerator_is_told() -> None:
    found = converted(POSTS_CONFIG, region="europe-west1")
    assert any("europe-west1 has no V100: write region: europe-west4" in n for n in found.notes)


@pytest.mark.parametrize(
    ("text", "said", "fix"),
    [
        ("trainingInput:\n  scaleTeir: BASIC\n", ":2: trainingInput.scaleTeir", "scaleTier?"),
        ("trainingInput:\n  scaleTier: BASICS\n", "config.yaml:2:", "write BASIC"),
        ("trainingInput:\n  scaleTier: CUSTOM\n", "needs masterType", "n1-standard-8"),
        (f"{CUSTOM}, masterType: n1-standard-1}}\n", "no machine type", "n1-standard-4"),
        (
            "trainingInput:\n  scaleTier: CUSTOM\n  masterType: n1-standard-4\n  workerCount: 2\n",
            "needs workerType",
            "add workerType",
        ),
        (
            f"{CUSTOM}, masterType: n1-standard-4,\n workerCount: two}}\n",
            "config.yaml:2: trainingInput.workerCount: 'two' is no number",
            "write 2",
        ),
        (
            "trainingInput: {scaleTier: CUSTOM, masterType: n1-standard-4,\n"
            "  masterConfig: {acceleratorConfig: {count: 1}}}\n",
            "has no type",
            "NVIDIA_TESLA_V100",
        ),
        (
            "trainingInput: {scaleTier: CUSTOM, masterType: n1-standard-4,\n"
            "  masterConfig: {acceleratorConfig: {count: 1, type: NVIDIA_TESLA_V10}}}\n",
            "no accelerator is called",
            "V100",
        ),
        (
            f"{CUSTOM}, masterType: n1-standard-4, workerType: n1-standard-4,\n"
            "  masterConfig: {imageUri: a/b}, workerConfig: {imageUri: a/c}}\n",
            "another image than the master's",
            "one image",
        ),
        ("[]\n", "expected `name: value` lines", ""),
        ("trainingInput: {}\n", "no trainingInput", "--config"),
        ("a: [\n", "not YAML", ""),
    ],
)
def test_what_is_wrong_is_told_where_it_stands(text: str, said: str, fix: str) -> None:
    message, way_out = refused(text)
    assert said in message and message.startswith("config.yaml")
    assert fix in way_out


def test_no_image_that_fits() -> None:
    with pytest.raises(InputError) as caught:
        convert.convert(POSTS_CONFIG, Path("config.yaml"), targets={"cpu": "CPU"})
    assert "no target of the project is for V100" in caught.value.message
    assert "--image" in caught.value.fix
