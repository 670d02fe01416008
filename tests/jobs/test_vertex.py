"""A job as Vertex AI takes it: exactly its own messages."""

from __future__ import annotations

import json
import subprocess
from dataclasses import replace
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest

from builder import contract
from builder.core.errors import InputError
from builder.jobs.backends.vertex import backend, start
from builder.jobs.backends.vertex import messages as vertex
from builder.jobs.ready import JobImage
from tests.emulators.web import LoopbackServer, answering
from tests.jobs import jobfiles

POST = """\
image: v100
region: asia-east1
machine: n1-standard-8
accelerators: 2 x V100
job_dir: gs://my-bucket/jobs/{job}
arguments: [trainer/task.py, --bucket, my-bucket, --pattern, "gs://my-bucket/train_tfr/*.tfrec"]
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
scheduling: {timeout: 2h, restarts: never}
labels: {team: vision}
vertex:
  reservation: projects/my-project/zones/us-central1-a/reservations/mine
  web_access: true
  encryption_key: projects/p/locations/us-central1/keyRings/r/cryptoKeys/k
"""
STUDY = """\
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
CPU = "image: cpu\nregion: us-central1\nmachine: n1-standard-8\n"
TPU = "image: tpu\nregion: us-west1\nmachine: ct5lp-hightpu-4t\ntopology: 2x2\n"
H200 = "image: h200\nregion: us-central1\nmachine: a3-ultragpu-8g\naccelerators: 8 x H200\n"


def body(text: str, target: str = "v100") -> dict[str, Any]:
    """The REST body of a job."""
    return vertex.body(jobfiles.ready(text, target))


def message(text: str, target: str = "v100") -> Any:
    """The job as Google's own library reads it; a field that it does not know is an error."""
    from google.cloud import aiplatform_v1 as api  # 1,200 modules

    kind = api.HyperparameterTuningJob if "study:" in text else api.CustomJob
    return kind.from_json(json.dumps(body(text, target)))


def first_pool(text: str, target: str = "v100") -> Any:
    return body(text, target)["jobSpec"]["workerPoolSpecs"][0]


def environment(text: str, target: str = "v100") -> dict[str, str]:
    container = first_pool(text, target)["containerSpec"]
    own = {variable["name"]: variable["value"] for variable in container.get("env", [])}
    assert own.pop(contract.IMAGE, container["imageUri"]) == container["imageUri"]
    return own


def test_every_field_arrives() -> None:
    sent = body(EVERYTHING)
    spec = sent["jobSpec"]
    chief, worker, skipped, evaluator = spec["workerPoolSpecs"]
    assert skipped == {}  # positions are roles: no parameter servers
    assert (worker["replicaCount"], worker["machineSpec"]["acceleratorCount"]) == (3, 4)
    assert "acceleratorType" not in evaluator["machineSpec"]
    assert chief["machineSpec"]["acceleratorType"] == "NVIDIA_TESLA_V100"
    container = chief["containerSpec"]
    assert container["imageUri"] == f"{jobfiles.REPOSITORY}@{jobfiles.DIGEST}"
    assert container["command"] == ["python", "-m", "trainer.task"]
    base = spec["baseOutputDirectory"]["outputUriPrefix"]
    assert base == f"gs://my-bucket/jobs/{sent['displayName']}"
    assert container["args"] == ["--records=gs://b-b/r", f"--job-dir={base}"]
    assert chief["diskSpec"] == {"bootDiskType": "pd-standard", "bootDiskSizeGb": 200}
    never = {"strategy": "STANDARD", "disableRetries": True}
    assert spec["scheduling"] == {"timeout": "7200s", **never}
    assert spec["serviceAccount"].startswith("trainer@")
    assert spec["network"] == "projects/123456789/global/networks/vpc"
    assert spec["tensorboard"].endswith("/tensorboards/42")
    assert sent["labels"]["team"] == "vision"
    assert sent["encryptionSpec"]["kmsKeyName"].endswith("/cryptoKeys/k")
    assert spec["enableWebAccess"]
    affinity = chief["machineSpec"]["reservationAffinity"]
    assert affinity["reservationAffinityType"] == "SPECIFIC_RESERVATION"


