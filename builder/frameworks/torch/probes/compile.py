"""Counts the memory that a program's step takes of a GPU that is not here.

Python imports this file first (as sitecustomize) when the image's entry point starts. The program
runs on the CPU until it names its step: `job.compile(function, *examples)`. The step then runs with
tensors that have a shape and no content (FakeTensorMode), the second time with all that the first
one leaves behind. Each storage goes through a model of PyTorch's caching allocator. Where PyTorch
goes another way on a GPU than on the CPU, the step goes that way: see gpu_ways.py.

Request, in the variable TRAINING_COMPILE:
    {"memory": bytes of the device, "taken": bytes that libraries take, "batch": 48,
     "capability": "7.0", "world": processes of the job or 0, ...}
Answer, lines of JSON, the last one counts: {"compile": {"step": "train", ...}}, see `measured`.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import sys
import time
import traceback
import weakref
from collections.abc import Iterator, Mapping
from functools import cached_property, partial
from importlib import import_module
from typing import Any

from builder.frameworks import cudnn, hook
from builder.frameworks.torch.probes import gpu_ways, kernels, processes
from builder.frameworks.torch.probes.allocator import MIB, Allocator, Block, grows

RECOMPUTE = "recompute (torch.utils.checkpoint)"
SLOWER = "cuDNN has no convolution in bfloat16 there: PyTorch's is slower"
TRIES, MOST = 4, 2**16
"""So many batches are tried to find the largest that fits, and none with more examples."""
SECONDS, BEGAN = 105.0, time.monotonic()
"""Until so many seconds after its begin, the answer waits for the kernels."""


class Work:
    """What is asked about the program's step."""

    def __init__(self, request: dict[str, Any]) -> None:
        self.request, self.batch = request, request["batch"]
        self.parts = 1
        """Into how many the program divides the batch; `batch` is then one of them."""
        self.room = request["memory"] - request["taken"]
        self.convolved: dict[cudnn.Convolution, str] = {}
        """Those of the step, with the frames of the program, innermost first."""
        self.processes = processes.Processes(request["world"])

    @cached_property
    def mode(self) -> Any:
        """FakeTensorMode: one for all that is counted, as FSDP keeps tensors of it."""
        fakes: Any = import_module("torch._subclasses.fake_tensor")
        return fakes.FakeTensorMode(allow_non_fake_inputs=True)

    def take(self, function: Any, examples: Any) -> None:
        """Count the step that the program names, compile its kernels, and end the program."""
        if self.processes.rank:
            os._exit(0)  # the first process answers
        step = {"step": getattr(function, "__name__", "step"), "counted": True}
        self.divide(examples)
        begun = self.compile(function, examples)
        try:
            found = {**step, **self.measured(function, examples, self.batch)}
            asked = joined(self.processes.said, self.ask_cudnn())
            hook.answer(found | asked)
            with contextlib.suppress(Exception):  # a step may be written for one batch
                found |= self.largest(function, examples, hook.needs(found))
        except Exception as error:
            found, asked = {**step, "failed": hook.words(error)}, {}
        hook.answer(found | asked)
        for each in begun:
            asked = joined(asked, kernels.end(each, SECONDS - time.monotonic() + BEGAN))
            hook.answer(found | asked)
        os._exit(0)

    def divide(self, examples: Any) -> None:
        """Take the part of the batch that each process has, where the examples have it."""
        if self.processes.count == 1:
            return
        leaves = import_module("torch.utils._pytree").tree_leaves(examples)
        part, rest = divmod(self.batch, self.processes.count)
        if not rest and not any(is_batch(each, self.batch) for each in leaves):
            self.batch, self.parts = part, self.processes.count

    def ask_cudnn(self) -> dict[str, str]:
        """Return what cuDNN says of the convolutions that were counted: where it has no plan for
        bfloat16, PyTorch takes another way (ConvParams::use_cudnn)."""
        properties, asked = self.request["properties"], self.convolved.items()
        return cudnn.said(properties, asked, instead={"bfloat16": SLOWER})

    def compile(self, function: Any, examples: Any) -> list[tuple[int, int]]:
        """Begin to compile what the step gives to Triton, in a process for each kind of kernels:
        the program's are launched as the step is counted, Inductor's by the real step."""
        own, compiled = kernels.in_use()
        begun = []
        if own:
            count = partial(self.measured, function, examples, self.batch)
            begun.append(kernels.begin(self.request, False, count))
        if compiled:
            begun.append(kernels.begin(self.request, True, partial(function, *examples)))
        if begun:
            kernels.start_nothing(self.request)
        return begun

    def measured(self, function: Any, examples: Any, batch: int) -> dict[str, Any]:
        """Return what a step needs. arguments: bytes that are there between two steps, of weights,
        gradients, the optimizer and the examples. temporaries: what the allocator takes beside
        them, its rounding and its cut segments with it. allocated: what tensors hold at the most;
        first: before the second step. flops, types: of products.
        """
        began = time.monotonic()
        torch: Any = import_module("torch")
        gpu_ways.prepare()
        there = workspace(self.request["capability"], torch.__version__, os.environ)
        mode, allocator = self.mode, Allocator(self.room, there, grows(os.environ))
        storages = Storages(allocator)
        watch = watching(torch, mode, storages, self.convolved)
        with mode, gpu_ways.taken(torch, self.request["capability"], watch):
            given = torch.utils._pytree.tree_map_only(
                torch.Tensor, lambda each: resized(each, self.batch, batch), examples
            )
            with watch, processes.counted(torch, storages.resized):
                watch.in_place.begin()
                kept = torch.empty(self.processes.buffer, dtype=torch.uint8)
                function(*given)
                between = sum(block.size for block in storages.live.values())
                first, before = allocator.most, operations(watch)
                function(*given)
                del kept
        return {
            **{"room": self.room, "more": ""},
            "smaller": f"take a smaller batch, {RECOMPUTE}",
            **{"outputs": 0, "aliased": 0, "code": 0, "calls": watch.calls},
            "arguments": between,
            "temporaries": allocator.peak - between,
            **{"allocated": allocator.most, "first": first},
            **{"flops": operations(watch) - before, "types": sorted(watch.types)},
            "seconds": round(time.monotonic() - began, 2),
        }

    def largest(self, function: Any, examples: Any, first: int) -> dict[str, Any]:
        """Return the largest batch that fits. first: what one of the given size needs. Memory grows
        with a batch nearly linearly, so two sizes say where to look."""
        leaves = import_module("torch.utils._pytree").tree_leaves(examples)
        if not any(is_batch(each, self.batch) for each in leaves):
            return {}
        second = hook.needs(self.measured(function, examples, 2 * self.batch))
        each = max(second - first, 1) / self.batch
        batch = min(self.batch + int((self.room - first) / each), MOST // self.parts)
        for _ in range(TRIES):
            if batch < 1:
                break
            if hook.needs(self.measured(function, examples, batch)) <= self.room:
                fix = {"smaller": f"take a batch of {batch * self.parts:,}, {RECOMPUTE}"}
                more = fix if batch < self.batch else {}
                sizes = {"batch": self.batch, "largest_batch": batch}
                return {**{name: size * self.parts for name, size in sizes.items()}, **more}
            batch = int(batch * 0.95)
        return {}


def workspace(capability: str, release: str, environment: Mapping[str, str]) -> int:
    """Return the bytes that PyTorch gives to cuBLAS with the first product of matrices, and keeps:
    what a variable says, else 32 MiB on Hopper, and since 2.12 on Blackwell
    (aten/src/ATen/cuda/CublasHandlePool.cpp, parseChosenWorkspaceSize; pull request 175344)."""
    if said := re.findall(r":(\d+):(\d+)", environment.get("CUBLAS_WORKSPACE_CONFIG", "")):
        return sum(int(size) * int(times) for size, times in said) * 1024
    since = [2, 0] if capability == "9.0" else [2, 12]
    modern = float(capability) >= 9 and [int(each) for each in release.split(".")[:2]] >= since
    return 32 * MIB if modern else (2 * 4096 + 8 * 16) * 1024


class Storages:
    """Storages of tensors, which go through an allocator. live: those that are there, by their
    address, with their pieces."""

    def __init__(self, allocator: Allocator) -> None:
        self.allocator = allocator
        self.live: dict[int, Block] = {}

    def hold(self, tensor: Any) -> None:
        """Take a piece for a tensor's storage, until that is gone."""
        storage = tensor.untyped_storage()
        key, size = storage._cdata, storage.nbytes()
        if size and key not in self.live:
            self.live[key] = self.allocator.take(size)
            weakref.finalize(storage, self.release, key)

    def replace(self, old: Any, new: Any) -> None:
        """Give the piece of a tensor's storage to that of another one, where it has the same size.
        old: None for none."""
        if old is None or old.untyped_storage().nbytes() != new.untyped_storage().nbytes():
            return
        key, storage = old.untyped_storage()._cdata, new.untyped_storage()
        if key in self.live:
            self.live[storage._cdata] = self.live.pop(key)
            weakref.finalize(storage, self.release, storage._cdata)

    def release(self, key: int) -> None:
        """Give the piece back, where there is one."""
        if block := self.live.pop(key, None):
            self.allocator.give(block)

    def resized(self, storage: Any) -> None:
        """Note that a storage has another size now: one of 0 has a piece when it is used again."""
        if storage.device.type == "meta":
            self.release(storage._cdata)


def watching(
    torch: Any, mode: Any, storages: Storages, convolved: dict[cudnn.Convolution, str]
) -> Any:
    """Return a mode that lets each new storage go through an allocator.

    Its `types` has the types that products calculate in, its `calls` those of cuBLAS in float8.
    convolved: gets the convolutions that cuDNN is given.
    """
    modes: Any = import_module("torch.utils._python_dispatch")
    tree: Any = import_module("torch.utils._pytree")
    products = {"mm", "addmm", "bmm", "baddbmm", "convolution"}

    class Watch(modes.TorchDispatchMode):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.types: set[str] = set()
            self.calls: dict[str, dict[str, int]] = {}
            self.kept: dict[int, Any] = {}
            self.in_place = gpu_ways.InPlace(torch)
            self.counter, self.flops = flop_counter(), 0

        def __torch_dispatch__(
            self, function: Any, kinds: Any, arguments: Any = (), named: Any = None
        ) -> Any:
            if function is torch.ops.aten._local_scalar_dense.default:
                return one(torch, arguments[0])
            if processes.is_wrapped(kinds):
                return NotImplemented
            given = tree.tree_map_only(torch.Tensor, self.faked, (arguments, named or {}))
            name = function.overloadpacket.__name__
            if function.namespace == "c10d":
                return processes.communicated(torch, function, given[0])
            if name == "wait_tensor":
                return given[0][0]
            if name in products:
                if name != "convolution":
                    storages.allocator.multiply()
                self.types.add(str(given[0][-1 if len(given[0]) == 2 else 1].dtype)[6:])
            made = function(*given[0], **given[1])
            if name == "_scaled_mm":
                self.calls[name] = {"float8": self.calls.get(name, {}).get("float8", 0) + 1}
            for each in convolutions(torch, name, given[0], made):
                convolved.setdefault(each, cudnn.frames(traceback.extract_stack(limit=60)))
            self.counter._count_flops(function.overloadpacket, made, *given)
            storages.replace(self.in_place.taken(name, given[0], made), made)
            tree.tree_map_only(torch.Tensor, storages.hold, made)
            return made

        def faked(self, tensor: Any) -> Any:
            """Return a tensor without content for one of the program's, always the same."""
            if not mode.is_our_fake(tensor):
                key = id(tensor)
                if key not in self.kept:
                    self.kept[key] = mode.from_tensor(tensor)
                    weakref.finalize(tensor, self.kept.pop, key, None)
                tensor = self.kept[key]
            storages.hold(tensor)
            return tensor

    return Watch()


def flop_counter() -> Any:
    """Return PyTorch's, to be called and not to be entered: then it keeps what a checkpoint
    computes again (ModuleTracker holds hooks on the tensors that go into modules)."""
    return import_module("torch.utils.flop_counter").FlopCounterMode(display=False)


def operations(watch: Any) -> int:
    """Return those of products and of fused attention so far."""
    return int(watch.counter.get_total_flops()) + int(watch.flops)


def one(torch: Any, tensor: Any) -> Any:
    """Return the value that is taken for any in a tensor without content."""
    return {torch.bool: True}.get(tensor.dtype, 1.0 if tensor.is_floating_point() else 1)


def convolutions(torch: Any, name: str, given: Any, made: Any) -> Iterator[cudnn.Convolution]:
    """Yield what an operation gives to cuDNN: a depthwise one may go to PyTorch's own kernels."""
    if name == "convolution":
        x, w, _, *how = given
        asked = [("data" if how[3] else "forward", x, w, made)]
    elif name == "convolution_backward":
        y, x, w, _, *how, mask = given
        kinds = ("forward" if how[3] else "data", "filter")
        asked = [(kind, x, w, y) for kind, wanted in zip(kinds, mask, strict=False) if wanted]
    else:
        return
    stride, padding, dilation, transposed, _, groups = how
    kind = str(x.dtype)[6:]
    if kind not in cudnn.TYPES or (groups > 1 and groups in x.shape[1:2]):
        return
    last = any(
        each.dim() == 4 and each.is_contiguous(memory_format=torch.channels_last)
        and not each.is_contiguous() for each in (x, w)
    )  # fmt: skip
    line = [1] if x.dim() == 3 else []  # PyTorch gives cuDNN no line, but a picture of height 1
    sizes = ([*each.shape[:2], *line, *each.shape[2:]] for each in (x, w, asked[0][3]))
    x, w, y = (cudnn.laid_out(each, last) for each in sizes)
    if transposed:
        x, y = y, x
    ways = [(*line, *stride), (*(0 for _ in line), *padding), (*line, *dilation)]
    for operation, *_ in asked:
        strides, pads, dilations = map(tuple, ways)
        yield cudnn.Convolution(operation, kind, x, w, y, strides, pads, pads, dilations)


def joined(*said: dict[str, Any]) -> dict[str, Any]:
    """Return what several said as one, with all their remarks."""
    remarks = filter(None, (each.get("remark") for each in said))
    whole = {name: value for each in said for name, value in each.items()}
    return {**whole, "remark": "; ".join(remarks)}


def is_batch(leaf: Any, batch: int) -> bool:
    """Tell whether an example holds a batch."""
    return bool(batch and getattr(leaf, "shape", ()) and leaf.shape[0] == batch)


def resized(example: Any, batch: int, wanted: int) -> Any:
    """Return an example's shape for another batch."""
    shape = (wanted, *example.shape[1:]) if is_batch(example, batch) else example.shape
    return example.new_empty(shape).requires_grad_(example.requires_grad)


if hook.VARIABLE in os.environ:
    _work = Work(json.loads(os.environ[hook.VARIABLE]))
    hook.start(__file__, _work.take, "torch", _work.processes.begin)
    _own: Any = sys.modules[hook.NAME]
    _own.launch = _work.processes.launch
