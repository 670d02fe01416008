"""The memory of a step with PyTorch, inside of the image."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from types import SimpleNamespace

import pytest

from builder.core.project import tag_of
from builder.engine import Engine
from builder.facts import devices
from builder.frameworks.cudnn import Tensor
from builder.frameworks.torch.probes import compile as asking
from builder.frameworks.torch.probes.allocator import MIB
from builder.frameworks.torch.probes.compile import workspace
from builder.prove import smoke
from builder.prove.checks import compile as compiling
from builder.prove.session import Sandbox
from tests import ROOT, commands
from tests.frameworks.torch.broken import BEGIN, TABLE, WORK, Broken

PROBES = "builder.frameworks.torch.probes"
PROGRAM, HOOK = "tests.frameworks.torch.convolutions", f"{PROBES}.compile"
BESIDE = (
    HOOK,
    f"{PROBES}.allocator",
    f"{PROBES}.gpu_ways",
    f"{PROBES}.kernels",
    f"{PROBES}.processes",
    "builder.frameworks.hook",
    "builder.frameworks.cudnn",
)
SEVERAL = "tests.frameworks.torch.several"
SMALL = 8519680
"""cuBLAS's workspace, but on Hopper."""
ON_A_GPU = "tests.frameworks.torch.as_on_a_gpu"
DEVICE = devices.devices()["V100"]
V100 = {
    "memory": DEVICE.memory,
    "taken": 1050 * MIB,
    "batch": 48,
    "world": 0,
    "capability": "7.0",
    "properties": DEVICE.properties(),
}

Compile = Callable[[str, str], tuple[list[str], str]]


def test_cublas_has_a_workspace_from_the_first_product_on() -> None:
    """aten/src/ATen/cuda/CublasHandlePool.cpp: ":4096:2:16:8", 32 MiB on Hopper."""
    assert workspace("7.5", "2.12.0", {}) == workspace("8.9", "2.12.0", {}) == SMALL
    assert workspace("9.0", "2.4.1+cu121", {}) == workspace("10.0", "2.12.0", {}) == 32 * MIB
    assert workspace("10.0", "2.10.0", {}) == workspace("12.0", "2.8.0", {}) == SMALL
    assert workspace("9.0", "2.10.0", {"CUBLAS_WORKSPACE_CONFIG": ":16:8:4096:1"}) == 4224 * 1024


class Fake:
    """A tensor without content. last: whether its channels are the last in memory."""

    def __init__(self, *shape: int, kind: str = "float32", last: bool = False) -> None:
        self.shape, self.dtype, self.last = shape, f"torch.{kind}", last

    def dim(self) -> int:
        return len(self.shape)

    def is_contiguous(self, memory_format: object = None) -> bool:
        return self.last if memory_format else not self.last


TORCH = SimpleNamespace(channels_last="channels_last")
X, W, Y = Fake(48, 8, 32, 32), Fake(16, 8, 3, 3), Fake(48, 16, 16, 16)
HOW = ([2, 2], [1, 1], [1, 1], False, [0, 0], 1)


def test_a_convolution_and_its_gradients_are_what_cudnn_is_asked() -> None:
    (forward,) = asking.convolutions(TORCH, "convolution", (X, W, None, *HOW), Y)
    assert forward.kind == "forward" and forward.type == "float32"
    assert forward.x == Tensor((48, 8, 32, 32), (8192, 1024, 32, 1))
    assert (forward.stride, forward.before, forward.dilation) == ((2, 2), (1, 1), (1, 1))
    given = (Y, X, W, None, *HOW)
    both = list(
        asking.convolutions(TORCH, "convolution_backward", (*given, [True, True, True]), None)
    )
    assert [each.kind for each in both] == ["data", "filter"]
    assert all((each.x, each.w, each.y) == (forward.x, forward.w, forward.y) for each in both)
    (only,) = asking.convolutions(
        TORCH, "convolution_backward", (*given, [False, True, False]), None
    )
    assert only.kind == "filter"
    assert list(asking.convolutions(TORCH, "addmm", (), None)) == []


def test_a_transposed_one_is_a_gradient_and_channels_may_be_the_last() -> None:
    how = ([2, 2], [1, 1], [1, 1], True, [0, 0], 1)
    (up,) = asking.convolutions(TORCH, "convolution", (Y, Fake(16, 8, 3, 3), None, *how), X)
    assert up.kind == "data" and up.x.shape == X.shape and up.y.shape == Y.shape
    last = Fake(48, 8, 32, 32, last=True)
    (forward,) = asking.convolutions(TORCH, "convolution", (last, W, None, *HOW), Y)
    assert forward.x.strides == (8192, 1, 256, 8) and forward.w.strides == (72, 1, 24, 8)


