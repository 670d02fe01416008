"""The start hook: what an image brings so that no program trains without its accelerator, in vain,
and so that the processes of a cluster find each other.

The image names what it expects in contract.ACCELERATOR. A start hook (sitecustomize.py, beside this
file) reads that whenever Python starts, and asks the guard before TensorFlow is imported. The guard
is the trainer's own package, which is copied and never imported here. For a framework that reads
other variables than the services set, the hook sets them (training_image_rendezvous.py). All this
lies in the training image, and the base stays as it is.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

from builder import contract
from builder.facts import accelerators, frameworks
from builder.facts.cuda import OldestDriver, oldest_driver
from builder.image.start import training_image_rendezvous as rendezvous

if TYPE_CHECKING:
    from builder.config.image_yaml import ImageSpec
    from builder.config.stack import Stack

FOLDER: Final = ".start"
"""The folder of the hook, below the program's."""
GUARD: Final = "training_image_guard"
"""The name of the guard's package there."""
DEVICES: Final = "training_image_devices"
"""The folder there with a module for each framework: where it lists its devices."""
_HOOK = Path(__file__).parent / "sitecustomize.py"
_RENDEZVOUS = Path(__file__).parent / "training_image_rendezvous.py"
_GUARD = Path(__file__).parents[3] / "trainer" / "guard"


def environment(
    spec: ImageSpec, stack: Stack, driver: OldestDriver | None = None
) -> dict[str, str]:
    """Return the variables of the image, as its Dockerfile writes them; {} where the hook has
    nothing to do.

    driver: the oldest for its libraries; None: the oldest for its CUDA. A published base may have a
    PYTHONPATH of its own, which BuildKit puts behind the hook's.
    """
    if not _is_needed(stack):
        return {}
    path = f"/app/{FOLDER}" + ("" if spec.has_own_base else ":$PYTHONPATH")
    if stack.accelerator.kind == "cpu":
        return {"PYTHONPATH": path}
    oldest = driver or _for_cuda(stack)
    # NVIDIA's container toolkit starts the image on no older driver (libnvidia-container).
    floor = {"NVIDIA_REQUIRE_CUDA": f"driver>={oldest.driver}"} if oldest else {}
    return {
        contract.ACCELERATOR: expectation(stack.accelerator.name, oldest),
        "PYTHONPATH": path,
        **(floor if spec.has_own_base else {}),
    }


def expectation(
    accelerator: str,
    driver: OldestDriver | None,
    count: int | None = None,
    topology: str | None = None,
) -> str:
    """Return `V100:2,capability=7.0,cuda=12,driver=525`, or `TPU-v5e:4,topology=4x4`.

    driver: the oldest for the image's libraries, None where it is not known. count: how many are
    paid for, of a TPU its chips on one host; None: one at least. topology: of a TPU. Raises
    InputError for an accelerator that does not exist.
    """
    known = accelerators.find(accelerator)
    if known.kind == "tpu":
        return contract.accelerator(accelerator, count, topology=topology)
    return contract.accelerator(
        known.name,
        count,
        capability=known.compute_capability,
        cuda=driver.cuda if driver else None,
        driver=driver.driver if driver else None,
    )


def _is_needed(stack: Stack) -> bool:
    """Tell whether the hook has something to do. It has not for the CPU, of a framework that reads
    the services' variables itself."""
    return stack.accelerator.kind != "cpu" or bool(frameworks.of(stack.spec.framework).rendezvous)


def _for_cuda(stack: Stack) -> OldestDriver | None:
    return oldest_driver(stack.cuda.partition(".")[0]) if stack.cuda else None


def _devices() -> Iterator[tuple[str, bytes]]:
    """Yield the name of each framework, and the module that knows where it lists its devices."""
    for framework in frameworks.every():
        if framework.devices:
            yield framework.name, framework.devices.read_bytes()


def files(stack: Stack) -> Mapping[str, bytes]:
    """Return the hook and what it asks by their path below the program's folder; {} where it has
    nothing to do."""
    if not _is_needed(stack):
        return {}
    content = {_HOOK.name: _HOOK.read_bytes()}
    if stack.accelerator.kind != "cpu":
        guard = {path.name: path.read_bytes() for path in sorted(_GUARD.glob("*.py"))}
        content |= {f"{GUARD}/{name}": text for name, text in guard.items()}
        content |= {f"{DEVICES}/{name}.py": text for name, text in _devices()}
    if wanted := frameworks.of(stack.spec.framework).rendezvous:
        content[_RENDEZVOUS.name] = _RENDEZVOUS.read_bytes()
        content[rendezvous.FILE] = json.dumps(wanted, indent=1).encode()
    return {f"{FOLDER}/{name}": text for name, text in sorted(content.items())}
