"""A described job as it is prepared for this machine, and what each of its containers is told:
Vertex AI's names, this machine's folders."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from builder import contract
from builder.core.errors import InputError
from builder.jobs.backends.local import prepare as here
from builder.jobs.backends.local.replicas import SHARES_A_GPU, LocalJob, Replica, Trial, replicas
from builder.jobs.backends.local.run import described, most_telling
from builder.jobs.machines import Pool
from builder.pipeline import records
from builder.pipeline.records import ImageRecord

FOUR = (Pool("chief"), Pool("worker", 2), Pool("evaluator"))
NO_ENGINE: Any = SimpleNamespace(image=lambda name: name)
"""An engine that has every image."""
BUILT: dict[str, Any] = {field.name: "" for field in fields(ImageRecord)}
"""What a build of v100 wrote."""


@pytest.fixture
def root(project: Path, write_target: Any) -> Path:
    write_target("accelerator: V100\nsize_budget: 3 GB\n")
    (project / "data" / "records").mkdir(parents=True)
    records.write(
        project,
        ImageRecord(**BUILT | {"target": "v100", "image_id": "sha256:ours", "packages": ()}),
    )
    return project


def prepared(root: Path, *arguments: str, name: str = "v100", **options: Any) -> LocalJob:
    return here.prepare(root, NO_ENGINE, here.load(root, name), arguments=arguments, **options)


def test_a_target_is_a_job_of_one_machine_without_arguments(root: Path) -> None:
    job = prepared(root)
    assert (job.name, job.arguments, job.records) == ("v100", (), None)
    assert job.image == "sha256:ours", "not training:v100, which may be another project's"
    assert [(pool.role, pool.count) for pool in job.pools] == [("chief", 1)]
    assert job.folder == root / "build" / "jobs" / "v100"
    with pytest.raises(InputError, match="--records nowhere: there is no such folder"):
        prepared(root, records=Path("nowhere"))


@pytest.mark.parametrize(
    ("arguments", "found"),
    [
        (("--records=data/records",), True),
        (("--records", "data/records", "--steps=5"), True),
        (("--steps=5", "--records"), False),
        (("--records=data/none",), False),
        (("--records=gs://bucket/records",), False),
    ],
)
def test_a_folder_of_the_project_that_records_names_is_the_data(
    root: Path, arguments: tuple[str, ...], found: bool
) -> None:
    assert prepared(root, *arguments).records == (root / "data/records" if found else None)


def test_variables_are_the_jobs_with_its_project_and_the_secrets_of_a_file(
    root: Path, tmp_path: Path
) -> None:
    (root / "jobs").mkdir(exist_ok=True)
    text = "image: cpu\nmachine: n1-standard-8\nproject: my-project\nenvironment: "
    (root / "jobs/own.yaml").write_text(f"{text}{{KEY: {{secret: wandb, key: x}}, A: b}}\n")
    (tmp_path / "values").write_text("# mine\nKEY=a=b\nOTHER=c\n")
    assert prepared(root, name="own", env_file=tmp_path / "values").environment == {
        **{"KEY": "a=b", "A": "b", "CLOUD_ML_PROJECT_ID": "my-project"},
    }
    with pytest.raises(InputError, match=r"own.yaml:4: .*KEY names a secret") as error:
        prepared(root, name="own")
    assert "--env-file FILE" in error.value.fix


# --- what a container is told ---------------------------------------------------------------------


def made(*gpus: str, **fields: Any) -> list[Replica]:
    """The replicas of a job with these fields, on a machine with these GPUs."""
    return list(replicas(LocalJob("cats", "an-image", Path("/f"), **fields), "abc", gpus))


def test_a_job_of_one_machine_has_a_cluster_spec_and_no_tf_config() -> None:
    (only,) = made()
    assert "TF_CONFIG" not in only.environment
    assert json.loads(only.environment["CLUSTER_SPEC"]) == {
        "cluster": {"workerpool0": ["cmle-training-workerpool0-abc-0:2222"]},
        "task": {"type": "workerpool0", "index": 0},
        "environment": "cloud",
    }
    folders = {"MODEL": "model", "CHECKPOINT": "checkpoints", "TENSORBOARD_LOG": "logs"}
    for name, folder in folders.items():
        assert only.environment[f"AIP_{name}_DIR"] == f"/job/{folder}/"


def test_the_cluster_names_chief_and_workers_and_never_the_evaluator() -> None:
    by_name = {each.name: each for each in made(pools=FOUR)}
    assert list(by_name) == ["chief-0", "worker-0", "worker-1", "evaluator-0"]
    configs = {name: json.loads(each.environment["TF_CONFIG"]) for name, each in by_name.items()}
    for config in configs.values():
        assert config["cluster"] == {
            "chief": ["cmle-training-workerpool0-abc-0:2222"],
            "worker": [f"cmle-training-workerpool1-abc-{index}:2222" for index in (0, 1)],
        }
    assert configs["worker-1"]["task"] == {"type": "worker", "index": 1}
    assert configs["evaluator-0"]["task"] == {"type": "evaluator", "index": 0}
    spec = json.loads(by_name["evaluator-0"].environment["CLUSTER_SPEC"])
    assert list(spec["cluster"]) == ["workerpool0", "workerpool1", "workerpool3"]


def test_a_trial_has_folders_a_number_and_a_metric_file_of_its_own() -> None:
    (only,) = made(trial=Trial(3, ("--learning-rate=0.1",), Path("/m")), pass_job_dir=True)
    assert only.environment["AIP_MODEL_DIR"] == "/job/3/model/"
    assert only.environment["CLOUD_ML_TRIAL_ID"] == "3"
    assert only.environment["CLOUD_ML_HP_METRIC_FILE"] == "/tmp/hypertune/output.metrics"
    assert only.arguments == ("--job-dir=/job", "--learning-rate=0.1")
    assert json.loads(only.environment["CLUSTER_SPEC"])["task"]["trial"] == "3"


def test_the_jobs_bucket_is_its_folder_and_records_of_this_machine_win() -> None:
    base = "gs://mine/jobs/cats"
    given = (f"--out={base}/model", base, f"{base}2/x", "--records", "gs://data/cats/")
    (only,) = made(base=base, arguments=given)
    assert only.arguments == ("--out=/job/model", "/job", f"{base}2/x", *given[3:])
    for given in (("--records=gs://data/cats", "--n=1"), ("--n=1", "--records", "elsewhere")):
        (only,) = made(records=Path("/d"), arguments=given)
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
    each: int, gpus: tuple[str, ...], expected: list[tuple[str, ...]], shared: bool
) -> None:
    pools = (Pool("chief", accelerators=each), Pool("worker", 2, accelerators=each))
    replicas = made(*gpus, pools=pools)
    assert [replica.gpus for replica in replicas] == expected
    for replica in replicas:
        assert (SHARES_A_GPU.items() <= replica.environment.items()) == shared
    counts = [f"GPU:{len(ids)}" if ids else "none" for ids in expected]
    assert [replica.environment[contract.ACCELERATOR] for replica in replicas] == counts
    own = {contract.ACCELERATOR: "V100:1"}  # the job's own word wins
    assert made(*gpus, pools=pools, environment=own)[0].environment.items() >= own.items()


@pytest.mark.parametrize(
    ("gpus", "at_once", "expected", "shared"),
    [
        (3, 2, [("0",), ("1",)], False),
        (2, 3, [("0",), ("1",), ("0",)], True),
        (2, 1, [("0",)], False),
        (0, 2, [(), ()], False),
    ],
)
def test_trials_that_run_at_once_keep_off_each_others_gpus(
    gpus: int, at_once: int, expected: list[tuple[str, ...]], shared: bool
) -> None:
    pools = (Pool("chief", accelerators=1),)
    for place, mine in enumerate(expected):
        trial = Trial(7, (), Path("/m"), place, at_once)
        (only,) = made(*map(str, range(gpus)), pools=pools, trial=trial)
        assert only.gpus == mine
        assert (SHARES_A_GPU.items() <= only.environment.items()) == shared


def test_an_exception_is_told_and_not_the_line_after_it() -> None:
    last = ""
    for line in ("step 3", "torch.OutOfMemoryError: CUDA out of memory.", "", "srun: task 0 ended"):
        last = most_telling(last, line)
    assert last == "torch.OutOfMemoryError: CUDA out of memory."
    assert most_telling(last, "KeyError: 'a'") == "KeyError: 'a'"
    assert most_telling(last, "x.ChildFailedError:") == last
    assert most_telling(last, '{"event": "step", "message": "step 4"}') == "step 4"


def test_exit_codes_in_words() -> None:
    assert described(139) == "ended with exit code 139 (SIGSEGV)"
    assert described(1) == "failed with exit code 1"
    assert described(137, out_of_memory=True) == "ran out of memory"
