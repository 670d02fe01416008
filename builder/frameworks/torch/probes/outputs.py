"""Can somebody use what a training run wrote? It runs after training, as the same user.

Request: {"job": folder, "gpu": true where the container was given one}
The job folder holds `model/model.pt2` (torch.export) and `checkpoints`.
"""

# Paths are text here, as in the other probes
# ruff: noqa: PTH112, PTH113, PTH118, PTH208
from __future__ import annotations

import importlib
import json
import os
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # Python 3.8 cannot evaluate these
    from collections.abc import Callable

    Json = dict[str, Any]
    Wrong = Callable[[str, str], None]


def check_model(torch: Any, request: Json, wrong: Wrong) -> Json:
    """Load the exported program, and run it on the input that it was exported with."""
    path = os.path.join(request["job"], "model", "model.pt2")
    if not os.path.isfile(path):
        wrong(
            f"the trainer wrote no model: there is no {path}",
            "write torch.export's program there with torch.export.save before it ends",
        )
        return {}
    try:
        program = torch.export.load(path)
        arguments, names = program.example_inputs
        answer = program.module()(*arguments, **names)
    except Exception as error:
        wrong(f"the model does not load and run: {_line(error)}", "export it on the CPU")
        return {}
    if not bool(torch.isfinite(answer).all()):
        wrong("the model answers numbers that are not finite", "look for where the loss did")
    return {"inputs": [list(value.shape) for value in arguments], "outputs": list(answer.shape)}


def check_checkpoints(torch: Any, request: Json, wrong: Wrong) -> Json:
    """Check that the newest checkpoint reads back, without code in it."""
    folder = os.path.join(request["job"], "checkpoints")
    names = sorted(os.listdir(folder)) if os.path.isdir(folder) else []
    saved = [os.path.join(folder, name) for name in names if name.endswith((".pt", ".pth"))]
    if not saved:
        wrong(f"there is no checkpoint (*.pt) in {folder}", "save checkpoints below JOB_DIR")
        return {}
    newest = max(saved, key=os.path.getmtime)
    try:
        values = torch.load(newest, map_location="cpu", weights_only=True)
    except Exception as error:
        wrong(
            f"the newest checkpoint {newest} cannot be read: {_line(error)}",
            "save tensors and numbers alone, to another name, and rename it",
        )
        return {}
    return {"files": len(saved), "read": newest, "values": len(values)}


def check_owners(request: Json, wrong: Wrong) -> Json:
    """Check that what a job leaves belongs to the user that ran it."""
    paths = [os.path.join(at, name) for at, d, f in os.walk(request["job"]) for name in (*d, *f)]
    owners = {os.lstat(path).st_uid for path in paths}
    if owners != {os.geteuid()} or 0 in owners:
        wrong(
            f"{request['job']} holds files of the users {sorted(owners)}, not of the image's alone",
            "run as the image's own user (USER in the Dockerfile), not as root",
        )
    return {"files": len(paths), "uid": os.geteuid()}


def check_devices(torch: Any, request: Json, wrong: Wrong) -> Json:
    """Check that PyTorch sees the GPU that the container was given."""
    names = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    if request["gpu"] and not names:
        wrong(
            "the container was given a GPU and PyTorch sees none",
            "see the check `loader` and the driver's version on this machine",
        )
    return {"gpus": names}


def _line(error: BaseException) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"


def main(request: Json) -> Json:
    """Return every check that can run."""
    torch: Any = importlib.import_module("torch")
    problems: list[dict[str, str]] = []

    def wrong(message: str, fix: str) -> None:
        problems.append({"message": message, "fix": fix})

    seen = {
        "owners": check_owners(request, wrong),
        "devices": check_devices(torch, request, wrong),
        "model": check_model(torch, request, wrong),
        "checkpoints": check_checkpoints(torch, request, wrong),
    }
    return {"problems": problems, "seen": seen}


if __name__ == "__main__":
    print(json.dumps(main(json.loads(sys.argv[1]))))