def test_a_line_is_a_picture_and_a_depthwise_one_is_not_asked() -> None:
    how = ([1], [2], [1], False, [0], 1)
    tensors = (Fake(48, 8, 100), Fake(16, 8, 5), None)
    (line,) = asking.convolutions(TORCH, "convolution", (*tensors, *how), Fake(48, 16, 100))
    assert line.x.shape == (48, 8, 1, 100) and line.before == (0, 2) and line.stride == (1, 1)
    depthwise = (X, Fake(8, 1, 3, 3), None, *HOW[:5], 8)
    assert list(asking.convolutions(TORCH, "convolution", depthwise, Y)) == []


@pytest.mark.parametrize(
    ("kind", "says"),
    [
        ("float16", ("refused", "cuDNN has no plan for a convolution in float16 (forward) of 48")),
        ("bfloat16", ("remark", "cuDNN has no convolution in bfloat16 there: PyTorch's is slower")),
    ],
)
def test_a_convolution_without_a_plan_is_refused_where_pytorch_has_no_other_way(
    kind: str, says: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        asking.cudnn, "_answers", lambda _of, asked: ("cuDNN", [False] * len(asked))
    )
    work = asking.Work({**V100, "properties": {}})
    given = asking.convolutions(TORCH, "convolution", (Fake(*X.shape, kind=kind), W, None, *HOW), Y)
    work.convolved = dict.fromkeys(given, "/a.py:3:0 [a]")
    ((key, words),) = work.ask_cudnn().items()
    assert key == says[0] and words.startswith(says[1])


@pytest.fixture(scope="module")
def sandbox(engine: Engine) -> Iterator[Sandbox]:
    """Containers of the target's image."""
    commands.builder("build", "v100-torch", check=True)
    image = engine.client.images.get(f"training:{tag_of(ROOT, 'v100-torch')}")
    with Sandbox(engine.client, image) as sandbox:
        sandbox.fill(smoke.RECORDS)
        yield sandbox


@pytest.fixture
def compiled(sandbox: Sandbox) -> Compile:
    """Compiles a program for a device: the problems, else the note."""

    def run(device: str, program: str) -> tuple[list[str], str]:
        chosen = devices.devices()[device]
        target = compiling.CompileTarget(chosen, "torch", cudnn="9.10.2", batch=0)
        write = f"import pathlib; pathlib.Path('/tmp/train.py').write_text({BEGIN + program!r})"
        run = "import runpy; runpy.run_path('/tmp/train.py', run_name='__main__')"
        done = target.compile(sandbox, [], ["python", "-c", f"{write}; {run}"])
        problems, seen = compiling.judge(done, chosen)
        return [problem.message for problem in problems], str(seen.get("note", ""))

    return run


IN_THE_IMAGE = (pytest.mark.engine, pytest.mark.network, pytest.mark.long)


@pytest.mark.parametrize(
    "broken",
    [pytest.param(each, id=f"{each.on}-{each.name}", marks=IN_THE_IMAGE) for each in TABLE],
)
def test_a_program_that_cannot_run_there_is_refused(compiled: Compile, broken: Broken) -> None:
    (problem,), _ = compiled(broken.on, broken.program)
    assert re.search(broken.says, problem), problem
    if broken.works:
        assert compiled(broken.works, broken.program)[0] == []


@pytest.mark.parametrize(
    ("device", "program", "says"),
    [pytest.param(*each[1:], id=f"{each[1]}-{each[0]}", marks=IN_THE_IMAGE) for each in WORK],
)
def test_a_program_beside_them_compiles(
    compiled: Compile, device: str, program: str, says: str
) -> None:
    problems, note = compiled(device, program)
    assert problems == [] and re.search(says, note), note


