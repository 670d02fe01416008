"""The wheel in an empty environment, in an empty repository: nothing of the checkout is needed."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from tests import test_your_program
from tests.jobs import jobset_rules
from tests.registry import server as registry_server

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def builder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program `builder` of a wheel that was built from this tree.

    Its environment has the dependencies of this one, but not this checkout.
    """
    folder = tmp_path_factory.mktemp("wheel")
    pip = (sys.executable, "-m", "pip")
    plain = ("--quiet", "--no-deps", "--disable-pip-version-check")
    source = folder / "source"
    files = run(ROOT, "git", "ls-files", "-z").split("\0")
    for name in filter(None, files):
        if (ROOT / name).is_file() and name.startswith(
            ("builder/", "trainer/", "images/", "setup.py", "pyproject.toml", "README", "LICENSE")
        ):
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            (source / name).write_bytes((ROOT / name).read_bytes())
    run(folder, *pip, "wheel", *plain, "--no-build-isolation", "--wheel-dir", ".", source)
    venv.create(folder / "venv", with_pip=False)
    python = folder / "venv/bin/python"
    (wheel,) = folder.glob("*.whl")
    run(folder, *pip, "--python", python, "install", *plain, wheel)
    site = next((folder / "venv/lib").glob("python3*/site-packages"))
    # a line of a .pth file brings a folder, not the .pth files in it: this checkout stays outside
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return folder / "venv/bin/builder"


def run(folder: Path, *words: object) -> str:
    done = subprocess.run(
        [str(word) for word in words], cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.network
def test_an_empty_repository_is_locked_as_the_factory_was_tested(
    builder: Path, tmp_path: Path
) -> None:
    run(tmp_path, "git", "init", "--quiet")
    run(tmp_path, builder, "init")
    run(tmp_path, builder, "lock")
    run(tmp_path, builder, "render")
    for name in ("cpu/image.lock", "cpu/tensorflow.lock", "cpu/Dockerfile", "os-bookworm.lock"):
        assert (tmp_path / "images" / name).read_bytes() == (ROOT / "images" / name).read_bytes()


@pytest.mark.slow
@pytest.mark.network
@pytest.mark.engine
def test_an_empty_repository_gets_a_proven_image(builder: Path, tmp_path: Path) -> None:
    run(tmp_path, "git", "init", "--quiet")
    run(tmp_path, builder, "init")
    shown = run(tmp_path, builder, "image")
    assert "cpu: proven on CPU" in shown
    assert "no size_budget" in shown
    assert "nothing to do" in run(tmp_path, builder, "image")


@pytest.mark.slow
@pytest.mark.network
@pytest.mark.engine
def test_a_program_becomes_a_jobset_in_four_commands(
    builder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fourth is `kubectl apply`. Nobody has written a digest, an image.yaml or a Dockerfile."""
    test_your_program.write(tmp_path)
    (tmp_path / "jobs").mkdir()
    (tmp_path / "jobs/digits.yaml").write_text("image: cpu\nmachine: n1-standard-8\n")
    with registry_server.registry(tmp_path / "registry") as server:
        repository = f"{server.host}/team/digits"
        monkeypatch.setenv("BUILDER_REGISTRY", repository)
        run(tmp_path, builder, "init")
        run(tmp_path, builder, "image", "--push")
        words = ("job", "render", "digits", "--on", "kubernetes", "--pushed", "-o", "job.yaml")
        run(tmp_path, builder, *words)
        digest = server.tags("team/digits")["cpu"]
    manifest = YAML(typ="safe").load(tmp_path / "job.yaml")
    assert jobset_rules.problems(manifest) == []
    (role,) = manifest["spec"]["replicatedJobs"]
    (container,) = role["template"]["spec"]["template"]["spec"]["containers"]
    assert container["image"] == f"{repository}@{digest}"
