"""What the configuration of a base says: environment, labels, working folder."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from builder.bases.wheel import VENV, site_packages

if TYPE_CHECKING:
    from builder.lock.model import Lock

APP: Final = "/app"
"""The folder of the training program."""
LABELS: Final = "training-image-factory"
"""The prefix of the labels that say what an image is made of."""


def settings(lock: Lock) -> dict[str, Any]:
    """What stands below `config` of a base's configuration (OCI image specification, config.md)."""
    assert lock.root is not None
    system = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    environment = {
        "PATH": f"{VENV}/bin:{system}",
        "VIRTUAL_ENV": VENV,
        "PYTHONUNBUFFERED": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    labels = {
        "root": lock.root.origin,
        "tensorflow": lock.tensorflow,
        "python": lock.python,
    }
    if lock.cuda:
        # The driver is the host's: NVIDIA's container toolkit mounts it because of NVIDIA_*, and
        # Google's nodes put it at the path.
        environment |= {
            "LD_LIBRARY_PATH": "/usr/local/nvidia/lib:/usr/local/nvidia/lib64",
            "NVIDIA_VISIBLE_DEVICES": "all",
            "NVIDIA_DRIVER_CAPABILITIES": "compute,utility",
        }
        labels |= {"cuda": lock.cuda, "cudnn": lock.cudnn or ""}
    if "libtpu" in lock.packages:
        # TensorFlow looks for libtpu here or on the loader's path, not in the package that has it.
        environment["TPU_LIBRARY_PATH"] = f"{site_packages(lock.python)}/libtpu/libtpu.so"
    return {
        "Env": [f"{name}={value}" for name, value in environment.items()],
        "Labels": {f"{LABELS}.{name}": value for name, value in labels.items()},
        "WorkingDir": APP,
        "Cmd": ["bash"],
    }
