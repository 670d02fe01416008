"""Jobs of Vertex AI as job files: a round trip, a ledger of every field, what is refused."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from google.cloud import aiplatform_v1 as api

from builder.core import yamlfile
from builder.core.errors import InputError
from builder.jobs import description, ledger
from builder.jobs.places.vertex import importing, messages
from tests.emulators import vertex as emulator
from tests.jobs import jobfiles
from tests.jobs.test_job_command import Run, here, run  # noqa: F401
from tests.jobs.test_submission import JOB, STUDY

CLUSTER = """\
image: v100
region: us-central1
machine: n1-standard-8
accelerators: 2 x V100
replicas:
  workers: {count: 3, accelerators: 1 x V100}
  parameter_servers: {count: 2, machine: n1-highmem-8}
  evaluator: {count: 1, accelerators: none}
command: [python, -m, trainer.task]
arguments: [--steps=10, "--name=a b", "$HOME"]
environment: {A: "1", B: "yes", EMPTY: ""}
job_dir: gs://my-bucket/jobs/one
service_account: t@p-12345.iam.gserviceaccount.com
network: projects/123456/global/networks/default
tensorboard: projects/123456/locations/us-central1/tensorboards/7
disk: {type: pd-ssd, size_gb: 200}
scheduling: {strategy: spot, timeout: 2h, restarts: job}
labels: {team: vision}
"""
OWN_PROGRAMS = """\
image: v100
region: us-central1
machine: n1-standard-8
accelerators: 2 x V100
command: [python, -m, trainer.task]
arguments: [--steps=10]
environment: {A: "1"}
replicas:
  workers: {count: 3, arguments: [--worker], environment: {A: "2", B: "3"}}
  evaluator:
    {count: 1, accelerators: none, image: gcr.io/p/judge:1, command: [judge], arguments: []}
"""
REDUCERS = """\
image: v100
region: us-central1
machine: n1-standard-8
accelerators: 2 x V100
arguments: [--steps=10]
replicas:
  workers: 3
  reduction_servers: {count: 2, machine: n1-highcpu-16, image: "gcr.io/p/reductionserver:latest"}
"""
VERTEX = """\
image: v100
region: us-central1
machine: n1-standard-8
accelerators: V100
network: projects/123456/global/networks/default
vertex:
  reservation: projects/my-project/zones/us-central1-a/reservations/mine
  experiment: cats
  experiment_run: first
  web_access: true
  dashboard_access: true
  encryption_key: projects/p/locations/us-central1/keyRings/r/cryptoKeys/k
  nfs: [{server: 10.0.0.2, path: /exports/data, name: data}]
"""
PERSISTENT = """\
image: v100
region: us-central1
machine: n1-standard-8
accelerators: V100
replicas: {workers: 2}
vertex: {persistent_resource: cluster}
"""
CONDITIONS = """\
image: v100
region: us-central1
machine: n1-standard-8
accelerators: V100
study:
  metric: accuracy
  more_metrics: {seconds: minimize}
  trials: 4
  parameters:
    optimizer: {values: [adam, sgd]}
    momentum: {min: 0.1, max: 0.9, when: {optimizer: [sgd]}}
    nesterov: {values: [0, 1], when: {optimizer: [sgd]}}
    layers: {min: 1, max: 3}
    width: {values: [16, 32], when: {layers: [2, 3]}}
    deeper: {values: [a, b], when: {width: [32]}}
"""
TPU = "image: tpu\nregion: us-west1\nmachine: ct5lp-hightpu-4t\ntopology: 2x2\n"
FLEX = """\
image: l4
region: us-central1
machine: g2-standard-8
accelerators: L4
scheduling: {strategy: flex-start, max_wait: 24h, restarts: never}
"""


def sent(text: str, target: str = "v100") -> dict[str, Any]:
    """The REST body of the job of this text."""
    return messages.to_dict(messages.message(jobfiles.ready(text, target)))


def imported(tmp_path: Path, body: Any, suffix: str = "json", **more: Any) -> ledger.Imported:
    path = tmp_path / f"old.{suffix}"
    path.write_text(json.dumps(body) if suffix == "json" else yamlfile.dump(body))
    return importing.imported(ledger.read(path), path, **more)


def compared(body: dict[str, Any]) -> dict[str, Any]:
    """A body without what another job's name and key change."""
    told = json.loads(json.dumps(body))
    told.pop("displayName")
    told["labels"] = {k: v for k, v in told["labels"].items() if not k.startswith("builder-")}
    return dict(told)


