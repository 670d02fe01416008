"""What cuDNN is asked of convolutions: how they stand in XLA's text, and what its answers mean. A
library that answers as it does stands in its place; docs/compile.md says what the real one said."""

# Names and arguments are the library's.
# ruff: noqa: N802
from __future__ import annotations

import ctypes
import os
import signal
from dataclasses import replace
from typing import Any

import pytest

from builder.frameworks import cudnn, hook
from builder.frameworks.cudnn import Convolution, CudnnError, Planner, Tensor

HLO = """\
HloModule jit_step

FileNames
1 "/app/train.py"
2 "/opt/venv/lib/python3.13/site-packages/flax/nn.py"

FunctionNames
1 "step"
2 "conv"

FileLocations
1 {file_name_id=1 function_name_id=1 line=18 end_line=18 column=6 end_column=96}
2 {file_name_id=2 function_name_id=2 line=7 end_line=7 column=6 end_column=9}

StackFrames
1 {file_location_id=1 parent_frame_id=1}
2 {file_location_id=2 parent_frame_id=2}

ENTRY %main (x: bf16[48,33,33,3], w: bf16[32,3,3,3]) -> bf16[48,16,16,32] {
  %x = bf16[48,33,33,3]{3,2,1,0} parameter(0)
  %w = bf16[32,3,3,3]{3,2,1,0} parameter(1)
  %conv.1 = (bf16[48,16,16,32]{3,2,1,0}, u8[0]{0}) custom-call(%x, %w), window={size=3x3 \
stride=2x2 pad=0_1x0_1}, dim_labels=b01f_o01i->b01f, custom_call_target="__cudnn$convForward", \
metadata={op_name="jit(step)/conv" stack_frame_id=2}, backend_config={}
  %y = bf16[48,16,16,32]{3,2,1,0} get-tuple-element(%conv.1), index=0
  %conv.2 = (bf16[32,3,3,3]{3,2,1,0}, u8[0]{0}) custom-call(%x, %y), window={size=3x3 stride=2x2 \
rhs_dilate=1x1}, dim_labels=b01f_o01i->b01f, custom_call_target="__cudnn$convBackwardFilter", \
metadata={op_name="jit(step)/conv"}, backend_config={}
}
"""
X = Tensor((48, 3, 33, 33), (3267, 1, 99, 3))
W = Tensor((32, 3, 3, 3), (27, 1, 9, 3))
Y = Tensor((48, 32, 16, 16), (8192, 1, 512, 32))
FORWARD = Convolution("forward", "bfloat16", X, W, Y, (2, 2), (0, 0), (1, 1), (1, 1))


def test_convolutions_are_read_with_sizes_strides_and_the_programs_lines() -> None:
    (first, lines), (second, unknown) = cudnn.of_hlo(HLO)
    assert first == FORWARD
    assert lines.splitlines() == [
        "  /opt/venv/lib/python3.13/site-packages/flax/nn.py:7:0 [step]",
        "  /app/train.py:18:0 [step]",
    ]
    assert (second.kind, second.x, second.w, second.y) == ("filter", X, W, Y)
    assert second.after == (0, 0) and unknown == ""
    assert str(first) == "a convolution in bfloat16 (forward) of 48 x 3 x 33 x 33 by 32 x 3 x 3 x 3"


ATTENTION = """\
  %q = f16[48,64,4,32]{3,2,1,0} parameter(0)
  %a = (f16[48,4,64,32]{3,1,2,0}, u8[0]{0}) custom-call(%q, %k, %v), \
custom_call_target="__cudnn$fmhaSoftmaxNAME", backend_config={"cudnn_fmha_backend_config": \
{"fmha_scale": 1, "intermediate_tensor_shape": {"element_type": "F16", "dimensions": ["48", "4", \
"64", "128"], "layout": {"minor_to_major": ["3"]}}, "mask_type": "MASK"}}
"""


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
    assert cudnn.attended(ATTENTION.replace("NAME", name).replace("MASK", mask)) == flops
    assert cudnn.attended(HLO) == 0


