"""Can somebody use what a training run wrote? It runs after training, as the same user.

Request: {"job": folder}
The job folder holds `model/model.jax` (jax.export) and `checkpoints`.
"""

# Paths are text here, as in the other probes
# ruff: noqa: PTH123
from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from builder.frameworks import written

if TYPE_CHECKING:
    from builder.frameworks.written import Json, Wrong


def check_model(jax: Any, request: Json, wrong: Wrong) -> Json:
    """Load the exported program, and run it on zeros of the shape that it was exported for."""

    def run(path: str) -> tuple[list[list[int]], list[list[int]], bool]:
        export: Any = importlib.import_module("jax.export")
        with open(path, "rb") as file:
            program = export.deserialize(bytearray(file.read()))
        inputs = [jax.numpy.zeros(each.shape, each.dtype) for each in program.in_avals]
        answers = jax.tree.leaves(program.call(*inputs))
        finite = all(bool(jax.numpy.isfinite(answer).all()) for answer in answers)
        return [list(a.shape) for a in inputs], [list(a.shape) for a in answers], finite

    how = "jax.export.export(..., platforms=[...]) and serialize()"
    return written.model(request, "model.jax", how, run, wrong)


def check_checkpoints(_jax: Any, request: Json, wrong: Wrong) -> Json:
    """Check that the newest checkpoint reads back, without code in it."""

    def read(path: str) -> int:
        numpy: Any = importlib.import_module("numpy")
        with numpy.load(path, allow_pickle=False) as values:
            return len([values[name].shape for name in values.files])

    return written.checkpoint(request, (".npz",), read, wrong)


QUESTIONS = {
    "model": check_model,
    "checkpoints": check_checkpoints,
}


if __name__ == "__main__":
    written.run("jax", QUESTIONS)
