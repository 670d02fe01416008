"""Measures a program of TensorFlow's on a GPU: what its allocator gave out, the time of its step.

Python imports this file first (as sitecustomize) when the image's entry point starts. Each call of
a tf.function that is no part of another is waited for. Request and answer:
builder/frameworks/on_gpu.py.
"""

from __future__ import annotations

import functools
import time
from importlib import import_module
from typing import Any

from builder.frameworks import on_gpu


def begin(tf: Any, steps: on_gpu.Steps) -> None:
    """Note how long each call of a tf.function takes."""
    kind = type(tf.function(lambda: None))
    called, wait = kind.__call__, getattr(tf.test.experimental, "sync_devices", lambda: None)

    @functools.wraps(called)
    def call(function: Any, *arguments: Any, **named: Any) -> Any:
        if not tf.executing_eagerly():
            return called(function, *arguments, **named)
        began = time.perf_counter()
        made = called(function, *arguments, **named)
        wait()
        name = str(getattr(function, "__name__", ""))
        steps.note(id(function), name, time.perf_counter() - began)
        return made

    kind.__call__ = call


def measured(tf: Any) -> dict[str, Any] | None:
    """Return what the first GPU's allocator took."""
    context = import_module("tensorflow.python.eager.context").context_safe()
    if context is None or not context._initialized:  # nothing was computed here
        return None
    gpus = tf.config.list_physical_devices("GPU")
    if not gpus:
        return {"devices": 0}
    details = tf.config.experimental.get_device_details(gpus[0])
    peak = tf.config.experimental.get_memory_info("GPU:0")["peak"]
    return {
        "devices": len(gpus),
        "capability": ".".join(map(str, details["compute_capability"])),
        "peak": peak,
    }


on_gpu.watch(__file__, "tensorflow", begin, measured)
