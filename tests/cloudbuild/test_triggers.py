"""Triggers: builder.toml beside what exists."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from google.cloud.devtools import cloudbuild_v1 as api

from builder.cloudbuild import triggers
from builder.cloudbuild.clients import Clients
from builder.cloudbuild.trigger_table import tables
from builder.core import settings
from builder.core.errors import InputError
from tests.cloudbuild.conftest import Connect
from tests.emulators.cloud_build import LoopbackCloud

TOML = """# ours
[[cloud.trigger]]
name = "main"
repository = "acme/training"
branch = "^main$"
included = ["images/**", "trainer/**"]
ignored = ["**/*.md"]
substitutions = { _GPU = "all" }

[[cloud.trigger]]
name = "release"
repository = "acme/training"
tag = "^v"
approval = true

[[cloud.trigger]]
name = "pull-request"
repository = "projects/p/locations/europe-west4/connections/gh/repositories/training"
pull_request = "^main$"
service_account = "reader@p.iam.gserviceaccount.com"
"""

TOUCHING = {"cpu": ("images/cpu/**", "trainer/**"), "v100.old": ("images/v100.old/**",)}
FOR_TARGETS = "substitutions: {_GPU: all}\nsteps: []\n"
EACH = """
[[cloud.trigger]]
name = "main"
repository = "acme/training"
branch = "^main$"
ignored = ["**/*.md"]
tags = ["ours"]
"""


def written(project: Path, toml: str = TOML, file: str = "steps: []\n") -> Path:
    (project / "builder.toml").write_text(toml)
    (project / "cloudbuild.yaml").write_text(file)
    return project


def with_tables(project: Path, clients: Clients) -> Clients:
    """Return clients with the tables of builder.toml as it is now."""
    tables = settings.load_cloud(project, environ={}).triggers
    return replace(clients, settings=clients.settings.model_copy(update={"triggers": tables}))


def carry_out(project: Path, clients: Clients) -> list[tuple[str, str]]:
    clients = with_tables(project, clients)
    changes = triggers.plan(project, clients, TOUCHING)
    triggers.carry_out(clients, changes, lambda line: None)
    return [(change.name, change.action) for change in changes]


def test_they_are_made_changed_and_left_alone(
    project: Path, cloud: LoopbackCloud, connected: Connect
) -> None:
    clients = connected()
    written(project)
    cloud.build.make_trigger(api.BuildTrigger(name="somebody-s"))
    names = ["main", "release", "pull-request"]
    assert carry_out(project, clients) == [(name, "create") for name in names]
    assert carry_out(project, clients) == [(name, "unchanged") for name in names]
    known = {trigger.name: trigger for trigger in cloud.build.triggers.values()}
    assert known.keys() == {*names, "somebody-s"}, "what no table names is left alone"
    assert known["main"].github.push.branch == "^main$"
    assert known["main"].github.owner == "acme"
    assert list(known["main"].included_files) == ["images/**", "trainer/**"]
    assert known["release"].approval_config.approval_required
    pull = known["pull-request"]
    assert pull.repository_event_config.pull_request.branch == "^main$"
    assert pull.substitutions["_PUSH"] == "false", "a pull request proves, and pushes nothing"
    written(project, TOML.replace("_GPU = ", "_GPU = ").replace('"all"', '"v100"'))
    assert carry_out(project, clients)[0] == ("main", "update")
    (main,) = [trigger for trigger in cloud.build.triggers.values() if trigger.name == "main"]
    assert main.substitutions == {"_GPU": "v100"}
    assert main.id == known["main"].id


def enabled(cloud: LoopbackCloud) -> dict[str, api.BuildTrigger]:
    return {known.name: known for known in cloud.build.triggers.values() if not known.disabled}


def test_a_push_builds_the_targets_that_it_touches_side_by_side(
    project: Path, cloud: LoopbackCloud, connected: Connect
) -> None:
    written(project, EACH, FOR_TARGETS)
    names = ["main-cpu", "main-v100-old"]
    assert carry_out(project, connected()) == [(name, "create") for name in names]
    known = enabled(cloud)["main-v100-old"]
    assert known.substitutions == {"_GPU": "v100.old"}
    assert known.included_files == ["images/v100.old/**"]
    assert (known.ignored_files, known.tags) == (["**/*.md"], ["ours"])
    assert known.github.push.branch == "^main$"
    assert carry_out(project, connected()) == [(name, "unchanged") for name in names]


@pytest.mark.parametrize(
    ("before", "after", "included"),
    [
        ("branch =", 'included = ["a/**"]\nbranch =', ["a/**"]),
        ('branch = "^main$"', 'tag = "^v"', []),
    ],
    ids=["what a person wrote", "a tag is built whole"],
)
def test_the_files_of_a_target_s_trigger(
    project: Path, cloud: LoopbackCloud, connected: Connect,
    before: str, after: str, included: list[str],
) -> None:  # fmt: skip
    written(project, EACH.replace(before, after), FOR_TARGETS)
    carry_out(project, connected())
    assert enabled(cloud)["main-cpu"].included_files == included


def test_a_pull_request_of_each_target_proves_and_pushes_nothing(
    project: Path, cloud: LoopbackCloud, connected: Connect
) -> None:
    own = 'pull_request = "^main$"\nservice_account = "reader@p.iam.gserviceaccount.com"'
    written(project, EACH.replace('branch = "^main$"', own), FOR_TARGETS)
    carry_out(project, connected())
    assert enabled(cloud)["main-cpu"].substitutions == {"_GPU": "cpu", "_PUSH": "false"}


def test_nothing_is_built_twice_and_nothing_is_deleted(
    project: Path, cloud: LoopbackCloud, connected: Connect
) -> None:
    """One trigger for all becomes one for each, a target goes, and all of it is undone."""
    clients, together = connected(), EACH + 'substitutions = { _GPU = "all" }\n'
    cloud.build.make_trigger(api.BuildTrigger(name="main-other", substitutions={"_GPU": "cpu"}))
    written(project, together, FOR_TARGETS)
    assert carry_out(project, clients) == [("main", "create")]
    (main,) = [known for known in cloud.build.triggers.values() if known.name == "main"]
    main.filter, main.service_account = "x", "projects/p/serviceAccounts/own@p"
    written(project, EACH, FOR_TARGETS)
    assert carry_out(project, clients)[-1] == ("main", "update")
    cpu = enabled(cloud)["main-cpu"]
    assert (cpu.filter, cpu.service_account) == (main.filter, main.service_account)
    assert enabled(cloud).keys() == {"main-cpu", "main-v100-old", "main-other"}
    assert [name for name, action in carry_out(project, clients) if action != "unchanged"] == []
    fewer = {"cpu": TOUCHING["cpu"]}
    changes = triggers.plan(project, with_tables(project, clients), fewer)
    assert [(change.name, change.diff) for change in changes[1:]] == [
        ("main-v100-old", ("+ disabled: true",))
    ]
    written(project, together, FOR_TARGETS)
    carry_out(project, clients)
    assert enabled(cloud).keys() == {"main", "main-other"}
    assert len(cloud.build.triggers) == 4


@pytest.mark.parametrize(
    ("targets", "message"),
    [
        (["a" * 60], f"main-{'a' * 60}, of main, is longer than 64 characters"),
        (["a.b", "a-b"], "main-a-b, of main, is the name of two"),
    ],
    ids=["too long", "twice"],
)
def test_a_trigger_s_name_that_the_service_would_not_take(
    project: Path, connected: Connect, targets: list[str], message: str
) -> None:
    written(project, EACH, FOR_TARGETS)
    clients = with_tables(project, connected())
    with pytest.raises(InputError, match=message):
        triggers.plan(project, clients, dict.fromkeys(targets, ()))


def test_what_a_table_cannot_name_survives_a_change(
    project: Path, cloud: LoopbackCloud, connected: Connect
) -> None:
    clients = connected()
    written(project)
    carry_out(project, clients)
    (main,) = [trigger for trigger in cloud.build.triggers.values() if trigger.name == "main"]
    cloud.build.unknown[main.id] = {"includeBuildLogs": "INCLUDE_BUILD_LOGS_WITH_STATUS"}
    main.service_account = "projects/p/serviceAccounts/own@p.iam.gserviceaccount.com"
    main.filter = '_GPU == "all"'
    main.github.installation_id = 12345
    assert carry_out(project, clients)[0] == ("main", "unchanged"), "the service's, and others'"
    main.github.push.branch = "^other$"
    main.disabled, main.description = True, "by hand"
    assert triggers.plan(project, with_tables(project, clients), TOUCHING)[0].diff == (
        '- description: "by hand"',
        "- disabled: true",
        '- github.push: {"branch": "^other$"}',
        '+ github.push: {"branch": "^main$"}',
    )
    assert carry_out(project, clients)[0] == ("main", "update")
    (main,) = [trigger for trigger in cloud.build.triggers.values() if trigger.name == "main"]
    assert (main.github.push.branch, main.disabled, main.description) == ("^main$", False, "")
    assert main.service_account.endswith("own@p.iam.gserviceaccount.com")
    assert main.filter == '_GPU == "all"'
    assert main.github.installation_id == 12345
    assert cloud.build.unknown[main.id]["includeBuildLogs"]
    assert carry_out(project, clients)[0] == ("main", "unchanged")


def test_the_difference_is_what_the_request_changes(
    project: Path, cloud: LoopbackCloud, connected: Connect
) -> None:
    clients = connected()
    written(project)
    clients = with_tables(project, clients)
    other = {"build": {"steps": [{"name": "busybox"}]}, "filter": "x"}
    topic = {"topic": "projects/p/topics/t"}
    cloud.build.make_trigger(api.BuildTrigger(name="release", pubsub_config=topic, **other))
    release = triggers.plan(project, clients, TOUCHING)[1]
    assert release.mask == (
        *("filename", "pubsubConfig", "build", "github.owner", "github.name", "github.push"),
        "approvalConfig.approvalRequired",
    )
    assert [line for line in release.diff if line.startswith("-")] == [
        '- pubsubConfig: {"topic": "projects/p/topics/t"}',
        '- build: {"steps": [{"name": "busybox"}]}',
    ]
    assert not [line for line in release.diff if "filter" in line]
    triggers.carry_out(clients, [release], lambda line: None)
    (known,) = cloud.build.triggers.values()
    assert (known.filename, known.filter, known.github.push.tag) == ("cloudbuild.yaml", "x", "^v")
    assert not known.build.steps
    assert not known.pubsub_config.topic


def test_a_pull_request_is_not_built_with_the_account_that_pushes(project: Path) -> None:
    own = 'service_account = "reader@p.iam.gserviceaccount.com"\n'
    for toml, what in (
        (TOML.replace(own, ""), "needs an account of its own"),
        (f"[cloud]\n{own}\n{TOML}", "not the one that pushes"),
    ):
        written(project, toml)
        with pytest.raises(InputError, match=what):
            tables(project, settings.load_cloud(project, environ={}))
    written(project, TOML.replace(own, 'file = "cloudbuild.yaml"\n'))
    assert tables(project, settings.load_cloud(project, environ={}))


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ("included =", "includd =", "builder.toml:6: cloud.trigger.includd: unknown key"),
        ('branch = "^main$"\n', "", "builder.toml:2: cloud.trigger: nothing starts it"),
        ('"acme/training"', '"acme"', "builder.toml:4: cloud.trigger.repository: 'acme' is not a"),
        ('"release"', '"main"', "builder.toml:11: cloud.trigger.name: a second trigger is called"),
        ("approval = true", 'service_account = "me"', "builder.toml:14: cloud.trigger.service_acc"),
        ('"^v"', '"^v"\nfile = "no.yaml"', "builder.toml:14: cloud.trigger.file: there is no"),
    ],
)
def test_what_cannot_be_names_its_line(
    project: Path, before: str, after: str, message: str
) -> None:
    assert before in TOML
    written(project, TOML.replace(before, after, 1 if "acme" in before else -1))
    with pytest.raises(InputError) as raised:
        tables(project, settings.load_cloud(project, environ={}))
    assert raised.value.message.startswith(message)
    assert raised.value.fix
