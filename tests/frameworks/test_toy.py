"""A framework of another distribution, by entry point: image.yaml, lock, Dockerfile and suite."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from hashlib import sha256
from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path

import pytest

from builder.config import compatibility, image_yaml, lockfile, locking, targets
from builder.config.image_yaml import ImageSpec
from builder.config.stack import Fact, RefusedError, Stack
from builder.core import plugins, settings
from builder.core.errors import InputError
from builder.engine import Engine
from builder.facts import frameworks
from builder.facts.frameworks import Framework
from builder.image import dockerfile, program
from builder.pipeline import make, proof
from builder.prove import suites
from builder.prove.session import Session
from builder.prove.suite import Answer, Check, Suite
from tests import ROOT
from tests.emulators.answers import serving
from tests.image.layers import wheel


def resolve(spec: ImageSpec) -> Stack:
    if spec.release != "1.0.0":
        raise RefusedError("toy", f"no Toy {spec.release} is known")
    accelerator = compatibility.accelerator_of(spec)
    known = (Fact("Toy", spec.release, "itself", True),)
    return Stack(spec, accelerator, "toy-trainer", spec.release, spec.python, facts=known)


def nothing(_session: Session) -> Answer:
    return [], {}


LOADER, OUTPUTS = Check("loader", 1, nothing), Check("outputs", 1, nothing)
SUITES = {
    "trainer": suites.trainer("toy", LOADER, OUTPUTS),
    "program": suites.program("toy", LOADER, ("toy",)),
}


class Toy(Framework):
    name = "toy"
    title = "Toy"
    distributions = frozenset({"toy-trainer", "toy-gpu"})

    def releases(self) -> tuple[str, ...]:
        return ("1.0.0",)

    def resolve(self, spec: ImageSpec) -> Stack:
        return resolve(spec)

    def suites(self) -> Mapping[str, Suite]:
        return SUITES


TOY = Toy()


@pytest.fixture(autouse=True)
def installed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The toy's distribution is installed: its entry point is there."""
    point = EntryPoint("toy", f"{__name__}:TOY", frameworks.GROUP)

    monkeypatch.setattr(plugins, "others", lambda group: EntryPoints([point]).select(group=group))
    cached = (frameworks.of, frameworks.every, frameworks.is_known, frameworks.optional)
    for function in cached:
        function.cache_clear()
    yield
    for function in cached:
        function.cache_clear()


def spec(text: str) -> ImageSpec:
    return image_yaml.parse(f"accelerator: CPU\n{text}\n", Path("images/toy/image.yaml"))


def test_one_that_lacks_a_member_is_no_framework() -> None:
    with pytest.raises(TypeError, match=r"distributions.*releases.*resolve.*suites.*title"):
        type("Nameless", (Framework,), {"name": "nameless"})()


def test_a_key_of_image_yaml_selects_it() -> None:
    toy = spec("toy: 1.0.0")
    assert (toy.framework, toy.release) == ("toy", "1.0.0")
    assert compatibility.resolve(toy).requirement == "toy-trainer==1.0.0"
    with pytest.raises(InputError, match=r"image.yaml:2: toy: '1' is not a release") as mistake:
        spec("toy: 1")
    assert mistake.value.fix == "write 1.0, 1.0.0 or newest"
    assert compatibility.resolve(spec("toy: 1.0")).release == "1.0.0"
    with pytest.raises(InputError, match="names two frameworks: toy and tensorflow"):
        spec("toy: 1.0.0\ntensorflow: 2.21.0")
    with pytest.raises(InputError, match=r"toy: no Toy 2.0.0 is known") as refused:
        compatibility.resolve(spec("toy: 2.0.0"))
    assert refused.value.fix == "write toy: 1.0.0"
    with pytest.raises(InputError, match="'tensorflow' is not one of off, toy, all"):
        spec("toy: 1.0.0\nprune: tensorflow")


# --- from an index to a receipt -------------------------------------------------------------------

PROGRAM = """
import argparse
import toy

argparse.ArgumentParser(description=toy.__doc__).parse_args()
print("toy", toy.VERSION)
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A project with a target of the toy, whose wheel an index on loopback has.

    Debian's packages are those of the target cpu.
    """
    content = wheel(
        {"toy/__init__.py": '"""A toy."""\nVERSION = "1.0.0"\n'}, "toy_trainer", "1.0.0"
    )
    name = "toy_trainer-1.0.0-py3-none-any.whl"
    hashes = {"sha256": sha256(content).hexdigest()}
    file = {"filename": name, "url": f"/{name}", "hashes": hashes}
    page = {"meta": {"api-version": "1.1"}, "name": "toy-trainer", "files": [file]}
    kind = {"Content-Type": "application/vnd.pypi.simple.v1+json"}
    cpu = lockfile.read(ROOT, "cpu")
    monkeypatch.setattr(locking, "_debian", lambda *_: (cpu.rootfs, cpu.apt))
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "cache"))
    folder = tmp_path / "images/toy"
    folder.mkdir(parents=True)
    (folder / "image.yaml").write_text(
        "accelerator: CPU\ntoy: newest\nprogram: play:play.main\nsuite: program\n"
    )
    (tmp_path / "builder.toml").touch()
    (tmp_path / "play").mkdir()
    (tmp_path / "play/__init__.py").touch()
    (tmp_path / "play/main.py").write_text(PROGRAM)
    with serving({f"/{name}": (200, {}, content)}) as server:
        server.answers["/simple/toy-trainer/"] = (200, kind, json.dumps(page).encode())
        monkeypatch.setenv("UV_DEFAULT_INDEX", f"{server.address}/simple/")
        spec = image_yaml.load(tmp_path, "toy")
        locking.lock(tmp_path, spec, compatibility.resolve(spec), None)  # type: ignore[arg-type]
        dockerfile.write(
            tmp_path, dockerfile.texts(tmp_path, dockerfile.load_all(tmp_path, ["toy"]))
        )
        yield tmp_path


def test_its_newest_release_is_locked_from_its_index_and_its_image_names_it(project: Path) -> None:
    lock, target = lockfile.read(project, "toy"), make.prepare(project, "toy")
    assert (lock.framework, lock.release, target.lock) == ("toy", "1.0.0", lock)
    pins = [(pin.name, pin.version) for pin in lock.wheels["toy.lock"]]
    assert pins == [("toy-trainer", "1.0.0")]
    assert "# Toy and all it needs." in (project / "images/toy/toy.lock").read_text()
    assert 'training-image-factory.toy="1.0.0"' in target.image.dockerfile
    assert isinstance(target.image, program.AssembledPlan) and target.base
    labels = target.image.config.labels
    assert labels["training-image-factory.framework"] == "toy"
    assert [layer.plan.name for layer in target.base.wheels] == ["toy-trainer 1.0.0"]
    suite = suites.of_image(labels)
    assert suite == suites.of_spec(target.spec) and suite.name == "toy-program"
    assert LOADER in suite.checks and OUTPUTS not in suite.checks


@pytest.mark.engine
@pytest.mark.long
def test_its_image_is_made_and_proven(engine: Engine, project: Path) -> None:
    options = make.BuildOptions(settings.load(project))
    (made,) = make.make(project, targets.all_of(project), options, lambda: engine, proof.prove_once)
    assert made.receipt.passed and made.receipt.suite == "toy-program"
    assert "loader" in [check.name for check in made.receipt.checks]
    engine.client.images.remove(made.record.image_id, force=True)
