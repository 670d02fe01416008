"""The image's own Python compiles bytecode: the same bytes wherever it runs."""

from __future__ import annotations

import dataclasses
import io
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from builder.config import debian, lockfile
from builder.config.lockfile import Lock
from builder.core.errors import InputError
from builder.core.settings import Settings
from builder.engine import Engine
from builder.image import bytecode, deb, plan
from builder.image.bytecode import BATCH, BytecodeCompiler
from builder.image.download import fetch_debs
from tests import ROOT
from tests.image.layers import THIS_PYTHON

SITE = "/opt/venv/lib/python3.11/site-packages"
SOURCE = "import os\nx = {{'utf_8', 'a', '{}'}}\n\n\ndef f(*a):\n    return x\n"
SOURCES = {f"{SITE}/one/m{n:03}.py": SOURCE.format(n).encode() for n in range(BATCH + 50)}


@pytest.fixture(scope="module")
def lock() -> Lock:
    return lockfile.read(ROOT, "cpu")


@pytest.fixture(scope="module")
def packages(lock: Lock) -> list[Path]:
    return list(fetch_debs(plan.compiler(lock), debian.archives(Settings())).values())


@pytest.fixture(scope="module")
def compiler(lock: Lock, packages: list[Path]) -> Iterator[BytecodeCompiler]:
    if not bytecode.runs_here():
        pytest.skip("Debian's Python runs on Linux x86-64")
    with bytecode.unpacked(packages, lock.python) as debians:
        yield debians


def test_files_that_do_not_compile_are_left_out() -> None:
    wrong = {"/a/syntax.py": b"a b", "/a/null.py": b"\0", "/a/utf.py": b"x = '\xff'"}
    assert THIS_PYTHON.compile({**wrong, "/a/right.py": b"x = 1"}).keys() == {"/a/right.py"}
    assert THIS_PYTHON.compile({}) == {}
    assert bytecode.path_of("a/b.c.py", "3.13") == "a/__pycache__/b.c.cpython-313.pyc"


def test_what_a_machine_has_in_its_environment_changes_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    before = THIS_PYTHON.compile(SOURCES)
    (tmp_path / "marshal.py").write_text("raise SystemExit('read from the folder')")
    monkeypatch.chdir(tmp_path)
    for name, value in (("PYTHONOPTIMIZE", "2"), ("PYTHONHASHSEED", "7"), ("LC_ALL", "C")):
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("os.cpu_count", lambda: 7)
    assert THIS_PYTHON.compile(SOURCES) == before


def test_a_lock_without_the_compiler_is_an_input_error(lock: Lock) -> None:
    with pytest.raises(InputError, match=r"its lock has no libexpat1"):
        plan.compiler(dataclasses.replace(lock, apt={}))


@pytest.mark.network
@pytest.mark.engine
def test_debians_python_runs_from_its_packages_and_in_a_container_alike(
    compiler: BytecodeCompiler, packages: list[Path], lock: Lock, engine: Engine
) -> None:
    compiled = compiler.compile(SOURCES)
    assert compiled.keys() == SOURCES.keys()
    assert {code[:4] for code in compiled.values()} == {b"\xa7\r\r\n"}  # of Python 3.11
    image = imported(engine, packages)
    private = engine.origin == "private"
    docker = str(Path(engine.buildx[0]).with_name("docker")) if private else "docker"
    try:
        elsewhere = bytecode.in_container(image, lock.python, (docker, "--host", engine.host))
        assert elsewhere.compile(SOURCES) == compiled
    finally:
        engine.client.images.remove(image, force=True)


def imported(engine: Engine, packages: list[Path]) -> str:
    """Make an image of these Debian packages alone."""
    out, names = io.BytesIO(), set[str]()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for path in packages:
            for info, pieces in deb.files(path):
                content = io.BytesIO(b"".join(pieces))
                if info.name not in names:  # an engine with a graph driver takes none twice
                    tar.addfile(info, content)
                names.add(info.name)
    tag = "training-image-factory-compiler-test"
    engine.client.api.import_image_from_data(out.getvalue(), repository=tag, tag="1")
    return f"{tag}:1"
