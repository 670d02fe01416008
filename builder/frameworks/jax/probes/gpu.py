"""Measures a program of JAX's on a GPU: what its allocator gave out, the time of its jitted step.

Python imports this file first (as sitecustomize) when the image's entry point starts. Each call of
what the program gives to `jax.jit` is waited for. Request and answer: builder/frameworks/on_gpu.py.
"""

from __future__ import annotations

import time
from importlib import import_module
from typing import Any

from builder.frameworks import on_gpu
from builder.frameworks.jax.probes import compile


class Timed(compile.Watched):
    """A function that a program has jitted: how long its calls take."""

    def __init__(self, jitted: Any, jax: Any, steps: on_gpu.Steps) -> None:
        super().__init__(jitted, None)  # type: ignore[arg-type]
        self.jax, self.steps = jax, steps

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        began = time.perf_counter()
        made = self.jitted(*arguments, **named)
        if not any(isinstance(leaf, self.jax.core.Tracer) for leaf in self.jax.tree.leaves(made)):
            self.jax.block_until_ready(made)
            name = getattr(self, "__name__", "")
            self.steps.note(self, name, time.perf_counter() - began)
        return made


def begin(jax: Any, steps: on_gpu.Steps) -> None:
    """Watch what the program jits."""
    compile.watch(jax, lambda jitted: Timed(jitted, jax, steps))


def measured(jax: Any) -> dict[str, Any] | None:
    """Return what the first GPU's allocator took."""
    if not import_module("jax._src.xla_bridge").backends_are_initialized():
        return None
    gpus = [device for device in jax.local_devices() if device.platform in ("gpu", "cuda")]
    if not gpus:
        return {"devices": 0}
    peak = (gpus[0].memory_stats() or {}).get("peak_bytes_in_use", 0)
    return {
        "devices": len(gpus),
        "capability": str(gpus[0].compute_capability),
        "peak": peak,
    }


on_gpu.watch(__file__, "jax", begin, measured)