def test_a_replica_is_told_what_its_machine_carries() -> None:
    assert environment(POST)[contract.ACCELERATOR] == "V100:2,capability=7.0,cuda=12,driver=525"
    own = f"environment: {{{contract.ACCELERATOR}: none}}\n"
    assert environment(POST + own) == {contract.ACCELERATOR: "none"}, "the person's word wins"
    full = "environment: {" + ", ".join(f"V{index}: x" for index in range(100)) + "}\n"
    assert len(environment(POST + full)) == 100, "the service takes 100"
    assert environment(CPU, "cpu") == {contract.ACCELERATOR: "none"}, "whatever its image says"
    assert environment(TPU, "tpu") == {contract.ACCELERATOR: "TPU-v5e:4,topology=2x2"}
    machine = {"machineType": "ct5lp-hightpu-4t", "tpuTopology": "2x2"}
    assert first_pool(TPU, "tpu")["machineSpec"] == machine


# --- secrets --------------------------------------------------------------------------------------

OWN = "image: h.pkg.dev/p/r/i\nregion: us-central1\nmachine: n1-standard-8\n"
PROGRAM = "command: [sh, -c, 'echo $0 $WANDB_API_KEY']\n"
SECRET = "environment: {WANDB_API_KEY: {secret: wandb}}\n"


@pytest.mark.parametrize(
    ("code", "fails", "exit_code", "printed"),
    [(200, 0, 0, "--steps=3 abc123\n"), (200, 1, 0, "--steps=3 abc123\n"), (403, 0, 3, "")],
)
def test_a_container_reads_its_secrets_and_becomes_the_program(
    code: int, fails: int, exit_code: int, printed: str
) -> None:
    """The start is what is sent, but for the two addresses of Google's."""
    asked: list[tuple[str, str | None]] = []

    class Google(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            is_token = self.path == "/token"
            header = "Metadata-Flavor" if is_token else "Authorization"
            asked.append((self.path, self.headers[header]))
            answer: Any = {"access_token": "t"} if is_token else {"payload": {"data": "YWJjMTIz"}}
            self.send_response(code if is_token or len(asked) > fails + 1 else 503)
            self.end_headers()
            self.wfile.write(json.dumps(answer).encode())

        def log_message(self, *_: object) -> None: ...

    text = OWN + PROGRAM + SECRET + "arguments: {steps: 3}\n"
    sent = jobfiles.checked(jobfiles.job(text), JobImage("h.pkg.dev/p/r/i"))
    container = vertex.body(sent)["jobSpec"]["workerPoolSpecs"][0]["containerSpec"]
    assert "WANDB_API_KEY" not in {variable["name"] for variable in container["env"]}
    with answering(LoopbackServer(("127.0.0.1", 0), Google)) as server:
        address = f"http://127.0.0.1:{server.server_port}"
        command = [*container["command"], *container["args"]]
        command[4] = command[4].replace(start.TOKEN, f"{address}/token")
        command[4] = command[4].replace(start.SECRETS, f"{address}/")
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (exit_code, printed)
    if exit_code:
        assert done.stderr.startswith(f"{address}/token: HTTP Error 403")
    else:
        version = "/projects/my-project/secrets/wandb/versions/latest:access"
        assert asked[0] == ("/token", "Google") and len(asked) == 2 + fails
        assert set(asked[1:]) == {(version, "Bearer t")}


def test_a_job_with_secrets_starts_what_its_image_would_start() -> None:
    image = replace(jobfiles.image(), entrypoint=("python3", "-m", "trainer.task"))
    sent = vertex.body(jobfiles.checked(jobfiles.job(POST + SECRET), image))
    command = sent["jobSpec"]["workerPoolSpecs"][0]["containerSpec"]["command"]
    assert command[:4] == ["python3", "-I", "-S", "-c"] and command[6:] == [*image.entrypoint]


@pytest.mark.parametrize(
    ("text", "project", "problem"),
    [
        (OWN + SECRET, "my-project", "what the image starts is unknown"),
        (OWN + PROGRAM + SECRET, None, "no project is known"),
        (OWN + PROGRAM + SECRET.replace("wandb", "a.b"), "my-project", "a.b is no name in Secret"),
    ],
)
def test_a_secret_that_cannot_be_read_is_refused(
    text: str, project: str | None, problem: str
) -> None:
    with pytest.raises(InputError, match=problem):
        jobfiles.checked(jobfiles.job(text), JobImage("h.pkg.dev/p/r/i"), project=project)


# --- scheduling, studies --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ("strategy: spot", {"strategy": "SPOT"}),
        (
            "strategy: flex-start, timeout: 7d, max_wait: 30m",
            {"strategy": "FLEX_START", "maxWaitDuration": "1800s"},
        ),
    ],
)
def test_scheduling_and_the_disk_of_the_services_choice(written: str, read: dict[str, Any]) -> None:
    text = H200 + f"scheduling: {{{written}}}\n"
    assert body(text, "h200")["jobSpec"]["scheduling"] == {"timeout": "604800s", **read}
    assert message(text, "h200").job_spec.scheduling.timeout.days == 7
    assert "diskSpec" not in first_pool(text, "h200")


