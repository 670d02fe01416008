"""Asks cuDNN for a plan of a convolution on a GPU that is not here: no driver, no GPU.

From 9.8 on cuDNN plans for a description of a device ("Deviceless Ahead-of-time Compilation"). It
is asked by its C interface (cudnn_graph.h), whose numbers stay: the library is the image's own. It
is copied into a container beside a hook of the check `compile`.
"""

# Paths are text here, as in the probes.
# ruff: noqa: PTH207
from __future__ import annotations

import ctypes
import glob
import json
import math
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from builder.frameworks import hook

OLDEST = 90800
"""The release that can be asked: 9.8."""

TYPES = {"float32": 0, "float64": 1, "float16": 2, "bfloat16": 9}
_OPERATIONS = {"forward": (10, 700), "data": (12, 706), "filter": (11, 712)}
"""Of each operation: its descriptor, and the first of its attributes, as in the header."""
_BEFORE = ("cuda_runtime/lib/libcudart", "cuda_nvrtc/lib/libnvrtc", "cublas/lib/libcublasLt")
"""What cuDNN is linked to, in NVIDIA's wheels."""
_OWN = "cudnn/lib/libcudnn"

_POINTWISE, _CONVOLUTION, _CONFIGURATION, _HEURISTICS, _PLAN = 0, 1, 3, 4, 5
_PLACED, _GRAPH, _TENSOR, _DEVICE = 13, 15, 17, 38
"""Descriptors."""
_TYPE, _BOOLEAN, _INT64, _FLOAT, _DOUBLE, _MODE, _HEURISTIC = 1, 2, 3, 4, 5, 7, 8
_FUNCTION, _DESCRIPTOR, _CHARACTER = 14, 15, 24
"""Types of attributes."""
_FUSED = {"": (), "kNone": (0, 0), "kRelu": (0, 0, 100)}
"""What is computed of a convolution's output, by CUDNN_POINTWISE_*: a side input is added, a bias,
then relu (xla/stream_executor/cuda/cuda_dnn.cc, GetCudnnFusedOperationGraph)."""
_MODES = (3, 2)
"""CUDNN_HEUR_MODE_A, then _FALLBACK, as frameworks ask."""
_MOST = 64
"""Configurations that a heuristic may name."""
_SECONDS = 30.0
"""How long the answers may take; those of a hundred convolutions take less than a second."""


@dataclass(frozen=True)
class Tensor:
    """Sizes and strides, in elements: batch, channels, space."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]


@dataclass(frozen=True)
class Convolution:
    """A convolution."""

    kind: str
    """forward; data: the gradient of x; filter: that of w."""
    type: str
    x: Tensor
    w: Tensor
    y: Tensor
    """Its input, filter and output, whichever of them is asked for."""
    stride: tuple[int, ...]
    before: tuple[int, ...]
    after: tuple[int, ...]
    dilation: tuple[int, ...]
    fused: str = ""
    """What one call does of its output: "kNone" adds a bias, "kRelu" goes on with relu (XLA's
    ActivationMode); "" where it is a call of its own."""

    @property
    def of_any_batch(self) -> Convolution:
        """This one with a batch of one example: whether there is a plan did not depend on the batch
        wherever it was asked (docs/compile.md)."""
        x, y = (replace(each, shape=(1, *each.shape[1:])) for each in (self.x, self.y))
        return replace(self, x=x, y=y)

    @property
    def ordered(self) -> tuple[Tensor, Tensor, Tensor]:
        """Its tensors in the order of the header's attributes."""
        return self.w, self.x, self.y

    def __str__(self) -> str:
        sizes = [" x ".join(map(str, each.shape)) for each in (self.x, self.w)]
        return f"a convolution in {self.type} ({self.kind}) of {sizes[0]} by {sizes[1]}"


class CudnnError(Exception):
    """What cuDNN says."""


