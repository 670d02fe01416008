"""What the probes of each framework's outputs share; it is copied into a container beside them.

It runs as a probe does (builder/prove/probes/__init__.py), after training and as the same user.
"""

# Paths are text here, as in the probes
# ruff: noqa: PTH113, PTH118
from __future__ import annotations

import importlib
import json
import os
import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # Python 3.8 cannot evaluate these
    Json = dict[str, Any]
    Wrong = Callable[[str, str], None]
    Question = Callable[[Any, Json, Wrong], Json]
    Shapes = list[list[int]]
    Run = Callable[[str], tuple[Shapes, Shapes, bool]]


def ask(framework: str, questions: Mapping[str, Question], request: Json) -> Json:
    """Return the answers to these questions about a job's folder, and to those that all share.

    Each gets the framework's module, the request, and what it calls with a problem and its fix.
    """
    module: Any = importlib.import_module(framework)
    problems: list[dict[str, str]] = []

    def wrong(message: str, fix: str) -> None:
        problems.append({"message": message, "fix": fix})

    asked = {"owners": owners, **questions}
    seen = {name: question(module, request, wrong) for name, question in asked.items()}
    return {"problems": problems, "seen": seen}


def run(framework: str, questions: Mapping[str, Question]) -> None:
    sys.stdout.write(json.dumps(ask(framework, questions, json.loads(sys.argv[1]))) + "\n")


def owners(_: Any, request: Json, wrong: Wrong) -> Json:
    """Check that what a job leaves belongs to the user that ran it."""
    paths = [os.path.join(at, name) for at, d, f in os.walk(request["job"]) for name in (*d, *f)]
    mine = os.geteuid()
    for path in paths:
        owner = os.lstat(path).st_uid
        if owner == 0 or owner != mine:
            wrong(
                f"{path} belongs to uid {owner}: the people who started the job cannot remove it",
                "run as the image's own user (USER in the Dockerfile), not as root",
            )
            break
    size = sum(os.lstat(path).st_size for path in paths)
    return {"files": len(paths), "bytes": size, "uid": mine}


def model(request: Json, name: str, how: str, run: Run, wrong: Wrong) -> Json:
    """Check that the exported program in model/NAME runs, and answers finite numbers.

    how: what writes it. run: loads the file and runs it; returns the shapes of what it takes and of
    what it answers, and whether all of that is finite.
    """
    path = os.path.join(request["job"], "model", name)
    if not os.path.isfile(path):
        wrong(
            f"the trainer wrote no model: there is no {path}",
            f"write it there with {how} before the trainer ends",
        )
        return {}
    try:
        inputs, outputs, finite = run(path)
    except Exception as error:
        wrong(
            f"the model does not load and run: {line(error)}", f"export it for the CPU, too: {how}"
        )
        return {}
    if not finite:
        wrong("the model answers numbers that are not finite", "look for where the loss did")
    return {"inputs": inputs, "outputs": outputs}


def checkpoint(
    request: Json, endings: tuple[str, ...], read: Callable[[str], int], wrong: Wrong
) -> Json:
    """Check that the newest checkpoint reads back, without code in it.

    read: reads a file, and returns the number of its values.
    """
    folder = os.path.join(request["job"], "checkpoints")
    saved = [path for path in files(folder) if path.endswith(endings)]
    if not saved:
        names = " or ".join(f"*{ending}" for ending in endings)
        wrong(f"there is no checkpoint in {folder} ({names})", "save checkpoints below it")
        return {}
    newest = max(saved, key=os.path.getmtime)
    try:
        values = read(newest)
    except Exception as error:
        wrong(
            f"the newest checkpoint {newest} cannot be read: {line(error)}",
            "save arrays and numbers alone, to another name, and rename it",
        )
        return {}
    return {"files": len(saved), "read": newest, "values": values}


def files(folder: str) -> list[str]:
    return sorted(os.path.join(at, name) for at, _, names in os.walk(folder) for name in names)


def line(error: BaseException) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
