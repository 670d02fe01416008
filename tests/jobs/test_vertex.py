"""A job as Vertex AI, gcloud and AI Platform take it: exactly their own messages."""

from __future__ import annotations

import io
from typing import Any

import pytest
from google.cloud import aiplatform_v1 as api
from google.protobuf import json_format
from ruamel.yaml import YAML

from builder import contract
from builder.core import yamlfile
from builder.core.errors import InputError
from builder.jobs.aiplatform import render as legacy
from builder.jobs.places.vertex import messages as vertex
from tests.jobs import jobfiles

POST = """\
image: v100
region: asia-east1
machine: n1-standard-8
accelerators: 2 x V100
job_dir: gs://my-bucket/jobs/{job}
arguments:
- trainer/task.py
- --bucket
- my-bucket
- --train-pattern
- gs://my-bucket/train_tfr/*.tfrec
- --valid-pattern
- gs://my-bucket/validation_tfr/*.tfrec
"""
# What the post "Distributed Training in TensorFlow with AI Platform & Docker" gave to gcloud.
POSTS_CONFIG = """\
trainingInput:
  scaleTier: CUSTOM
  # Configure a master worker with 2 V100 GPUs
  masterType: n1-standard-8 # Specify the base machine type
  masterConfig:
    acceleratorConfig:
      count: 2
      type: NVIDIA_TESLA_V100
"""
EVERYTHING = """\
image: v100
region: us-central1
project: my-project
machine: n1-standard-16
accelerators: 2 x V100
replicas:
  workers: {count: 3, machine: n1-standard-32, accelerators: 4 x V100}
  evaluator: {machine: n1-standard-8, accelerators: none}
command: [python, -m, trainer.task]
arguments: {records: "gs://b-b/r"}
environment: {TF_CPP_MIN_LOG_LEVEL: 1}
job_dir: gs://my-bucket/jobs/{job}
pass_job_dir: true
service_account: trainer@my-project.iam.gserviceaccount.com
network: projects/123456789/global/networks/vpc
tensorboard: projects/my-project/locations/us-central1/tensorboards/42
disk: {type: pd-standard, size_gb: 200}
scheduling: {strategy: spot, timeout: 2h, restarts: job}
labels: {team: vision}
"""


def load(text: str) -> Any:
    return YAML(typ="safe").load(io.StringIO(text))


def _paid(value: str) -> dict[str, str]:
    return {"name": contract.ACCELERATOR, "value": value}


def _environment_of(text: str, target: str = "v100") -> dict[str, str]:
    told = vertex.to_dict(vertex.message(jobfiles.ready(text, target)))
    container = told["jobSpec"]["workerPoolSpecs"][0]["containerSpec"]
    return {one["name"]: one["value"] for one in container.get("env", [])}


def test_a_replica_is_told_what_its_machine_carries() -> None:
    assert _environment_of(POST)[contract.ACCELERATOR].startswith("V100:2,capability=7.0,")
    own = f"environment: {{{contract.ACCELERATOR}: none}}\n"
    assert _environment_of(POST + own) == {contract.ACCELERATOR: "none"}, "the person's word wins"
    full = "environment: {" + ", ".join(f"V{index}: x" for index in range(100)) + "}\n"
    assert len(_environment_of(POST + full)) == 100, "the service takes 100"
    cpu = "image: cpu\nregion: us-central1\nmachine: n1-standard-8\n"
    assert _environment_of(cpu, "cpu") == {contract.ACCELERATOR: "none"}, "whatever its image says"
    tpu = "image: tpu\nregion: us-west1\nmachine: ct5lp-hightpu-4t\ntopology: 2x2\n"
    assert _environment_of(tpu, "tpu") == {contract.ACCELERATOR: "TPU-v5e:4,topology=2x2"}


def test_the_posts_job_is_a_custom_job() -> None:
    ready = jobfiles.ready(POST)
    message = vertex.message(ready)
    assert isinstance(message, api.CustomJob)
    (pool,) = message.job_spec.worker_pool_specs
    assert pool.machine_spec.machine_type == "n1-standard-8"
    assert pool.machine_spec.accelerator_type == api.AcceleratorType.NVIDIA_TESLA_V100
    assert (pool.machine_spec.accelerator_count, pool.replica_count) == (2, 1)
    assert pool.container_spec.image_uri == f"{jobfiles.REPOSITORY}@{jobfiles.DIGEST}"
    assert list(pool.container_spec.args)[:3] == ["trainer/task.py", "--bucket", "my-bucket"]
    assert message.job_spec.base_output_directory.output_uri_prefix == (
        f"gs://my-bucket/jobs/{message.display_name}"
    )


def test_the_posts_job_is_the_posts_config() -> None:
    command, config = legacy.config(jobfiles.ready(POST))
    assert config == load(POSTS_CONFIG)
    assert load(yamlfile.dump(config, legacy.GONE)) == load(POSTS_CONFIG)
    assert "gcloud ai-platform jobs submit training cats" in command
    assert command.index("--config config.yaml") < command.index("-- \\")
    assert command.rstrip().endswith("gs://my-bucket/validation_tfr/*.tfrec")
    assert "2025-01-31" in legacy.GONE


