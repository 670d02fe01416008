"""Versions that are known to fail together: refused by `lock`, named by `check`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from inline_snapshot import snapshot

from builder.config import compatibility, image_yaml, lockfile
from builder.core.errors import InputError
from builder.facts import known_bad
from tests.conftest import Run
from tests.emulators.osv import serving
from tests.shown import shown

N = {r"\d{3} locked": "N locked"}


def plant(root: Path, target: str, package: str, version: str) -> None:
    """Write a lock with another version of a package, as an older factory may have made it."""
    lock = lockfile.read(root, target)
    assert package in lock.packages
    wheels = {
        file: tuple(replace(p, version=version) if p.name == package else p for p in pins)
        for file, pins in lock.wheels.items()
    }
    lockfile.write(root, replace(lock, wheels=wheels))


@pytest.mark.parametrize("target", ["v100", "t4", "h100"])
def test_lock_refuses_the_pair_by_name_and_writes_nothing(
    target: str, copy: Path, monkeypatch: pytest.MonkeyPatch, builder: Run
) -> None:
    monkeypatch.chdir(copy)
    path = copy / "images" / target / "image.yaml"
    path.write_text(path.read_text() + "\ncuda: {cudnn: 9.3.0.75}\n")
    before = {file: file.read_bytes() for file in path.parent.iterdir()}
    assert shown(builder("lock", target), {rf"{target}/image.yaml:\d+": "TARGET/image.yaml:N"}) == (
        snapshot("""\
