"""What TensorFlow's own kernels give to cuDNN of a traced graph. Graphs of the same form stand in
their place; test_compile.py traces programs in the image."""

from __future__ import annotations

from traceback import FrameSummary
from types import SimpleNamespace
from typing import Any

import pytest

from builder.frameworks.cudnn import Convolution, Tensor
from builder.frameworks.tensorflow.probes import convolutions

LINE = "  /app/train.py:7:0 [step]"


class Shape(tuple[Any, ...]):
    """A shape, None where it is not known; `rank` is 0 where nothing is."""

    rank = property(len)


def tensor(*shape: int | None, used: bool = True, kind: str = "float32") -> Any:
    used_by = lambda: [object()] if used else []  # noqa: E731
    return SimpleNamespace(shape=Shape(shape), dtype=SimpleNamespace(name=kind), consumers=used_by)


def operation(name: str, inputs: list[Any], made: Any, **attributes: Any) -> Any:
    sides = len(made.shape) - 2
    known = {
        "data_format": b"NHWC" if sides == 2 else b"NDHWC",
        "padding": b"SAME",
        "strides": [1] * (sides + 2),
        "dilations": [1] * (sides + 2),
        **attributes,
    }
    stack = [FrameSummary("/app/train.py", 7, "step")]
    return SimpleNamespace(
        type=name, inputs=inputs, outputs=[made], get_attr=known.__getitem__, traceback=stack
    )


def graph(*operations: Any, called: Any = None, outputs: Any = ()) -> Any:
    functions = {"inner": SimpleNamespace(graph=called)} if called else {}
    made = SimpleNamespace(
        get_operations=lambda: operations, _functions=functions, outputs=[*outputs]
    )
    for each in operations:
        each.graph = made
    return made


def asked(*operations: Any, capability: str = "7.0", **more: Any) -> list[Convolution | None]:
    return [each for each, _ in convolutions.of_graph(graph(*operations, **more), capability)]


X, W, Y = tensor(48, 32, 32, 8), tensor(3, 3, 8, 16), tensor(48, 32, 32, 16)
SIZES = tensor(4)


def test_a_convolution_and_its_gradients_are_what_cudnn_is_asked() -> None:
    given = graph(
        operation("Conv2D", [X, W], Y),
        operation("Conv2DBackpropInput", [SIZES, W, Y], X),
        operation("Conv2DBackpropFilter", [X, SIZES, Y], W),
        operation("MaxPool", [X], X),
    )
    (forward, line), (data, _), (filter_, _) = convolutions.of_graph(given, "7.0")
    assert line == LINE
    assert forward == Convolution(
        "forward",
        "float32",
        Tensor((48, 8, 32, 32), (8192, 1024, 32, 1)),
        Tensor((16, 8, 3, 3), (72, 9, 3, 1)),
        Tensor((48, 16, 32, 32), (16384, 1024, 32, 1)),
        *[(1, 1)] * 4,
    )
    assert data and filter_ and (data.kind, filter_.kind) == ("data", "filter")
    assert (data.x, data.w, data.y) == (filter_.x, filter_.w, filter_.y) == (
        forward.x, forward.w, forward.y,
    )  # fmt: skip


def test_padding_that_differs_on_two_sides_becomes_a_part_of_the_picture() -> None:
    """A window of 3 over 32 in steps of 2 wants one more at the end; VALID wants none."""
    strided = operation("Conv2D", [X, W], tensor(48, 16, 16, 16), strides=[1, 2, 2, 1])
    (same,) = asked(strided)
    assert same and (same.x.shape, same.before, same.after) == ((48, 8, 33, 33), (0, 0), (0, 0))
    (valid,) = asked(operation("Conv2D", [X, W], tensor(48, 30, 30, 16), padding=b"VALID"))
    assert valid and (valid.x.shape, valid.before) == ((48, 8, 32, 32), (0, 0))
    told = {"padding": b"EXPLICIT", "explicit_paddings": [0, 0, 2, 1, 3, 3, 0, 0]}
    (explicit,) = asked(operation("Conv2D", [X, W], tensor(48, 33, 36, 16), **told))
    assert explicit and (explicit.x.shape[2:], explicit.before) == ((33, 32), (1, 3))
    wide = operation("Conv2D", [X, W], Y, dilations=[1, 2, 2, 1])
    assert [each.before for each in asked(wide) if each] == [(2, 2)]


