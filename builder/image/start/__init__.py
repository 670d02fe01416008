"""The start hook: what an image brings so that no program trains without its accelerator, in vain.

The image names what it expects in contract.ACCELERATOR. A start hook (sitecustomize.py, beside this
file) reads that whenever Python starts, and asks the guard before TensorFlow is imported. The guard
is the trainer's own package, which is copied and never imported here. All this lies in the training
image, and the base stays as it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

from builder import contract
from builder.facts.accelerators import expectation
from builder.facts.cuda import OldestDriver, oldest_driver

if TYPE_CHECKING:
    from builder.config.image_yaml import ImageSpec
    from builder.config.stack import Stack

FOLDER: Final = ".start"
"""The folder of the hook, below the program's."""
GUARD: Final = "training_image_guard"
"""The name of the guard's package there."""
_HOOK = Path(__file__).parent / "sitecustomize.py"
_GUARD = Path(__file__).parents[3] / "trainer" / "guard"


def environment(
    spec: ImageSpec, stack: Stack, driver: OldestDriver | None = None
) -> dict[str, str]:
    """Return the variables of the image, as its Dockerfile writes them; {} for one for the CPU.

    driver: the oldest for its libraries; None: the oldest for its CUDA. A published base may have a
    PYTHONPATH of its own, which BuildKit puts behind the hook's.
    """
    if stack.accelerator.kind == "cpu":
        return {}
    path = f"/app/{FOLDER}" + ("" if spec.has_own_base else ":$PYTHONPATH")
    return {
        contract.ACCELERATOR: expectation(stack.accelerator.name, driver or _for_cuda(stack)),
        "PYTHONPATH": path,
    }


def _for_cuda(stack: Stack) -> OldestDriver | None:
    return oldest_driver(stack.cuda.partition(".")[0]) if stack.cuda else None


def files(stack: Stack) -> Mapping[str, bytes]:
    """Return the hook and the guard by their path below the program's folder; {} for the CPU."""
    if stack.accelerator.kind == "cpu":
        return {}
    guard = {path.name: path.read_bytes() for path in sorted(_GUARD.glob("*.py"))}
    return {
        f"{FOLDER}/{_HOOK.name}": _HOOK.read_bytes(),
        **{f"{FOLDER}/{GUARD}/{name}": content for name, content in guard.items()},
    }
