"""Settings: flag over environment over builder.toml, and the errors for wrong values."""

from __future__ import annotations

from pathlib import Path

import pytest

from builder.core import settings
from builder.core.errors import InputError
from builder.core.project import find_root
from builder.core.settings import KEYLESS, Identity, Settings, TrustSettings

SIGNER = '{ identity = "ci@example.com", issuer = "https://accounts.google.com" }'
PROVE = '[trust]\nprove = ["keys/a.pub", "keys/b.pub"]\n'


def load(project: Path, toml: str = "", **how: object) -> Settings:
    (project / "builder.toml").write_text(toml)
    return settings.load(project, **{"environ": {}, **how})  # type: ignore[arg-type]


def refused(project: Path, toml: str = "", **how: object) -> InputError:
    with pytest.raises(InputError) as raised:
        load(project, toml, **how)
    return raised.value


def test_a_flag_wins_over_the_environment_and_that_over_the_file(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = load(project)
    assert (chosen.registry, chosen.engine, chosen.trust) == (None, "auto", TrustSettings())
    assert (load(project).repository, load(project).cloud.project) == ("training", None)
    toml = 'registry = "file/x"\nengine = "machine"\n[cloud]\nproject = "of-file"\n'
    environ = {"BUILDER_REGISTRY": "environment/x", "BUILDER_CLOUD_PROJECT": "of-environment"}
    assert load(project, toml).registry == "file/x"
    chosen = load(project, toml, environ=environ, registry=None)
    assert (chosen.registry, chosen.engine) == ("environment/x", "machine")
    assert chosen.cloud.project == "of-environment"
    flags = {"cloud": {"project": "of-a-flag"}}
    chosen = load(project, toml, environ=environ, registry="flag/x", tables=flags)
    assert (chosen.registry, chosen.cloud.project) == ("flag/x", "of-a-flag")
    assert load(project, toml, environ={"BUILDER_REGISTRY": ""}).registry == "file/x"
    monkeypatch.setenv("BUILDER_ENGINE", "private")
    assert load(project, toml, environ=None).engine == "private"


@pytest.mark.parametrize(
    ("toml", "message", "fix"),
    [
        ('# ours\n\nregistri = "h/x"\n', ":3: registri: unknown key", "did you mean registry?"),
        ("[jobs]\na = 1", ":1: jobs: unknown key", "did you mean job?"),
        ("engine = 3", ":1: engine: 3 is not one of auto, machine, private", "auto | machine"),
        ('\nregistry = "x"', ":2: registry: 'x' is not a repository's", "training"),
        ('registry = "h/x"\nengine = ', ":2: not TOML: ", 'name = "value"'),
        ("debian_mirror = 3", ":1: debian_mirror: expected one text, found 3", ' = "'),
        ('cloud = "x"', ":1: cloud: expected a table", "write [cloud]"),
        ('[cloud]\n\nprojct = "x"', ":3: cloud.projct: unknown key", "did you mean project?"),
        ('[cloud]\nservice_account = "me"', ":2: cloud.service_account", "gserviceaccount.com"),
        ('[cloud]\ntrigger = "main"', ":2: cloud.trigger: expected a list", "[[cloud.trigger]]"),
        ('[job]\nregion = "us-central1-a"', ":2: job.region: 'us-central1-a'", "write a region"),
        ('[kubernetes]\nservice_account = "a@b.iam"', "'a@b.iam'", "not Google's"),
        ('[kubernetes]\nnodes = "eks"', ":2: kubernetes.nodes: 'eks'", "gke | any"),
        ('[kubernetes]\nqueues = "a"', ":2: kubernetes.queues: unknown key", "mean queue?"),
        ('[trust]\nkey = "prover.key"', "prover.key is a private key inside of", "keep it outside"),
        (
            '[trust]\nprove = "a.pub"',
            ":2: trust.prove: expected a list",
            'prove = ["keys/prover.pub"]',
        ),
        ("[trust]\nprove = []", ":1: trust: prove names nobody", "keys/prover.pub"),
        ("[trust]\non_gpu = []", ":1: trust: on_gpu names nobody", "keys/prover.pub"),
        ('[trust]\nprove = [""]', "expected a key or an identity, found ''", "keys/prover.pub"),
        ('[trust]\nprove = [{ identity = "a" }]', "expected a key or an identity", "issuer ="),
    ],
)
def test_a_mistake_names_the_file_the_line_the_field_and_the_fix(
    project: Path, toml: str, message: str, fix: str
) -> None:
    error = refused(project, toml)
    assert error.message.startswith("builder.toml:") and message in error.message
    assert fix in error.fix


def test_a_mistake_in_a_variable_or_a_flag_names_it(project: Path) -> None:
    error = refused(project, environ={"BUILDER_ENGINE": "podman"})
    assert error.message == "BUILDER_ENGINE: 'podman' is not one of auto, machine, private"
    flags = {"cloud": {"machine_type": "huge"}}
    assert refused(project, tables=flags).message.startswith("--machine-type: 'huge'")
    key = refused(project, environ={"BUILDER_TRUST_KEY": str(project / "k")})
    assert key.message.startswith("BUILDER_TRUST_KEY: ") and "inside of the project" in key.message


def test_what_a_registry_may_be(project: Path) -> None:
    for name in ("gcr.io/my-project/training", "127.0.0.1:5000/a__b/c-d.e", "[::1]:5000/x"):
        assert load(project, registry=name).registry == name
    for name in (
        "https://h.example.com/x", "h.example.com/x/", "h.example.com", "h.example.com/Team/x",
        "h.example.com:5000/x:v1", "h.example.com/x@sha256:ab", "h.example.com/a b", "h/a//b",
    ):  # fmt: skip
        error = refused(project, registry=name)
        assert error.message == f"--registry: {name!r} is not a repository's name"
        assert "registry.example.com/training" in error.fix
    error = refused(project, registry="me:hid/den@h/x")
    assert "holds a user and a password" in error.message and "docker login" in error.fix
    assert "hid" not in f"{error.message} {error.fix}"


def test_cloud_build_has_gclouds_defaults_and_triggers_as_they_stand(project: Path) -> None:
    toml = '[cloud]\nproject = "my-project"\nregion = "europe-west4"\n'
    assert load(project, toml).cloud.bucket == "my-project_europe-west4_cloudbuild"
    assert load(project, '[cloud]\nproject = "example.com:proj-1"').cloud.bucket == (
        "example_com_proj-1_cloudbuild"
    )
    assert load(project, toml + 'staging_bucket = "ours"').cloud.bucket == "ours"
    pool = "projects/my-project/locations/europe-west4/workerPools/big"
    assert load(project, toml + 'worker_pool = "big"').cloud.pool == pool
    other = pool.replace("my-project", "other-1")
    assert load(project, toml + f'worker_pool = "{other}"').cloud.pool == other
    tables = '[[cloud.trigger]]\nname = "a"\n\n[[cloud.trigger]]\n'
    assert load(project, toml + tables).cloud.triggers == ({"name": "a"}, {})


def test_whose_attestations_count(project: Path) -> None:
    assert load(project).trust == TrustSettings()
    more = 'key = "../p.key"\n'
    signer = Identity(identity="ci@example.com", issuer="https://accounts.google.com")
    assert load(project, f"[trust]\nprove = [{SIGNER}]").trust.prove == (signer,)
    assert load(project, PROVE + more + 'trusted_root = "root.json"\n').trust == TrustSettings(
        key=str(project / "../p.key"),
        prove=(str(project / "keys/a.pub"), str(project / "keys/b.pub")),
        trusted_root=str(project / "root.json"),
    )
    assert load(project, f'[trust]\nkey = "{KEYLESS}"').trust.key == KEYLESS


def test_the_root_is_found_from_anywhere_below_it(project: Path, tmp_path: Path) -> None:
    (project / "trainer").mkdir(exist_ok=True)
    assert find_root(project / "trainer") == find_root(project) == project
    outside = tmp_path.parent
    with pytest.raises(InputError, match=r"no builder\.toml in ") as raised:
        find_root(outside)
    assert "create an empty builder.toml" in raised.value.fix
