"""The main job on real parts, from a target's files to an image that a stranger trains in."""

from __future__ import annotations

import contextlib
import io
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import docker
import pytest

from builder.core.events import ignore
from builder.core.project import tag_of
from builder.engine import Engine, private
from builder.image import program
from builder.pipeline.make import prepare
from builder.prove import receipts, smoke, suites
from builder.registry import Registry
from tests import ROOT, commands, containers
from tests.image.layers import unpacked
from tests.pipeline import post
from tests.registry.server import RegistryServer, skopeo

pytestmark = [pytest.mark.engine, pytest.mark.network, pytest.mark.slow]

TARGET = "pipeline-test"
"""A name of its own: the tests move no tag of the person whose engine this is."""


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory, engine: Engine) -> Iterator[Path]:
    with commands.team(tmp_path_factory.mktemp("project"), TARGET, engine) as root:
        assert builder(root, "lock", "--check").returncode == 0
        yield root


def builder(root: Path, *words: str, check: bool = False) -> subprocess.CompletedProcess[str]:
    return commands.builder(*words, root=root, check=check)


def image(root: Path, *arguments: str) -> dict[str, object]:
    done = builder(root, "image", TARGET, "--json", *arguments, check=True)
    answer: dict[str, object] = json.loads(done.stdout)[0]
    return answer | {"stderr": done.stderr}


@pytest.fixture(scope="module")
def where(registry_server: RegistryServer) -> str:
    """The repository that docs/from-the-post.md pushes to."""
    return f"{registry_server.host}/team/pets"


@pytest.fixture(scope="module")
def layers(project: Path, engine: Engine, where: str) -> tuple[str, ...]:
    """The layers of an image that is built and not proven; the registry has its base."""
    builder(project, "build", TARGET, check=True)
    base = ("--base-only", "--to-registry", "--registry", where)
    builder(project, "build", TARGET, *base, check=True)
    built = engine.image(f"training:{tag_of(project, TARGET)}")
    assert built
    return built.layers


@pytest.fixture(scope="module")
def made(
    project: Path, layers: tuple[str, ...], registry_server: RegistryServer
) -> dict[str, object]:
    """The image with one more line in its trainer: built, proven and pushed on the way of the post,
    each of whose commands is run. sent: what the push printed."""
    with (project / "trainer" / "task.py").open("a") as file:
        file.write("\n# one more line\n")
    shutil.copytree(ROOT / "images/v100", project / "images/v100")
    (project / "jobs").mkdir()
    sent = post.follow(project, cpu=TARGET, HOST=registry_server.host)
    shutil.rmtree(project / "images/v100")
    (project / "builder.toml").write_text("")
    return image(project) | {"sent": sent}


def test_an_image_is_built_proven_and_described(made: dict[str, object], project: Path) -> None:
    receipt = made["receipt"]
    assert isinstance(receipt, dict)
    checks = receipts.read(project / "build" / TARGET / receipts.FILE)
    assert checks and checks.problems == () and suites.of_image({}).holds(checks, checks.image_id)
    seen = {check["name"]: check["seen"] for check in receipt["checks"]}
    assert list(seen) == list(suites.of_image({}).required("CPU"))
    first, second = seen["training"]["first"], seen["training"]["second"]
    assert (first["exit_code"], second["resumed_at"]) == (137, first["last_checkpoint"])
    assert second["last_step"] == seen["training"]["steps"]
    assert seen["training"]["accuracy"] >= 0.97  # of the held-out digits
    assert seen["outputs"]["model"]["outputs"]["probabilities"] == [4, 10]
    assert seen["outputs"]["owners"]["uid"] == 1000
    assert '"event": "resumed"' in (project / "build" / TARGET / smoke.LOG).read_text()
    assert receipt["digest"] == made["digest"] or made["digest"] is None
    record = json.loads((project / "build" / TARGET / "image.json").read_text())
    assert record["digest"] == made["digest"]
    again = image(project)
    assert "nothing to do" in str(again["stderr"]) and again["image_id"] == made["image_id"]


