"""What every test may use: the repository itself, and small projects made on the spot."""

from __future__ import annotations

import functools
import gc
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest
from xdist.scheduler import LoadScopeScheduling

from builder.core.settings import Settings
from builder.engine import Engine, discovery
from tests import ROOT, commands
from tests.debian import static
from tests.registry.server import RegistryServer, registry

sys.modules["rfc3987_syntax"] = None  # type: ignore[assignment]
"""jsonschema imports its 38 grammars for seconds, for IRIs, which no document here has."""
Report = TypeVar("Report", pytest.TestReport, pytest.CollectReport)
PROGRAMS = ("sh", "cat", "cp", "dd", "echo", "find", "ls", "mkdir", "sleep", "touch", "wc")


def pytest_sessionstart() -> None:
    """Take Ctrl-C even where the shell that started pytest ignores it.

    A shell starts its background jobs with SIGINT ignored, and every process inherits that. The
    tests' own processes would ignore it, too: a test that sends one a SIGINT would hang.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)
    gc.disable()


def pytest_collection_finish(session: pytest.Session) -> None:
    """Look for garbage in what tests make, and not again and again in all that was imported."""
    if "not tensorflow" in session.config.option.markexpr and "tensorflow" in sys.modules:
        raise pytest.UsageError("TensorFlow, which takes seconds, is imported by a test without it")
    gc.freeze()
    gc.enable()
    gc.set_threshold(50_000)  # tests make much and leave little: half the time in the collector


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Ignore the tests in a cluster, all of them long, where none would run: Kubernetes' client
    takes seconds to import."""
    cluster = collection_path == ROOT / "tests/cluster"
    return True if cluster and "not long" in config.option.markexpr else None


LONGEST_FIRST = ("mark.engine", "mark.tensorflow", "mark.slow")
VERTEX = ("emulators import vertex", "import aiplatform_v1")
PROOFS = ("pipeline", "prove")
"""Folders whose tests with an engine stay together: they sweep away what killed proofs left, and
last about as long as all others with an engine."""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Put the files whose tests take longest first, so that no process waits for another at the
    end, and leave out what an ordinary user may not do."""
    if os.geteuid() != 0:
        config.hook.pytest_deselected(items=[item for item in items if "root" in item.keywords])
        items[:] = [item for item in items if "root" not in item.keywords]
    items.sort(key=lambda item: _rank(item.path))


FIRST_PLATFORM = (
    Path("/etc/debian_version").exists()
    and platform.machine() == "x86_64"
    and not Path("/proc/driver/nvidia/version").exists()
)
"""Debian on x86-64, as the documents name it. What a test needs there, the lock brings."""

NO_CLUSTER = "Skipped: no cluster"
"""How the one reason begins that counts everywhere: Kubernetes is built from Go's modules, or is
somebody else's."""


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Fail a test that is skipped where everything is there."""
    return _not_skipped((yield))


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Fail a file that is skipped where everything is there."""
    return _not_skipped((yield))


def _not_skipped(report: Report) -> Report:
    if FIRST_PLATFORM and report.skipped and NO_CLUSTER not in str(report.longrepr):
        report.outcome = "failed"
        report.longrepr = f"{report.nodeid}: on Debian no test is skipped: {report.longrepr}"
    return report


@functools.cache
def _rank(file: Path) -> int:
    text = _text(file)
    return next((n for n, mark in enumerate(LONGEST_FIRST) if mark in text), len(LONGEST_FIRST))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadScopeScheduling:
    """Share the tests out between the processes of `make test`, in the order that they are in."""
    config.option.loadscopereorder = False  # else the files with the most tests come first
    return ByEngine(config, log)


class ByEngine(LoadScopeScheduling):  # type: ignore[misc]
    """Which tests stay together in one process.

    Tests of one file share what they set up. Files with engine tests share the engine and the
    images on it, and wait for it half of their time: two processes run all of them, each about as
    long as the other. A third one has the other files. One process has all that import the client
    of Vertex AI, which takes seconds.
    """

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.split("::", 1)[0]
        text = _text(ROOT / file)
        if "mark.engine" in text and "not engine" not in self.config.option.markexpr:
            return "engine: proofs" if file.split("/")[1] in PROOFS else "engine: the others"
        return "Vertex AI" if any(words in text for words in VERTEX) else file


