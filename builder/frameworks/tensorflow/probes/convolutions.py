"""The convolutions that TensorFlow's own kernels give to cuDNN on a GPU, of a traced function.

A kernel does not give what the graph has (tensorflow/core/kernels/conv_ops_impl.h, conv_ops_gpu.cc,
conv_grad_*_ops.cc, depthwise_conv_op.cc): channels are the last in memory where tensor cores have
it so, bfloat16 becomes float32 before 8.0, padding that differs on two sides becomes a part of the
picture, and most depthwise ones are TensorFlow's own.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

from builder.frameworks import cudnn

_CONVOLVES = re.compile(r"(Conv[23]D|DepthwiseConv2dNative)(?:Backprop(Input|Filter))?(?:V2)?$")
_KINDS = {None: ("forward", 2), "Input": ("data", 0), "Filter": ("filter", 1)}
"""What an operation is, and the place of what it makes among picture, filter and output."""
_CHANNELS_LAST = {"float16": (7, 0), "float32": (8, 0), "bfloat16": (8, 0)}
"""From which capability on they are (ComputeInNhwcEnabled)."""


def of_graph(graph: Any, capability: str) -> Iterator[tuple[cudnn.Convolution | None, str]]:
    """Yield the convolutions of a graph and of the functions that it calls, with the program's
    lines; None for one whose sizes the graph does not know."""
    for operation, name, kind in operations(graph):
        made = operation.outputs[0]
        kept = any(made is each for each in operation.graph.outputs)
        if not kept and not made.consumers():
            continue  # the gradient of a picture, which nobody needs
        for each in _given(operation, name, kind, tuple(map(int, capability.split(".")))):
            yield each, cudnn.frames(operation.traceback)


def operations(graph: Any) -> Iterator[tuple[Any, str, str | None]]:
    """Yield the operations that convolve, of a graph and of the functions that it calls."""
    graphs = [graph]
    for each in graphs:  # it grows
        for operation in each.get_operations():
            if matched := _CONVOLVES.match(operation.type):
                yield operation, matched[1], matched[2]
        called = (function.graph for function in each._functions.values())
        graphs += [new for new in called if all(new is not old for old in graphs)]


def _given(
    operation: Any, name: str, kind: str | None, capability: tuple[int, ...]
) -> Iterator[cudnn.Convolution | None]:
    """Yield what an operation gives to cuDNN."""
    (asked, at), (made, *_), tensors = _KINDS[kind], operation.outputs, [*operation.inputs]
    tensors[at : at + 1] = [made]  # of a gradient it is in the place of its sizes
    type_, order = made.dtype.name, operation.get_attr("data_format").decode()
    space = [at for at, letter in enumerate(order) if letter not in "NC"]
    picture = [order.index("N"), order.index("C"), *space]
    places = (picture, [-1, -2, *range(len(space))], picture)
    sizes: Any = (
        [each.shape[at] for at in order] if each.shape.rank else [None, None]
        for each, order in zip(tensors, places)  # noqa: B905 - Python 3.8
    )
    x, w, y = sizes
    x[0], y[0] = x[0] or 1, y[0] or 1  # any batch
    if type_ not in cudnn.TYPES:
        return
    if None in (*x, *w, *y):
        yield None
        return
    stride, dilation = (
        tuple(operation.get_attr(key)[at] for at in space) for key in ("strides", "dilations")
    )
    if name.startswith("Depthwise"):
        if not _is_cudnns(asked, type_, w, stride[0]):
            return
        w = [w[0] * w[1], 1, *w[2:]]
    last = order.endswith("C") and capability >= _CHANNELS_LAST.get(type_, (99,))
    type_ = "float32" if type_ == "bfloat16" and capability < (8, 0) else type_
    pads = list(map(_padding, [operation] * len(space), space, x[2:], w[2:], stride, dilation))
    x[2:] = [size + abs(low - high) for size, (low, high) in zip(x[2:], pads)]  # noqa: B905
    common = tuple(map(min, pads))
    x, w, y = (cudnn.laid_out(each, last) for each in (x, w, y))
    yield cudnn.Convolution(asked, type_, x, w, y, stride, common, common, dilation)


def _is_cudnns(kind: str, type_: str, w: Sequence[int], stride: int) -> bool:
    """Tell whether a depthwise convolution is cuDNN's: use_cudnn_grouped_conv_ and
    IsCudnnSupportedFilterSize. w: multiplier, channels, space."""
    square = w[2] == w[3] and w[2] in (1, 3, 5, 7) and w[0] == 1
    return w[1] == 1 or (type_ == "float16" and square and (stride < 3 or kind == "filter"))


def _padding(
    operation: Any, place: int, size: int, window: int, stride: int, dilation: int
) -> tuple[int, int]:
    """Return how much of a dimension is added before and after it."""
    how = operation.get_attr("padding").decode()
    if how == "EXPLICIT":
        before, after = operation.get_attr("explicit_paddings")[2 * place : 2 * place + 2]
        return int(before), int(after)
    reach = (window - 1) * dilation + 1
    whole = max((-(-size // stride) - 1) * stride + reach - size, 0) if how == "SAME" else 0
    return whole // 2, whole - whole // 2