@pytest.mark.parametrize(
    ("text", "target"),
    [
        (JOB.replace("/{job}", ""), "v100"),
        (STUDY.replace("/{job}", ""), "v100"),
        (CLUSTER, "v100"),
        (TPU, "tpu"),
        (FLEX, "l4"),
        (OWN_PROGRAMS, "v100"),
        (REDUCERS, "v100"),
        (VERTEX, "v100"),
        (PERSISTENT, "v100"),
        (CONDITIONS, "v100"),
    ],
)
@pytest.mark.parametrize("suffix", ["json", "yaml"])
def test_what_is_rendered_comes_back_as_the_same_job(
    tmp_path: Path, text: str, target: str, suffix: str
) -> None:
    body = sent(text, target)
    found = imported(tmp_path, body, suffix, region=jobfiles.job(text).region)
    again = jobfiles.job(found.text)
    placed = jobfiles.checks.ready(
        again,
        jobfiles.image(target),
        again.region,
        project="my-project",
        targets=jobfiles.TARGETS,
        own=jobfiles.own(again),
    )
    assert compared(messages.to_dict(messages.message(placed))) == compared(body)
    names = {line.field for line in found.ledger if line.fate in ("dropped", "added")}
    assert not names, found.ledger
    assert all(line.why.startswith("the factory's own") for line in found.having("changed"))


def test_gclouds_configuration_and_names_with_underscores(tmp_path: Path) -> None:
    config = {
        "worker_pool_specs": [
            {
                "machine_spec": {"machine_type": "n1-standard-4"},
                "replica_count": 1,
                "container_spec": {"image_uri": "gcr.io/p/i:1", "args": ["--epochs=3"]},
            }
        ]
    }
    found = imported(tmp_path, config, "yaml", region="europe-west4")
    job = jobfiles.job(found.text)
    assert (job.machine, job.arguments, job.region) == (
        "n1-standard-4",
        ("--epochs=3",),
        "europe-west4",
    )
    added = {line.field: line.why for line in found.having("added")}
    assert added["jobSpec.scheduling.timeout"] == "'604800s'"  # the service's own default


def test_what_a_file_cannot_say_is_in_the_ledger(tmp_path: Path) -> None:
    body = sent(CLUSTER) | {
        "name": "projects/1/locations/us-central1/customJobs/5",
        "state": "JOB_STATE_SUCCEEDED",
    }
    body["jobSpec"]["reservedIpRanges"] = ["one"]
    pool = body["jobSpec"]["workerPoolSpecs"][1]
    pool["machineSpec"]["reservationAffinity"] = {"reservationAffinityType": "NO_RESERVATION"}
    dropped = {line.field: line.why for line in imported(tmp_path, body).having("dropped")}
    assert dropped == {
        "jobSpec.reservedIpRanges": "['one']: a job's file does not have it",
        "jobSpec.workerPoolSpecs[1].machineSpec.reservationAffinity.reservationAffinityType": (
            "'NO_RESERVATION': a job's file does not have it"
        ),
        "name": "the service writes it",
        "state": "the service writes it",
    }


def test_a_role_with_a_program_of_its_own_keeps_it(tmp_path: Path) -> None:
    pools = sent(OWN_PROGRAMS)["jobSpec"]["workerPoolSpecs"]
    assert [pool.get("containerSpec", {}).get("args") for pool in pools] == [
        ["--steps=10"],
        ["--worker"],
        None,
        None,
    ]
    assert pools[3]["containerSpec"]["command"] == ["judge"]
    assert pools[3]["containerSpec"]["imageUri"] == "gcr.io/p/judge:1"
    assert pools[1]["containerSpec"]["imageUri"] == pools[0]["containerSpec"]["imageUri"]
    assert {"name": "B", "value": "3"} in pools[1]["containerSpec"]["env"]


