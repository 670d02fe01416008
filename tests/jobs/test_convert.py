"""Old AI Platform configurations as today's jobs: nothing is lost without a word."""

from __future__ import annotations

from pathlib import Path

import pytest

from builder.core.errors import InputError
from builder.jobs import ledger, machines
from builder.jobs.aiplatform import convert
from builder.jobs.aiplatform import render as legacy
from builder.jobs.aiplatform.convert import Beside
from builder.jobs.description import Job
from builder.jobs.ledger import Imported
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


def converted(text: str, **flags: str) -> Imported:
    """The old file as a job of today. flags: of gcloud, image and arguments too."""
    given = {name.replace("_", "-"): value for name, value in flags.items()}
    image, arguments = given.pop("image", None), given.pop("arguments", "")
    beside = Beside(image, given, None, tuple(arguments.split()), TARGETS)
    return convert.convert(text, Path("config.yaml"), beside)


def told(found: Imported) -> list[str]:
    """The ledger and the notes, as they are said."""
    lines = [f"{one.fate}: {one.field}: {one.why}" for one in found.ledger]
    return [*lines, *found.notes]


def fates(found: Imported) -> dict[str, str]:
    return {one.field.removeprefix("trainingInput."): one.fate for one in found.ledger}


def job(found: Imported) -> Job:
    return jobfiles.job(found.text)


def refused(text: str, **more: str) -> tuple[str, str]:
    with pytest.raises(InputError) as caught:
        converted(text, **more)
    return caught.value.message, caught.value.fix


def test_the_posts_config_there_and_back() -> None:
    arguments = jobfiles.job(POST).arguments
    found = converted(POSTS_CONFIG, region="asia-east1", arguments=" ".join(arguments))
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
        assert any(word in note for note in told(found)), word
    for line in told(found):
        assert line.startswith("kept: ") or f"# {line}" in found.text


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
    assert any("8 x K80 on n1-standard-32 is not offered" in note for note in told(k80))


@pytest.mark.parametrize("tier", ["BASIC", "STANDARD_1", "PREMIUM_1", "BASIC_GPU", "BASIC_TPU"])
def test_a_tier_is_its_preset(tier: str) -> None:
    found = converted(f"trainingInput:\n  scaleTier: {tier}\n  region: us-central1\n")
    assert job(found).preset == tier
    changed = any(f"changed: trainingInput.scaleTier: {tier} was " in line for line in told(found))
    assert changed == (tier not in ("BASIC", "PREMIUM_1"))  # their machines are still offered


def test_what_the_service_took_where_nothing_was_written_is_told() -> None:
    """Of 42 public configurations, 8 name no tier, and two no metric."""
    parameter = "{parameterName: a, type: DOUBLE, minValue: 0, maxValue: 1}"
    found = converted(f"trainingInput:\n  hyperparameters: {{params: [{parameter}]}}\n")
    assert any(one.startswith("no scaleTier: the service took BASIC") for one in found.notes)
    assert "no hyperparameterMetricTag: the service took training/hptuning/metric" in found.notes


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
    assert any("no pushes since 2025-03-18" in note for note in told(found))
    assert job(converted(text, image="cpu")).image == "cpu"


def test_a_region_that_lost_the_accelerator_is_told() -> None:
    found = converted(POSTS_CONFIG, region="europe-west1")
    assert any("europe-west1 has no V100: write region: europe-west4" in n for n in told(found))


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
        convert.convert(POSTS_CONFIG, Path("config.yaml"), Beside(targets={"cpu": "CPU"}))
    assert "no target of the project is for V100" in caught.value.message
    assert "--image" in caught.value.fix


# --- the ledger -----------------------------------------------------------------------------------


@pytest.mark.parametrize("text", [TUNING, POSTS_CONFIG])
def test_every_field_that_was_read_is_in_the_ledger(text: str) -> None:
    found = converted(text, region="us-central1")
    given = dict(ledger.fields(load(text)))
    assert {one.field for one in found.ledger} == {*given, "--region"}
    assert all(one.why for one in found.ledger if one.fate != "kept")


def test_the_ledger_of_a_large_job() -> None:
    fate = fates(converted(TUNING))
    dropped = {name for name, what in fate.items() if what == "dropped"}
    assert dropped == {
        *("runtimeVersion", "pythonVersion", "pythonModule", "packageUris"),
        "scheduling.maxWaitTime",
    }
    changed = {name for name, what in fate.items() if what == "changed"}
    assert changed == {"masterType", "workerType", "parameterServerType", "evaluatorType"}
    assert fate["hyperparameters.params[0].minValue"] == "kept"
    assert fate["labels.team"] == "kept"


