"""Can somebody use what a training run wrote? It runs after training, as the same user.

Request: {"job": folder}
The job folder holds `model/model.pt2` (torch.export) and `checkpoints`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from builder.frameworks import written

if TYPE_CHECKING:
    from builder.frameworks.written import Json, Wrong


def check_model(torch: Any, request: Json, wrong: Wrong) -> Json:
    """Load the exported program, and run it on the input that it was exported with."""

    def run(path: str) -> tuple[list[list[int]], list[list[int]], bool]:
        program = torch.export.load(path)
        arguments, names = program.example_inputs
        answer = program.module()(*arguments, **names)
        shapes = [list(value.shape) for value in arguments]
        return shapes, [list(answer.shape)], bool(torch.isfinite(answer).all())

    return written.model(request, "model.pt2", "torch.export.save", run, wrong)


def check_checkpoints(torch: Any, request: Json, wrong: Wrong) -> Json:
    """Check that the newest checkpoint reads back, without code in it."""

    def read(path: str) -> int:
        return len(torch.load(path, map_location="cpu", weights_only=True))

    return written.checkpoint(request, (".pt", ".pth"), read, wrong)


QUESTIONS = {
    "model": check_model,
    "checkpoints": check_checkpoints,
}


if __name__ == "__main__":
    written.run("torch", QUESTIONS)
