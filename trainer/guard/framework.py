"""Whether the framework itself sees the GPUs: its list of devices, at the moment when it has one.

CUDA may start and the framework still leave the GPUs out: a library is missing, or it is a wheel
for the CPU. Then it says one line and computes on the CPU. To ask the framework earlier would start
CUDA in a process that may still fork.

Like the guard, this imports nothing but Python's standard library.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

_HIDES = "CUDA_VISIBLE_DEVICES"


def watch(context: Any, environment: Mapping[str, str], refuse: Callable[[int], object]) -> None:
    """Call `refuse` with the number of GPUs whenever TensorFlow has listed its devices.

    context: the module tensorflow.python.eager.context. Nothing is asked where the program has
    changed CUDA_VISIBLE_DEVICES since: it hides the GPUs on purpose.
    """
    listed = context.Context._initialize_physical_devices
    before = environment.get(_HIDES)

    def list_and_compare(self: Any, *arguments: Any, **options: Any) -> None:
        listed(self, *arguments, **options)
        if environment.get(_HIDES) == before:
            refuse(gpus([device.device_type for device in self._physical_devices]))

    context.Context._initialize_physical_devices = list_and_compare


def gpus(kinds: Sequence[str]) -> int:
    """How many of these devices are GPUs."""
    return sum(kind == "GPU" for kind in kinds)