def test_a_field_that_the_new_job_does_not_have_cannot_be_called_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    whole = legacy.training_input
    monkeypatch.setattr(
        legacy, "training_input", lambda ready: whole(ready) | {"workerCount": 3, "network": ""}
    )
    found = converted(TUNING)
    assert "changed: trainingInput.workerCount: '9' becomes 3" in told(found)


TPU_JOB = """\
trainingInput:
  scaleTier: CUSTOM
  masterType: n1-highcpu-16
  masterConfig: {imageUri: gcr.io/p/i, containerArgs: [--epochs=3]}
  workerType: cloud_tpu
  workerCount: 1
  workerConfig:
    acceleratorConfig: {type: TPU_V2, count: 8}
    tpuTfVersion: "2.1"
  region: us-central1
"""


@pytest.mark.parametrize(
    ("old", "accelerators"), [("TPU_V2", "8 x TPU-v2"), ("TPU_V3", "8 x TPU-v3")]
)
def test_a_cloud_tpu_becomes_the_chief_and_renders(old: str, accelerators: str) -> None:
    text = TPU_JOB.replace("TPU_V2", old)
    if old == "TPU_V3":
        text = text.replace("us-central1", "europe-west4")
    found = converted(text)
    now = job(found)
    assert (now.machine, len(now.pools)) == ("cloud-tpu", 1)
    assert now.accelerators is not None
    assert f"{now.accelerators.count} x {now.accelerators.type}" == accelerators
    assert now.arguments == ("--epochs=3",)
    jobfiles.ready(found.text, "tpu")  # every check of a job that is sent
    fate = fates(found)
    assert fate["masterType"] == "dropped" and fate["workerConfig.tpuTfVersion"] == "dropped"
    assert fate["workerConfig.acceleratorConfig.type"] == "kept"
    other = "TPU-v2" if old == "TPU_V3" else "TPU-v3"
    assert not any(other in line or "TF_CONFIG" in line for line in told(found))


def test_a_tpu_beside_other_roles_is_refused() -> None:
    said, _ = refused(TPU_JOB + "  parameterServerCount: 1\n  parameterServerType: standard\n")
    assert "a TPU is one replica today" in said and "config.yaml:11:" in said


ROLES = """\
trainingInput:
  scaleTier: CUSTOM
  masterType: n1-standard-4
  masterConfig: {imageUri: gcr.io/p/i, containerCommand: [run], containerArgs: [--chief]}
  workerType: n1-standard-4
  workerCount: 2
  workerConfig:
    imageUri: gcr.io/p/i
    containerCommand: [work]
    containerArgs: [--worker]
    diskConfig: {bootDiskType: pd-standard, bootDiskSizeGb: 300}
  parameterServerType: n1-standard-4
  parameterServerCount: 1
  parameterServerConfig: {imageUri: gcr.io/p/ps}
  evaluatorType: n1-standard-8
  evaluatorCount: 1
  evaluatorConfig: {containerArgs: [--judge]}
  region: us-central1
"""


def test_the_programs_of_workers_and_evaluator_are_theirs() -> None:
    found = converted(ROLES)
    now = job(found)
    commands = {pool.role: now.of(pool.role).command for pool in now.pools}
    arguments = {pool.role: now.of(pool.role).arguments for pool in now.pools}
    images = {pool.role: now.of(pool.role).image for pool in now.pools}
    assert commands == {"chief": ("run",), "worker": ("work",), "ps": None, "evaluator": ()}
    assert arguments == {
        "chief": ("--chief",),
        "worker": ("--worker",),
        "ps": (),
        "evaluator": ("--judge",),
    }
    assert images["ps"] == "gcr.io/p/ps" and images["worker"] == images["chief"] == "gcr.io/p/i"
    assert (now.disk.type, now.disk.size_gb) == ("pd-standard", 300)
    assert set(fates(found).values()) == {"kept"}, told(found)
    _, again = legacy.config(jobfiles.ready(found.text))
    assert again["trainingInput"]["workerConfig"]["containerArgs"] == ["--worker"]
    assert again["trainingInput"]["evaluatorConfig"] == {"containerArgs": ["--judge"]}