@functools.cache
def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8")


@pytest.fixture
def root() -> Path:
    """The repository: a real project."""
    return ROOT


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """An empty project: builder.toml, and a trainer that does nothing."""
    (tmp_path / "builder.toml").touch()
    (tmp_path / "trainer").mkdir()
    (tmp_path / "trainer" / "__init__.py").touch()
    (tmp_path / "trainer" / "task.py").touch()
    return tmp_path


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A project with this repository's targets and a small trainer, not checked."""
    root = tmp_path / "project"
    for name in ("images", "examples"):
        shutil.copytree(ROOT / name, root / name)
    (root / "trainer").mkdir()
    for name, text in {"__init__.py": "", "task.py": "print('trained')\n"}.items():
        (root / "trainer" / name).write_text(text)
    shutil.copy(ROOT / "trainer" / "requirements.txt", root / "trainer")
    (root / "builder.toml").write_text("")
    return root


@pytest.fixture
def write_target(project: Path) -> Callable[..., Path]:
    """Writes images/<name>/image.yaml of `project`."""

    def write(text: str, name: str = "v100") -> Path:
        path = project / "images" / name / "image.yaml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    return write


Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def builder(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs `builder ...` in this process: exit code, stdout, stderr."""
    from builder import cli

    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.delenv("GITHUB_ACTIONS", raising=False)
    monkeypatch.delenv("GITHUB_STEP_SUMMARY", raising=False)

    def call(*words: str) -> tuple[int, str, str]:
        with monkeypatch.context() as patched, pytest.raises(SystemExit) as left:
            patched.setattr(sys, "argv", ["builder", *words])
            patched.setattr(signal, "signal", lambda *_: None)  # pytest's own signals stay
            cli.main()
        shown = capsys.readouterr()
        return int(left.value.code or 0), shown.out, shown.err

    return call


@pytest.fixture
def run(project: Path, monkeypatch: pytest.MonkeyPatch, builder: Run) -> Run:
    """Runs `builder ...` in the empty project."""
    monkeypatch.chdir(project)
    return builder


# --- an engine ---------------------------------------------------------------------------------


@pytest.fixture(scope="session", name="engine")
def connected() -> Engine:
    return discovery.connect(Settings())


@pytest.fixture(scope="session")
def cpu_image(engine: Engine) -> Iterator[str]:
    """The repository's image for the CPU, with the trainer of the working tree. It has a name of
    its own, because other tests and their projects move training:cpu."""
    made = commands.builder("build", "cpu", "--json", check=True)
    name = f"tests:cpu-{os.getpid()}"
    assert engine.client.images.get(json.loads(made.stdout)[0]["image_id"]).tag(name)
    yield name
    engine.client.images.remove(name)


@pytest.fixture(scope="session")
def registry_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RegistryServer]:
    """One docker-registry for the whole run; each test takes a repository of its own in it."""
    with registry(tmp_path_factory.mktemp("registry")) as server:
        yield server


@pytest.fixture(scope="session")
def busybox() -> Path:
    """A program that runs without any library: the smallest root there is."""
    return static("busybox-static", "busybox")


@pytest.fixture
def context(tmp_path: Path, busybox: Path) -> Callable[..., Path]:
    """Makes a build's context: busybox as root.tar (all dates 1980), a Dockerfile, more files."""

    def make(dockerfile: str, files: dict[str, str] | None = None, name: str = "context") -> Path:
        folder = tmp_path / name
        root = tmp_path / f"{name}-root"
        for path in ("bin", "etc", "tmp", "dev", "proc", "sys", "run"):
            (root / path).mkdir(parents=True)
        (root / "bin/busybox").write_bytes(busybox.read_bytes())
        (root / "bin/busybox").chmod(0o755)
        for program in PROGRAMS:
            (root / "bin" / program).symlink_to("busybox")
        folder.mkdir()
        same = ["--sort=name", "--owner=0", "--group=0", "--numeric-owner", "--mtime=@315532800"]
        subprocess.run(["tar", *same, "-C", root, "-cf", folder / "root.tar", "."], check=True)
        (folder / "Dockerfile").write_text(f"FROM scratch\nADD root.tar /\n{dockerfile}")
        for path, content in (files or {}).items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_text(content)
        return folder

    return make
