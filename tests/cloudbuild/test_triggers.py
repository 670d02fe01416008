"""Triggers: builder.toml beside what exists."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from google.cloud.devtools import cloudbuild_v1 as api
from ruamel.yaml import YAML

from builder.cloudbuild import adoption, triggers
from builder.cloudbuild.clients import Clients
from builder.core import settings
from builder.core.errors import InputError, OutsideError
from tests.emulators.cloud_build import LoopbackCloud

Connect = Callable[..., Clients]

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


def written(project: Path, toml: str = TOML) -> Path:
    (project / "builder.toml").write_text(toml)
    (project / "cloudbuild.yaml").write_text("steps: []\n")
    return project


def carry_out(project: Path, clients: Clients) -> list[tuple[str, str]]:
    from dataclasses import replace

    clients = replace(clients, settings=replace(clients.settings, triggers=tables(project)))
    plan = triggers.plan(project, clients)
    triggers.carry_out(clients, plan, lambda line: None)
    return [(one.name, one.action) for one in plan]


def tables(project: Path) -> object:
    return settings.load_cloud(project, environ={}).triggers


def test_they_are_made_changed_and_left_alone(
    project: Path, cloud: LoopbackCloud, connected: Connect, transport: str
) -> None:
    clients = connected(transport)
    written(project)
    names = ["main", "release", "pull-request"]
    assert carry_out(project, clients) == [(name, "create") for name in names]
    assert carry_out(project, clients) == [(name, "unchanged") for name in names]
    made = {one.name: one for one in cloud.build.triggers.values()}
    assert made["main"].github.push.branch == "^main$"
    assert made["main"].github.owner == "acme"
    assert list(made["main"].included_files) == ["images/**", "trainer/**"]
    assert made["release"].approval_config.approval_required
    pull = made["pull-request"]
    assert pull.repository_event_config.pull_request.branch == "^main$"
    assert pull.substitutions["_PUSH"] == "false", "a pull request proves, and pushes nothing"
    written(project, TOML.replace("_GPU = ", "_GPU = ").replace('"all"', '"v100"'))
    assert carry_out(project, clients)[0] == ("main", "update")
    (main,) = [one for one in cloud.build.triggers.values() if one.name == "main"]
    assert main.substitutions == {"_GPU": "v100"}
    assert main.id == made["main"].id


def test_what_the_service_adds_is_no_difference_and_what_a_person_changed_is(
    project: Path, cloud: LoopbackCloud, connected: Connect
) -> None:
    clients = connected()
    written(project)
    carry_out(project, clients)
    (main,) = [one for one in cloud.build.triggers.values() if one.name == "main"]
    main.github.installation_id = 12345
    main.service_account = "projects/p/serviceAccounts/default@p.iam.gserviceaccount.com"
    assert carry_out(project, clients)[0] == ("main", "unchanged")
    main.github.push.branch = "^other$"
    main.disabled = True
    from dataclasses import replace

    clients = replace(
        clients,
        settings=replace(clients.settings, triggers=tables(project)),  # type: ignore[arg-type]
    )
    first = triggers.plan(project, clients)[0]
    assert first.action == "update"
    assert [line.strip("+- ") for line in first.diff] == [
        "disabled: true",
        "branch: ^other$",
        "branch: ^main$",
    ]
    assert triggers.overview(project, clients)[0] == {
        "name": "main",
        "state": "differs",
        "event": "branch ^main$ of acme/training",
    }


def test_what_a_table_cannot_name_survives_a_change(
    project: Path, cloud: LoopbackCloud, connected: Connect, transport: str
) -> None:
    clients = connected(transport)
    written(project)
    carry_out(project, clients)
    (main,) = [one for one in cloud.build.triggers.values() if one.name == "main"]
    cloud.build.unknown[main.id] = {"includeBuildLogs": "INCLUDE_BUILD_LOGS_WITH_STATUS"}
    main.service_account = "projects/p/serviceAccounts/own@p.iam.gserviceaccount.com"
    main.filter = '_GPU == "all"'
    main.github.installation_id = 12345
    main.github.push.branch = "^other$"
    main.disabled, main.description = True, "by hand"
    assert carry_out(project, clients)[0] == ("main", "update")
    (main,) = [one for one in cloud.build.triggers.values() if one.name == "main"]
    assert (main.github.push.branch, main.disabled, main.description) == ("^main$", False, "")
    assert main.service_account.endswith("own@p.iam.gserviceaccount.com")
    assert main.filter == '_GPU == "all"'
    assert main.github.installation_id == 12345
    assert cloud.build.unknown[main.id]["includeBuildLogs"]
    assert carry_out(project, clients)[0] == ("main", "unchanged")


def test_the_difference_is_what_the_request_changes(
    project: Path, cloud: LoopbackCloud, connected: Connect
) -> None:
    from dataclasses import replace

    clients = connected()
    written(project)
    clients = replace(
        clients,
        settings=replace(clients.settings, triggers=tables(project)),  # type: ignore[arg-type]
    )
    build = api.Build(steps=[api.BuildStep(name="busybox")])
    cloud.build.create_build_trigger(
        api.CreateBuildTriggerRequest(
            trigger=api.BuildTrigger(
                name="release",
                build=build,
                filter="x",
                pubsub_config=api.PubsubConfig(topic="projects/p/topics/t"),
            )
        )
    )
    release = triggers.plan(project, clients)[1]
    assert release.mask == (
        "filename",
        "build",
        "github.owner",
        "github.name",
        "github.push",
        "approvalConfig.approvalRequired",
        "pubsubConfig",
    )
    assert [line for line in release.diff if line.startswith("-")] == [
        "- build:",
        "-   steps:",
        "-   - name: busybox",
        "- pubsubConfig:",
        "-   topic: projects/p/topics/t",
    ]
    assert not [line for line in release.diff if "filter" in line]
    triggers.carry_out(clients, [release], lambda line: None)
    (made,) = cloud.build.triggers.values()
    assert (made.filename, made.filter, made.github.push.tag) == ("cloudbuild.yaml", "x", "^v")
    assert not made.build.steps
    assert not made.pubsub_config.topic


def test_a_default_value_that_is_written_out_is_no_difference(
    project: Path, cloud: LoopbackCloud, connected: Connect
) -> None:
    clients = connected()
    written(project, TOML + 'comment_control = "COMMENTS_DISABLED"\n')
    carry_out(project, clients)
    assert carry_out(project, clients)[2] == ("pull-request", "unchanged")


def test_one_that_builder_toml_does_not_name_is_left_alone(
    project: Path, cloud: LoopbackCloud, connected: Connect
) -> None:
    cloud.build.create_build_trigger(
        api.CreateBuildTriggerRequest(trigger=api.BuildTrigger(name="somebody-s"))
    )
    written(project)
    carry_out(project, connected())
    assert len(cloud.build.triggers) == 4


OTHERS = """
[[cloud.trigger]]
name = "nightly"
repository = "acme/training"
topic = "projects/p/topics/nightly"
ref = "refs/heads/main"
filter = '_DAY == "1"'