@pytest.mark.engine
@pytest.mark.network
@pytest.mark.long
def test_a_step_is_counted_in_the_image_and_the_largest_batch_found(sandbox: Sandbox) -> None:
    """MemTracker of PyTorch 2.10 counts 6471.4 MiB of the same step, and not the pictures' 27.6 and
    cuBLAS's 8.1. These lie in a free piece of 588 MiB, which no activation can take again."""
    run = sandbox.probe(PROGRAM, V100, imports=BESIDE)
    assert run.answer is not None and run.exit_code == 0, run.tail
    found = run.answer["compile"]
    needed = (found["arguments"] + found["temporaries"]) / MIB
    assert found["allocated"] / MIB == pytest.approx(6471.4 + 27.6 + 8.1, rel=0.001)
    assert needed == pytest.approx(found["allocated"] / MIB + 588 - 8.1, rel=0.001)
    assert found["step"] == "train" and found["types"] == ["float32"]
    assert found["largest_batch"] * needed / 48 == pytest.approx(15834677248 / MIB, rel=0.03)
    forward = 2 * 48 * 224**2 * 9 * 64 * (3 + 8 * 64)
    assert found["flops"] == pytest.approx(3 * forward, rel=0.01)


@pytest.mark.engine
@pytest.mark.network
@pytest.mark.long
@pytest.mark.parametrize(
    ("step", "allocated", "types"),
    [
        ("dropout", 64 + 64 + 16, []),
        ("autocast", 64 + 8.2, ["float16"]),
        ("attention", 132, ["float32"]),
        ("recomputed", 64 + 64 + 1, ["float32"]),
        # the input and its gradient, and three tensors of 1 MiB
        ("multihead", 64 + 64 + 3 + 8.2, ["float32"]),
        # products of 64 MiB: of softmax, of dropout with a mask of 16, and a gradient
        ("weights", 64 + 3 * 64 + 16 + 8 + 8.2, ["float32"]),
        # three products, in float32
        ("bfloat16", 64 + 3 * 64 + 3.5 + 8.2, ["float32"]),
    ],
)
def test_a_step_goes_the_way_of_a_gpu(
    sandbox: Sandbox, step: str, allocated: float, types: list[str]
) -> None:
    run = sandbox.probe(ON_A_GPU, {**V100, "named": step}, imports=BESIDE)
    assert run.answer is not None and run.exit_code == 0, run.tail
    found = run.answer["compile"]
    assert found["types"] == types
    assert found["allocated"] / MIB == pytest.approx(allocated, rel=0.01)
    product = 2 * 4096**2  # two of attention, and five backward; two once more of a checkpoint
    flops = {"attention": 7 * 16 * product * 16, "recomputed": 9 * product * 64}
    assert found["flops"] == flops.get(step, found["flops"])


@pytest.mark.engine
@pytest.mark.network
@pytest.mark.long
@pytest.mark.parametrize(
    "step", ["twice", "kept", "ordered", "gathered", "checkpoints", "reentrant"]
)
def test_a_step_takes_what_pytorchs_profiler_sees_of_the_real_one(
    sandbox: Sandbox, step: str
) -> None:
    """It is watched, and autograd works in another way while it is: see gpu_ways.InPlace."""
    asked = {**V100, "named": step}
    counted, real = (
        sandbox.probe(ON_A_GPU, {**asked, "real": real}, imports=BESIDE) for real in (False, True)
    )
    assert counted.answer is not None and real.answer is not None, (counted.tail, real.tail)
    found = counted.answer["compile"]
    taken = found["allocated"] - found["arguments"] - SMALL * bool(found["types"])
    assert taken / MIB == pytest.approx(real.answer["compile"]["seen"] / MIB, rel=0.005)


@pytest.mark.engine
@pytest.mark.network
@pytest.mark.long
@pytest.mark.parametrize(
    ("named", "between", "most"),
    [
        # four weights of 16 MiB, their gradients, and as much in buckets
        ("ddp", 3 * 4 * 16, 3 * 4 * 16),
        # a gradient is there until it lies in its bucket
        ("views", 2 * 4 * 16, 2 * 4 * 16 + 16),
        # a quarter of each weight and gradient; at the most, of two gradients, and whole: a weight
        # with its gradient, the next weight as it is gathered, a gradient as it is added up
        ("fsdp", 2 * 4 * 4, 4 * 4 + 2 * 4 + 4 * 16),
    ],
)
def test_one_process_of_four_holds_what_arithmetic_says(
    sandbox: Sandbox, named: str, between: int, most: int
) -> None:
    run = sandbox.probe(SEVERAL, {**V100, "world": 4, "named": named}, imports=BESIDE)
    assert run.answer is not None and run.exit_code == 0, run.tail
    found = run.answer["compile"]
    assert (found["devices"], found["of"], found["batch"]) == (4, 4, 48)
    assert found["arguments"] / MIB == pytest.approx(between, abs=0.5)
    assert found["allocated"] / MIB == pytest.approx(most + SMALL / MIB, abs=0.5)
    assert found["largest_batch"] == 2**16