@pytest.mark.parametrize(
    ("kind", "capability", "asks", "last"),
    [
        ("float16", "7.0", "float16", True),
        ("float32", "7.5", "float32", False),
        ("float32", "8.0", "float32", True),
        ("bfloat16", "7.5", "float32", False),
        ("bfloat16", "9.0", "bfloat16", True),
        ("float64", "9.0", "float64", False),
    ],
)
def test_the_card_decides_on_the_type_and_on_the_layout(
    kind: str, capability: str, asks: str, last: bool
) -> None:
    made = tensor(*Y.shape, kind=kind)
    (each,) = asked(operation("Conv2D", [X, W], made), capability=capability)
    assert each and (each.type, each.x.strides[1] == 1) == (asks, last)
    first = tensor(48, 16, 32, 32, kind=kind)
    given = operation("Conv2D", [tensor(48, 8, 32, 32), W], first, data_format=b"NCHW")
    (each,) = asked(given, capability=capability)
    assert each and each.x.shape == (48, 8, 32, 32) and each.x.strides[1] != 1


@pytest.mark.parametrize(
    ("kind", "side", "multiplier", "channels", "stride", "is_cudnns"),
    [
        ("float16", 3, 1, 8, 1, True),
        ("float16", 4, 1, 8, 1, False),
        ("float16", 3, 2, 8, 1, False),
        ("float16", 3, 1, 8, 3, False),
        ("float32", 3, 1, 8, 1, False),
        ("float32", 3, 16, 1, 1, True),
    ],
)
def test_most_depthwise_ones_are_tensorflows_own(
    kind: str, side: int, multiplier: int, channels: int, stride: int, is_cudnns: bool
) -> None:
    x, w = tensor(48, 32, 32, channels), tensor(side, side, channels, multiplier)
    made = tensor(48, -(-32 // stride), -(-32 // stride), channels * multiplier, kind=kind)
    strides = [1, stride, stride, 1]
    found = asked(operation("DepthwiseConv2dNative", [x, w], made, strides=strides))
    shapes = [each.w.shape for each in found if each]
    assert shapes == [(channels * multiplier, 1, side, side)] * is_cudnns


def test_volumes_and_groups_are_asked_with_their_sizes() -> None:
    volume, window = tensor(4, 9, 10, 11, 8), tensor(3, 3, 3, 8, 16)
    made = tensor(4, 9, 10, 11, 16)
    (each,) = asked(operation("Conv3DBackpropFilterV2", [volume, SIZES, made], window))
    assert each and each.w.shape == (16, 8, 3, 3, 3) and each.before == (1, 1, 1)
    (grouped,) = asked(operation("Conv2D", [X, tensor(3, 3, 2, 16)], Y))
    assert grouped and grouped.w.shape == (16, 2, 3, 3)


def test_what_nobody_needs_is_not_asked_and_what_a_function_calls_is() -> None:
    unused = operation("Conv2DBackpropInput", [SIZES, W, Y], tensor(48, 32, 32, 8, used=False))
    inner = graph(operation("Conv2D", [X, W], Y))
    assert len(asked(unused, called=inner)) == 1
    assert len(asked(unused, outputs=unused.outputs)) == 1


def test_sizes_that_the_graph_does_not_know_are_not_asked_but_a_batch_is_any() -> None:
    (each,) = asked(operation("Conv2D", [tensor(None, 32, 32, 8), W], tensor(None, 32, 32, 16)))
    assert each and each.x.shape == (1, 8, 32, 32)
    moving = operation("Conv2D", [tensor(48, None, 32, 8), W], tensor(48, None, 32, 16))
    assert asked(moving) == [None]
    assert asked(operation("Conv2D", [tensor(), W], Y)) == [None]
    assert asked(operation("Conv2D", [X, W], tensor(*Y.shape, kind="int32"))) == []
