"""What a device holds, and how XLA is told of it."""

from __future__ import annotations

import pytest

from builder.core.errors import InputError
from builder.facts import accelerators, devices, sources_of


def test_every_row_names_an_accelerator_and_its_sources() -> None:
    known, sources = accelerators.accelerators(), sources_of(devices._table())
    for name, device in devices.devices().items():
        assert known[device.accelerator].kind == ("gpu" if device.is_gpu else "tpu"), name
        assert {device.source, device.rates_source} <= set(sources), name
        assert device.memory > 7 * devices.GIB and device.flops and device.bandwidth > 1e11, name
        assert device.is_gpu == bool(device.cores and device.clock and device.cache), name
        if device.is_gpu:
            limits = devices._table()["capabilities"]
            assert device.capability in limits, f"{name}: {device.capability} has no limits"


def test_an_image_for_several_devices_is_judged_by_the_smallest() -> None:
    found = devices.of(accelerators.find("A100-80GB"))
    assert found is not None and found.name == "A100-40GB"
    found = devices.of(accelerators.find("TPU"))
    assert found is not None and found.topology == "v5e:2x2"
    assert devices.of(accelerators.find("P4")) is None


def test_a_gpu_as_xla_reads_it() -> None:
    v100 = devices.devices()["V100"].target("9.10.2.21")
    assert "core_count: 80\n" in v100 and "device_memory_size: 16935682048\n" in v100
    assert "{ major: 7 minor: 0  }" in v100
    assert "dnn_version_info { major: 9 minor: 10 patch: 2 }" in v100
    h100 = devices.devices()["H100"].target("")
    assert "major: 9 minor: 0 feature_extension: ACCELERATED_FEATURES" in h100


@pytest.mark.parametrize(
    ("device", "library", "kind", "since"),
    [
        ("V100", "cudnn", "bfloat16", "8.0"),
        ("T4", "cudnn", "bfloat16", "8.0"),
        ("A100-40GB", "cudnn", "bfloat16", ""),
        ("T4", "cudnn", "attention", "8.0"),
        ("A100-40GB", "cudnn", "attention", ""),
        ("A100-40GB", "cublas", "float8", "8.9"),
        ("L4", "cublas", "float8", ""),
        ("B200", "cublas", "float8", ""),  # 10.0 is newer than 8.9
        ("TPU-v5e", "cudnn", "bfloat16", ""),
    ],
)
def test_what_a_library_calculates_in(device: str, library: str, kind: str, since: str) -> None:
    row = devices.devices()[device].lacks(library, kind)
    assert (row.since if row else "") == since


def test_the_least_time_of_a_step_is_that_of_what_holds_it_up() -> None:
    v100 = devices.devices()["V100"]
    assert v100.seconds(125e12, 0, frozenset({"float16"})) == 1
    assert v100.seconds(15.7e12, 0, frozenset({"float32"})) == 1
    assert v100.seconds(0, v100.bandwidth * 3, frozenset({"float16"})) == 3
    # of several types the fastest, and where none is known: it stays a lower bound
    assert v100.seconds(125e12, 0, frozenset({"float16", "float32"})) == 1
    assert v100.seconds(125e12, 0, frozenset({"int8"})) == 1
    tpu = devices.devices()["TPU-v5e"]
    assert tpu.seconds(197e12, 0, frozenset({"float32"})) == 1


def test_a_topology_names_its_device() -> None:
    assert devices.on("v6e:4x8").name == "TPU-v6e"
    with pytest.raises(InputError, match="no TPU is called 'v9'"):
        devices.on("v9:2x2")


def test_cudnn_is_told_of_a_gpu_what_a_driver_says_of_it() -> None:
    v100 = devices.devices()["V100"].properties()
    assert (v100["deviceVer"], v100["multiProcessorCount"]) == (700, 80)
    assert v100["smClockRateKHz"] == 1530000 and v100["reservedSharedMemoryPerBlock"] == 0
    h100 = devices.devices()["H100"].properties()
    assert h100["maxSharedMemoryPerBlockOptin"] + h100["reservedSharedMemoryPerBlock"] == 233472
    assert h100.keys() == v100.keys()
