"""A framework of another distribution, by entry point: image.yaml, lock, Dockerfile and suite."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path
from typing import Any

import pytest

from builder import frameworks
from builder.config import compatibility, image_yaml, lock_check, lockfile, pins
from builder.config.image_yaml import ImageSpec
from builder.config.lockfile import Lock
from builder.config.pins import Pin
from builder.config.stack import Fact, RefusedError, Stack
from builder.core.errors import InputError
from builder.frameworks import Framework, suites
from builder.image import dockerfile, plan
from builder.prove.session import Session
from builder.prove.suite import Answer, Check

ROOT = Path(__file__).parents[2]


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

TOY = Framework(
    name="toy",
    title="Toy",
    short="toy",
    distributions=frozenset({"toy-trainer", "toy-gpu"}),
    releases=lambda: ("1.0.0",),
    resolve=resolve,
    suites=lambda: SUITES,
)


@pytest.fixture(autouse=True)
def installed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The toy's distribution is installed: its entry point is there."""
    point = EntryPoint("toy", f"{__name__}:TOY", frameworks.GROUP)

    def entry_points(**wanted: Any) -> EntryPoints:
        return EntryPoints([point]).select(**wanted)

    monkeypatch.setattr(frameworks, "entry_points", entry_points)
    frameworks.of.cache_clear()
    frameworks.is_known.cache_clear()
    yield
    frameworks.of.cache_clear()
    frameworks.is_known.cache_clear()


def spec(text: str) -> ImageSpec:
    return image_yaml.parse(f"accelerator: CPU\n{text}\n", Path("images/toy/image.yaml"))


def locked(made_for: ImageSpec) -> Lock:
    """The CPU target's lock, with the toy in TensorFlow's place."""
    cpu = lockfile.read(ROOT, "cpu")
    toy = Pin("toy-trainer", "1.0.0", "ab" * 32, 20_000_000)
    return Lock(
        "toy",
        lockfile.configuration(made_for),
        "toy",
        "1.0.0",
        "3.11",
        None,
        None,
        cpu.root,
        cpu.apt,
        {"toy.lock": (toy,)},
        (),
    )


def test_a_key_of_image_yaml_selects_it() -> None:
    toy = spec("toy: 1.0.0")
    assert (toy.framework, toy.release) == ("toy", "1.0.0")
    assert compatibility.resolve(toy).requirement == "toy-trainer==1.0.0"
    with pytest.raises(InputError, match=r"image.yaml:2: toy: '1' is not a release"):
        spec("toy: 1")
    with pytest.raises(InputError, match="names two frameworks: toy and tensorflow"):
        spec("toy: 1.0.0\ntensorflow: 2.21.0")
    with pytest.raises(InputError, match=r"toy: no Toy 2.0.0 is known") as refused:
        compatibility.resolve(spec("toy: 2.0.0"))
    assert refused.value.fix == "write toy: 1.0.0"
    with pytest.raises(InputError, match="'tensorflow' is not one of off, toy, all"):
        spec("toy: 1.0.0\nprune: tensorflow")


def test_its_lock_is_written_and_read(tmp_path: Path) -> None:
    toy = spec("toy: 1.0.0")
    lock = locked(toy)
    lockfile.write(tmp_path, lock)
    folder = tmp_path / "images/toy"
    assert "# Toy and all it needs." in (folder / "toy.lock").read_text()
    assert pins.parse((folder / "toy.lock").read_text()) == lock.wheels["toy.lock"]
    assert lockfile.read(tmp_path, "toy") == lock
    toy._name = "toy"
    assert lock_check.stale(tmp_path, toy, compatibility.resolve(toy)) == ()


def test_it_is_rendered_and_its_image_names_it_and_its_suite() -> None:
    toy = spec("toy: 1.0.0\nsuite: program")
    stack, lock = compatibility.resolve(toy), locked(toy)
    rendered = dockerfile.render(toy, stack, lock)
    assert 'training-image-factory.toy="1.0.0"' in rendered.dockerfile
    assert rendered.config is not None
    labels = rendered.config.labels
    assert labels["training-image-factory.framework"] == "toy"
    base = plan.plan(toy, stack, lock)
    assert [layer.plan.name for layer in base.wheels] == ["toy-trainer 1.0.0"]
    suite = suites.of_image(labels)
    assert suite == suites.of_spec(toy) and suite.name == "toy-program"
    assert LOADER in suite.checks and OUTPUTS not in suite.checks