class Planner:
    """The image's cuDNN, asked for one device."""

    def __init__(self, properties: Mapping[str, Any]) -> None:
        """properties: of the device (builder/facts/devices.py). Raises OSError, CudnnError."""
        self.library = _opened()
        self.library.cudnnGetVersion.restype = ctypes.c_size_t
        self.version = int(self.library.cudnnGetVersion())
        self.name = f"cuDNN {_words(self.version)}"
        if self.version < OLDEST:
            raise CudnnError(f"{self.name} plans for no device that is not here")
        text = json.dumps(properties).encode()
        told = (2702, _CHARACTER, ctypes.create_string_buffer(text), len(text))
        self.device = self._made(_DEVICE, told)

    def plans(self, convolution: Convolution) -> bool:
        """Tell whether it has a plan: a configuration that it names, and can be built."""
        try:
            graph = self._graph(convolution)
        except CudnnError:
            return False
        return any(self._builds(each) for mode in _MODES for each in self._named(graph, mode))

    def _graph(self, asked: Convolution) -> Any:
        """Return the operation as a graph of its own. Raises CudnnError."""
        kind, spatial = TYPES[asked.type], len(asked.stride)
        within = 1 if asked.type == "float64" else 0
        math = TYPES["float64" if within else "float32"]
        places = [self._tensor(each, kind, at) for at, each in enumerate(asked.ordered)]
        if asked.fused:
            places[2] = self._tensor(asked.y, math, 3, virtual=True)
        described = self._made(
            _CONVOLUTION,
            (100, _TYPE, ctypes.c_int(within), 1),
            (101, _MODE, ctypes.c_int(1), 1),
            (102, _INT64, _longs(asked.dilation), spatial),
            (103, _INT64, _longs(asked.stride), spatial),
            (104, _INT64, _longs(asked.after), spatial),
            (105, _INT64, _longs(asked.before), spatial),
            (106, _INT64, _longs([spatial]), 1),
        )
        descriptor, first = _OPERATIONS[asked.kind]
        scale: Any = ctypes.c_double if within else ctypes.c_float
        number = _DOUBLE if within else _FLOAT
        operation = self._made(
            descriptor,
            (first, number, scale(1), 1),
            (first + 1, number, scale(0), 1),
            (first + 2, _DESCRIPTOR, described, 1),
            *((first + 3 + at, _DESCRIPTOR, each, 1) for at, each in enumerate(places)),
        )
        after = self._after(asked, places[2], kind, math)
        operations = (ctypes.c_void_p * (1 + len(after)))(
            *(each.value for each in (operation, *after))
        )
        return self._made(_GRAPH, (801, _DESCRIPTOR, operations, len(operations)))

    def _after(self, asked: Convolution, made: Any, kind: int, math: int) -> list[Any]:
        """Return the operations that are fused with a convolution, each of the output before it.
        math: the type that they calculate in."""
        operations: list[Any] = []
        functions = _FUSED[asked.fused]
        bias = laid_out([1, asked.y.shape[1], *(1 for _ in asked.stride)], last=False)
        for at, function in enumerate(functions):
            is_last = at + 1 == len(functions)
            out = self._tensor(asked.y, kind if is_last else math, 4 + at, virtual=not is_last)
            function_ = self._made(
                _POINTWISE,
                (0, _FUNCTION, ctypes.c_int(function), 1),
                (1, _TYPE, ctypes.c_int(math), 1),
            )
            beside = [self._tensor((asked.y, bias)[at], kind, 8 + at)] if at < 2 else []
            operations.append(
                self._made(
                    _PLACED,
                    (750, _DESCRIPTOR, function_, 1),
                    (751, _DESCRIPTOR, made, 1),
                    *((752, _DESCRIPTOR, each, 1) for each in beside),
                    (753, _DESCRIPTOR, out, 1),
                )
            )
            made = out
        return operations

    def _tensor(self, tensor: Tensor, kind: int, at: int, virtual: bool = False) -> Any:
        return self._made(
            _TENSOR,
            (900, _INT64, _longs([16]), 1),
            (901, _TYPE, ctypes.c_int(kind), 1),
            (902, _INT64, _longs(tensor.shape), len(tensor.shape)),
            (903, _INT64, _longs(tensor.strides), len(tensor.strides)),
            (906, _INT64, _longs([at + 1]), 1),
            (907, _BOOLEAN, ctypes.c_bool(virtual), 1),
        )

    def _named(self, graph: Any, mode: int) -> Iterator[Any]:
        """Yield the configurations that a heuristic names for the device."""
        try:
            heuristics = self._made(
                _HEURISTICS,
                (200, _HEURISTIC, ctypes.c_int(mode), 1),
                (201, _DESCRIPTOR, graph, 1),
                (204, _DESCRIPTOR, self.device, 1),
            )
        except CudnnError:
            return
        found = [self._new(_CONFIGURATION) for _ in range(_MOST)]
        list_, count = (ctypes.c_void_p * _MOST)(*(each.value for each in found)), ctypes.c_int64()
        self._call(
            self.library.cudnnBackendGetAttribute, heuristics, 202, _DESCRIPTOR,
            ctypes.c_int64(_MOST), ctypes.byref(count), list_,
        )  # fmt: skip
        yield from found[: count.value]

    def _builds(self, configuration: Any) -> bool:
        try:
            self._made(
                _PLAN, (401, _DESCRIPTOR, configuration, 1), (407, _DESCRIPTOR, self.device, 1)
            )
        except CudnnError:
            return False
        return True

    def _new(self, kind: int) -> ctypes.c_void_p:
        descriptor = ctypes.c_void_p()
        self._call(self.library.cudnnBackendCreateDescriptor, kind, ctypes.byref(descriptor))
        return descriptor

    def _made(self, kind: int, *attributes: tuple[int, int, Any, int]) -> ctypes.c_void_p:
        """Return a descriptor that has (name, type, value, count) and is complete."""
        descriptor = self._new(kind)
        for name, type_, value, count in attributes:
            self._call(
                self.library.cudnnBackendSetAttribute, descriptor, name, type_,
                ctypes.c_int64(count), ctypes.byref(value),
            )  # fmt: skip
        self._call(self.library.cudnnBackendFinalize, descriptor)
        return descriptor

    def _call(self, function: Any, *arguments: Any) -> None:
        if status := function(*arguments):
            raise CudnnError(f"{self.name} says {status}")


