"""Asks cuDNN for a plan of a convolution on a GPU that is not here: no driver, no GPU.

From 9.8 on cuDNN plans for a description of a device ("Deviceless Ahead-of-time Compilation"). It
is asked by its C interface (cudnn_graph.h), whose numbers stay: the library is the image's own. It
is copied into a container beside a hook of the check `compile`.
"""

# Paths are text here, as in the probes.
# ruff: noqa: PTH207
from __future__ import annotations

import contextlib
import ctypes
import glob
import json
import math
import re
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

_CONVOLUTION, _CONFIGURATION, _HEURISTICS, _PLAN, _GRAPH, _TENSOR, _DEVICE = 1, 3, 4, 5, 15, 17, 38
"""Descriptors."""
_TYPE, _INT64, _FLOAT, _DOUBLE, _MODE, _HEURISTIC, _DESCRIPTOR, _CHARACTER = (
    1,
    3,
    4,
    5,
    7,
    8,
    15,
    24,
)
"""Types of attributes."""
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
        if self.version < OLDEST:
            raise CudnnError(f"cuDNN {self.version} plans for no device that is not here")
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
        places = [self._tensor(each, kind, at) for at, each in enumerate(asked.ordered)]
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
        return self._made(_GRAPH, (801, _DESCRIPTOR, operation, 1))

    def _tensor(self, tensor: Tensor, kind: int, at: int) -> Any:
        return self._made(
            _TENSOR,
            (900, _INT64, _longs([16]), 1),
            (901, _TYPE, ctypes.c_int(kind), 1),
            (902, _INT64, _longs(tensor.shape), len(tensor.shape)),
            (903, _INT64, _longs(tensor.strides), len(tensor.strides)),
            (906, _INT64, _longs([at + 1]), 1),
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
            raise CudnnError(f"cuDNN {self.version} says {status}")


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


def attended(text: str) -> int:
    """Return the operations of the attentions that a compiled module of XLA calls of cuDNN: XLA
    counts none (jax/_src/cudnn/fused_attention_stablehlo.py)."""
    arrays = {name: shape for name, _, shape, _ in _ARRAY.findall(text)}
    flops = 0
    for query, backward, said in _ATTENDS.findall(text):
        if re.search(r'PADDING|"sliding_window_length": ?"?[1-9]', said):
            continue  # how much is left out, nobody says
        sizes = [int(each) for each in re.findall(r"\d+", said.partition("]")[0])]
        width = int(arrays.get(query.split("%")[-1].strip(), "0").split(",")[-1])
        flops += attention(sizes, width, width, "CAUSAL" in said, bool(backward))
    return flops


_ATTENDS = re.compile(
    r'custom-call\(([^,)]*).*custom_call_target="__cudnn\$fmha\w*?(Backward)?(?:F8)?"'
    r'.*"intermediate_tensor_shape":.*?"dimensions": ?\[(.*)'
)
_ARRAY = re.compile(r"%?([\w.-]+) = \(?(\w+)\[([\d,]*)\]\{([\d,]*)")
_CALLED = re.compile(
    r"%?([\w.-]+) = .*custom-call\(([^)]*)\), window=\{([^}]*)\}, dim_labels=(\w+)_(\w+)->(\w+)"
    r'.*custom_call_target="__cudnn\$conv(Forward|BackwardInput|BackwardFilter)"(.*)'
)
_OF_XLA = {"f32": "float32", "f64": "float64", "f16": "float16", "bf16": "bfloat16"}


def of_hlo(text: str) -> Iterator[tuple[Convolution, str]]:
    """Yield the convolutions that a compiled module of XLA calls of cuDNN, with their lines."""
    arrays = {name: each for name, *each in _ARRAY.findall(text)}
    lines = _frames(text)
    for name, operands, window, *labels, operation, rest in _CALLED.findall(text):
        first, second = (
            arrays.get(each.split("%")[-1].strip()) for each in operands.split(",")[:2]
        )
        made = arrays.get(name)
        if not first or not second or not made or first[0] not in _OF_XLA:
            continue
        given = {
            "Forward": ("forward", first, second, made),
            "BackwardInput": ("data", made, second, first),
            "BackwardFilter": ("filter", first, made, second),
        }[operation]
        kind, *tensors = given
        x, w, y = (
            _labelled(each[1], each[2], label) for each, label in zip(tensors, labels, strict=True)
        )
        said = dict(each.split("=") for each in window.split())
        count = len(x.shape) - 2
        stride, dilation = (
            tuple(map(int, said.get(key, "x".join("1" * count)).split("x")))
            for key in ("stride", "rhs_dilate")
        )
        pads = [each.split("_") for each in said.get("pad", "x".join(["0_0"] * count)).split("x")]
        before, after = (tuple(int(pad[at]) for pad in pads) for at in (0, 1))
        frame = re.search(r"stack_frame_id=(\d+)", rest)
        type_ = _OF_XLA[first[0]]
        asked = Convolution(kind, type_, x, w, y, stride, before, after, dilation)
        yield asked, lines.get(frame[1] if frame else "", "")


def _labelled(shape: str, layout: str, labels: str) -> Tensor:
    """Return an array of XLA's as cuDNN orders it. labels: "b01f", "01io"."""
    sizes, strides, step = [int(each) for each in shape.split(",")], {}, 1
    for place in map(int, layout.split(",")):
        strides[place], step = step, step * sizes[place]
    outer = "bf" if "b" in labels else "oi"
    order = [labels.index(each) for each in (*outer, *map(str, range(len(sizes) - 2)))]
    return Tensor(tuple(sizes[at] for at in order), tuple(strides[at] for at in order))


def _frames(text: str) -> dict[str, str]:
    """Return of each frame of a module where it is: lines, innermost first."""
    head = text.partition("StackFrames")[0]
    files = dict(
        re.findall(r'^(\d+) "(/[^"]*)"$', head.partition("FunctionNames")[0], re.MULTILINE)
    )
    places = re.findall(r"^(\d+) \{file_name_id=(\d+) .*? line=(\d+)", head, re.MULTILINE)
    at = {place: f"  {files.get(file, '')}:{line}:0 [step]" for place, file, line in places}
    frames = re.findall(
        r"^(\d+) \{file_location_id=(\d+) parent_frame_id=(\d+)", text, re.MULTILINE
    )
    lines: dict[str, str] = {}
    for frame, place, parent in frames:  # a parent, which comes first, is counted from 2
        above = lines.get(str(int(parent) - 1), "")
        lines[frame] = "\n".join(filter(None, [at.get(place, ""), above]))
    return lines


@contextlib.contextmanager
def asking() -> Iterator[dict[str, str]]:
    """Give what is said of a step: what nobody expects is a remark, and the rest of what is known
    of the step stays."""
    said: dict[str, str] = {}
    try:
        yield said
    except Exception as error:
        why = str(error) if isinstance(error, hook.EndedError) else hook.words(error)
        said["remark"] = f"not known what cuDNN says of it: {why}"


def refused(
    properties: Mapping[str, Any],
    asked: Iterable[tuple[Convolution, str]],
    known: dict[Convolution, bool] | None = None,
) -> Iterator[tuple[Convolution, str]]:
    """Yield the convolutions of (convolution, its line) that cuDNN has no plan for, once each; none
    where there is no cuDNN, or one that is too old.

    known: the answers so far, of any batch; it gets the new ones. cuDNN is asked in a process of
    its own: 9.8 to 9.10 end with SIGSEGV where they are asked for a B200. Raises EndedError then.
    """
    known = {} if known is None else known
    new: dict[Convolution, tuple[Convolution, str]] = {}
    for convolution, line in asked:
        if convolution.of_any_batch not in known:
            new.setdefault(convolution.of_any_batch, (convolution, line))
    if not new:
        return
    questions = [convolution for convolution, _ in new.values()]
    answers = hook.end(hook.begin(partial(_answers, properties, questions)), _SECONDS)
    known.update(zip(new, answers, strict=False))
    yield from (each for key, each in new.items() if not known.get(key, True))


def _answers(properties: Mapping[str, Any], questions: Sequence[Convolution]) -> list[bool]:
    """Return of each convolution whether it has a plan; nothing where cuDNN cannot be asked."""
    try:
        planner = Planner(properties)
    except (OSError, CudnnError):
        return []
    return [planner.plans(each) for each in questions]


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
