"""The tables of versions, held against libraries as the wheels install them."""

from __future__ import annotations

from pathlib import Path

from builder.frameworks.tensorflow.wheels import contradictions
from tests.devicecode.writer import container, library, ptx, sass
from tests.prove.installed import site, stack


def test_wheels_that_carry_what_the_tables_say(root: Path, tmp_path: Path) -> None:
    assert list(contradictions(site(tmp_path), stack(root))) == []


def test_wheels_that_carry_something_else(root: Path, tmp_path: Path) -> None:
    """A TensorFlow that lost an architecture; a cuDNN that lost four and has one more."""
    tensorflow = library(container(*map(sass, (60, 70, 80, 90)), ptx(90)))
    cudnn = library(container(*map(sass, (75, 80, 86, 90, 100))))
    assert list(contradictions(site(tmp_path, tensorflow, cudnn), stack(root))) == [
        "tensorflow.yaml: TensorFlow 2.21.0 is said to carry sm_89: not in libtensorflow_cc.so.2",
        "cuda.yaml: cuDNN 9.3.0.75 is said to carry sm_50, sm_60, sm_61, sm_70: "
        "not in libcudnn_ops.so.9",
        "cuda.yaml: cuDNN 9.3.0.75 carries sm_100, of which the table says nothing",
    ]