def test_every_field_arrives() -> None:
    ready = jobfiles.ready(EVERYTHING)
    told = vertex.to_dict(vertex.message(ready))
    spec = told["jobSpec"]
    chief, worker, skipped, evaluator = spec["workerPoolSpecs"]
    assert skipped == {}  # positions are roles: no parameter servers
    assert (worker["replicaCount"], worker["machineSpec"]["acceleratorCount"]) == ("3", 4)
    assert "acceleratorType" not in evaluator["machineSpec"]
    container = chief["containerSpec"]
    assert container["command"] == ["python", "-m", "trainer.task"]
    base = spec["baseOutputDirectory"]["outputUriPrefix"]
    assert base == f"gs://my-bucket/jobs/{told['displayName']}"
    assert container["args"] == ["--records=gs://b-b/r", f"--job-dir={base}"]
    own = {"name": "TF_CPP_MIN_LOG_LEVEL", "value": "1"}
    paid = [_paid("V100:2,capability=7.0,cuda=12,driver=525"), own]
    assert container["env"] == paid
    four = _paid("V100:4,capability=7.0,cuda=12,driver=525")
    assert worker["containerSpec"]["env"] == [four, own]
    cpu = _paid(contract.CPU)
    assert evaluator["containerSpec"]["env"] == [cpu, own], "its machine has no accelerator"
    assert chief["diskSpec"] == {"bootDiskType": "pd-standard", "bootDiskSizeGb": 200}
    assert spec["scheduling"] == {
        "timeout": "7200s",
        "strategy": "SPOT",
        "restartJobOnWorkerRestart": True,
    }
    assert spec["serviceAccount"].startswith("trainer@")
    assert spec["network"] == "projects/123456789/global/networks/vpc"
    assert spec["tensorboard"].endswith("/tensorboards/42")
    assert told["labels"]["team"] == "vision"


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ("strategy: spot", {"strategy": "SPOT"}),
        ("restarts: never", {"strategy": "STANDARD", "disableRetries": True}),
        ("restarts: job", {"strategy": "STANDARD", "restartJobOnWorkerRestart": True}),
    ],
)
def test_scheduling(written: str, read: dict[str, Any]) -> None:
    ready = jobfiles.ready(POST + f"scheduling: {{{written}}}\n")
    spec = vertex.to_dict(vertex.message(ready))["jobSpec"]["scheduling"]
    assert spec == {"timeout": "604800s", **read}


def test_a_study_is_a_tuning_job() -> None:
    ready = jobfiles.ready(
        POST
        + """\
study:
  metric: accuracy
  goal: minimize
  trials: 20
  parallel: 4
  max_failed: 2
  early_stopping: median
  parameters:
    rate: {min: 0.001, max: 0.1, scale: log}
    layers: {min: 1, max: 5}
    batch: {values: [64, 16, 32]}
    optimizer: {values: [adam, sgd]}
"""
    )
    message = vertex.message(ready)
    assert isinstance(message, api.HyperparameterTuningJob)
    assert (message.max_trial_count, message.parallel_trial_count) == (20, 4)
    assert message.max_failed_trial_count == 2
    study = message.study_spec
    assert study.metrics[0].goal == api.StudySpec.MetricSpec.GoalType.MINIMIZE
    assert study.algorithm == api.StudySpec.Algorithm.ALGORITHM_UNSPECIFIED  # the service's own
    assert "median_automated_stopping_spec" in study
    rate, layers, batch, optimizer = study.parameters
    assert (rate.double_value_spec.min_value, rate.double_value_spec.max_value) == (0.001, 0.1)
    assert rate.scale_type == api.StudySpec.ParameterSpec.ScaleType.UNIT_LOG_SCALE
    assert (layers.integer_value_spec.min_value, layers.integer_value_spec.max_value) == (1, 5)
    assert list(batch.discrete_value_spec.values) == [16, 32, 64]
    assert list(optimizer.categorical_value_spec.values) == ["adam", "sgd"]
    command, config = vertex.gcloud(ready)
    assert "hp-tuning-jobs create" in command and "--max-trial-count=20" in command
    assert set(config) == {"studySpec", "trialJobSpec", "maxFailedTrialCount"}


@pytest.mark.parametrize(
    ("algorithm", "meant"),
    [
        ("grid", api.StudySpec.Algorithm.GRID_SEARCH),
        ("random", api.StudySpec.Algorithm.RANDOM_SEARCH),
    ],
)
def test_algorithms(algorithm: str, meant: Any) -> None:
    text = f"study: {{metric: a, algorithm: {algorithm}, parameters: {{x: {{values: [1, 2]}}}}}}\n"
    message = vertex.message(jobfiles.ready(POST + text))
    assert isinstance(message, api.HyperparameterTuningJob)
    assert message.study_spec.algorithm == meant


