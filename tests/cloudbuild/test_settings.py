"""The table [cloud] of builder.toml: flag over environment over file, and what is told."""

from __future__ import annotations

from pathlib import Path

import pytest

from builder.core import settings
from builder.core.errors import InputError
from builder.core.settings import CloudSettings

TOML = """registry = "h.test/a/b"

[cloud]
project = "my-project"
region = "europe-west4"
"""


def load(root: Path, toml: str = TOML, **how: object) -> CloudSettings:
    (root / "builder.toml").write_text(toml)
    return settings.load_cloud(root, **{"environ": {}, **how})  # type: ignore[arg-type]


def test_a_flag_wins_over_the_environment_and_that_over_the_file(project: Path) -> None:
    environ = {"BUILDER_CLOUD_PROJECT": "from-environment"}
    assert load(project).project == "my-project"
    assert load(project, environ=environ).project == "from-environment"
    assert load(project, environ=environ, project="from-a-flag").project == "from-a-flag"
    assert load(project, environ=environ, project=None).project == "from-environment"
    assert load(project).region == "europe-west4"
    assert settings.load(project, environ={}).registry == "h.test/a/b", "the rest stays readable"


def test_nothing_set_is_gcloud_s_defaults(project: Path) -> None:
    found = load(project, "")
    assert (found.project, found.region, found.logging) == (None, "global", None)
    assert load(project).bucket == "my-project_europe-west4_cloudbuild"
    assert load(project, region="global").bucket == "my-project_cloudbuild"
    assert load(project, TOML + 'staging_bucket = "ours"').bucket == "ours"
    assert load(project, '[cloud]\nproject = "example.com:proj-1"').bucket == (
        "example_com_proj-1_cloudbuild"
    )


def test_a_pool_s_short_name_is_of_this_project_and_region(project: Path) -> None:
    assert load(project, TOML + 'worker_pool = "big"').pool == (
        "projects/my-project/locations/europe-west4/workerPools/big"
    )
    full = "projects/other-1/locations/us-east1/workerPools/big"
    assert load(project, TOML + f'worker_pool = "{full}"').pool == full


@pytest.mark.parametrize(
    ("toml", "message", "fix"),
    [
        ('[cloud]\n\nprojct = "x"', "builder.toml:3: cloud.projct: unknown setting", "project"),
        ("[cloud]\nregion = 1", "builder.toml:2: cloud.region: expected text, found 1", "quotes"),
        ('[cloud]\nregion = "Europe"', "builder.toml:2: cloud.region: 'Europe'", "europe-west4"),
        ('[cloud]\nlogging = "ALL"', "builder.toml:2: cloud.logging: 'ALL'", "CLOUD_LOGGING_ONLY"),
        (
            '[cloud]\nlogs_bucket = "gs://abc/x:"',
            "builder.toml:2: cloud.logs_bucket: 'gs://abc/x:'",
            "gs://",
        ),
        ('[cloud]\nlogs_bucket = "gs://abc/{{x}}"', "builder.toml:2: cloud.logs_bucket: ", "gs://"),
        ('[cloud]\nlogs_bucket = "b"', "builder.toml:2: cloud.logs_bucket: 'b'", "gs://"),
        ('[cloud]\nservice_account = "me"', "builder.toml:2: cloud.service_account", "gserviceacc"),
        ('[cloud]\ntrigger = "main"', "builder.toml:2: cloud.trigger: expected tables", "[[cloud"),
        ('cloud = "x"', "builder.toml:1: cloud: expected a table", "[cloud]"),
    ],
)
def test_what_cannot_be_names_its_line(project: Path, toml: str, message: str, fix: str) -> None:
    with pytest.raises(InputError) as raised:
        load(project, toml)
    assert raised.value.message.startswith(message)
    assert fix in raised.value.fix


def test_a_bad_flag_and_a_bad_variable_are_named(project: Path) -> None:
    with pytest.raises(InputError, match="--machine-type: 'huge'"):
        load(project, machine_type="huge")
    with pytest.raises(InputError, match="BUILDER_CLOUD_TRANSPORT: 'soap'"):
        load(project, environ={"BUILDER_CLOUD_TRANSPORT": "soap"})
