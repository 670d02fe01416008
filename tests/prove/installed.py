"""TensorFlow and cuDNN as the wheels install them, small enough to write in a test."""

from __future__ import annotations

from pathlib import Path

from builder.config import compatibility, image_yaml
from builder.config.stack import Stack
from builder.devicecode import inventory
from builder.devicecode.verdict import Audit
from tests.devicecode.writer import container, install, library, ptx, sass

TENSORFLOW = library(container(*map(sass, (60, 70, 80, 89, 90)), ptx(90)))
CUDNN = library(container(*map(sass, (50, 60, 61, 70, 75, 80, 86, 90)), ptx(90)))


def site(
    folder: Path, tensorflow: bytes = TENSORFLOW, cudnn: bytes = CUDNN, version: str = "9.10.2.21"
) -> Audit:
    """TensorFlow and cuDNN as the wheels install them."""
    install(folder, "tensorflow", "2.21.0", {"tensorflow/libtensorflow_cc.so.2": tensorflow})
    install(folder, "nvidia-cudnn-cu12", version, {"nvidia/cudnn/lib/libcudnn_ops.so.9": cudnn})
    return Audit(inventory.of_folder(folder))


def stack(root: Path, target: str = "v100") -> Stack:
    return compatibility.resolve(image_yaml.load(root, target))
