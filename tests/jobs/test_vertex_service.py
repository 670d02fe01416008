"""Where a job goes on Vertex AI: flags, the job's file, the environment, builder.toml."""

from __future__ import annotations

from pathlib import Path

import pytest

from builder.core.errors import InputError
from builder.jobs.backends.vertex import service
from builder.jobs.description.job import Job
from tests.jobs import jobfiles

BASE = "region: us-central1\nmachine: n1-standard-8\naccelerators: V100\n"


@pytest.fixture
def here(tmp_path: Path) -> Path:
    (tmp_path / "builder.toml").write_text('[job]\nproject = "toml-project"\n')
    return tmp_path


def test_a_flag_wins_over_the_file_over_the_environment_over_the_project(here: Path) -> None:
    job = jobfiles.job("image: v100\nproject: file-project\n" + BASE)
    bare = jobfiles.job("image: v100\n" + BASE.replace("region: us-central1\n", ""))
    environ = {"BUILDER_JOB_PROJECT": "environ-project", "GOOGLE_CLOUD_PROJECT": "gcloud-project"}

    def load(root: Path, job: Job, environ: dict[str, str], **flags: str) -> service.Service:
        return service.load(root, job, flags, environ)

    assert load(here, job, environ=environ, project="flag-project").project == "flag-project"
    assert load(here, job, environ=environ).project == "file-project"
    assert load(here, bare, environ=environ).project == "environ-project"
    assert load(here, bare, environ={}).project == "toml-project"
    assert load(here, job, environ={}).parent == "projects/file-project/locations/us-central1"
    (here / "builder.toml").write_text("")
    assert load(here, bare, environ={"GOOGLE_CLOUD_PROJECT": "g-project"}).project == "g-project"
    (here / "builder.toml").write_text('[cloud]\nproject = "cloud-project"\n')
    assert load(here, bare, environ={}).project == "cloud-project"


def test_what_is_not_known_is_asked_for(here: Path) -> None:
    with pytest.raises(InputError, match="no project is known"):
        service.Service(region="us-central1").known()
    with pytest.raises(InputError, match="no region is known"):
        service.Service(project="my-project").known()
