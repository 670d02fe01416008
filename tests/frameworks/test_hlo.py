"""What is read of a compiled module of XLA: the calls of libraries, and the convolutions among
them. The fields have the numbers of xla/service/hlo.proto and xla/xla_data.proto."""

from __future__ import annotations

from typing import Any

import pytest

from builder.frameworks import hlo
from builder.frameworks.cudnn import Convolution, Tensor
from builder.frameworks.pjrt import Message

BF16, F8, U8 = 16, 20, 6


def number(value: int) -> bytes:
    """A number as a protocol buffer has it, which writes a negative one in ten bytes."""
    value, found = value % (1 << 64), bytearray()
    while value > 127:
        found.append(value & 127 | 128)
        value >>= 7
    return bytes([*found, value])


def message(fields: dict[int, Any]) -> bytes:
    """A message: numbers, texts, bytes, messages, and lists of them. A tuple has numbers that are
    written together."""
    found = b""
    for key, values in fields.items():
        for value in values if isinstance(values, list) else [values]:
            if isinstance(value, int):
                found += number(key << 3) + number(value) if value else b""
                continue
            content = message(value) if isinstance(value, dict) else value
            content = b"".join(map(number, value)) if isinstance(value, tuple) else content
            content = value.encode() if isinstance(value, str) else content
            found += number(key << 3 | 2) + number(len(content)) + content
    return found


def array(*shape: int, kind: int = BF16) -> dict[int, Any]:
    """A shape whose last dimension lies together."""
    return {2: kind, 3: shape, 5: {1: tuple(reversed(range(len(shape))))}}


def call(at: int, target: str, made: Any, of: tuple[int, ...], *sides: Any, frame: int = 0) -> Any:
    """A call with channels last; sides: of each dimension stride, padding and dilation."""
    window = [{1: 3, 2: s, 3: low, 4: high, 5: dilation, 6: 1} for s, low, high, dilation in sides]
    # b01f_o01i->b01f
    labels = {7: 0, 8: 3, 11: (1, 2), 3: 3, 4: 0, 6: (1, 2), 9: 0, 10: 3, 12: (1, 2)}
    return {
        2: "custom-call", 3: {2: 13, 4: [made, array(0, kind=U8)]}, 7: {15: frame},
        15: {1: window}, 16: labels, 28: target, 35: at, 36: of, 43: CONFIGURATION,
    }  # fmt: skip


CONFIGURATION = '{"cudnn_conv_backend_config":{"activation_mode":"kRelu","conv_result_scale":1}}'
SIDE = (2, 0, 1, 1)
PICTURE, FILTER, MADE = array(48, 33, 33, 3), array(32, 3, 3, 3), array(48, 16, 16, 32)
INSTRUCTIONS = [
    {2: "parameter", 3: PICTURE, 35: 1},
    {2: "parameter", 3: FILTER, 35: 2},
    call(3, "__cudnn$convBiasActivationForward", MADE, (1, 2, 2), SIDE, SIDE, frame=2),
    {2: "get-tuple-element", 3: MADE, 35: 4, 36: [3]},
    call(5, "__cudnn$convBackwardFilter", FILTER, (1, 4), SIDE, (2, 0, 0, 1)),
    call(6, "__cudnn$convBackwardInput", PICTURE, (4, 2), SIDE, SIDE),
    {2: "custom-call", 3: FILTER, 28: "Sharding", 35: 7, 36: [2]},
]
FRAMES = {
    1: ["/app/train.py", "/opt/venv/lib/python3.13/site-packages/flax/nn.py"],
    3: [{1: 1, 3: 18}, {1: 2, 3: 7}],
    4: [{1: 1}, {1: 2, 2: 1}],
}
MODULE = message({1: "jit_step", 3: [{1: "other"}, {1: "main", 2: INSTRUCTIONS}], 17: FRAMES})
X = Tensor((48, 3, 33, 33), (3267, 1, 99, 3))
W = Tensor((32, 3, 3, 3), (27, 1, 9, 3))
Y = Tensor((48, 32, 16, 16), (8192, 1, 512, 32))