@pytest.mark.parametrize("text", [POST, EVERYTHING])
def test_gcloud_reads_its_own_message(text: str) -> None:
    """gcloud's config is the CustomJobSpec: it goes through the proto and back unchanged."""
    ready = jobfiles.ready(text)
    command, config = vertex.gcloud(ready)
    written = load(yamlfile.dump(config, command))
    proto = api.CustomJobSpec.pb(api.CustomJobSpec())
    json_format.ParseDict(written, proto)
    assert api.CustomJobSpec.wrap(proto) == vertex.message(ready).job_spec
    assert isinstance(written["workerPoolSpecs"][0]["replicaCount"], int)
    assert f"--region={ready.region}" in command and "--project=my-project" in command


def test_the_same_job_has_the_same_key_and_any_change_another() -> None:
    key = vertex.key(jobfiles.ready(POST))
    assert key == vertex.key(jobfiles.ready("# another comment\n" + POST))
    for change in (
        POST.replace("2 x V100", "4 x V100"),
        POST.replace("asia-east1", "us-central1"),
        POST.replace("- my-bucket", "- other-bucket"),
        POST + "environment: {A: b}\n",
        POST + "scheduling: {timeout: 1h}\n",
        POST + "labels: {team: b}\n",
    ):
        assert vertex.key(jobfiles.ready(change)) != key
    assert vertex.key(jobfiles.ready(POST, project="other-project")) != key
    ready = jobfiles.ready(POST)
    assert vertex.job_id(ready) == f"cats-{key}"
    assert vertex.job_id(ready, 2) == f"cats-{key}-2"
    assert vertex.key(ready) == key


def test_a_tpu_by_its_topology_names_no_accelerator() -> None:
    text = "image: tpu\nregion: us-central1\nmachine: ct5lp-hightpu-4t\ntopology: 2x2\n"
    spec = vertex.to_dict(vertex.message(jobfiles.ready(text, "tpu")))["jobSpec"]
    machine = spec["workerPoolSpecs"][0]["machineSpec"]
    assert machine == {"machineType": "ct5lp-hightpu-4t", "tpuTopology": "2x2"}


H200 = "image: h200\nregion: us-central1\nmachine: a3-ultragpu-8g\naccelerators: 8 x H200\n"


def _first_pool(text: str, target: str) -> Any:
    spec = vertex.to_dict(vertex.message(jobfiles.ready(text, target)))["jobSpec"]
    return spec["workerPoolSpecs"][0]


def test_the_disk_is_the_services_choice_unless_a_person_asks() -> None:
    assert "diskSpec" not in _first_pool(H200, "h200")
    assert "diskSpec" not in _first_pool(POST, "v100")
    asked = _first_pool(H200 + "disk: {type: hyperdisk-balanced}\n", "h200")
    assert asked["diskSpec"]["bootDiskType"] == "hyperdisk-balanced"
    larger = _first_pool(H200 + "disk: {size_gb: 300}\n", "h200")
    assert larger["diskSpec"] == {"bootDiskSizeGb": 300}


def test_flex_start_arrives() -> None:
    text = H200 + "scheduling: {strategy: flex-start, timeout: 2h, max_wait: 30m}\n"
    spec = vertex.to_dict(vertex.message(jobfiles.ready(text, "h200")))["jobSpec"]
    assert spec["scheduling"] == {
        "timeout": "7200s",
        "strategy": "FLEX_START",
        "maxWaitDuration": "1800s",
    }


# --- AI Platform ----------------------------------------------------------------------------------


def test_training_input_holds_what_flags_would() -> None:
    ready = jobfiles.ready(POST + "service_account: a@b.iam.gserviceaccount.com\n")
    found = legacy.training_input(ready)
    assert found["region"] == "asia-east1"
    assert found["jobDir"] == "gs://my-bucket/jobs/cats"
    assert found["masterConfig"]["imageUri"].endswith(jobfiles.DIGEST)
    assert found["args"][0] == "trainer/task.py"
    assert found["serviceAccount"] == "a@b.iam.gserviceaccount.com"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("environment: {A: b}\n", "no environment variables"),
        ("scheduling: {strategy: spot}\n", "no spot machines"),
        (
            "service_account: a@b.iam.gserviceaccount.com\n"
            "tensorboard: projects/p/locations/asia-east1/tensorboards/1\n",
            "no managed TensorBoard",
        ),
    ],
)
def test_what_ai_platform_had_not_is_refused(change: str, said: str) -> None:
    with pytest.raises(InputError) as caught:
        legacy.config(jobfiles.ready(POST + change))
    assert said in caught.value.message and "without --to legacy" in caught.value.fix


def test_machines_that_ai_platform_had_not_are_refused() -> None:
    text = "image: l4\nregion: us-central1\nmachine: g2-standard-4\naccelerators: L4\n"
    with pytest.raises(InputError, match="had no g2-standard-4 with 1 x L4"):
        legacy.config(jobfiles.ready(text, "l4"))