def test_a_condition_stands_inside_the_parameter_that_it_hangs_on() -> None:
    study = sent(CONDITIONS)["studySpec"]
    assert [one["metricId"] for one in study["metrics"]] == ["accuracy", "seconds"]
    top = {one["parameterId"]: one for one in study["parameters"]}
    assert list(top) == ["optimizer", "layers"]
    width = top["layers"]["conditionalParameterSpecs"][0]
    assert width["parentIntValues"]["values"] == ["2", "3"]
    deeper = width["parameterSpec"]["conditionalParameterSpecs"][0]
    assert deeper["parentDiscreteValues"]["values"] == [32.0]
    assert deeper["parameterSpec"]["parameterId"] == "deeper"


@pytest.mark.parametrize(
    ("change", "said", "fix"),
    [
        (("network:", "#"), "vertex.nfs: an NFS server is reached through a network", "network:"),
        (("us-central1-a", "us-east1-b"), "the reservation is in us-east1", "region: us-east1"),
        (("reservation: p", "reservation: x"), "is not a reservation", "write any, none"),
        (("locations/us-central1", "locations/eu"), "the key is in eu", "a key in us-central1"),
        (("  experiment: cats\n", ""), "experiment_run needs experiment", "add experiment"),
        (("10.0.0.2", "nas.local"), "'nas.local' is not an IP address", "10.0.0.2"),
        (("web_access: true", "web_access: perhaps"), "expected true or false", "true"),
        (("web_access", "web_acess"), "unknown key", "web_access?"),
    ],
)
def test_what_only_vertex_ai_has_is_checked(change: tuple[str, str], said: str, fix: str) -> None:
    with pytest.raises(InputError) as caught:
        sent(VERTEX.replace(*change))
    assert said in caught.value.message and fix in caught.value.fix
    assert caught.value.message.startswith("jobs/cats.yaml:")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (("when: {optimizer: [sgd]}", "when: {optimiser: [sgd]}"), "which is no parameter"),
        (("when: {optimizer: [sgd]}", "when: {optimizer: [rms]}"), "optimizer is never rms"),
        (("when: {layers: [2, 3]}", "when: {layers: [4]}"), "layers is never 4"),
        (("layers: {min: 1, max: 3}", "layers: {min: 1.5, max: 3}"), "has no single values"),
        (("values: [adam, sgd]}", "values: [adam, sgd], when: {nesterov: [1]}}"), "on itself"),
        (("more_metrics: {seconds", "more_metrics: {accuracy"), "is the metric already"),
    ],
)
def test_a_condition_that_nothing_meets_is_refused(change: tuple[str, str], said: str) -> None:
    with pytest.raises(InputError, match=said):
        sent(CONDITIONS.replace(*change))


@pytest.mark.parametrize("text", [CLUSTER, OWN_PROGRAMS, REDUCERS, VERTEX, PERSISTENT, CONDITIONS])
def test_the_service_takes_it(text: str) -> None:
    job = messages.message(jobfiles.ready(text, project=emulator.PROJECT))
    parent = f"projects/{emulator.PROJECT}/locations/us-central1"
    with emulator.running() as loopback:
        if isinstance(job, api.CustomJob):
            made: Any = loopback.service.create_custom_job(
                api.CreateCustomJobRequest(parent=parent, custom_job=job)
            )
        else:
            made = loopback.service.create_hyperparameter_tuning_job(
                api.CreateHyperparameterTuningJobRequest(
                    parent=parent, hyperparameter_tuning_job=job
                )
            )
        assert made.name


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda spec: setattr(spec, "network", ""), "nfs_mounts: a network is needed"),
        (lambda spec: setattr(spec, "experiment", "cats"), "not the name of a context"),
        (
            lambda spec: spec.worker_pool_specs[0].machine_spec.reservation_affinity.values.clear(),
            "needs key and values",
        ),
    ],
)
def test_the_loopback_service_refuses_what_the_reference_does(change: Any, said: str) -> None:
    job = messages.message(jobfiles.ready(VERTEX, project=emulator.PROJECT))
    assert isinstance(job, api.CustomJob)
    change(job.job_spec)
    parent = f"projects/{emulator.PROJECT}/locations/us-central1"
    with emulator.running() as loopback, pytest.raises(emulator.Refused, match=said):
        loopback.service.create_custom_job(
            api.CreateCustomJobRequest(parent=parent, custom_job=job)
        )


