"""The wheel, installed from the index into an empty environment, in an empty repository, by a user
who is not root: nothing of the checkout is needed, nor any package of the tests' environment."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from builder.config import network, uv
from builder.engine import Engine
from builder.pipeline import make
from builder.prove import smoke
from tests import ROOT, ordinary, pages, test_first_hour
from tests.jobs import jobset_rules
from tests.pipeline.test_layout import linked
from tests.registry.server import RegistryServer

pytestmark = [pytest.mark.slow, pytest.mark.network]

BROUGHT = """
import json
from pathlib import Path
from builder.pipeline import make
from builder.prove import smoke
files, records = make.prepare(Path(), "cpu").image.files, smoke.RECORDS.iterdir()
print(json.dumps([sorted(files), sorted(path.name for path in records)]))
"""


@dataclass(frozen=True)
class Installed:
    """The factory as a user has it. home: the user's; wheel: that it was installed from."""

    home: Path
    wheel: Path
    environment: Mapping[str, str]

    def repository(self, name: str) -> Path:
        """Return a new, empty repository of the user."""
        self.run(self.home, "git", "init", "--quiet", name)
        return self.home / name

    def run(self, folder: Path, *words: object, engine: Engine | None = None, **more: str) -> str:
        """Run a command as the user, who may use an engine's socket. Return all that it printed."""
        identity, environment = ordinary.identity(), {**self.environment, **more}
        if engine:
            environment |= {"DOCKER_HOST": engine.host, "BUILDER_ENGINE": "machine"}
            if identity:  # as a member of the group that the socket belongs to
                identity["extra_groups"] = [Path(engine.host[len("unix://") :]).stat().st_gid]
        done = subprocess.run(
            [str(word) for word in words],
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            **identity,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout + done.stderr


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installed]:
    """A wheel that was built from this tree, installed with the versions that the lock has."""
    folder = tmp_path_factory.mktemp("wheel")
    names = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split("\0")
    parts = (
        "builder/",
        "trainer/",
        "images/",
        "templates/",
        "setup.py",
        "pyproject.toml",
        "README",
        "LICENSE",
    )
    for name in names:
        if name.startswith(parts) and (ROOT / name).is_file():
            (folder / "source" / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / "source" / name)
    pip = (sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation")
    subprocess.run([*pip, "--wheel-dir", folder, folder / "source"], check=True)
    with ordinary.home() as home:
        for tool in (uv.uv_program(), ROOT / "requirements/build.txt", *folder.glob("*.whl")):
            shutil.copy(tool, home / Path(tool).name)
        environment = {
            **network.discover().host_environment(),
            **{name: text for name, text in os.environ.items() if name.startswith("SSL_CERT")},
            "HOME": str(home),
            "PATH": f"{home}/venv/bin:{os.environ['PATH']}",
            "LANG": "C.UTF-8",
        }
        (wheel,) = home.glob("*.whl")
        user = Installed(home, wheel, environment)
        user.run(home, home / "uv", "venv", "--python", ordinary.python(home, environment), "venv")
        install = ("uv", "pip", "install", "--python", "venv", "--constraint", "build.txt", wheel)
        user.run(home, home / install[0], *install[1:])
        yield user


def test_an_empty_repository_is_locked_as_the_factory_was_tested(installed: Installed) -> None:
    repository = installed.repository("locked")
    installed.run(repository, "builder", "init")
    installed.run(repository, "builder", "lock")
    installed.run(repository, "builder", "render")
    for name in ("cpu/image.lock", "cpu/tensorflow.lock", "cpu/Dockerfile", "os-bookworm.lock"):
        assert (repository / "images" / name).read_bytes() == (ROOT / "images" / name).read_bytes()
    # what is built and proven of it is in the wheel, too
    printed = installed.run(repository, installed.home / "venv/bin/python", "-c", BROUGHT)
    records = [path.name for path in smoke.RECORDS.iterdir() if path.name != "README.md"]
    files = make.prepare(ROOT, "cpu").image.files
    assert json.loads(printed) == [sorted(files), sorted(records)]


def test_cloud_build_gets_the_wheel_that_was_installed_and_a_second_run_changes_nothing(
    installed: Installed,
) -> None:
    repository = installed.repository("cloud")
    shown = installed.run(repository, "builder", "init", "--cloud-build")
    brought = repository / "requirements" / installed.wheel.name
    assert f"wrote        requirements/{brought.name}" in shown
    with zipfile.ZipFile(installed.wheel) as ours, zipfile.ZipFile(brought) as theirs:
        assert sorted(theirs.namelist()) == sorted(ours.namelist())
        for name in ours.namelist():
            assert name.endswith("/RECORD") or theirs.read(name) == ours.read(name), name
    older = brought.with_name("training_image_factory-0.0.1-py3-none-any.whl")
    shutil.copy(brought, older)
    before = {path: path.stat().st_mtime_ns for path in repository.rglob("*") if path.is_file()}
    assert "nothing to write" in installed.run(repository, "builder", "init", "--cloud-build")
    after = {path: path.stat().st_mtime_ns for path in repository.rglob("*") if path.is_file()}
    assert after == before
    installed.run(repository, "builder", "init", "--cloud-build", "--force")
    assert brought.is_file() and not older.exists()
    installed.run(repository, "builder", "lock")
    installed.run(repository, "builder", "render")
    assert f"COPY {brought.name} /opt/" in (repository / "builder.Dockerfile").read_text()


@pytest.mark.engine
def test_the_first_hour_from_the_wheel_to_a_jobset(
    installed: Installed, engine: Engine, registry_server: RegistryServer
) -> None:
    """docs/first-hour.md, whose last command is followed by `kubectl apply`. Nobody has written a
    digest, an image.yaml or a Dockerfile."""
    linked(installed.home / ".cache")  # the layers that this machine has made
    ordinary.owns(installed.home / ".cache")
    repository = installed.repository("flowers-repository")

    def call(folder: Path, text: str) -> str:
        return installed.run(folder, "/bin/bash", "-c", f"exec 2>&1\n{text}", engine=engine)

    first, *others = pages.commands(test_first_hour.PAGE, HOST=registry_server.host)
    pages.run(repository, [first], call)
    test_first_hour.write(repository)
    printed = pages.run(repository, others, call)
    assert any("no size_budget" in each for each in printed)
    manifest = yaml.safe_load(call(repository, f"{others[-1].text} 2>/dev/null"))
    assert jobset_rules.problems(manifest) == []
    (role,) = manifest["spec"]["replicatedJobs"]
    (container,) = role["template"]["spec"]["template"]["spec"]["containers"]
    digest = registry_server.tags("team/flowers")["cpu"]
    assert container["image"] == f"{registry_server.host}/team/flowers@{digest}"
