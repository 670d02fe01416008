"""What each container of a local job is told: Vertex AI's names, this machine's folders."""

import json
from pathlib import Path

import pytest

from builder import contract
from builder.jobs.backends.local.container import described
from builder.jobs.backends.local.replicas import SHARES_A_GPU, LocalJob, Replica, Trial, replicas
from builder.jobs.pools import Pool

FOUR = (Pool("chief"), Pool("worker", 2), Pool("evaluator"))


def job(tmp_path: Path, **more: object) -> LocalJob:
    return LocalJob("cats", "an-image", tmp_path, **more)  # type: ignore[arg-type]


def tf_config(replica: Replica) -> dict:
    return json.loads(replica.environment["TF_CONFIG"])


def test_a_job_of_one_machine_has_a_cluster_spec_and_no_tf_config(tmp_path: Path) -> None:
    (only,) = replicas(job(tmp_path), "abc")
    assert "TF_CONFIG" not in only.environment
    spec = json.loads(only.environment["CLUSTER_SPEC"])
    assert spec["cluster"] == {"workerpool0": ["cmle-training-workerpool0-abc-0:2222"]}
    assert spec["task"] == {"type": "workerpool0", "index": 0}
    assert spec["environment"] == "cloud"
    folders = {"MODEL": "model", "CHECKPOINT": "checkpoints", "TENSORBOARD_LOG": "logs"}
    for name, folder in folders.items():
        assert only.environment[f"AIP_{name}_DIR"] == f"/job/{folder}/"


def test_the_cluster_names_chief_and_workers_and_never_the_evaluator(tmp_path: Path) -> None:
    made = {each.name: each for each in replicas(job(tmp_path, pools=FOUR), "abc")}
    assert list(made) == ["chief-0", "worker-0", "worker-1", "evaluator-0"]
    for replica in made.values():
        assert tf_config(replica)["cluster"] == {
            "chief": ["cmle-training-workerpool0-abc-0:2222"],
            "worker": [f"cmle-training-workerpool1-abc-{index}:2222" for index in (0, 1)],
        }
    assert tf_config(made["worker-1"])["task"] == {"type": "worker", "index": 1}
    assert tf_config(made["evaluator-0"])["task"] == {"type": "evaluator", "index": 0}
    spec = json.loads(made["evaluator-0"].environment["CLUSTER_SPEC"])
    assert list(spec["cluster"]) == ["workerpool0", "workerpool1", "workerpool3"]


def test_a_trial_has_folders_a_number_and_a_metric_file_of_its_own(tmp_path: Path) -> None:
    trial = Trial(3, ("--learning-rate=0.1",), tmp_path)
    (only,) = replicas(job(tmp_path, trial=trial, pass_job_dir=True), "abc")
    assert only.environment["AIP_MODEL_DIR"] == "/job/3/model/"
    assert only.environment["CLOUD_ML_TRIAL_ID"] == "3"
    assert only.environment["CLOUD_ML_HP_METRIC_FILE"] == "/tmp/hypertune/output.metrics"
    assert only.arguments == ("--job-dir=/job", "--learning-rate=0.1")
    assert json.loads(only.environment["CLUSTER_SPEC"])["task"]["trial"] == "3"


def test_the_jobs_bucket_is_its_folder_and_other_addresses_stay(tmp_path: Path) -> None:
    base = "gs://mine/jobs/cats"
    given = (f"--out={base}/model", base, f"{base}2/x", "--records", "gs://data/cats/")
    (only,) = replicas(job(tmp_path, base=base, arguments=given), "abc")
    assert only.arguments == ("--out=/job/model", "/job", f"{base}2/x", *given[3:])


def test_records_of_this_machine_take_the_place_of_those_in_the_bucket(tmp_path: Path) -> None:
    for given in (("--records=gs://data/cats", "--n=1"), ("--n=1", "--records", "elsewhere")):
        (only,) = replicas(job(tmp_path, records=tmp_path, arguments=given), "abc")
        assert only.arguments == ("--n=1", "--records=/records")


@pytest.mark.parametrize(
    ("each", "gpus", "expected", "shared"),
    [
        (1, ("0", "1", "2"), [("0",), ("1",), ("2",)], False),
        (2, ("0", "1", "2"), [("0", "1"), ("2", "0"), ("1", "2")], True),
        (2, ("0",), [("0",), ("0",), ("0",)], True),
        (2, (), [(), (), ()], False),
        (0, ("0",), [(), (), ()], False),
    ],
)
def test_this_machines_gpus_are_shared_out(
    tmp_path: Path, each: int, gpus: tuple, expected: list, shared: bool
) -> None:
    pools = (Pool("chief", accelerators=each), Pool("worker", 2, accelerators=each))
    made = replicas(job(tmp_path, pools=pools), "abc", gpus)
    assert [each.gpus for each in made] == expected
    for each in made:
        assert (SHARES_A_GPU.items() <= each.environment.items()) == shared
    counts = [f"GPU:{len(ids)}" if ids else "none" for ids in expected]
    assert [each.environment[contract.ACCELERATOR] for each in made] == counts


def test_the_jobs_own_word_about_the_accelerator_wins(tmp_path: Path) -> None:
    own = {contract.ACCELERATOR: "V100:1"}
    wanted = job(tmp_path, pools=(Pool("chief", accelerators=1),), environment=own)
    (only,) = replicas(wanted, "abc")
    assert only.environment[contract.ACCELERATOR] == "V100:1"


@pytest.mark.parametrize(
    ("gpus", "at_once", "expected", "shared"),
    [
        (4, 2, [("0",), ("1",)], False),
        (3, 2, [("0",), ("1",)], False),
        (2, 3, [("0",), ("1",), ("0",)], True),
        (1, 2, [("0",), ("0",)], True),
        (2, 1, [("0",)], False),
        (0, 2, [(), ()], False),
    ],
)
def test_trials_that_run_at_once_keep_off_each_others_gpus(
    tmp_path: Path, gpus: int, at_once: int, expected: list, shared: bool
) -> None:
    ids = tuple(map(str, range(gpus)))
    for place, mine in enumerate(expected):
        trial = Trial(7, (), tmp_path, place, at_once)
        (made,) = replicas(
            job(tmp_path, pools=(Pool("chief", accelerators=1),), trial=trial), "abc", ids
        )
        assert made.gpus == mine
        assert (SHARES_A_GPU.items() <= made.environment.items()) == shared


def test_exit_codes_in_words() -> None:
    assert described(139) == "ended with exit code 139 (SIGSEGV)"
    assert described(1) == "failed with exit code 1"
    assert described(137, out_of_memory=True) == "ran out of memory"
