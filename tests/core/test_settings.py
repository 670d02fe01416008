"""Settings: flag over environment over builder.toml, and the errors for wrong values."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from builder.core import project as project_module
from builder.core import settings, trustsettings
from builder.core.errors import InputError
from builder.core.settings import Settings
from builder.core.trustsettings import TrustSettings


def load(project: Path, toml: str = "", **flags: str | None) -> Settings:
    (project / "builder.toml").write_text(toml)
    return settings.load(project, environ={}, **flags)


def refused(project: Path, toml: str = "", **flags: str | None) -> InputError:
    with pytest.raises(InputError) as raised:
        load(project, toml, **flags)
    return raised.value


def test_nothing_set_keeps_images_on_the_engine(project: Path) -> None:
    assert load(project) == Settings(registry=None, engine="auto")
    assert load(project).repository == "training"


def test_a_registry_is_the_repository(project: Path) -> None:
    assert load(project, 'registry = "h.example.com/team/images"').repository == (
        "h.example.com/team/images"
    )


def test_a_flag_wins_over_the_environment_and_that_over_the_file(project: Path) -> None:
    (project / "builder.toml").write_text('registry = "file/x"\nengine = "machine"')
    environ = {"BUILDER_REGISTRY": "environment/x"}
    assert settings.load(project, environ={}).registry == "file/x"
    assert settings.load(project, environ=environ).registry == "environment/x"
    assert settings.load(project, environ=environ, registry="flag/x").registry == "flag/x"
    assert settings.load(project, environ=environ, registry=None).registry == "environment/x"
    assert settings.load(project, environ=environ).engine == "machine"


def test_an_empty_variable_is_not_set(project: Path) -> None:
    assert settings.load(project, environ={"BUILDER_REGISTRY": ""}).registry is None


def test_the_environment_is_the_process_s(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BUILDER_ENGINE", "private")
    assert settings.load(project).engine == "private"


def test_an_unknown_setting_is_refused_with_its_line(project: Path) -> None:
    error = refused(project, '# ours\n\nregistri = "h/x"\n')
    assert error.message == "builder.toml:3: registri: unknown setting"
    assert error.fix == "write registry"
    assert refused(project, "[jobs]\na = 1").message == "builder.toml:1: jobs: unknown setting"


def test_an_unreadable_file_is_refused_with_its_line(project: Path) -> None:
    assert refused(project, 'registry = "h/x"\nengine = ').message.startswith("builder.toml:2: ")


def test_a_value_of_the_wrong_type_is_refused(project: Path) -> None:
    assert refused(project, "engine = 3").message == (
        "builder.toml:1: engine: expected text, found 3"
    )


@pytest.mark.parametrize(
    ("written", "what", "fix"),
    [
        ("https://h.example.com/x", "has a scheme", "write h.example.com/x"),
        ("h.example.com/x/", "a slash", "write h.example.com/x"),
        ("h.example.com", "no repository on it", "add a path, for example h.example.com/training"),
        ("h.example.com/Team/x", "upper-case", "write h.example.com/team/x"),
        ("h.example.com:5000/x:v1", "tag or a digest", "write h.example.com:5000/x;"),
        ("h.example.com/x@sha256:ab", "tag or a digest", "write h.example.com/x;"),
        ("h.example.com/a b", "is not a repository name", "HOST[:PORT]/PATH"),
        ("h_ost/a", "is not a repository name", "HOST[:PORT]/PATH"),
        ("h/a//b", "is not a repository name", "HOST[:PORT]/PATH"),
    ],
)
def test_a_registry_that_is_none(project: Path, written: str, what: str, fix: str) -> None:
    error = refused(project, registry=written)
    assert error.message.startswith(f"--registry: {written!r}")
    assert what in error.message
    assert fix in error.fix


@pytest.mark.parametrize(
    "written",
    [
        "europe-west4-docker.pkg.dev/my-project/training/images",
        "gcr.io/my-project/training",
        "docker.io/someone/training",
        "localhost:5000/training",
        "127.0.0.1:5000/a__b/c-d.e",
        "[::1]:5000/x",
    ],
)
def test_registries_of_every_kind(project: Path, written: str) -> None:
    assert load(project, registry=written).registry == written


def test_a_bad_value_says_where_it_was_written(project: Path) -> None:
    with pytest.raises(InputError, match=r"^BUILDER_ENGINE: no engine is called 'podman'"):
        settings.load(project, environ={"BUILDER_ENGINE": "podman"})
    assert refused(project, '\nregistry = "x"').message.startswith("builder.toml:2: registry: 'x'")


def test_the_root_is_found_from_anywhere_below_it(project: Path) -> None:
    assert project_module.find_root(project / "trainer") == project
    assert project_module.find_root(project) == project


def test_a_folder_outside_any_project(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no builder\.toml in ") as raised:
        project_module.find_root(tmp_path)
    assert "create an empty builder.toml" in raised.value.fix


TRUST = '[trust]\nprove = ["keys/a.pub", "gcpkms://projects/p/k"]\n'


def test_the_table_trust(project: Path) -> None:
    assert load(project).trust == TrustSettings()
    written = 'build = ["b.pub"]\nsuite = "trainer"\nage = "30 days"\nkey = "../prover.key"\n'
    assert load(project, TRUST + written).trust == TrustSettings(
        key=str(project / "../prover.key"),
        prove=(str(project / "keys/a.pub"), "gcpkms://projects/p/k"),
        build=(str(project / "b.pub"),),
        suite="trainer",
        age=30 * 86400.0,
    )


def test_identities_and_the_sigstore_that_vouches_for_them(project: Path) -> None:
    one = '{ identity = "ci@example.com", issuer = "https://accounts.google.com" }'
    written = f'[trust]\nprove = ["a.pub", {one}]\nbuild = [{one}]\nkey = "keyless"\n'
    who = trustsettings.NamedIdentity("ci@example.com", "https://accounts.google.com")
    assert load(project, written + 'trusted_root = "keys/root.json"\n').trust == TrustSettings(
        key=trustsettings.KEYLESS,
        prove=(str(project / "a.pub"), who),
        build=(who,),
        trusted_root=str(project / "keys/root.json"),
    )


def test_the_key_that_signs_comes_from_a_flag_or_the_environment(project: Path) -> None:
    (project / "builder.toml").write_text('[trust]\nkey = "/keys/file.key"\n')
    environ = {"BUILDER_TRUST_KEY": "/keys/environment.key"}
    assert settings.load(project, environ={}).trust.key == "/keys/file.key"
    assert settings.load(project, environ=environ).trust.key == "/keys/environment.key"
    assert settings.load(project, environ=environ, key="/f.key").trust.key == "/f.key"


@pytest.mark.parametrize(
    ("toml", "says"),
    [
        ('[trust]\nkey = "prover.key"', r"trust\.key: prover\.key is a private key inside of"),
        (TRUST + 'age = "soon"', r"builder\.toml:3: trust\.age: 'soon' is no age"),
        (TRUST + 'age = "0 days"', "no age"),
        (TRUST + 'suite = "best"', r"trust\.suite: no suite of checks is called 'best'"),
        ('[trust]\nprove = "a.pub"', r"trust\.prove: expected a list of keys"),
        ('[trust]\nprove = [""]', "expected a list of keys"),
        ('[trust]\nprove = [{ identity = "ci@example.com" }]', "expected a list of keys or ident"),
        ('[trust]\nprove = [{ identity = "a", issuer = 7 }]', "expected a list of keys or identi"),
        ('[trust]\nprove = [{ identity = "a", issuer = "b", age = "c" }]', "expected a list of"),
        ('[trust]\nprove = ["a.pub", 7]', "expected a list of keys or identities"),
        ('[trust]\nprov = ["a.pub"]', r"trust\.prov: unknown setting"),
        ('[trust]\nage = "3 days"', r"trust\.age: nothing is judged without the keys that count"),
        ('[trust]\nprove = []\nbuild = ["b.pub"]', r"trust\.build: nothing is judged"),
    ],
)
def test_a_table_trust_that_means_nothing(project: Path, toml: str, says: str) -> None:
    error = refused(project, toml)
    assert re.search(says, error.message), error.message


@pytest.mark.parametrize("written", ["me:hidden@h/x", "https://me:hidden@h/x", "me:hid/den@h/x"])
def test_a_registry_with_a_login_shows_none_of_it(project: Path, written: str) -> None:
    error = refused(project, registry=written)
    assert "holds a user and a password" in error.message
    assert "hid" not in f"{error.message} {error.fix}"
