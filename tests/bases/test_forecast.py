"""What a plan says of bytes: counted where they are known, estimated where they are not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from builder.bases import assembling, bytecode, debs, download, forecast
from builder.bases.assembled import assemble
from builder.bases.assembling import Looked
from builder.bases.forecast import Amount, Destination
from builder.bases.layer import Layer
from builder.bases.plan import BasePlan
from builder.bases.store import Store
from builder.core import files
from builder.lock.model import Lock
from builder.pipeline import prepare
from builder.registry.manifests import OCI_LAYER_ZSTD, Descriptor

Wanted = Sequence[tuple[BasePlan, Lock]]

ALL = Destination("the engine", lambda layers: [True] * len(layers))
NOTHING = Destination("the engine", lambda layers: [one is None for one in layers])
"""An engine that has each layer that was ever made."""


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def targets(root: Path, *names: str) -> Wanted:
    items = [prepare.prepare(root, name) for name in names]
    return [(item.plan.base, item.lock) for item in items if item.plan.base]


def cold(wanted: Wanted) -> Looked:
    return assembling.look([plan for plan, _ in wanted], Store(files.cache_home() / "layers"))


def made(key: str, size: int) -> Layer:
    return Layer(key, Descriptor(OCI_LAYER_ZSTD, f"sha256:{key}", size), f"sha256:{key[::-1]}", 9)


def test_a_cold_build_downloads_what_the_lock_says_and_the_rest_is_estimated(root: Path) -> None:
    wanted = targets(root, "cpu")
    ((plan, lock),) = wanted
    said = forecast.of(wanted, cold(wanted), ALL)
    wheels = sum(pin.bytes or 0 for pin in lock.packages.values())
    assert said.download == Amount(wheels + sum(deb.bytes for deb in plan.root.packages))
    assert said.layers == said.missing == len(plan.layers)
    assert said.make == said.send
    assert said.make.estimated
    assert 0.5 < said.make.bytes / said.download.bytes < 1
    count = len(plan.layers)
    assert str(said).startswith(f"{count} of {count} layers to make: ")
    assert " MB to download, about " in str(said)
    assert str(said).endswith(" MB to send to the engine")


def test_a_wheel_that_several_targets_prune_is_downloaded_once(root: Path) -> None:
    wanted = targets(root, "v100", "h100")
    both = forecast.of(wanted, cold(wanted), ALL)
    one = forecast.of(wanted[:1], cold(wanted[:1]), ALL)
    assert both.download == one.download, "the same packages"
    assert both.missing > one.missing, "TensorFlow is pruned for each of them"
    assert both.make.bytes > one.make.bytes


def test_a_layer_that_was_made_before_is_counted_where_it_is(root: Path) -> None:
    wanted = targets(root, "cpu")
    ((plan, lock),) = wanted
    nothing_here = cold(wanted)
    below, tensorflow = (
        plan.layers[0],
        next(one for one in plan.layers if one.name.startswith("tensorflow")),
    )
    here = {below.key: made(below.key, 39_000_000)}
    offered = {tensorflow.key: made(tensorflow.key, 250_000_000)}
    there = {**here, **offered}
    missing = {key: one for key, one in nothing_here.missing.items() if key not in there}
    before = forecast.of(wanted, nothing_here, ALL)
    said = forecast.of(wanted, Looked(here, offered, missing), ALL)
    assert (said.layers, said.missing) == (before.layers, before.missing - 2)
    assert said.send.bytes == said.make.bytes + 289_000_000
    compiler = sum(deb.bytes for deb in bytecode.packages(lock))  # of the root's packages
    spared = (below.download or 0) - compiler + (tensorflow.download or 0)
    assert said.download.bytes == before.download.bytes - spared + 250_000_000


def test_what_the_engine_has_is_not_sent(root: Path) -> None:
    wanted = targets(root, "cpu")
    ((plan, _),) = wanted
    all_here = Looked({one.key: made(one.key, 1_000_000) for one in plan.layers}, {}, {})
    assert forecast.of(wanted, all_here, ALL).send == Amount(len(plan.layers) * 1_000_000)
    said = forecast.of(wanted, all_here, NOTHING)
    assert said.nothing
    assert str(said) == "the engine has everything"


def test_a_base_that_the_engine_pulls_is_downloaded_and_not_sent() -> None:
    image = assemble([(made("ab" * 32, 5_000_000), "tests")], {})
    nothing = Looked({}, {}, {})
    assert str(forecast.of([], nothing, ALL, pulled=[image])) == "5 MB to download"
    assert str(forecast.of([], nothing, ALL, whole=[image])) == "5 MB to send to the engine"


def test_what_an_ended_run_left_is_not_downloaded_again(root: Path) -> None:
    wanted = targets(root, "cpu")
    ((plan, _),) = wanted
    looked = cold(wanted)
    before = forecast.of(wanted, looked, ALL).download.bytes
    first, second, *_ = (pin for layer in plan.wheels for pin in layer.pins)
    deb = plan.root.packages[0]
    for path, size in (
        (f"wheels/{first.sha256}.whl", first.bytes),
        (f"wheels/{second.sha256}.part", 1000),
        (f"debs/{deb.sha256}.deb", deb.bytes),
    ):
        files.write(files.cache_home() / path, bytes(size or 0))
    after = forecast.of(wanted, looked, ALL).download.bytes
    assert before - after == (first.bytes or 0) + 1000 + deb.bytes
    assert download.left(first) == 0
    assert deb not in debs.missing(plan.root.packages)


def test_a_wheel_whose_size_no_index_told_makes_it_at_least(root: Path) -> None:
    wanted = targets(root, "cpu")
    ((plan, lock),) = wanted
    small = plan.wheels[-1]
    unknown = replace(
        small,
        pins=tuple(replace(pin, bytes=None) for pin in small.pins),
        plan=replace(small.plan, download=None),
    )
    other = replace(plan, wheels=(*plan.wheels[:-1], unknown))
    said = forecast.of([(other, lock)], cold([(other, lock)]), ALL)
    assert str(said.download).startswith("at least ")
    assert str(said.make).startswith("at least about ")
