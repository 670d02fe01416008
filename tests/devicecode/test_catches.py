"""What the audit has to catch, on what was read of the real wheels (data/images/device-code.lock).

A stack pruned for an A100 and offered to others is in test_device_code_prune.py, a library that a
broken download cut off in test_device_code_verdict.py, and one of NVIDIA's in
test_device_code_wheels.py.
"""

from pathlib import Path

import pytest

from builder.devicecode.verdict import Audit, Support, Verdict, carries
from builder.facts import accelerators
from builder.prove import wheels
from builder.tensorflow import releases

ROOT = Path(__file__).parents[2]
ELSEWHERE = Path(__file__).parent / "data"


def verdict(name: str, version: str, device: str, root: Path = ELSEWHERE) -> Verdict:
    """Of one wheel alone, on one device."""
    (wheel,) = (w for w in wheels.read(root).values() if (w.name, w.version) == (name, version))
    return Audit(wheel.libraries).verdict(device)


def test_cudnn_9_28_for_a_v100() -> None:
    found = verdict("nvidia-cudnn-cu12", "9.28.0.42", "7.0")
    assert found.status == Support.MISSING
    assert sorted(one.library.name for one in found.spoilers) == [
        "libcudnn_adv.so.9",
        "libcudnn_cnn.so.9",
        "libcudnn_engines_runtime_compiled.so.9",
        "libcudnn_ext.so.9",
        "libcudnn_ops.so.9",
    ]
    assert "nvidia-cudnn-cu12 9.10.2.21 or older" in found.instead
    assert verdict("nvidia-cudnn-cu12", "9.3.0.75", "7.0", ROOT).status == Support.NATIVE


@pytest.mark.parametrize("device", ["7.5", "8.0", "9.0"])
def test_cudnn_9_28_for_newer_gpus(device: str) -> None:
    assert verdict("nvidia-cudnn-cu12", "9.28.0.42", device).status == Support.NATIVE


def test_cuda_13_for_a_v100() -> None:
    found = verdict("nvidia-curand", "10.4.5.25", "7.0")
    assert found.status == Support.MISSING
    assert "CUDA 12 build of the same library" in found.instead
    assert verdict("nvidia-curand", "10.4.5.25", "7.5").status == Support.NATIVE


@pytest.mark.parametrize("device", ["6.0", "7.0", "7.5"])
def test_cusparselt_for_older_gpus_than_its_kernels(device: str) -> None:
    """Two helpers of its 995 containers have PTX for any GPU; the kernels start at sm_80."""
    found = verdict("nvidia-cusparselt-cu12", "0.8.1", device)
    assert found.status == Support.MISSING
    assert "only 2 of its 995 containers hold code for it" in str(found)


@pytest.mark.parametrize("device", ["8.0", "8.9", "9.0", "12.0"])
def test_cusparselt_for_the_gpus_of_its_kernels(device: str) -> None:
    assert verdict("nvidia-cusparselt-cu12", "0.8.1", device).status == Support.NATIVE


def test_tensorflow_2_13_on_an_h100() -> None:
    found = verdict("tensorflow", "2.13.1", "9.0")
    assert found.status == Support.PTX
    assert 300 < found.ptx_seconds < 400
    assert found.spoiler and found.spoiler.library.name == "libtensorflow_cc.so.2"
    assert "tensorflow 2.21.0" in found.instead
    assert verdict("tensorflow", "2.13.1", "8.9").status == Support.OLDER_MINOR
    assert verdict("tensorflow", "2.21.0", "9.0", ROOT).status == Support.NATIVE


def test_the_tables_say_what_wheels_that_no_lock_names_carry() -> None:
    """cuda.yaml's row for the newest cuDNN, tensorflow.yaml's for 2.13."""
    tables, read = releases.tables(), wheels.read(ELSEWHERE)
    by_name = {wheel.name: Audit(wheel.libraries) for wheel in read.values()}
    newest = {float(one) for one in tables.cudnn[-1].capabilities}
    cudnn = by_name["nvidia-cudnn-cu12"]
    known = {float(a.compute_capability) for a in accelerators.accelerators().values()
             if a.compute_capability}  # fmt: skip
    native = {one for one in known if cudnn.verdict(str(one)).status == Support.NATIVE}
    assert native == newest & known
    (release,) = (one for one in tables.releases if "2.13.1" in one.versions)
    carried = {one for library in by_name["tensorflow"].libraries for one in carries(library)}
    assert {one.replace("compute", "sm") for one in release.capabilities} <= carried
