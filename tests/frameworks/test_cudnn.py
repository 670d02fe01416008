"""What cuDNN is asked of convolutions, and what its answers mean. A
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

X = Tensor((48, 3, 33, 33), (3267, 1, 99, 3))
W = Tensor((32, 3, 3, 3), (27, 1, 9, 3))
Y = Tensor((48, 32, 16, 16), (8192, 1, 512, 32))
FORWARD = Convolution("forward", "bfloat16", X, W, Y, (2, 2), (0, 0), (1, 1), (1, 1))


class Library:
    """cudnnBackend*: every descriptor has a number, which names its kind."""

    def __init__(self, version: int, named: int, builds: int) -> None:
        self.version, self.named, self.builds = version, named, builds
        self.kinds: list[int] = []
        self.types: list[int] = []
        self.virtual: list[bool] = []
        self.cudnnGetVersion = lambda: version  # a function, which is told its type

    def cudnnBackendCreateDescriptor(self, kind: int, made: Any) -> int:
        self.kinds.append(kind)
        made._obj.value = len(self.kinds)
        return 0

    def cudnnBackendSetAttribute(self, _of: Any, name: int, _kind: int, _n: Any, value: Any) -> int:
        if name == 901:
            self.types.append(value._obj.value)
        if name == 907:
            self.virtual.append(value._obj.value)
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


@pytest.mark.parametrize(("fused", "steps"), [("", 0), ("kNone", 2), ("kRelu", 3)])
def test_what_is_fused_with_a_convolution_is_a_part_of_the_question(
    monkeypatch: pytest.MonkeyPatch, fused: str, steps: int
) -> None:
    """A side input is added, then the bias, then comes relu; what lies between is virtual."""
    planner = asked(monkeypatch, 3, 1)
    planner.plans(replace(FORWARD, fused=fused))
    library = planner.library
    assert library.kinds.count(13) == library.kinds.count(0) == steps
    assert sum(library.virtual) == steps


def test_a_convolution_without_a_plan_is_refused_with_its_lines(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked(monkeypatch, 0, 1)
    assert cudnn.said({}, [(FORWARD, "one"), (FORWARD, "two")]) == {
        "refused": "cuDNN 9.10.2 has no plan for a convolution in bfloat16 (forward) of"
        " 48 x 3 x 33 x 33 by 32 x 3 x 3 x 3\none"
    }
    instead = {"bfloat16": "another way is slower"}
    said = cudnn.said({}, [(FORWARD, "one"), (FORWARD, "two")], instead=instead)
    assert said == {"remark": "another way is slower"}


def test_the_line_says_how_many_were_asked_and_how_many_were_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked(monkeypatch, 3, 1)
    monkeypatch.setattr(Planner, "plans", lambda _self, each: each.type != "bfloat16")
    half, whole = (replace(FORWARD, type=kind) for kind in ("float16", "int8"))
    given = [(half, ""), (half, ""), (replace(half, kind="data"), ""), (whole, ""), (None, "")]
    said = "cuDNN 9.10.2 has plans for its convolutions (2)"
    assert cudnn.said({}, given) == {"remark": f"{said}; not asked of cuDNN: 2 of its convolutions"}
    instead = {"bfloat16": "another way is slower"}
    assert cudnn.said({}, [*given[:3], (FORWARD, "")], instead=instead) == {
        "remark": f"{said}; another way is slower"
    }
    assert cudnn.said({}, given[3:]) == {"remark": "not asked of cuDNN: 2 of its convolutions"}


def test_a_larger_batch_is_not_asked_again_but_another_picture_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked(monkeypatch, 3, 1)
    questions, known = list[list[Convolution]](), dict[Convolution, bool]()
    answers = cudnn._answers
    monkeypatch.setattr(cudnn, "_answers", lambda _of, new: questions.append(new) or ("", [True]))
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
        assert "refused" not in cudnn.said({}, [(each, "")], known)
    assert questions == [[FORWARD], [wider]]
    assert answers({}, [FORWARD]) == ("cuDNN 9.10.2", [True])


@pytest.mark.parametrize(("version", "named"), [(90300, "9.3.0"), (8907, "8.9.7")])
def test_an_older_one_is_not_asked_and_the_line_says_so(
    monkeypatch: pytest.MonkeyPatch, version: int, named: str
) -> None:
    why = f"cuDNN {named} plans for no device that is not here"
    with pytest.raises(CudnnError, match=why):
        asked(monkeypatch, 1, 1, version)
    assert cudnn.said({}, [(FORWARD, "")]) == {"remark": f"its convolutions were not asked: {why}"}


def test_a_step_without_convolutions_asks_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cudnn, "Planner", None)
    assert cudnn.said({}, ()) == {}


def test_without_cudnn_the_line_says_so_and_what_nobody_expects_is_a_remark(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("sys.path", [])
    why = "no cuDNN 9 is here"
    assert cudnn.said({}, [(FORWARD, "")]) == {"remark": f"its convolutions were not asked: {why}"}
    asked = (int(each) for each in "x")
    (remark,) = cudnn.said({}, asked).values()  # type: ignore[arg-type]
    assert remark.startswith("not known what cuDNN says of it: ValueError: invalid literal")


def test_a_cudnn_that_aborts_is_a_remark_and_ends_nobody_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked(monkeypatch, 3, 1)
    end = lambda *_given: os.kill(os.getpid(), signal.SIGTRAP)  # noqa: E731
    monkeypatch.setattr(Planner, "plans", end)
    assert cudnn.said({}, [(FORWARD, "")]) == {
        "remark": "not known what cuDNN says of it: it aborts (SIGTRAP)"
    }


def test_a_tensor_lies_without_gaps() -> None:
    assert cudnn.laid_out([48, 3, 33, 33], last=True) == X
    assert cudnn.laid_out([48, 3, 33, 33], last=False).strides == (3267, 1089, 33, 1)
