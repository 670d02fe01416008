"""A described job as it is prepared for this machine."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from builder.core.errors import InputError
from builder.jobs.backends.local import prepare as here
from builder.jobs.backends.local.prepare import LocalOptions

NO_ENGINE: Any = SimpleNamespace(image=lambda name: name)
"""An engine that has every image."""


def prepared(root: Path, *arguments: str, **options: Any) -> Any:
    given = LocalOptions(arguments=arguments, **options)
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
    job = here.load(root, "own")
    given = LocalOptions(env_file=tmp_path / "values")
    assert here.prepare(root, NO_ENGINE, job, given).environment == {
        **{"KEY": "a=b", "A": "b", "CLOUD_ML_PROJECT_ID": "my-project"},
    }
    with pytest.raises(InputError, match=r"own.yaml:4: .*KEY names a secret") as error:
        here.prepare(root, NO_ENGINE, job, LocalOptions())
    assert "--env-file FILE" in error.value.fix
