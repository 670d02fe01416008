"""What the hook of the check `compile` does with older releases of JAX. No JAX is needed."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from builder.facts import devices
from builder.frameworks.jax.probes.compile import Work, topology


def test_one_that_compiles_for_no_gpu_is_named() -> None:
    old = SimpleNamespace(__version__="0.5.3", __version_info__=(0, 5, 3))
    with pytest.raises(NotImplementedError, match=r"JAX 0\.5\.3 compiles for no GPU"):
        Work({"platform": "cuda"}).begin(old)


@pytest.mark.parametrize("newer", [True, False], ids=["0.9", "0.8"])
def test_a_gpu_is_described_by_what_the_release_knows(newer: bool) -> None:
    def describe(platform: str, topology_name: str, target_config: str) -> str:
        if "thread_dim_limit" in target_config and not newer:
            raise RuntimeError("FAILED_PRECONDITION: Failed to parse GpuTargetConfigProto from ...")
        return target_config

    whole = devices.devices()["T4"].target("9.10.2")
    options = {"target_config": whole}
    told = topology(describe, {"platform": "cuda", "topology": "1x1x1", "options": options})
    left = [line for line in whole.splitlines() if newer or "thread_dim_limit" not in line]
    assert told.splitlines() == left


def test_another_error_is_not_asked_again() -> None:
    def describe(**_: object) -> None:
        raise RuntimeError("no libtpu")

    with pytest.raises(RuntimeError, match="no libtpu"):
        topology(describe, {"platform": "tpu", "topology": "v5e:2x2", "options": {}})
