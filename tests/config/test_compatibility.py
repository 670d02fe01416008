"""Versions that work together; others are refused, with the nearest that do."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from packaging.version import Version

from builder.config import compatibility, image_yaml
from builder.config.image_yaml import ImageSpec
from builder.config.stack import OWN_PYTHON, Stack
from builder.core.errors import InputError
from builder.facts import accelerators, cuda
from builder.facts.frameworks import minor
from builder.frameworks.tensorflow import releases

DIGEST = "@sha256:" + "0" * 64
PUBLISHED = "docker.io/tensorflow/tensorflow:2.13.1-gpu" + DIGEST
NVIDIA = "nvcr.io/nvidia/tensorflow:25.02-tf2-py3" + DIGEST


def spec(accelerator: str, **fields: Any) -> ImageSpec:
    return ImageSpec(accelerator=accelerator, size_budget="3 GB", **fields)  # type: ignore[arg-type]


def resolve(accelerator: str, **fields: Any) -> Stack:
    return compatibility.resolve(spec(accelerator, **fields))


def refused(accelerator: str, **fields: Any) -> tuple[str, str]:
    with pytest.raises(InputError) as raised:
        resolve(accelerator, **fields)
    return raised.value.message, raised.value.fix


# What works


def test_a_gpu_gets_what_is_known_to_work_and_a_cpu_and_a_tpu_no_cuda() -> None:
    stack = resolve("V100")
    assert stack.requirement == "tensorflow[and-cuda]==2.21.0"
    assert (stack.python, stack.cuda, stack.cudnn) == ("3.11", "12.9", "9.10.2.21")
    assert (stack.compute_capability, stack.runs) == ("7.0", "native")
    assert len(stack.constraints) == 12
    assert stack.constraints["nvidia-cudnn-cu12"] == "9.10.2.21"
    cpu, tpu = resolve("CPU"), resolve("TPU", tensorflow="2.20.0")
    assert (cpu.requirement, tpu.requirement) == (
        "tensorflow-cpu==2.21.0",
        "tensorflow-tpu==2.20.0",
    )
    assert (cpu.cuda, cpu.cudnn, cpu.compute_capability, cpu.constraints) == (None, None, None, {})
    assert tpu.constraints == {"libtpu": "0.0.14"}


@pytest.mark.parametrize(
    ("accelerator", "cudnn", "why"),
    [
        ("V100", "9.10.2.21", "the newest with kernels for 7.0: "),
        ("T4", "9.24.0.43", "AWS ships it with TensorFlow 2.21: "),
        ("L4", "9.24.0.43", "AWS ships it with TensorFlow 2.21: "),
        ("A100", "9.24.0.43", "AWS ships it with TensorFlow 2.21: "),
        ("H100", "9.24.0.43", "AWS ships it with TensorFlow 2.21: "),
    ],
)
def test_the_newest_cudnn_that_is_known_to_work_is_taken_and_never_the_oldest_allowed(
    accelerator: str, cudnn: str, why: str
) -> None:
    stack = resolve(accelerator)
    (fact,) = (fact for fact in stack.facts if fact.statement == "nvidia-cudnn-cu12")
    assert (fact.value, stack.cudnn) == (cudnn, cudnn)
    assert fact.source.startswith(why)


def test_a_release_that_nobody_s_row_names_gets_what_is_shipped_with_the_newest() -> None:
    stack = resolve("T4", tensorflow="2.20.0")
    assert stack.constraints["nvidia-nccl-cu12"] == "2.30.7"
    assert stack.cudnn == "9.24.0.43"


def test_a_release_with_exact_pins_gets_those() -> None:
    assert resolve("T4", tensorflow="2.19.1").cudnn == "9.3.0.75"


def test_another_cudnn_may_be_asked_for_within_tensorflow_s_range() -> None:
    stack = resolve("T4", cuda={"cudnn": "9.10.2.21"})
    assert stack.cudnn == stack.constraints["nvidia-cudnn-cu12"] == "9.10.2.21"
    fact = next(fact for fact in stack.facts if fact.statement == "nvidia-cudnn-cu12")
    assert (fact.value, fact.source) == ("9.10.2.21", "image.yaml")


def test_what_a_published_base_holds_is_left_to_it_and_ptx_is_taken_when_it_is_said() -> None:
    stack = resolve("T4", base=PUBLISHED, tensorflow="2.13.1")
    assert (stack.release, stack.cuda, stack.constraints) == ("2.13.1", "11.8", {})
    nvidia_s_own = resolve("B200", base=NVIDIA, tensorflow="2.17.0", python="3.12")
    assert nvidia_s_own.runs == "native", "it is not judged by the wheels on PyPI"
    assert any(
        each.value == "read in the image" and not each.verified for each in nvidia_s_own.facts
    )
    assert resolve("H100", base=PUBLISHED, tensorflow="2.13.1", allow_ptx=True).runs == "ptx"
    assert resolve("H100", tensorflow="2.15.1", allow_ptx=True).runs == "ptx"


# What cannot work: what is said, and the nearest that does

REFUSALS: list[tuple[str, dict[str, Any], str, str]] = [
    # V100
    ("V100", {"cuda": {"cudnn": "9.11.0.98"}}, "cuDNN 9.11.0.98 has no machine code for V100 (7.0)",
     "write 9.10.2.21, or leave it out"),
    # PTX, and libraries older than the device
    ("H100", {"tensorflow": "2.13.1"}, "only PTX, compiled at the first start, which takes minutes,"
     " for H100 (9.0)", "write tensorflow: 2.16.1, or allow_ptx: true"),
    ("H100", {"tensorflow": "2.13.1", "base": PUBLISHED}, "only PTX", "write tensorflow: 2.16.1 and"
     " a base that has it, or allow_ptx: true to take it as it is (PTX, slow start)"),
    ("H200", {"tensorflow": "2.11.1", "base": PUBLISHED, "python": "3.10", "allow_ptx": True},
     "is older than Hopper: it has no kernels for H200 (9.0), which needs CUDA 11.8",
     "write tensorflow: 2.12.0 and a base that has it"),
    ("L4", {"tensorflow": "2.11.1", "base": PUBLISHED, "python": "3.10"},
     "libraries from before Ada (CUDA 11.8), for L4 (8.9)",
     "write tensorflow: 2.12.0 and a base that has it, or allow_ptx: true to take it as it is"),
    # Blackwell
    ("B200", {}, "older than Blackwell: it has no kernels for B200 (10.0), which needs CUDA 12.8",
     "no TensorFlow on PyPI does; write a base that was built for it, such as base: nvcr.io/"),
    ("GB200", {}, "accelerator: GB200 has an arm64 host", "write accelerator: H100"),
    # TPU
    ("TPU", {}, "TensorFlow 2.21.0 has no TPU wheel that can be", "write tensorflow: 2.20.0"),
    ("TPU-v6e", {}, "TPU-v6e runs JAX only", "write accelerator: TPU"),
    ("CPU", {"cuda": {"nccl": "2.27.7"}}, "cuda.nccl: a CPU has no CUDA libraries", "remove cuda"),
    ("K80", {}, "K80 is no longer offered", "write accelerator: T4"),
    # Python
    ("V100", {"python": "3.12"}, "our own base has no Python 3.12: it has 3.11 and 3.13",
     "write python: 3.11"),
    ("V100", {"python": "3.9"}, "2.21.0 does not run on Python 3.9", "write python: 3.11"),
    ("T4", {"tensorflow": "2.9.3", "base": PUBLISHED}, "2.9.3 does not run on Python 3.11",
     "write python: 3.10"),
    # TensorFlow
    ("V100", {"tensorflow": "2.99.0"}, "no TensorFlow 2.99.0 is known", "write tensorflow: 2.21.0"),
    ("T4", {"tensorflow": "2.13.1"}, "2.13.1 has no CUDA wheels to make our own base from",
     "write tensorflow: 2.15.1, or base: docker.io/tensorflow/tensorflow:2.13.1-gpu@sha256:"),
    # pins of CUDA libraries
    ("T4", {"cuda": {"cudnn": "9.1.0.70"}}, "takes cudnn from 9.3.0.75 to below 10, not 9.1.0.70",
     "remove it: 9.24.0.43 is taken then"),
    ("T4", {"tensorflow": "2.19.1", "cuda": {"cudnn": "9.10.2.21"}}, "takes cudnn 9.3.0.75 only",
     "remove it: 9.3.0.75 is taken then"),
    ("T4", {"cuda": {"cudn": "9.10.2.21"}}, "no CUDA library is called 'cudn'", "write cudnn; "),
    ("T4", {"base": PUBLISHED, "tensorflow": "2.13.1", "cuda": {"cudnn": "8.9.4.25"}},
     "a published base brings its own CUDA libraries", "remove cuda, or write base: own"),
]  # fmt: skip


def as_written(
    accelerator: str, fields: dict[str, Any], instead: str
) -> tuple[str, dict[str, Any]]:
    """What a person writes whom an error told what works instead."""
    changed = {**fields}
    first = instead.split(",")[0].split(";")[0].removeprefix("write ")
    key, _, value = first.split(" and ")[0].partition(": ")
    if key in ("tensorflow", "python"):
        changed[key] = value
    elif key == "accelerator":
        accelerator = value
        changed.setdefault("tensorflow", "2.20.0" if value == "TPU" else "2.21.0")
    elif key == "remove cuda" or key.startswith("remove it"):
        changed.pop("cuda")
    elif key[0].isdigit():
        changed["cuda"] = {"cudnn": key}
    elif "nvcr.io" in instead:
        changed |= {"base": NVIDIA, "tensorflow": "2.17.0", "python": "3.12"}
    else:
        assert key == "cudnn", instead
        changed["cuda"] = {"cudnn": "9.10.2.21"}
    return accelerator, changed


@pytest.mark.parametrize(
    ("accelerator", "fields", "what", "fix"),
    REFUSALS,
    ids=[f"{refusal[0]} {refusal[1]}".replace("{", "").replace("}", "") for refusal in REFUSALS],
)
def test_what_cannot_work_is_refused_with_what_does(
    accelerator: str, fields: dict[str, Any], what: str, fix: str
) -> None:
    message, instead = refused(accelerator, **fields)
    assert what in message
    assert fix in instead
    name, changed = as_written(accelerator, fields, instead)
    assert resolve(name, **changed).spec, "what the error says is not refused again"


def test_a_tensorflow_that_needs_cuda_13_is_refused_for_a_v100(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """None is published yet. Once one is in the table, V100s stay on the last release before it."""
    *_, last = releases.releases()
    cuda, find = {last.version: "13.0"}, releases.find

    def with_cuda_13(version: str) -> releases.TensorFlowRelease | None:
        found = find(version)
        return found and replace(found, cuda=cuda.get(found.version, found.cuda))

    monkeypatch.setattr(releases, "find", with_cuda_13)
    what, fix = refused("V100")
    assert "TensorFlow 2.21.0 needs CUDA 13.0, and CUDA 12 is the last that knows V100" in what
    assert fix == "write tensorflow: 2.20.0"


def test_a_refusal_names_file_line_and_field(
    project: Path, write_target: Callable[..., Path]
) -> None:
    write_target("accelerator: V100\nsize_budget: 3 GB\ncuda:\n  cudnn: 9.28.0.42\n")
    with pytest.raises(InputError) as raised:
        compatibility.resolve(image_yaml.load(project, "v100"))
    assert raised.value.message.startswith("images/v100/image.yaml:4: cuda.cudnn: cuDNN 9.28.0.42")
    assert raised.value.exit_code == 2


# Why


def test_every_version_is_explained_with_its_source() -> None:
    facts = compatibility.resolve(spec("V100")).facts
    values = {fact.statement: fact.value for fact in facts}
    assert values["V100's compute capability (Volta)"] == "7.0"
    assert values["CUDA that TensorFlow 2.21.0 was built for"] == "12.5"
    assert values.items() >= resolve("V100").constraints.items()
    assert all(fact.source and fact.verified for fact in facts)


# The tables, joined


def test_the_tables_have_no_gap() -> None:
    devices = accelerators.accelerators()
    for device in devices.values():
        if device.kind == "gpu":
            assert device.compute_capability and device.architecture, device.name
        if device.refused:
            assert device.instead in devices and device.refused_source, device.name
    tables, known = cuda.cuda(), releases.releases()
    assert ImageSpec.model_fields["release"].default in {release.version for release in known}
    assert sum(bool(release.libtpu) for release in known) == 2
    since = [Version(row.since) for row in tables.cudnn]
    assert since == sorted(set(since))
    drivers = {row.cuda.partition(".")[0] for row in tables.drivers}
    for release in known:
        name = release.version
        assert release.wheel.python and release.cuda and release.cudnn, name
        assert release.cuda.partition(".")[0] in drivers, name
        if release.ranges:  # The lower bounds alone would be taken for what works.
            major = str(release.wheel.cuda)
            shipped = cuda.shipped_with("TensorFlow", minor(name), major)
            assert shipped, name
            libraries = {**cuda.toolkit(shipped.cuda).libraries, "nccl": shipped.nccl}
            libraries["cudnn"] = shipped.cudnn
            for short, package in tables.packages.items():
                least = release.libraries[f"nvidia-{package}-cu{major}"]
                assert Version(libraries[short]) >= Version(least), (name, short)
        if not release.libraries:
            continue
        assert set(release.wheel.python) & OWN_PYTHON.keys(), name
        packages = {f"nvidia-{part}-cu{release.wheel.cuda}" for part in tables.packages.values()}
        assert release.libraries.keys() == packages, name
        assert cuda.cudnn(release.libraries[f"nvidia-cudnn-cu{release.wheel.cuda}"]), name