def laid_out(shape: Sequence[int], last: bool) -> Tensor:
    """Return a tensor without gaps. last: whether its channels are the last in memory."""
    order = [*range(2, len(shape)), 1] if last else [*range(1, len(shape))]
    strides, step = [0] * len(shape), 1
    for place in reversed([0, *order]):
        strides[place], step = step, step * shape[place]
    return Tensor(tuple(map(int, shape)), tuple(map(int, strides)))


def attention(sizes: Sequence[int], of: int, to: int, causal: bool, backward: bool) -> int:
    """Return the operations of a fused attention, which has two products, and five backward, one of
    them again; a causal one leaves out what it masks (PyTorch's torch/utils/flop_counter.py,
    `sdpa_flop_count` and `sdpa_backward_flop_count`, which leave out nothing).

    sizes: batch, heads, rows of queries, of keys. of, to: the widths of a query and of a value.
    """
    *many, rows, columns = sizes
    least = min(rows, columns)
    pairs = least * (least + 1) // 2 + (rows - least) * columns if causal else rows * columns
    return 2 * math.prod(many) * pairs * (3 * of + 2 * to if backward else of + to)


def frames(stack: Iterable[Any]) -> str:
    """Return where a stack of Python's is (traceback.FrameSummary), innermost first, as the check
    reads it."""
    return "\n".join(f"  {at.filename}:{at.lineno}:0 [{at.name}]" for at in reversed([*stack]))


