"""Samples of the machine."""

import json
import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.trainer.runs import SMOKE
from trainer.observe import utilization

pytestmark = pytest.mark.tensorflow


class NVMLError(Exception):
    pass


def nvml(**answers: Any) -> SimpleNamespace:
    """Two GPUs as nvidia-ml-py shows them, which give the figures in `answers` alone."""

    def refuse(*_: Any) -> Any:
        raise NVMLError("not supported")

    return SimpleNamespace(
        NVMLError=NVMLError,
        **{
            f"nvmlDeviceGet{name}": answers.get(name, refuse)
            for name in ("UtilizationRates", "MemoryInfo")
        },
    )


def test_figures_are_means_over_the_gpus_and_those_not_given_are_left_out() -> None:
    module = nvml(UtilizationRates=lambda n: SimpleNamespace(gpu=(90, 50)[n]))
    assert utilization.use_of(module, [0, 1]) == {"gpu_busy": pytest.approx(0.7)}
    module = nvml(MemoryInfo=lambda n: SimpleNamespace(used=8, total=16))
    assert utilization.use_of(module, [0]) == {"gpu_memory": 0.5}


def test_without_nvml_a_run_has_figures_of_the_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, task: Any
) -> None:
    monkeypatch.setattr(utilization, "SECONDS", 0.05)
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert task("--records", SMOKE, "--job-dir", tmp_path, "--steps", 60, "--batch", 8)[0] == 0
    speed = json.loads((tmp_path / "summary.json").read_text())["speed"]
    assert speed["machine"].keys() == {"cpu_cores", "memory_bytes"}
    assert 0 < speed["machine"]["cpu_cores"]["mean"] <= len(os.sched_getaffinity(0)) + 0.5
    assert speed["machine"]["memory_bytes"]["most"] > 10e6
    assert speed["examples_per_second"] > 0
