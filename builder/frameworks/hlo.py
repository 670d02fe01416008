"""What a compiled module of XLA calls of NVIDIA's libraries, and with what.

It is read from a serialized HloModuleProto (xla/service/hlo.proto, xla/xla_data.proto), whose
numbers stay: JAX brings no classes of them. It is copied into a container beside a hook of the
check `compile`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from builder.frameworks import hook
from builder.frameworks.cudnn import Convolution, Tensor, attention
from builder.frameworks.pjrt import Message

_TYPES = (
    "invalid pred s8 s16 s32 s64 u8 u16 u32 u64 f16 f32 f64 tuple opaque c64 bf16 token c128 f8e5m2"
    " f8e4m3fn s4 u4 f8e4m3b11fnuz f8e5m2fnuz f8e4m3fnuz s2 u2 f8e4m3 f8e3m4"
)
"""PrimitiveType, in the order of its numbers."""
_CONVOLVES = re.compile(
    r"__cudnn\$conv(BiasActivationForward|Forward\w*|Backward(?:Input|Filter))$"
)
_ATTENDS = re.compile(r"__cudnn\$fmha\w*?(Backward)?(?:F8)?$")
_BETWEEN = re.compile(r'"intermediate_tensor_shape":.*?"dimensions": ?\[([^]]*)\]')
"""Of what is between the two products: batch, heads, rows of queries and of keys."""
_LEFT_OUT = r'PADDING|"sliding_window_length": ?"?[1-9]'
"""Masks of which nobody says how much they leave out."""
_ACTIVATION = re.compile(r'"activation_mode":"(\w+)"')
_OPERATIONS = {"BackwardInput": "data", "BackwardFilter": "filter"}
_LABELS = ((7, 8, 11), (4, 3, 6), (9, 10, 12))
"""ConvolutionDimensionNumbers of input, filter and output: batch (of a filter, its output),
features, space."""


@dataclass(frozen=True)
class Call:
    """A call of a library in a compiled module."""

    target: str
    """`__cudnn$convForward`, `__cublas$gemm`."""
    instruction: Message
    operands: tuple[Message, ...]
    """The shapes that it gets (ShapeProto)."""
    lines: str
    """Where the program makes it, innermost first; "" where that is not known."""

    @property
    def type(self) -> str:
        """What it calculates in: the type of the first operand, as our tables call it."""
        return kind(self.operands[0].number(2)) if self.operands else ""


def kind(number: int) -> str:
    """Return a PrimitiveType as our tables call it."""
    names = _TYPES.split()
    return hook.kind_of(names[number] if number < len(names) else f"type {number}")


def calls(content: bytes) -> list[Call]:
    """Return the calls of NVIDIA's libraries in a serialized module."""
    module = Message(content)
    frames, found = _frames(module.one(17)), []
    for computation in module.each(3):
        instructions = computation.each(2)
        shapes = {each.number(35): each.one(3) for each in instructions}
        for each in instructions:
            if (target := each.text(28)).startswith("__cu"):
                operands = tuple(shapes[at] for at in each.numbers(36))
                lines = frames.get(each.one(7).number(15), "")
                found.append(Call(target, each, operands, lines))
    return found


def counted(called: Iterable[Call]) -> dict[str, dict[str, int]]:
    """Return how often each library is called, by the type that it calculates in:
    {"__cudnn$convForward": {"bfloat16": 2}}."""
    found: dict[str, dict[str, int]] = {}
    for each in called:
        kinds = found.setdefault(each.target, {})
        kinds[each.type] = kinds.get(each.type, 0) + 1
    return found


def convolutions(called: Iterable[Call]) -> Iterator[tuple[Convolution, str]]:
    """Yield the convolutions among calls, with their lines."""
    for each in called:
        if matched := _CONVOLVES.match(each.target):
            yield _convolution(matched[1], each), each.lines


def attended(called: Iterable[Call]) -> int:
    """Return the operations of the attentions among calls: XLA counts none
    (jax/_src/cudnn/fused_attention_stablehlo.py)."""
    flops = 0
    for each in called:
        matched, told = _ATTENDS.match(each.target), each.instruction.text(43)
        sizes = _BETWEEN.search(told)
        if not matched or not sizes or re.search(_LEFT_OUT, told):
            continue
        width, shape = each.operands[0].numbers(3)[-1], map(int, re.findall(r"\d+", sizes[1]))
        flops += attention([*shape], width, width, "CAUSAL" in told, bool(matched[1]))
    return flops


def _convolution(name: str, call: Call) -> Convolution:
    kind, fused = _OPERATIONS.get(name, "forward"), ""
    if name.startswith("Bias"):
        told = _ACTIVATION.search(call.instruction.text(43))
        fused = told[1] if told else "kNone"
    elif name not in ("Forward", *_OPERATIONS):
        fused = name  # a graph of its own
    first, second = call.operands[:2]
    made = call.instruction.one(3)
    made = (made.each(4) or [made])[0]  # with its workspace
    given = {
        "forward": (first, second, made),
        "data": (made, second, first),
        "filter": (first, made, second),
    }[kind]
    labels = call.instruction.one(16)
    places = [
        (labels.number(outer), labels.number(inner), *labels.numbers(space))
        for outer, inner, space in _LABELS
    ]
    window = call.instruction.one(15).each(1)
    stride, before, after, dilation = (
        tuple(each.number(field) for each in window) for field in (2, 3, 4, 5)
    )
    x, w, y = map(_tensor, given, places)
    return Convolution(kind, call.type, x, w, y, stride, before, after, dilation, fused)


def _tensor(shape: Message, order: Sequence[int]) -> Tensor:
    """Return an array as cuDNN orders it. order: places of its dimensions."""
    sizes, strides, step = shape.numbers(3), {}, 1
    for place in shape.one(5).numbers(1):
        strides[place], step = step, step * sizes[place]
    return Tensor(tuple(sizes[at] for at in order), tuple(strides[at] for at in order))


def _frames(index: Message) -> dict[int, str]:
    """Return of each frame of a module (StackFrameIndexProto) where it is: lines, innermost
    first."""
    files = [bytes(each).decode(errors="replace") for each in index.fields.get(1, ())]
    places = [f"  {files[each.number(1) - 1]}:{each.number(3)}:0 [step]" for each in index.each(3)]
    lines = {0: ""}
    for number, each in enumerate(index.each(4), 1):
        above = lines.get(each.number(2), "")
        lines[number] = "\n".join(filter(None, [places[each.number(1) - 1], above]))
    return lines