| error: images/TARGET/image.yaml:N: cuda.cudnn: TensorFlow 2.21.0 with cuDNN
| .. 9.3.0.75: a convolution with a bias fails as soon as XLA compiles it, which
| .. Keras asks for on a GPU, so fit() fails in its first step (9.3.0.75 and
| .. 9.5.1.17 fail on T4, A10G, L4 and "any CUDA GPU"; 9.10.2.21 and 9.24.0.43 work;
| .. 9.6 to 9.9 were not tried:
| .. https://github.com/aws/deep-learning-containers/pull/6418)
| fix:   take cuDNN 9.24.0.43, or 9.10.2.21 on GPUs before compute capability 7.5,
| .. or leave it out
exit code 2
""")
    )
    assert {file: file.read_bytes() for file in path.parent.iterdir()} == before
    if target == "v100":
        path.write_text(path.read_text().replace("9.3.0.75", "9.10.2.21"))
        assert compatibility.resolve(image_yaml.load(copy, target)).cudnn == "9.10.2.21"


def test_a_lock_whose_requirements_brought_a_bad_library_is_refused(copy: Path) -> None:
    plant(copy, "v100-torch", "nvidia-cudnn-cu12", "9.11.0.98")
    spec = image_yaml.load(copy, "v100-torch")
    with pytest.raises(InputError, match=r"torch: cuDNN 9\.11\.0\.98: cuDNN loads and") as refused:
        compatibility.require_lock(spec, lockfile.read(copy, "v100-torch"))
    assert refused.value.fix.startswith("take cuDNN 9.10.2.21")


def test_check_names_a_lock_that_has_become_known_bad(
    copy: Path, monkeypatch: pytest.MonkeyPatch, builder: Run
) -> None:
    monkeypatch.chdir(copy)
    for target in ("t4", "l4"):
        plant(copy, target, "nvidia-cudnn-cu12", "9.3.0.75")
    assert shown(builder("check")) == snapshot("""\
l4: TensorFlow 2.21.0 with cuDNN 9.3.0.75: a convolution with a bias fails as soon
.. as XLA compiles it, which Keras asks for on a GPU, so fit() fails in its first
.. step (9.3.0.75 and 9.5.1.17 fail on T4, A10G, L4 and "any CUDA GPU"; 9.10.2.21
.. and 9.24.0.43 work; 9.6 to 9.9 were not tried:
.. https://github.com/aws/deep-learning-containers/pull/6418); take cuDNN 9.24.0.43,
.. or 9.10.2.21 on GPUs before compute capability 7.5
t4: TensorFlow 2.21.0 with cuDNN 9.3.0.75: a convolution with a bias fails as soon
.. as XLA compiles it, which Keras asks for on a GPU, so fit() fails in its first
.. step (9.3.0.75 and 9.5.1.17 fail on T4, A10G, L4 and "any CUDA GPU"; 9.10.2.21
.. and 9.24.0.43 work; 9.6 to 9.9 were not tried:
.. https://github.com/aws/deep-learning-containers/pull/6418); take cuDNN 9.24.0.43,
.. or 9.10.2.21 on GPUs before compute capability 7.5
images/layers.lock: no line for nvidia-cudnn-cu12 9.3.0.75 of l4: builder build l4
.. --base-only writes it
images/layers.lock: no line for nvidia-cudnn-cu12 9.3.0.75 of t4: builder build t4
.. --base-only writes it
| error: not everything agrees
| fix:   see the lines above
exit code 4
""")
    with serving() as osv:
        assert shown(builder("check", "--advisories", "--osv", osv.address), N) == snapshot("""\
TensorFlow 2.21.0 with cuDNN 9.3.0.75: a convolution with a bias fails as soon as
.. XLA compiles it, which Keras asks for on a GPU, so fit() fails in its first step
.. (9.3.0.75 and 9.5.1.17 fail on T4, A10G, L4 and "any CUDA GPU"; 9.10.2.21 and
.. 9.24.0.43 work; 9.6 to 9.9 were not tried:
.. https://github.com/aws/deep-learning-containers/pull/6418); take cuDNN 9.24.0.43,
.. or 9.10.2.21 on GPUs before compute capability 7.5; in l4, t4
| cuDNN 9.26.0.51: the gradients of cuDNN's attention are NaN for one query and
| .. strongly negative scores (9.25.1.1 and 9.26.0.51 on an H200, with one query and
| .. 128 keys: https://github.com/NVIDIA/cudnn-frontend/issues/1072); take attention
| .. that is not cuDNN's where there is one query; in h100-jax, h100-torch
| cuDNN 9.3.0.75 with cuBLAS 12.9.1.4: cuDNN fails where one process drives several
| .. GPUs ("a bug in cuDNN when used with cuBLAS 12.9 and multiple GPUs are driven
| .. by the same process"; cuDNN 9.10.1.4 is expected to work with it:
| .. https://github.com/jax-ml/jax/pull/28513); take cuDNN 9.10.1.4 or newer, or
| .. cuBLAS 12.8; in l4, t4
| error: 1 advisories or exceptions of N locked packages fail
| fix:   take newer versions: builder lock --upgrade; or accept them in image.yaml:
| .. advisories
exit code 4
""")


def test_no_lock_of_this_repository_is_known_bad() -> None:
    root = Path(__file__).parents[2]
    for spec in image_yaml.load_all(root):
        found = compatibility.known_bad_of_lock(spec, lockfile.read(root, spec.name))
        assert [each for each in found if each.row.fails] == [], spec.name


def test_explain_tells_what_some_programs_fail_with(copy: Path) -> None:
    told = known_bad.find({"tensorflow": "2.19.1", "nvidia-cuda-nvcc-cu12": "12.5.82"}, "9.0")
    assert [each.row.name for each in told] == ["xla-ptxas-12.6-hopper"]
    path = copy / "images/h100/image.yaml"
    path.write_text("accelerator: H100\nsize_budget: 3 GB\ntensorflow: 2.19.1\n")
    facts = compatibility.resolve(image_yaml.load(copy, "h100")).facts
    (fact,) = [fact for fact in facts if fact.statement.startswith("known of ")]
    assert fact.statement == "known of TensorFlow 2.19.1 with nvcc 12.5.82"
    assert fact.source == "https://github.com/openxla/xla/pull/19927"
