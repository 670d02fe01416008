"""Which PyTorch an accelerator takes, and why no newer one; and the target that is locked so."""

from __future__ import annotations

from typing import Any

import pytest

from builder.config import compatibility, image_yaml, lockfile, uv
from builder.config.image_yaml import ImageSpec
from builder.core.errors import InputError
from builder.devicecode import gpu_support
from builder.devicecode.gpu_support import Release
from builder.prove import suites
from tests import ROOT


def spec(accelerator: str, torch: str, **fields: Any) -> ImageSpec:
    return ImageSpec(accelerator=accelerator, torch=torch, **fields)  # type: ignore[call-arg]


def test_explain_says_why_no_newer_release_is_taken() -> None:
    target = image_yaml.load(ROOT, "v100-torch")
    facts = {fact.statement: fact.value for fact in compatibility.resolve(target).facts}
    assert facts["PyTorch 2.10.0 on V100"] == "machine code"
    assert facts["why not PyTorch 2.15.0"] == (
        "PyTorch 2.15.0 (CUDA 13.2, cuDNN 9.26.0.51) has no kernels for V100 (7.0)"
    )
    assert "why not PyTorch 2.11.0" in facts and "why not PyTorch 2.9.1" not in facts


@pytest.mark.parametrize(
    ("accelerator", "release", "cuda"),
    [
        ("P100", "2.7.1", "12.6"),
        ("V100", "2.10.0", "12.8"),
        ("T4", "2.15.0", "13.2"),
        ("H100", "2.15.0", "13.2"),
        ("B200", "2.15.0", "13.2"),
        ("RTX-PRO-6000", "2.15.0", "13.2"),
    ],
)
def test_the_newest_is_the_newest_that_runs_there(
    accelerator: str, release: str, cuda: str
) -> None:
    chosen = compatibility.resolve(spec(accelerator, "newest"))
    assert (chosen.release, chosen.cuda, chosen.runs) == (release, cuda, "native")


def test_a_minor_release_is_its_newest_patch() -> None:
    assert compatibility.resolve(spec("V100", "2.7")).release == "2.7.1"
    assert compatibility.resolve(spec("A100", "2.14")).requirement == "torch==2.14.1"
    with pytest.raises(InputError, match=r"torch: no PyTorch 2.6 is known") as refused:
        compatibility.resolve(spec("V100", "2.6"))
    assert refused.value.fix == "write torch: 2.7.1"
    with pytest.raises(InputError, match="asks for its CUDA exactly"):
        compatibility.resolve(spec("V100", "2.10.0", cuda={"cudnn": "9.3.0.75"}))


@pytest.mark.parametrize(
    ("accelerator", "release", "says", "fix"),
    [
        ("V100", "2.15.0", "PyTorch 2.15.0 (CUDA 13.2, cuDNN 9.26.0.51) has no kernels", "2.10.0"),
        ("B200", "2.7.1", "has no kernels for B200 (10.0)", "2.8.0"),
        ("V100", "2.16.0", "no PyTorch 2.16.0 is known", "2.10.0"),
        ("CPU", "newest", "for Linux is for NVIDIA's GPUs", ""),
        ("TPU", "2.10.0", "for Linux is for NVIDIA's GPUs", "leave torch out"),
    ],
)
def test_what_cannot_work_is_refused_with_what_does(
    accelerator: str, release: str, says: str, fix: str
) -> None:
    with pytest.raises(InputError) as refused:
        compatibility.resolve(spec(accelerator, release))
    assert says in refused.value.message
    assert fix in refused.value.fix


def test_the_locked_target_has_the_last_cudnn_for_a_v100_and_one_torch() -> None:
    lock = lockfile.read(ROOT, "v100-torch")
    assert lock.packages["nvidia-cudnn-cu12"].version == "9.10.2.21"
    assert lock.packages["torch"] in lock.wheels["torch.lock"]
    assert not [name for name in lock.packages if "tensorflow" in name or name == "keras"]
    suite = suites.of_spec(image_yaml.load(ROOT, "v100-torch"))
    assert suite.name == "torch-trainer"


@pytest.mark.network
@pytest.mark.parametrize("release", gpu_support.of("PyTorch"), ids=lambda each: each.version)
def test_the_table_says_what_the_index_has(release: Release) -> None:
    for python in (release.python[0], release.python[-1]):
        pins = uv.resolve([f"torch=={release.version}"], uv.Platform(python, 36), {})
        assert {name: pins[name].version for name in release.asks_for} == release.asks_for
