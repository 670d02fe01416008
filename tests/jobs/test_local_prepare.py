"""A described job as it is prepared for this machine."""

from pathlib import Path
from typing import Any

import pytest

from builder.core.errors import InputError
from builder.jobs.backends.local import prepare as here
from builder.jobs.backends.local.prepare import LocalOptions

NO_ENGINE: Any = None
"""Nothing is asked of an engine where the image is given."""


def prepared(root: Path, *arguments: str, **options: Any) -> Any:
    given = LocalOptions(image="an-image", arguments=arguments, **options)
    return here.prepare(root, NO_ENGINE, here.load(root, "v100"), given)


@pytest.fixture
def root(project: Path, write_target: Any) -> Path:
    write_target("accelerator: V100\nsize_budget: 3 GB\n")
    (project / "data" / "records").mkdir(parents=True)
    return project


def test_a_target_is_a_job_of_one_machine_without_arguments(root: Path) -> None:
    job = prepared(root)
    assert (job.name, job.arguments, job.records) == ("v100", (), None)
    assert [(pool.role, pool.count) for pool in job.pools] == [("chief", 1)]
    assert job.folder == root / "build" / "jobs" / "v100"


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


def test_a_folder_that_is_not_there_is_refused_by_its_option(root: Path) -> None:
    with pytest.raises(InputError, match="--records nowhere: there is no such folder"):
        prepared(root, records=Path("nowhere"))


def test_a_secret_comes_from_the_file_that_is_named(root: Path, tmp_path: Path) -> None:
    secret = "{WANDB_API_KEY: {secret: wandb, key: api-key}, A: b}"
    (root / "jobs").mkdir(exist_ok=True)
    (root / "jobs/own.yaml").write_text(
        f"image: cpu\nmachine: n1-standard-8\nenvironment: {secret}\n"
    )
    (tmp_path / "values").write_text("# mine\nWANDB_API_KEY=a=b\nOTHER=c\n")
    job = here.load(root, "own")
    given = LocalOptions(image="an-image", env_file=tmp_path / "values")
    assert here.prepare(root, NO_ENGINE, job, given).environment == {
        "WANDB_API_KEY": "a=b",
        "A": "b",
    }
    with pytest.raises(InputError, match=r"own.yaml:3: .*WANDB_API_KEY names a secret") as error:
        here.prepare(root, NO_ENGINE, job, LocalOptions(image="an-image"))
    assert "--env-file FILE" in error.value.fix


def test_a_replica_is_told_the_project_that_the_job_names(root: Path) -> None:
    text = "image: cpu\nmachine: n1-standard-8\n"
    (root / "jobs").mkdir(exist_ok=True)
    file = root / "jobs" / "paid.yaml"
    file.write_text(text)
    given = LocalOptions(image="an-image")
    job = here.prepare(root, NO_ENGINE, here.load(root, "paid"), given)
    assert "CLOUD_ML_PROJECT_ID" not in job.environment
    file.write_text(text + "project: my-project\n")
    job = here.prepare(root, NO_ENGINE, here.load(root, "paid"), given)
    assert job.environment["CLOUD_ML_PROJECT_ID"] == "my-project"