[[cloud.trigger]]
name = "hook"
repository = "projects/p/locations/europe-west4/connections/gh/repositories/training"
webhook = "projects/p/secrets/hook/versions/1"
ref = "refs/tags/v1"

[[cloud.trigger]]
name = "by-hand"
repository = "acme/training"
manual = true
ref = "refs/heads/main"
"""


def test_events_without_a_commit_name_the_source_of_their_build(
    project: Path, cloud: LoopbackCloud, connected: Connect, transport: str
) -> None:
    clients = connected(transport)
    written(project, OTHERS)
    names = ["nightly", "hook", "by-hand"]
    assert carry_out(project, clients) == [(name, "create") for name in names]
    assert carry_out(project, clients) == [(name, "unchanged") for name in names]
    made = {one.name: one for one in cloud.build.triggers.values()}
    assert made["nightly"].pubsub_config.topic == "projects/p/topics/nightly"
    assert made["nightly"].filter == '_DAY == "1"'
    assert made["nightly"].source_to_build.uri == "https://github.com/acme/training"
    assert made["nightly"].git_file_source.path == "cloudbuild.yaml"
    assert made["hook"].webhook_config.secret.endswith("versions/1")
    assert made["hook"].git_file_source.revision == "refs/tags/v1"
    assert made["by-hand"].source_to_build.ref == "refs/heads/main"
    made["nightly"].pubsub_config.subscription = "the service's"
    made["hook"].webhook_config.state = api.WebhookConfig.State.OK
    assert carry_out(project, clients) == [(name, "unchanged") for name in names]


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ("refs/heads/main", "main", "builder.toml:6: cloud.trigger.ref: 'main' is no branch"),
        ("projects/p/topics/nightly", "n", "builder.toml:5: cloud.trigger.topic: 'n' is no name"),
        ("topic =", "branch =", "builder.toml:6: cloud.trigger.ref: a trigger for branch has none"),
    ],
)
def test_an_event_without_a_commit_that_cannot_be(
    project: Path, before: str, after: str, message: str
) -> None:
    written(project, OTHERS.replace(before, after, 1))
    with pytest.raises(InputError) as raised:
        triggers.wanted(project, settings.load_cloud(project, environ={}))
    assert raised.value.message.startswith(message)


def test_a_pull_request_is_not_built_with_the_account_that_pushes(project: Path) -> None:
    own = 'service_account = "reader@p.iam.gserviceaccount.com"\n'
    for toml, what in (
        (TOML.replace(own, ""), "needs an account of its own"),
        (f"[cloud]\n{own}\n{TOML}", "would be built with the account that pushes"),
    ):
        written(project, toml)
        with pytest.raises(InputError, match=what):
            triggers.wanted(project, settings.load_cloud(project, environ={}))
    written(project, TOML.replace(own, 'file = "cloudbuild.yaml"\n'))
    assert triggers.wanted(project, settings.load_cloud(project, environ={}))


@pytest.mark.parametrize("toml", [TOML, OTHERS])
def test_an_adopted_trigger_is_written_so_that_applying_changes_nothing(
    project: Path, cloud: LoopbackCloud, connected: Connect, tmp_path: Path, toml: str
) -> None:
    clients = connected()
    written(project, toml + 'description = "said \\"so\\" ✓"\ndisabled = true\n')
    carry_out(project, clients)
    made = {one.name: one for one in cloud.build.triggers.values()}
    for number, (name, one) in enumerate(made.items()):
        cloud.build.unknown[one.id] = {"includeBuildLogs": "INCLUDE_BUILD_LOGS_WITH_STATUS"}
        exported = tmp_path / f"{number}.yaml"
        exported.write_text(triggers.as_yaml({**triggers.content(one), "includeBuildLogs": "X"}))
        for source in (name, str(exported)):
            written(project, 'registry = "h.test/a"\n\n[cloud]\nlogging = "NONE"\n')
            shown = adoption.adopt(project, clients, source, dry_run=True)
            assert "cloud.trigger" not in (project / "builder.toml").read_text()
            assert adoption.adopt(project, clients, source) == shown
            text = (project / "builder.toml").read_text()
            assert text.startswith('registry = "h.test/a"\n')
            assert text.endswith(f"\n\n{shown}")
            assert carry_out(project, clients) == [(name, "unchanged")]
        with pytest.raises(InputError, match=f"has the trigger {name} already"):
            adoption.adopt(project, _with_tables(project, clients), name)


def _with_tables(project: Path, clients: Clients) -> Clients:
    from dataclasses import replace

    found = tables(project)
    return replace(clients, settings=replace(clients.settings, triggers=found))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"build": {"steps": [{"name": "a"}]}}, "trigger odd: build: its steps are written"),
        ({"triggerTemplate": {"repoName": "r"}}, "trigger odd: triggerTemplate: its repository"),
        (
            {"github": {"owner": "a", "name": "b", "push": {"branch": "^main$"}},
             "filename": "cloudbuild.yaml",
             "approvalConfig": {"approvalRequired": True}, "substitutions": {"_A": "1"},
             "sourceToBuild": {"ref": "refs/heads/main"}},
            "trigger odd: a table cannot say it whole: applying it would change sourceToBuild",
        ),
    ],
)  # fmt: skip
def test_a_trigger_that_a_table_cannot_say_is_not_adopted(
    project: Path, cloud: LoopbackCloud, connected: Connect, fields: dict[str, object], message: str
) -> None:
    trigger = triggers.message({"name": "odd", **fields})
    cloud.build.create_build_trigger(api.CreateBuildTriggerRequest(trigger=trigger))
    written(project, "")
    with pytest.raises(InputError) as raised:
        adoption.adopt(project, connected(), "odd")
    assert raised.value.message.startswith(message)
    assert (project / "builder.toml").read_text() == ""


def test_a_file_that_is_no_trigger(project: Path, cloud: LoopbackCloud, connected: Connect) -> None:
    for text in ("name: [", "- a", "name: {a: 1}"):
        (project / "t.yaml").write_text(text)
        with pytest.raises(InputError, match=r"t\.yaml: not a trigger"):
            adoption.adopt(project, connected(), str(project / "t.yaml"))


def test_a_trigger_is_run_at_a_branch(
    project: Path, cloud: LoopbackCloud, connected: Connect, transport: str
) -> None:
    clients = connected(transport)
    written(project)
    carry_out(project, clients)
    made = triggers.start(clients, "main", {"branch_name": "other"}, {"_GPU": "v100"})
    (build,) = cloud.build.builds.values()
    assert build.id == made.id
    assert dict(build.substitutions) == {"_GPU": "v100", "TRIGGER_NAME": "main"}
    assert list(build.steps[0].args) == ["echo", "other"]
    with pytest.raises(OutsideError, match="no trigger 'gone'"):
        triggers.start(clients, "gone", {}, {})


def test_deleting_is_by_name(cloud: LoopbackCloud, connected: Connect, transport: str) -> None:
    clients = connected(transport)
    cloud.build.create_build_trigger(
        api.CreateBuildTriggerRequest(trigger=api.BuildTrigger(name="old", filename="x.yaml"))
    )
    with pytest.raises(OutsideError, match="no trigger 'new'") as raised:
        triggers.deletion(clients, ["new"])
    assert "it has old" in raised.value.fix
    plan = triggers.deletion(clients, ["old"])
    assert plan[0].diff == ("- filename: x.yaml", "- name: old")
    assert len(cloud.build.triggers) == 1, "a plan does nothing"
    triggers.carry_out(clients, plan, lambda line: None)
    assert cloud.build.triggers == {}


def test_files_for_gcloud_are_the_api_s_own_message(project: Path, tmp_path: Path) -> None:
    written(project)
    paths = triggers.write(project, tmp_path / "out")
    assert [path.name for path in paths] == ["main.yaml", "release.yaml", "pull-request.yaml"]
    for path in paths:
        content = YAML(typ="safe", pure=True).load(path.read_text())
        assert api.BuildTrigger.from_json(__import__("json").dumps(content)).name == path.stem


def test_a_dry_run_names_the_files_and_writes_none(project: Path, tmp_path: Path) -> None:
    written(project)
    names = triggers.write(project, tmp_path / "out", dry_run=True)
    assert [path.name for path in names] == ["main.yaml", "release.yaml", "pull-request.yaml"]
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ("included =", "includd =", "builder.toml:6: cloud.trigger.includd: unknown setting"),
        ('branch = "^main$"\n', "", "builder.toml:3: cloud.trigger.name: nothing starts it"),
        ('"^v"', '"["', "builder.toml:13: cloud.trigger.tag: '[' is not a pattern"),
        ('"acme/training"', '"acme"', "builder.toml:4: cloud.trigger.repository: 'acme' is no"),
        ('"release"', '"main"', "builder.toml:11: cloud.trigger.name: a second trigger is called"),
        ("_GPU", "GPU", "builder.toml:8: cloud.trigger.substitutions: GPU = 'all' is none"),
        ("approval = true", 'approval = "yes"', "builder.toml:14: cloud.trigger.approval: expect"),
        (
            '"^v"',
            '"^v"\nservice_account = "me"',
            "builder.toml:14: cloud.trigger.service_account: 'm",
        ),
        ('"^v"', '"^v"\nfile = "no.yaml"', "builder.toml:14: cloud.trigger.file: there is no"),
    ],
)
def test_what_cannot_be_names_its_line(
    project: Path, before: str, after: str, message: str
) -> None:
    assert before in TOML
    written(project, TOML.replace(before, after, 1 if "acme" in before else -1))
    with pytest.raises(InputError) as raised:
        triggers.wanted(project, settings.load_cloud(project, environ={}))
    assert raised.value.message.startswith(message)
    assert raised.value.fix