class Library:
    """cudnnBackend*: every descriptor has a number, which names its kind."""

    def __init__(self, version: int, named: int, builds: int) -> None:
        self.version, self.named, self.builds = version, named, builds
        self.kinds: list[int] = []
        self.types: list[int] = []
        self.cudnnGetVersion = lambda: version  # a function, which is told its type

    def cudnnBackendCreateDescriptor(self, kind: int, made: Any) -> int:
        self.kinds.append(kind)
        made._obj.value = len(self.kinds)
        return 0

    def cudnnBackendSetAttribute(self, _of: Any, name: int, _kind: int, _n: Any, value: Any) -> int:
        if name == 901:
            self.types.append(value._obj.value)
        return 0

    def cudnnBackendFinalize(self, of: ctypes.c_void_p) -> int:
        kind = self.kinds[(of.value or 0) - 1]
        if kind == 5:  # a plan
            self.builds -= 1
            return 0 if self.builds == 0 else 3000
        return 3000 if kind == 4 and self.named == 0 else 0

    def cudnnBackendGetAttribute(self, *given: Any) -> int:
        given[4]._obj.value = self.named
        return 0


def asked(
    monkeypatch: pytest.MonkeyPatch, named: int, builds: int, version: int = 91002
) -> Planner:
    library = Library(version, named, builds)
    monkeypatch.setattr(cudnn, "_opened", lambda: library)
    return Planner({"deviceName": "V100"})


@pytest.mark.parametrize(
    ("named", "builds", "plans"),
    [
        (3, 1, True),
        (3, 3, True),
        (1, 2, True),  # what the fallback names
        (3, 99, False),  # none can be built
        (0, 1, False),  # "no valid engine configs"
    ],
)
def test_a_plan_is_one_that_is_named_and_can_be_built(
    monkeypatch: pytest.MonkeyPatch, named: int, builds: int, plans: bool
) -> None:
    library = asked(monkeypatch, named, builds)
    assert library.plans(FORWARD) is plans
    assert library.library.types == [9, 9, 9], "each tensor is in bfloat16"


def test_each_convolution_is_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked(monkeypatch, 0, 1)
    assert list(cudnn.refused({}, [(FORWARD, "one"), (FORWARD, "two")])) == [(FORWARD, "one")]


def test_a_larger_batch_is_not_asked_again_but_another_picture_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked(monkeypatch, 3, 1)
    questions, known = list[list[Convolution]](), dict[Convolution, bool]()
    answers = cudnn._answers
    monkeypatch.setattr(cudnn, "_answers", lambda _of, new: questions.append(new) or [True])
    monkeypatch.setattr(hook, "begin", lambda work: work)
    monkeypatch.setattr(hook, "end", lambda work, _seconds: work())
    x, y = FORWARD.x, FORWARD.y
    larger = replace(
        FORWARD,
        x=replace(x, shape=(4 * x.shape[0], *x.shape[1:])),
        y=replace(y, shape=(4 * y.shape[0], *y.shape[1:])),
    )
    wider = replace(FORWARD, x=replace(x, shape=(*x.shape[:3], 99)))
    for each in (FORWARD, larger, wider):
        assert list(cudnn.refused({}, [(each, "")], known)) == []
    assert questions == [[FORWARD], [wider]]
    assert answers({}, [FORWARD]) == [True]


def test_an_older_one_cannot_be_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(CudnnError, match="cuDNN 90300 plans for no device that is not here"):
        asked(monkeypatch, 1, 1, 90300)


def test_a_step_without_convolutions_asks_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cudnn, "Planner", None)
    assert list(cudnn.refused({}, ())) == []


def test_without_cudnn_nothing_is_said_and_what_nobody_expects_is_a_remark(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("sys.path", [])
    with cudnn.asking() as said:
        assert list(cudnn.refused({}, [(FORWARD, "")])) == []
    assert said == {}
    with cudnn.asking() as said:
        raise ValueError("window={}")
    assert said == {"remark": "not known what cuDNN says of it: ValueError: window={}"}


def test_a_cudnn_that_aborts_is_a_remark_and_ends_nobody_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked(monkeypatch, 3, 1)
    end = lambda *_given: os.kill(os.getpid(), signal.SIGTRAP)  # noqa: E731
    monkeypatch.setattr(Planner, "plans", end)
    with cudnn.asking() as said:
        list(cudnn.refused({}, [(FORWARD, "")]))
    assert said == {"remark": "not known what cuDNN says of it: it aborts (SIGTRAP)"}
