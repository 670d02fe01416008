"""What an estimate counts: what is known is counted, the rest estimated."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from builder.core.settings import Settings
from builder.image import base, layers_lock
from builder.image.base import Availability
from builder.image.content_store import ContentStore
from builder.image.layer import Layer
from builder.image.plan import BasePlan, Estimate, estimate
from builder.pipeline.make import prepare
from builder.registry.manifests import OCI_LAYER_ZSTD, Descriptor


def planned(root: Path, *names: str) -> list[BasePlan]:
    return [target.base for name in names if (target := prepare(root, name)).base]


@pytest.fixture(scope="module")
def cpu() -> list[BasePlan]:
    return planned(Path(__file__).parents[2], "cpu")


NOWHERE = Path("nothing here")


def made(key: str, size: int) -> Layer:
    return Layer(key, Descriptor(OCI_LAYER_ZSTD, f"sha256:{key}", size), f"sha256:{key[::-1]}", 9)


def cold(plans: list[BasePlan]) -> Availability:
    return base.look_up(plans, ContentStore(NOWHERE), Settings(), layers_lock.read(NOWHERE))


def to_empty_engine(plans: list[BasePlan], available: Availability) -> Estimate:
    return estimate(plans, available, lambda layers: [True] * len(layers))


def test_a_cold_build_downloads_what_the_lock_lists_and_the_rest_is_estimated(
    cpu: list[BasePlan],
) -> None:
    (plan,) = cpu
    takes = to_empty_engine(cpu, cold(cpu))
    wheels = sum(pin.bytes or 0 for layer in plan.wheels for pin in layer.pins)
    count = len(plan.layers)
    assert takes.download == wheels + sum(deb.bytes for deb in plan.rootfs.packages)
    assert takes.layers == takes.missing == count
    assert takes.make == takes.send
    assert 0.5 < takes.make / takes.download < 1
    assert str(takes).startswith(f"{count} of {count} layers to make: ")
    assert " MB to download, about " in str(takes)
    assert str(takes).endswith(" MB to send to the engine")


def test_what_several_targets_share_counts_once(root: Path) -> None:
    plans = planned(root, "v100", "h100")
    both, first = to_empty_engine(plans, cold(plans)), to_empty_engine(plans[:1], cold(plans[:1]))
    assert both.download == first.download, "the same packages"
    assert both.missing > first.missing, "TensorFlow is pruned for each of them"
    assert both.make > first.make


def test_a_layer_that_was_made_before_is_counted_where_it_is(cpu: list[BasePlan]) -> None:
    (plan,) = cpu
    nothing, rootfs = cold(cpu), plan.layers[0]
    tensorflow = next(layer for layer in plan.layers if layer.name.startswith("tensorflow"))
    stored = {rootfs.key: made(rootfs.key, 39_000_000)}
    offered = {tensorflow.key: made(tensorflow.key, 250_000_000)}
    missing = {k: layer for k, layer in nothing.missing.items() if k not in {**stored, **offered}}
    before = to_empty_engine(cpu, nothing)
    takes = to_empty_engine(cpu, Availability(stored, offered, missing))
    assert (takes.layers, takes.missing) == (before.layers, before.missing - 2)
    assert takes.send == takes.make + 289_000_000
    compiler = sum(deb.bytes for deb in plan.compiler)  # of the rootfs's packages
    spared = (rootfs.download or 0) - compiler + (tensorflow.download or 0)
    assert takes.download == before.download - spared + 250_000_000


def test_a_wheel_whose_size_no_index_told_is_named(cpu: list[BasePlan]) -> None:
    (plan,) = cpu
    small = plan.wheels[-1]
    unknown = replace(
        small,
        pins=tuple(replace(pin, bytes=None) for pin in small.pins),
        plan=replace(small.plan, download=None),
    )
    plans = [replace(plan, wheels=(*plan.wheels[:-1], unknown))]
    takes = to_empty_engine(plans, cold(plans))
    assert takes.unknown == len(small.pins)
    assert f" and {takes.unknown} packages of unknown size to download" in str(takes)