@pytest.mark.long
def test_two_runs_at_once_build_it_once(project: Path, made: dict[str, object]) -> None:
    (project / "trainer" / "twice.py").write_text("# a change for two\n")
    command, path = [*commands.COMMAND, "image", TARGET], commands.environment()
    both = [
        subprocess.Popen(command, cwd=project, env=path, stderr=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    printed = [process.communicate()[1] for process in both]
    assert [process.returncode for process in both] == [0, 0], printed
    assert sorted("nothing to do" in text for text in printed) == [False, True]


def test_one_line_of_the_trainer_is_one_small_layer(
    project: Path, layers: tuple[str, ...], made: dict[str, object], engine: Engine, where: str
) -> None:
    now = engine.image(str(made["reference"]))
    assert now
    assert now.layers[:-1] == layers[:-1] and now.layers != layers
    assert made["base_origin"] == "engine"
    pushed = builder(project, "push", TARGET, "--registry", where, "--json")
    assert json.loads(pushed.stdout)[0]["sent"] == 0, "the second push of the same image"
    log = [line for line in str(made["sent"]).splitlines() if " sent in " in line]
    assert len(log) == 1
    assert " kB sent in " in log[0], log


@contextlib.contextmanager
def empty(data: Path) -> Iterator[Engine]:
    """An engine of a stranger's own, which has no layer yet."""
    try:
        yield private.start(data)
    finally:
        private.stop(data)


@pytest.mark.parametrize(
    "strangers",
    [
        "this engine",
        # it pulls and unpacks a gigabyte once more
        pytest.param("an empty engine", marks=[pytest.mark.root, pytest.mark.long]),
    ],
)
def test_a_stranger_pulls_the_same_digest_and_trains_in_it(
    project: Path,
    made: dict[str, object],
    where: str,
    engine: Engine,
    tmp_path: Path,
    strangers: str,
) -> None:
    image(project)
    pushed = json.loads(builder(project, "push", "--registry", where, "--json", check=True).stdout)
    digest = pushed[0]["digest"]
    seen = skopeo("inspect", "--tls-verify=false", f"docker://{where}:{TARGET}")
    assert json.loads(seen)["Digest"] == digest

    here = contextlib.nullcontext(engine)
    with empty(tmp_path / "stranger") if strangers == "an empty engine" else here as theirs:
        client = docker.DockerClient(base_url=theirs.host)
        pulled = client.images.pull(where, tag=TARGET)
        assert f"{where}@{digest}" in pulled.attrs["RepoDigests"]
        tested = subprocess.run(
            [
                Path(sys.executable).parent / "container-structure-test",
                *("test", "--image", f"{where}:{TARGET}"),
                *("--config", str(Path(__file__).parent / "structure.yaml")),
            ],
            env={**os.environ, **theirs.environment},
            capture_output=True,
            text=True,
        )
        assert tested.returncode == 0, tested.stdout + tested.stderr
        log = containers.output(
            client,
            f"{where}@{digest}",
            ["--records", "/records", "--job-dir", "/tmp/job", "--steps", "4", "--export", "none"],
            volumes={str(smoke.RECORDS): {"bind": "/records", "mode": "ro"}},
            network_mode="none",
        )
        events = [json.loads(line) for line in log.splitlines() if line.startswith(b"{")]
        assert events[-1]["event"] == "done"


def test_a_trainer_that_fails_is_caught_before_the_push(
    project: Path, registry_server: RegistryServer, tmp_path: Path
) -> None:
    root = tmp_path / "broken"
    shutil.copytree(project, root, ignore=shutil.ignore_patterns("build"))
    task = root / "trainer" / "task.py"
    task.write_text("raise SystemExit('out of order')\n")
    where = f"{registry_server.host}/team/broken"
    done = builder(root, "image", TARGET, "--push", "--registry", where)
    assert done.returncode == 4
    assert "error: " in done.stderr
    assert builder(root, "push", TARGET, "--registry", where).returncode == 4
    assert registry_server.tags("team/broken") == {}


def test_code_is_put_onto_a_base_in_the_registry_without_an_engine(
    project: Path, registry_server: RegistryServer, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (project / "trainer" / "direct.py").write_text("# straight to the registry\n")
    (built,) = json.loads(builder(project, "build", TARGET, "--json", check=True).stdout)
    monkeypatch.setenv("DOCKER_HOST", "unix:///no/such.sock")
    monkeypatch.setenv("BUILDER_ENGINE", "machine")
    direct = ("--to-registry", "--registry", where)
    builder(project, "build", TARGET, "--base-only", *direct, check=True)
    (sent,) = json.loads(builder(project, "build", TARGET, *direct, "--json", check=True).stdout)
    assert ":unproven-" in sent["reference"]
    with Registry(registry_server.host) as client:
        manifest = client.manifest("team/pets", sent["digest"])
    assert manifest
    same = {sent["digest"], manifest.config.digest}  # an engine without containerd's store: this
    assert built["image_id"] in same, "the same as on an engine"


def test_docker_build_makes_the_same_image_of_the_committed_dockerfile(
    project: Path, engine: Engine, registry_server: RegistryServer
) -> None:
    """The Dockerfile describes what the factory assembles: config, layers and files are equal."""
    target = prepare(project, TARGET)
    assert target.base and isinstance(target.image, program.AssembledPlan)
    names = {kind: f"{registry_server.host}/team/equal:{kind}" for kind in ("assembled", "built")}
    builder(project, "build", TARGET, check=True)
    program.build(engine, target.image, f"training:{TARGET}-equal", "engine", True, ignore)
    tags = {"assembled": f"training:{tag_of(project, TARGET)}", "built": f"training:{TARGET}-equal"}
    for kind, tag in tags.items():
        engine.client.images.get(tag).tag(names[kind])
        engine.client.images.push(names[kind])
        engine.client.images.remove(names[kind])
    with Registry(registry_server.host) as client:
        assembled, built = (_content(client, kind) for kind in names)
    assert assembled == built
    assert any(name.endswith("trainer/task.py") for name in assembled["files"])


def _content(client: Registry, tag: str) -> dict[str, Any]:
    """What a container sees of an image: config, layers of the base, files of the top one."""
    manifest = client.manifest("team/equal", tag)
    assert manifest
    config = client.configuration("team/equal", manifest)
    packed = client.blob("team/equal", manifest.layers[-1])
    known = {name: config[name] for name in ("architecture", "os", "config", "created")}
    diff_ids = config["rootfs"]["diff_ids"]
    return {**known, "base": diff_ids[:-1], "files": unpacked(io.BytesIO(packed))}
