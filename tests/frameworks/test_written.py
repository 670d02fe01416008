"""The probes of a framework's outputs, with what they share, as a session sends them.

PyTorch, JAX and NumPy are modules here whose files are JSON: the real ones are proven with the
targets (test_proven.py). tensorflow/test_outputs.py has the real TensorFlow.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from .standins import run

VALUES = """
import json
from types import SimpleNamespace as Is
class Array(list):
    shape = property(lambda self: (len(self),))
    dtype = float
def isfinite(array):
    return Is(all=lambda: all(value == value for value in array))
def read(text):
    return Array(json.loads(text))
"""
MODULES = {
    "tensorflow": {"tensorflow.py": ""},
    "torch": {
        "torch.py": VALUES
        + """
class export:
    def load(path):
        values = load(path, "cpu", True)
        inputs = ((Array([0.0] * len(values)),), {})
        return Is(example_inputs=inputs, module=lambda: lambda _: values)
def load(path, map_location, weights_only):
    assert weights_only, "a checkpoint holds no code"
    with open(path) as file:
        return read(file.read())
"""
    },
    "jax": {
        "jax/__init__.py": VALUES
        + """
numpy = Is(zeros=lambda shape, _: Array([0.0] * shape[0]), isfinite=isfinite)
tree = Is(leaves=lambda values: [values])
""",
        "jax/export.py": """
from jax import Is, read
def deserialize(content):
    values = read(content.decode())
    return Is(in_avals=[values], call=lambda _: values)
""",
    },
}
NUMPY = """
import contextlib, json, pathlib
from types import SimpleNamespace as Is
class File(dict):
    files = property(list)
@contextlib.contextmanager
def load(path, allow_pickle):
    assert not allow_pickle, "a checkpoint holds no code"
    values = json.loads(pathlib.Path(path).read_text())
    yield File({f"v{at}": Is(shape=()) for at, _ in enumerate(values)})
"""
FILES = {"torch": ("model.pt2", "1.pt", "2.pt"), "jax": ("model.jax", "1.npz", "2.npz")}
"""The model, an older checkpoint and a newer one."""


def asked(folder: Path, framework: str) -> tuple[list[str], dict[str, Any]]:
    """Return the problems of a job's folder, and what was seen."""
    for name, text in {**MODULES[framework], "numpy.py": NUMPY}.items():
        (folder / "site" / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / "site" / name).write_text(text)
    job = folder / "job"
    request = {"records": str(job), "job": str(job)}
    probe = (f"builder.frameworks.{framework}.probes.outputs", "builder.frameworks.written")
    answer = run(request, {"PYTHONPATH": str(folder / "site")}, *probe)
    assert all(problem["fix"] for problem in answer["problems"])
    return [problem["message"] for problem in answer["problems"]], answer["seen"]


@pytest.mark.parametrize("framework", MODULES)
def test_an_empty_job_has_neither_model_nor_steps(framework: str, tmp_path: Path) -> None:
    (tmp_path / "job").mkdir()
    messages, seen = asked(tmp_path, framework)
    assert "the trainer wrote no" in messages[0]
    assert "there is no checkpoint" in messages[-1]
    assert seen["owners"]["files"] == 0


@pytest.mark.parametrize("framework", FILES)
def test_the_model_runs_and_the_newest_checkpoint_reads_back(
    framework: str, tmp_path: Path
) -> None:
    model, older, newer = FILES[framework]
    job = tmp_path / "job"
    for name in (f"model/{model}", f"checkpoints/{older}", f"checkpoints/{newer}"):
        (job / name).parent.mkdir(parents=True, exist_ok=True)
        (job / name).write_text("[1.0, 2.0, 3.0]")
    (job / "checkpoints" / older).write_text("half a file")
    os.utime(job / "checkpoints" / older, (0, 0))
    messages, seen = asked(tmp_path, framework)
    assert [message for message in messages if "belongs to uid" not in message] == []
    assert seen["model"] == {"inputs": [[3]], "outputs": [[3]]}
    newest = str(job / "checkpoints" / newer)
    assert seen["checkpoints"] == {"files": 2, "read": newest, "values": 3}

    (job / "model" / model).write_text("[1.0, NaN]")
    Path(newest).write_text("half a file")
    not_finite, torn = asked(tmp_path, framework)[0][-2:]
    assert not_finite == "the model answers numbers that are not finite"
    assert torn.startswith(f"the newest checkpoint {newest} cannot be read: JSONDecodeError")
    (job / "model" / model).write_text("half a file")
    assert any("the model does not load and run" in each for each in asked(tmp_path, framework)[0])
