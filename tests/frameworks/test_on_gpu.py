"""The hooks that measure on a GPU, beside stand-ins of frameworks that have one, and TensorFlow.

No GPU was at hand: the stand-ins have the calls that the hooks make, by the frameworks' documents.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from builder.facts import frameworks
from builder.frameworks.on_gpu import Steps
from builder.prove import session
from builder.prove.checks import compile as compiling
from builder.prove.checks import gpu

TORCH = """
import sys, types
def module(name, **content):
    made = sys.modules[name] = types.ModuleType(name)
    made.__dict__.update(content)
    return made
hooks, state = [], {"begun": False, "there": True}
class SGD:
    def step(self):
        state["begun"] = True
        for hook in hooks:
            hook(self, (), {})
optim = module("torch.optim", SGD=SGD)
module("torch.optim.optimizer", register_optimizer_step_post_hook=hooks.append)
cuda = module("torch.cuda", is_available=lambda: state["there"], device_count=lambda: 1)
cuda.is_initialized = lambda: state["begun"]
cuda.synchronize = lambda: None
cuda.get_device_capability = lambda: (7, 0)
cuda.max_memory_reserved = lambda: 3 << 30
"""
JAX = """
import sys, types
core = types.SimpleNamespace(Tracer=type("Tracer", (), {}))
tree = types.SimpleNamespace(leaves=lambda made: [made])
waited, begun, there = [], [], []
block_until_ready = waited.append
class Jitted:
    def __init__(self, function):
        self.function, self.__name__, self.trace = function, function.__name__, None
    def __call__(self, *given):
        begun[:] = [1]
        return self.function(*given)
def jit(function=None, **options):
    return Jitted(function) if function else Jitted
class Gpu:
    platform, compute_capability = "gpu", "8.0"
    memory_stats = staticmethod(lambda: {"peak_bytes_in_use": 5 << 30})
local_devices = lambda: there
there.append(Gpu)
bridge = sys.modules["jax._src.xla_bridge"] = types.ModuleType("xla_bridge")
sys.modules["jax._src"] = types.ModuleType("jax._src")
bridge.backends_are_initialized = lambda: bool(begun)
"""
TRAINS = {
    "torch": "import torch\nsgd = torch.optim.SGD()\nfor _ in range(6): sgd.step()\n",
    "jax": """
import jax
@jax.jit
def train(x): return x
@jax.jit
def other(x): import time; time.sleep(0.01); return x
for _ in range(5): other(train(1))
assert jax.waited == [1] * 10
train(jax.core.Tracer())
""",
}
SAYS = {
    "torch": {"devices": 1, "capability": "7.0", "peak": 3 << 30, "steps": 5},
    "jax": {"devices": 1, "capability": "8.0", "peak": 5 << 30, "steps": 5},
}

Measure = Callable[..., tuple[int, list[dict[str, Any]]]]


@pytest.fixture
def measure(tmp_path: Path) -> Measure:
    """Runs a program with the hook of a framework: its exit code, and what the hook said."""

    def run(framework: str, program: str) -> tuple[int, list[dict[str, Any]]]:
        beside = ("builder.frameworks.on_gpu", *compiling.BESIDE, compiling.hook(framework))
        files = session.hook_files(compiling.hook(framework, gpu.NAME), beside)
        files |= {"../beside/torch.py": TORCH.encode(), "../beside/jax.py": JAX.encode()}
        for name, content in files.items():
            path = tmp_path / "hook" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        (tmp_path / "train.py").write_text(program)
        paths = f"{tmp_path}/hook:{tmp_path}/beside"
        variables = {"PYTHONPATH": paths, gpu.VARIABLE: json.dumps({"step": "train"})}
        command = [sys.executable, "train.py"]
        ended = subprocess.run(
            command, env=os.environ | variables, cwd=tmp_path, capture_output=True, text=True
        )
        lines = [line for line in ended.stdout.splitlines() if line.startswith('{"gpu"')]
        return ended.returncode, [json.loads(line)["gpu"] for line in lines]

    return run


@pytest.mark.parametrize("framework", TRAINS)
def test_a_program_is_measured_at_its_end(framework: str, measure: Measure) -> None:
    code, (said,) = measure(framework, TRAINS[framework])
    assert code == 0 and 0 < said.pop("seconds") < 0.01, "of the step that was named"
    assert said == SAYS[framework]


def test_a_program_that_fails_says_which_gpu_it_was(measure: Measure) -> None:
    code, (said,) = measure("torch", TRAINS["torch"] + "raise SystemExit(1)")
    assert code == 1 and said["capability"] == "7.0"


def test_a_framework_that_sees_no_gpu_says_so(measure: Measure) -> None:
    nothing = {"devices": 0, "steps": 5}
    code, (said,) = measure(
        "torch", 'import torch\ntorch.state["there"] = False\n' + TRAINS["torch"]
    )
    assert (code, said | {"seconds": 0}) == (0, nothing | {"seconds": 0})
    code, (said,) = measure("jax", "import jax\njax.there.clear()\n" + TRAINS["jax"])
    assert (code, said | {"seconds": 0}) == (0, nothing | {"seconds": 0})


@pytest.mark.parametrize("program", ["import torch", "print(1)"])
def test_a_process_that_used_no_gpu_says_nothing(program: str, measure: Measure) -> None:
    """A launcher imports the framework as well, and ends after those that it started."""
    assert measure("torch", program) == (0, [])


def test_a_driver_that_answers_no_more_is_told(measure: Measure) -> None:
    lost = "import torch\ntorch.cuda.get_device_capability = lambda: 1 / 0\n"
    code, (said,) = measure("torch", lost + TRAINS["torch"])
    assert code == 0 and said["failed"] == "ZeroDivisionError: division by zero"


@pytest.mark.tensorflow
def test_tensorflow_itself_is_watched(measure: Measure) -> None:
    """It has no GPU here. What it is asked beside that has the signatures of its documents."""
    program = """
import tensorflow as tf
v = tf.Variable(1.0)
@tf.function
def part(x): return x * v
@tf.function
def train(x): return part(x) + 1
for _ in range(5): train(tf.constant(2.0))
"""
    code, (said,) = measure("tensorflow", program)
    assert code == 0 and said["seconds"] > 0
    assert (said["devices"], said["steps"]) == (0, 5), "a part of another is no step"
    has_one = """
tf.config.list_physical_devices = lambda kind: [kind]
tf.config.experimental.get_device_details = lambda gpu: {"compute_capability": (9, 0)}
tf.config.experimental.get_memory_info = lambda name: {"current": 1, "peak": 2}
"""
    code, (said,) = measure("tensorflow", program + has_one)
    assert (said["devices"], said["capability"], said["peak"]) == (1, "9.0", 2)


def test_the_step_is_the_named_one_else_what_took_the_longest() -> None:
    steps = Steps()
    assert steps.of("") == {"steps": 0, "seconds": 0.0}
    for key, name, times in ((1, "a", (9.0, 9.0, 1.0, 2.0, 3.0)), (2, "b", (0.1, 0.1, 7.0))):
        for seconds in times:
            steps.note(key, name, seconds)
    assert steps.of("a") == {"steps": 5, "seconds": 2.0}, "the first calls compile"
    assert steps.of("") == steps.of("c") == {"steps": 3, "seconds": 7.0}


@pytest.mark.parametrize("name", frameworks.OWN)
def test_each_framework_has_a_hook(name: str) -> None:
    assert compiling.hook(name, gpu.NAME)