def test_a_tier_keeps_what_the_roles_run() -> None:
    found = converted(
        "trainingInput:\n  scaleTier: STANDARD_1\n  region: us-central1\n"
        "  masterConfig: {imageUri: gcr.io/p/i}\n  workerConfig: {imageUri: gcr.io/p/w}\n"
        "  evaluatorConfig: {imageUri: gcr.io/p/e}\n  workerType: standard\n"
    )
    now = job(found)
    assert [(pool.role, pool.count, now.of(pool.role).image) for pool in now.pools] == [
        ("chief", 1, "gcr.io/p/i"),
        ("worker", 4, "gcr.io/p/w"),
        ("ps", 3, "gcr.io/p/i"),
    ]
    fate = fates(found)
    assert fate["workerConfig.imageUri"] == "kept"
    assert fate["workerType"] == fate["evaluatorConfig.imageUri"] == "dropped"


def test_a_machine_without_a_successor_is_told_as_what_it_was() -> None:
    found = converted(f"{CUSTOM}, masterType: complex_model_s, region: us-central1}}\n")
    assert job(found).machine == "n1-standard-8"
    said = "complex_model_s was n1-highcpu-8; is n1-standard-8 now"
    assert any(said in line for line in told(found))


def test_a_range_of_one_value_is_that_value() -> None:
    found = converted(TUNING.replace("minValue: 1, maxValue: 5", "minValue: 5, maxValue: 5"))
    study = job(found).study
    assert study is not None and study.parameters["layers"].values == ("5",)
    assert fates(found)["hyperparameters.params[1].minValue"] == "changed"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (("minValue: 1, maxValue: 5", "minValue: 7, maxValue: 5"), "config.yaml:29:"),
        (("minValue: 1, maxValue: 5", "minValue: 1.5, maxValue: 5"), "params[1]"),
        (("maxTrials: 30", "maxTrials: 3000"), "config.yaml:23: trainingInput.hyperparameters.max"),
        (("maxParallelTrials: 3", "maxParallelTrials: 31"), "31 at once of 30 trials"),
        (("7200s", "2 hours"), "config.yaml:19: trainingInput.scheduling.maxRunningTime"),
        (("gs://my-bucket/job", "s3://b/job"), "config.yaml:11: trainingInput.jobDir"),
        (("labels: {team: vision}", "labels: {Team: vision}"), "config.yaml:32: labels.Team"),
        (("region: us-central1", "region: us-central1-a"), "config.yaml:10: trainingInput.region"),
        (("a@b.iam", "a b"), "config.yaml:17: trainingInput.serviceAccount"),
    ],
)
def test_an_error_names_the_line_of_the_file_that_was_written(
    change: tuple[str, str], said: str
) -> None:
    message, fix = refused(TUNING.replace(*change))
    assert said in message and fix
    line = int(message.partition("config.yaml:")[2].partition(":")[0])
    assert line <= len(TUNING.splitlines())


def test_the_flags_of_that_time() -> None:
    found = converted(
        "",
        scale_tier="CUSTOM",
        master_machine_type="n1-standard-8",
        master_accelerator="count=2,type=nvidia-tesla-v100",
        worker_machine_type="n1-standard-8",
        worker_count="3",
        region="us-central1",
        enable_web_access="true",
        job_dir="gs://my-bucket/job",
        runtime_version="2.11",
        arguments="--epochs 3",
    )
    now = job(found)
    pools = {one.role: (one.count, one.accelerators) for one in now.pools}
    assert pools == {"chief": (1, 2), "worker": (3, 0)}
    assert now.vertex.web_access and now.arguments == ("--epochs", "3")
    assert ("dropped", "--runtime-version") in {(one.fate, one.field) for one in found.ledger}


def test_a_flag_won_over_the_file() -> None:
    found = converted(POSTS_CONFIG, region="us-central1", master_machine_type="n1-standard-16")
    assert job(found).machine == "n1-standard-16"
    fate = fates(found)
    assert (fate["masterType"], fate["--master-machine-type"]) == ("changed", "kept")


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ({"master_accelerator": "nvidia-tesla-v100"}, "--master-accelerator nvidia-tesla-v100"),
        ({"worker_count": "two"}, "--worker-count: 'two' is no number"),
        ({"scale_tier": "LARGE"}, "--scale-tier: 'LARGE' was no scale tier"),
        ({"region": "here"}, "--region: 'here' is not a region"),
    ],
)
def test_a_flag_that_is_wrong_is_named(flags: dict[str, str], said: str) -> None:
    text = "trainingInput: {scaleTier: CUSTOM, masterType: n1-standard-8}\n"
    assert said in refused(text, **flags)[0]