def test_convolutions_are_read_with_sizes_strides_and_the_programs_lines() -> None:
    (first, lines), (second, unknown), (third, _) = hlo.convolutions(hlo.calls(MODULE))
    sides = (2, 2), (0, 0), (1, 1), (1, 1)
    assert first == Convolution("forward", "bfloat16", X, W, Y, *sides, fused="kRelu")
    assert lines.splitlines() == [
        "  /opt/venv/lib/python3.13/site-packages/flax/nn.py:7:0 [step]",
        "  /app/train.py:18:0 [step]",
    ]
    assert (second.kind, second.x, second.w, second.y) == ("filter", X, W, Y)
    assert second.after == (1, 0) and unknown == ""
    assert (third.kind, third.x, third.w, third.y) == ("data", X, W, Y)


@pytest.mark.parametrize(("target", "fused"), [("Forward", ""), ("ForwardGraph", "ForwardGraph")])
def test_a_graph_of_its_own_is_told_from_a_convolution(target: str, fused: str) -> None:
    instructions = [*INSTRUCTIONS[:2], call(3, f"__cudnn$conv{target}", MADE, (1, 2), SIDE, SIDE)]
    ((each, _),) = hlo.convolutions(hlo.calls(message({3: {2: instructions}})))
    assert (each.kind, each.fused) == ("forward", fused)


def test_calls_of_libraries_are_counted_by_type() -> None:
    products = [
        {3: array(8, 8, kind=F8), 35: 1},
        *({3: array(8, 8), 28: "__cublas$lt$matmul$f8", 35: at, 36: [1, 1]} for at in (2, 3)),
    ]
    calls = hlo.calls(MODULE) + hlo.calls(message({3: {2: products}}))
    assert hlo.counted(calls) == {
        "__cudnn$convBiasActivationForward": {"bfloat16": 1},
        "__cudnn$convBackwardFilter": {"bfloat16": 1},
        "__cudnn$convBackwardInput": {"bfloat16": 1},
        "__cublas$lt$matmul$f8": {"float8": 2},
    }


BETWEEN = """{"cudnn_fmha_backend_config": {"fmha_scale": 1, "intermediate_tensor_shape": \
{"element_type": "F16", "dimensions": ["48", "4", "64", "128"], "layout": {"minor_to_major": \
["3"]}}, "mask_type": "MASK"}}"""


@pytest.mark.parametrize(
    ("name", "mask", "flops"),
    [
        ("", "NO_MASK", 2 * 2 * 48 * 4 * 64 * 128 * 32),
        ("Dropout", "CAUSAL", 2 * 2 * 48 * 4 * (64 * 65 // 2) * 32),
        ("Backward", "NO_MASK", 5 * 2 * 48 * 4 * 64 * 128 * 32),
        ("", "PADDING", 0),  # how much of it is padding, nobody says
    ],
)
def test_operations_of_a_fused_attention_are_counted(name: str, mask: str, flops: int) -> None:
    told, target = BETWEEN.replace("MASK", mask), f"__cudnn$fmhaSoftmax{name}"
    query = {3: array(48, 64, 4, 32), 35: 1}
    attends = {3: array(48, 4, 64, 32), 28: target, 35: 2, 36: [1, 1, 1], 43: told}
    assert hlo.attended(hlo.calls(message({3: {2: [query, attends]}}))) == flops
    assert hlo.attended(hlo.calls(MODULE)) == 0


@pytest.mark.parametrize("numbers", [(1, 300, -1), [1, 300, -1]], ids=["together", "each"])
def test_numbers_are_read_as_they_are_written(numbers: object) -> None:
    assert Message(message({3: numbers})).numbers(3) == (1, 300, -1)


def test_what_is_not_written_is_nothing() -> None:
    empty = Message(message({1: 7, 2: b"\xff"}) + b"\x1d\0\0\0\0\x21" + bytes(8))
    assert (empty.number(9), empty.text(9), empty.numbers(9), empty.each(9)) == (0, "", (), [])
    assert empty.number(1) == 7 and len(empty.fields[3][0]) == 4 and len(empty.fields[4][0]) == 8
