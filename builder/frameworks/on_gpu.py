"""What the hooks of the check `gpu` share, which measure a program on a GPU that is there.

The program runs as it is, to its end. Then each of its processes that used the GPU says what it
took; the last one that says so counts. How a hook gets into a container stands in
builder/frameworks/hook.py.

Request, in the variable TRAINING_ON_GPU: {"step": the function that takes a step, "" if not known}
Answer, lines of JSON, the last one counts: {"gpu": {"devices": 1, "capability": "7.0",
    "peak": bytes, "steps": 20, "seconds": 0.28}}
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import sys
from collections.abc import Callable
from typing import Any

from builder.frameworks import hook

VARIABLE = "TRAINING_ON_GPU"
WARM = 2
"""So many calls of a step are not counted: they compile, choose algorithms and take memory."""


class Steps:
    """How long each call took of the functions that a program calls."""

    def __init__(self) -> None:
        self.taken: dict[Any, list[float]] = {}
        self.names: dict[Any, str] = {}

    def note(self, key: Any, name: str, seconds: float) -> None:
        self.names[key] = name
        self.taken.setdefault(key, []).append(seconds)

    def of(self, name: str) -> dict[str, Any]:
        """Return how often the step of this name was taken, and its median time; without one, those
        of the function that took the longest, its first calls not counted."""
        named = [key for key in self.taken if name and self.names[key] == name]
        counted = {key: self.taken[key][WARM:] for key in named or self.taken}
        longest = max(counted, key=lambda key: sum(counted[key]), default=None)
        times = sorted(counted.get(longest, ()))
        if not times:
            return {"steps": max(map(len, self.taken.values()), default=0), "seconds": 0.0}
        return {"steps": len(self.taken[longest]), "seconds": times[len(times) // 2]}


def watch(
    file: str,
    framework: str,
    begin: Callable[[Any, Steps], None],
    measured: Callable[[Any], dict[str, Any] | None],
) -> None:
    """Measure this process.

    file: the hook's. begin: gets the framework once it is loaded, and where its steps are noted.
    measured: returns at the end what the framework says of the GPU, None where this process did not
    use it.
    """
    if VARIABLE not in os.environ:
        return
    step, steps = json.loads(os.environ[VARIABLE])["step"], Steps()

    def end(module: Any) -> None:
        try:
            found = measured(module)
        except Exception as error:
            found = {"failed": hook.words(error)}
        if found is not None:
            sys.stdout.write("\n" + json.dumps({"gpu": {**found, **steps.of(step)}}) + "\n")
            sys.stdout.flush()

    def begun(module: Any) -> None:
        atexit.register(end, module)
        with contextlib.suppress(Exception):  # a release without it still has its memory measured
            begin(module, steps)

    hook.start(file, lambda *_: None, framework, begun)