def said(
    properties: Mapping[str, Any],
    asked: Iterable[tuple[Convolution | None, str]],
    known: dict[Convolution, bool] | None = None,
    instead: Mapping[str, str] | None = None,
) -> dict[str, str]:
    """Return what cuDNN says of a step's convolutions, each asked once: `refused` where it has no
    plan for one, else a `remark`; nothing of none. What nobody expects is a remark, and the rest of
    what is known of the step stays.

    asked: convolutions with the lines that make them; None for one whose sizes are not known.
    known: the answers so far, of any batch; it gets the new ones. instead: what is said of a type
    without plans where the framework takes another way.
    """
    try:
        return _said(properties, list(asked), {} if known is None else known, instead or {})
    except Exception as error:
        why = str(error) if isinstance(error, hook.EndedError) else hook.words(error)
        return {"remark": f"not known what cuDNN says of it: {why}"}


def _said(
    properties: Mapping[str, Any],
    given: Sequence[tuple[Convolution | None, str]],
    known: dict[Convolution, bool],
    instead: Mapping[str, str],
) -> dict[str, str]:
    """See `said`. cuDNN is asked in a process of its own: 9.8 to 9.10 end with SIGSEGV where they
    are asked for a B200."""
    new: dict[Convolution, tuple[Convolution, str]] = {}
    others = 0
    for convolution, lines in given:
        if not convolution or convolution.type not in TYPES or convolution.fused not in _FUSED:
            others += 1
        elif convolution.of_any_batch not in known:
            new.setdefault(convolution.of_any_batch, (convolution, lines))
    remarks = [f"not asked of cuDNN: {others} of its convolutions"] if others else []
    if not new:
        return {"remark": remarks[0]} if remarks else {}
    work = partial(_answers, properties, [convolution for convolution, _ in new.values()])
    name, plans = hook.end(hook.begin(work), _SECONDS)
    if not plans:
        return {"remark": f"its convolutions were not asked: {name}"}
    known.update(zip(new, plans))  # noqa: B905 - Python 3.8
    without = [each for key, each in new.items() if not known[key]]
    for convolution, lines in without:
        if convolution.type not in instead:
            return {"refused": f"{name} has no plan for {convolution}\n{lines}"}
    remarks = [*dict.fromkeys(instead[each.type] for each, _ in without), *remarks]
    if has := len(new) - len(without):
        remarks.insert(0, f"{name} has plans for its convolutions ({has})")
    return {"remark": "; ".join(remarks)}


def _answers(
    properties: Mapping[str, Any], questions: Sequence[Convolution]
) -> tuple[str, list[bool]]:
    """Return which cuDNN it is, and of each convolution whether it has a plan; why not, and
    nothing, where it cannot be asked."""
    try:
        planner = Planner(properties)
    except (OSError, CudnnError) as error:
        return str(error), []
    return planner.name, [planner.plans(each) for each in questions]


def _words(version: int) -> str:
    """Return "9.10.2" of 91002, and "8.9.7" of 8907 (CUDNN_VERSION)."""
    major = 10000 if version >= 90000 else 1000
    return f"{version // major}.{version % major // 100}.{version % 100}"


def _longs(values: Sequence[int]) -> Any:
    return (ctypes.c_int64 * len(values))(*values)


def _opened() -> ctypes.CDLL:
    """Open cuDNN 9: by its name, else from NVIDIA's wheels. Raises OSError."""
    try:
        return ctypes.CDLL("libcudnn.so.9")
    except OSError:
        folders = [f"{each}/nvidia" for each in sys.path]
    opened = None
    for stem in (*_BEFORE, _OWN):
        for path in (path for folder in folders for path in glob.glob(f"{folder}/{stem}.so.*")):
            library = ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL)
            opened = library if stem == _OWN else opened
    if opened is None:
        raise OSError("no cuDNN 9 is here")
    return opened
