"""What a change does to a base, told in layers."""

from dataclasses import replace
from pathlib import Path

import pytest

from builder.core.errors import InputError
from builder.lock import model
from builder.lock.model import Lock
from builder.render import basechanges
from builder.render.basechanges import LayerChange
from tests.render.test_changes import commit


def with_versions(held: Lock, versions: dict[str, str]) -> Lock:
    """The lock with other versions, and so other wheels, of some packages."""
    wheels = {
        name: tuple(
            replace(pin, version=versions[pin.name], sha256="f" * 64) if pin.name in versions
            else pin for pin in pins
        )
        for name, pins in held.wheels.items()
    }  # fmt: skip
    return replace(held, wheels=wheels)


def test_no_change_is_no_change(copy: Path) -> None:
    commit(copy)
    assert basechanges.changes(copy, "v100") == ()


def test_another_cudnn_makes_its_own_layer_anew(copy: Path) -> None:
    commit(copy)
    held = model.read(copy, "v100")
    model.write(copy, with_versions(held, {"nvidia-cudnn-cu12": "9.10.2.21"}))
    [layer] = basechanges.changes(copy, "v100")
    assert (layer.name, layer.change) == ("nvidia-cudnn-cu12 9.10.2.21", "changed")
    assert layer.detail == ("nvidia-cudnn-cu12 9.3.0.75 -> 9.10.2.21",)
    assert layer.download == held.packages["nvidia-cudnn-cu12"].bytes


def test_a_small_package_shares_its_layer_with_the_other_small_ones(copy: Path) -> None:
    commit(copy)
    held = model.read(copy, "v100")
    model.write(copy, with_versions(held, {"rich": "14.0.0"}))
    [layer] = basechanges.changes(copy, "v100")
    assert layer.detail == (f"rich {held.packages['rich'].version} -> 14.0.0",)


def test_another_python_of_debian_makes_the_root_anew(copy: Path) -> None:
    commit(copy)
    held = model.read(copy, "cpu")
    old = {deb.name: deb for deb in held.apt[model.APT]}
    newer = replace(old["ca-certificates"], version="20990101", sha256="f" * 64)
    model.write(copy, replace(held, apt={model.APT: tuple({**old, newer.name: newer}.values())}))
    changed = basechanges.changes(copy, "cpu")
    assert changed[0].detail == (f"ca-certificates {old[newer.name].version} -> 20990101",)


def test_without_a_base_before_every_layer_is_added(copy: Path) -> None:
    path = copy / "images" / "cpu" / "image.lock"
    text = path.read_text()
    path.write_text("{}")
    commit(copy)
    path.write_text(text)
    assert {layer.change for layer in basechanges.changes(copy, "cpu")} == {"added"}


def test_a_layer_that_is_gone(copy: Path) -> None:
    commit(copy)
    held = model.read(copy, "v100")
    cuda = tuple(pin for pin in held.wheels[model.CUDA] if pin.name != "nvidia-cudnn-cu12")
    model.write(copy, replace(held, wheels={**held.wheels, model.CUDA: cuda}))
    name = f"nvidia-cudnn-cu12 {held.packages['nvidia-cudnn-cu12'].version}"
    assert basechanges.changes(copy, "v100") == (LayerChange(name, "removed", (), None),)


def test_a_commit_that_is_not_there(copy: Path) -> None:
    commit(copy)
    with pytest.raises(InputError, match="'v9' is no commit"):
        basechanges.changes(copy, "v100", since="v9")
