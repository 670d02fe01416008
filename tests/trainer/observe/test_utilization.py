"""Samples of the machine."""

import json
import math
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from trainer.observe import utilization
from trainer.observe.utilization import Gpus, Machine, Sampler, quota

# What the kernel says, in folders like /sys/fs/cgroup


def write(root: Path, files: dict[str, str]) -> Path:
    for name, content in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(content)
    return root


@pytest.mark.parametrize(
    ("files", "cores"),
    [
        ({"cpu.max": "150000 100000\n"}, 1.5),
        ({"cpu.max": "max 100000\n"}, 8),
        ({"cpu.max": "6400000 100000\n"}, 8),
        ({"cpu/cpu.cfs_quota_us": "50000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 0.5),
        ({"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, 8),
        ({}, 8),
    ],
)
def test_the_quota_counts_and_not_the_machine(
    tmp_path: Path, files: dict[str, str], cores: float
) -> None:
    assert quota(write(tmp_path, files), cores=8) == cores


def test_work_shows_as_use_of_the_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(utilization, "quota", lambda: 2.0)
    machine = Machine()
    before = os.times()
    while sum(os.times()[:2]) - sum(before[:2]) < 0.2:
        math.factorial(2000)
    found = machine.look()
    assert 0 < found["cpu"] <= 1.2  # one thread, of two cores
    assert found["memory_bytes"] > 10e6
    assert 0 < found["memory"] < 1


# GPUs: NVML as nvidia-ml-py gives it


class NVMLError(Exception):
    pass


def nvml(**answers: Any) -> SimpleNamespace:
    def refuse(*_: Any) -> Any:
        raise NVMLError("not supported")

    names = "UtilizationRates MemoryInfo PowerUsage"
    module = SimpleNamespace(
        NVMLError=NVMLError,
        nvmlInit=lambda: None,
        nvmlDeviceGetCount=lambda: 2,
        nvmlDeviceGetHandleByIndex=lambda n: n,
        nvmlDeviceGetName=lambda n: b"Tesla V100-SXM2-16GB",
        **{f"nvmlDeviceGet{name}": refuse for name in names.split()},
    )
    for name, answer in answers.items():
        setattr(module, f"nvmlDeviceGet{name}", answer)
    return module


def test_gpus() -> None:
    found = Gpus(
        nvml(
            UtilizationRates=lambda n: SimpleNamespace(gpu=(90, 50)[n]),
            MemoryInfo=lambda n: SimpleNamespace(used=8 * 2**30, total=16 * 2**30),
        )
    )
    look = found.look()
    assert found.names == ["Tesla V100-SXM2-16GB"] * 2
    assert look["gpu_busy"] == pytest.approx(0.7)
    assert look["gpu_busy_least"] == 0.5
    assert look["gpu_memory"] == 0.5
    assert "gpu_power_watts" not in look  # this one does not say


@pytest.mark.parametrize(
    ("visible", "looked_at"),
    [
        (None, [0, 1]),
        ("1", [1]),
        ("1, 0", [1, 0]),
        ("GPU-b", [1]),
        ("", []),
        ("-1", []),
        ("0,9,1", [0]),  # CUDA stops at one that is not there
    ],
)
def test_only_the_gpus_of_this_process(visible: str | None, looked_at: list[int]) -> None:
    """A trial beside others on one machine uses one of its GPUs."""
    busy = (90, 50)
    module = nvml(UtilizationRates=lambda n: SimpleNamespace(gpu=busy[n]))
    module.nvmlDeviceGetHandleByUUID = lambda uuid: {"GPU-a": 0, "GPU-b": 1}[uuid]
    found = Gpus(module, visible)
    assert found._handles == looked_at
    if looked_at:
        expected = sum(busy[n] for n in looked_at) / len(looked_at) / 100
        assert found.look()["gpu_busy"] == pytest.approx(expected)
    else:
        assert found.look() == {}


def test_no_driver_no_figures() -> None:
    def fail() -> None:
        raise NVMLError("Driver Not Loaded")

    module = nvml()
    module.nvmlInit = fail
    assert Gpus(module).look() == {}
    assert Gpus(SimpleNamespace()).names == []


def test_a_sample_is_taken_when_it_is_time_for_one(monkeypatch: pytest.MonkeyPatch) -> None:
    now, values = [0.0], iter([1.0, 3.0, 8.0])
    monkeypatch.setattr(utilization.time, "monotonic", lambda: now[0])
    sampler = Sampler(5.0, [lambda: {"cpu": next(values)}, lambda: {}])
    found = []
    for now[0] in (4.0, 5.0, 9.9, 10.0):
        found.append(sampler.fresh())
    assert found == [{}, {"cpu": 1.0}, {}, {"cpu": 3.0}]
    assert sampler.fresh(now=True) == {"cpu": 8.0}
    assert sampler.report() == {"cpu": {"mean": 4.0, "most": 8.0}}
    assert Sampler(0.0, [lambda: {"cpu": next(values)}]).fresh(now=True) == {}


@pytest.mark.tensorflow
def test_without_nvml_a_run_is_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import sys

    from tests.trainer.runs import SMOKE
    from trainer import task

    monkeypatch.setattr(utilization, "SECONDS", 0.05)
    monkeypatch.setitem(sys.modules, "pynvml", None)
    arguments = ["--records", str(SMOKE), "--job-dir", str(tmp_path), "--steps", "20"]
    assert task.main([*arguments, "--batch", "8"]) == 0
    machine = json.loads((tmp_path / "summary.json").read_text())["speed"]["machine"]
    assert {"cpu", "memory", "memory_bytes"} <= machine.keys()
    assert not [key for key in machine if key.startswith("gpu")]