@pytest.mark.parametrize(("algorithm", "number"), [("grid", 2), ("random", 3)])
def test_a_study_is_a_tuning_job(algorithm: str, number: int) -> None:
    tuning = message(POST + STUDY)
    assert (tuning.max_trial_count, tuning.parallel_trial_count) == (20, 4)
    assert tuning.max_failed_trial_count == 2
    study = tuning.study_spec
    assert study.metrics[0].goal.name == "MINIMIZE"
    assert study.algorithm.name == "ALGORITHM_UNSPECIFIED"  # the service's own
    assert "median_automated_stopping_spec" in study
    rate, layers, batch, optimizer = study.parameters
    assert (rate.double_value_spec.min_value, rate.double_value_spec.max_value) == (0.001, 0.1)
    assert rate.scale_type.name == "UNIT_LOG_SCALE"
    assert (layers.integer_value_spec.min_value, layers.integer_value_spec.max_value) == (1, 5)
    assert list(batch.discrete_value_spec.values) == [16, 32, 64]
    assert list(optimizer.categorical_value_spec.values) == ["adam", "sgd"]
    text = STUDY.replace("goal: minimize", f"algorithm: {algorithm}")
    text = text.replace("{min: 0.001, max: 0.1, scale: log}", "{min: 1, max: 3}")
    assert message(POST + text).study_spec.algorithm == number


def test_the_same_job_has_the_same_key_and_any_change_another() -> None:
    ready = jobfiles.ready(POST)
    key = vertex.key(ready)
    assert key == vertex.key(jobfiles.ready("# another comment\n" + POST))
    for change in (
        POST.replace("2 x V100", "4 x V100"),
        POST.replace("asia-east1", "us-central1"),
        POST.replace("my-bucket,", "other-bucket,"),
        POST + "environment: {A: b}\n",
        POST + "scheduling: {timeout: 1h}\n",
        POST + "labels: {team: b}\n",
    ):
        assert vertex.key(jobfiles.ready(change)) != key
    assert vertex.key(jobfiles.ready(POST, project="other-project")) != key
    assert vertex.display_name(ready) == f"cats-{key}"
    assert vertex.display_name(ready, 2) == f"cats-{key}-2"


# --- where a job goes -----------------------------------------------------------------------------


@pytest.mark.parametrize(("known", "missing"), [("region", "project"), ("project", "region")])
def test_a_flag_wins_over_the_file_over_the_environment_over_the_project(
    known: str, missing: str, tmp_path: Path
) -> None:
    ours, cloud = '[job]\nproject = "toml-project"\n', '[cloud]\nproject = "cloud-project"\n'
    in_file = jobfiles.job(CPU + "project: file-project\n")
    environ = {"BUILDER_JOB_PROJECT": "environ-project"}
    gcloud = {"GOOGLE_CLOUD_PROJECT": "gcloud-project"}
    for toml, job, variables, flags, expected in (
        (ours, in_file, environ, {"project": "flag-project"}, "flag-project"),
        (ours, in_file, environ, {}, "file-project"),
        (ours, None, environ, {}, "environ-project"),
        (ours, None, gcloud, {}, "toml-project"),
        (cloud, None, gcloud, {}, "cloud-project"),
        ("", None, gcloud, {}, "gcloud-project"),
    ):
        (tmp_path / "builder.toml").write_text(toml)
        assert backend.load(tmp_path, job, flags, variables).project == expected
    where = backend.load(tmp_path, in_file, {}, {})
    assert backend.VertexAI(where).parent == "projects/file-project/locations/us-central1"
    with pytest.raises(InputError, match=f"no {missing} is known"):
        backend.VertexAI(where.model_copy(update={missing: None, known: "x"})).known()
