"""PyTorch's builds by CUDA: which GPU runs them, which is taken, what `explain` says of them."""

from __future__ import annotations

from collections.abc import Collection

import pytest

from builder.config import compatibility
from builder.core.errors import InputError
from builder.devicecode import gpu_support
from builder.facts import accelerators
from builder.frameworks.torch import builds
from tests.frameworks.torch.test_stack import spec

OFFICIAL = "UV_INDEX=https://download.pytorch.org/whl"


@pytest.mark.parametrize(
    ("version", "cuda", "runs"),
    [
        ("2.7.1", "12.6", "P100 P4 V100 T4 A100 L4 H100"),
        ("2.7.1+cu126", "12.6", "P100 P4 V100 T4 A100 L4 H100"),
        ("2.8.0+cu126", "12.6", "P100 P4 V100 T4 A100 L4 H100"),
        ("2.8.0+cu129", "12.9", "V100 T4 A100 L4 H100 B200 RTX-PRO-6000"),
        ("2.9.1+cu130", "13.0", "A100 L4 H100 B200 RTX-PRO-6000"),
        ("2.10.0+cu128", "12.8", "V100 T4 A100 L4 H100 B200 RTX-PRO-6000"),
        ("2.10.0+cu130", "13.0", "A100 L4 H100 B200 RTX-PRO-6000"),
        ("2.12.1+cu132", "13.2", "A100 L4 H100 B200 RTX-PRO-6000"),
        ("2.14.1+cu126", "12.6", "P100 P4 V100 T4 A100 L4 H100"),
        ("2.14.1+cu130", "13.0", "A100 L4 H100 B200 RTX-PRO-6000"),
        ("2.14.1+cu132", "13.2", "A100 L4 H100 B200 RTX-PRO-6000"),
    ],
)
def test_a_build_runs_on_the_gpus_of_its_row(version: str, cuda: str, runs: str) -> None:
    build = builds.find(version)
    assert build is not None and build.cuda == cuda
    known = [each for each in accelerators.accelerators().values() if not each.refused]
    gpus = {each.name: each.compute_capability for each in known if each.compute_capability}
    native = {name for name, capability in gpus.items() if build.runs(capability) == "native"}
    assert native - {"H200"} == set(runs.split())
    assert build.source.verified == (not build.label), "only PyPI's wheels were read"


def test_the_table_has_no_row_for_a_release_or_a_cuda_that_pypi_has() -> None:
    versions = [build.version for build in builds.every()]
    assert len(versions) == len(set(versions))
    plain = [version for version in versions if "+" not in version]
    assert plain == list(reversed(gpu_support.versions("PyTorch")))
    cu126 = [version for version in versions if version.endswith("+cu126")]
    assert cu126 == [f"{each}+cu126" for each in plain if not each.startswith("2.15")]


CU126 = {"2.10.0+cu126", "2.13.0+cu126", "2.14.1+cu126"}
EVERY = CU126 | {"2.14.1+cu130", "2.14.1+cu132", "2.15.0+cu132", "2.15.0+cpu", "2.14.1"}


@pytest.mark.parametrize(
    ("accelerator", "written", "offered", "taken"),
    [
        ("V100", "newest", (), "2.10.0"),
        ("V100", "newest", CU126, "2.14.1+cu126"),
        ("V100", "newest", EVERY, "2.14.1+cu126"),
        ("V100", "2.13", CU126, "2.13.0+cu126"),
        ("P100", "newest", CU126, "2.14.1+cu126"),
        ("V100", "2.13.0+cu126", (), "2.13.0+cu126"),
        ("V100", "2.14+cu126", (), "2.14.1+cu126"),
        ("A100", "newest", CU126, "2.14.1+cu126"),
        ("A100", "newest", EVERY, "2.15.0+cu132"),
        ("A100", "2.14", EVERY, "2.14.1"),
        ("T4", "2.14", EVERY, "2.14.1+cu126"),
        ("B200", "2.14", EVERY - {"2.14.1"}, "2.14.1+cu130"),
        ("A100", "2.15", CU126, "2.15.0"),
    ],
)
def test_of_the_builds_in_the_index_the_newest_that_runs_is_taken(
    accelerator: str, written: str, offered: Collection[str], taken: str
) -> None:
    stack = compatibility.resolve(spec(accelerator, written), offered)
    assert stack.release == taken and stack.runs == "native"
    build = builds.find(taken)
    assert build and stack.cuda == build.cuda
    assert stack.constraints == {f"nvidia-cudnn-cu{build.major}": build.cudnn}


@pytest.mark.parametrize(
    ("accelerator", "written", "says", "fix"),
    [
        (
            "V100",
            "2.14",
            "2.14.1 (CUDA 13.0, cuDNN 9.24.0.43) has no kernels",
            f"write torch: 2.10.0, or torch: 2.14.1+cu126 with an index that has it, as {OFFICIAL}",
        ),
        ("V100", "2.15.0", "has no kernels for V100", "or torch: 2.14.1+cu126"),
        ("V100", "2.12.1+cu130", "has no kernels for V100", "or torch: 2.12.1+cu126"),
        ("V100", "2.15.0+cu126", "no PyTorch 2.15.0+cu126 is known", "or torch: 2.14.1+cu126"),
        ("B200", "2.14.1+cu126", "has no kernels for B200", "write torch: 2.14.1"),
    ],
)
def test_a_refusal_names_the_build_that_goes_further(
    accelerator: str, written: str, says: str, fix: str
) -> None:
    with pytest.raises(InputError) as refused:
        compatibility.resolve(spec(accelerator, written))
    assert says in refused.value.message
    assert fix in refused.value.fix


@pytest.mark.parametrize(
    ("accelerator", "written", "statement", "build"),
    [
        ("V100", "newest", "newer for V100 than PyPI has", "2.14.1+cu126"),
        ("P4", "newest", "newer for P4 than PyPI has", "2.14.1+cu126"),
        ("A100", "newest", "for drivers from 525 on", "2.14.1+cu126"),
    ],
)
def test_explain_says_which_build_would_go_further_and_that_nobody_read_it(
    accelerator: str, written: str, statement: str, build: str
) -> None:
    said = {
        each.statement: each for each in compatibility.resolve(spec(accelerator, written)).facts
    }
    label = build.partition("+")[2]
    assert said[statement].value == f"{build} with an index that has it, as {OFFICIAL}/{label}"
    assert not said[statement].verified and "no wheel was read" in said[statement].source


def test_nothing_further_is_named_where_pypi_has_the_newest_or_the_build_is_taken() -> None:
    for accelerator, written in (("B200", "newest"), ("V100", "2.14+cu126"), ("A100", "2.8")):
        facts = compatibility.resolve(spec(accelerator, written)).facts
        assert not [each for each in facts if OFFICIAL in each.value], (accelerator, written)
