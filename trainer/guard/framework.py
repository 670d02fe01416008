"""Whether the framework itself sees the accelerator: its list of devices, when it has made one.

CUDA may start and the framework still leave the GPUs out: a library is missing, or it is a wheel
for the CPU. Then it says one line and computes on the CPU. To ask the framework earlier would start
CUDA in a process that may still fork.

Like the guard, this imports nothing but Python's standard library.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping
from typing import Any

_HIDES = "CUDA_VISIBLE_DEVICES"


def watch(
    module: Any, devices: Any, environment: Mapping[str, str], refuse: Callable[[str, int], object]
) -> None:
    """Call `refuse` with a kind (GPU, TPU) and the number of devices that the framework sees of it,
    whenever it has listed them.

    module: the framework's, which lists them. devices: what is known of it: FUNCTIONS, the names of
    the functions there that list, and seen(), which returns the kinds with their numbers after such
    a call. Nothing is asked where the program has changed CUDA_VISIBLE_DEVICES since, because it
    hides the GPUs on purpose, nor in a process that it forked, where CUDA cannot start.
    """
    before, me = environment.get(_HIDES), os.getpid()

    def compared(listing: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(listing)
        def list_and_compare(*arguments: Any, **options: Any) -> Any:
            answer = listing(*arguments, **options)
            if environment.get(_HIDES) == before and os.getpid() == me:
                for kind, count in devices.seen(module, arguments, answer).items():
                    refuse(kind, count)
            return answer

        return list_and_compare

    for name in devices.FUNCTIONS:
        *owners, last = name.split(".")
        owner = functools.reduce(getattr, owners, module)
        setattr(owner, last, compared(getattr(owner, last)))