def test_gclouds_configuration_may_write_its_only_pool_without_a_list(tmp_path: Path) -> None:
    """Of 25 public files, 19 are written so."""
    config = {
        "workerPoolSpecs": {
            "machineSpec": {"machineType": "n1-standard-8"},
            "replicaCount": 1,
            "containerSpec": {"imageUri": "gcr.io/p/i:1", "env": {"name": "A", "value": "b"}},
        }
    }
    found = imported(tmp_path, config, "yaml", region="europe-west4")
    assert jobfiles.job(found.text).environment == {"A": "b"}
    assert {line.fate for line in found.ledger} == {"kept", "added"}


def _package(body: dict[str, Any]) -> None:
    pool = body["jobSpec"]["workerPoolSpecs"][0]
    del pool["containerSpec"]
    pool["pythonPackageSpec"] = {"executorImageUri": "i", "pythonModule": "m"}


@pytest.mark.parametrize(
    ("change", "said", "fix"),
    [
        (_package, r"workerPoolSpecs\[0\]: a Python package has no image", "--package"),
        (lambda b: b["jobSpec"].update(workerPools=1), 'no field named "workerPools"', "reference"),
        (
            lambda b: b["jobSpec"]["workerPoolSpecs"][0]["machineSpec"].update(
                acceleratorType="L4"
            ),
            "^.*old.json: Invalid enum value L4",
            "reference",
        ),
        (lambda b: b["jobSpec"].clear(), r"workerPoolSpecs\[0\] names no machine", "chief"),
        (lambda b: b.pop("jobSpec"), "has neither jobSpec", "convert"),
    ],
)
def test_what_is_refused(tmp_path: Path, change: Any, said: str, fix: str) -> None:
    body = sent(CLUSTER)
    change(body)
    with pytest.raises(InputError) as caught:
        imported(tmp_path, body)
    assert re.search(said, caught.value.message) and fix in caught.value.fix
    assert "\n" not in caught.value.message


@pytest.mark.parametrize("text", ["[", "a: [1", "- 1\n", "\x00", "text"])
def test_what_is_no_job(tmp_path: Path, text: str) -> None:
    (tmp_path / "old.yaml").write_text(text)
    with pytest.raises(InputError, match=r"old\.yaml"):
        path = tmp_path / "old.yaml"
        importing.imported(ledger.read(path), path)


def test_the_command(run: Run, here: Path) -> None:  # noqa: F811
    (here / "old.json").write_text(json.dumps(sent(CLUSTER)))
    code, _, err = run(
        "job", "import", "old.json", "--region", "us-central1", "-o", "jobs/new.yaml"
    )
    assert code == 0 and "kept: " in err and "changed: displayName" in err
    assert description.load(here, "new").replicas.workers.count == 3  # type: ignore[union-attr]
    assert run("job", "import", "nowhere.json")[0] == 2


def test_secrets_and_words_that_nobody_fills_in_are_told(tmp_path: Path) -> None:
    """Of 25 public files, 5 hold a key, and 4 hold a word for one."""
    text = JOB + 'environment: {API_KEY: abc, TOKEN: "${TOKEN}", KEYS: "3", PASSWORD: ""}\n'
    assert imported(tmp_path, sent(text), region="us-central1").notes == (
        "API_KEY may be a secret, and is in the new file: do not commit it",
        "TOKEN is ${TOKEN}: a script filled that in before, and no place does it",
    )
