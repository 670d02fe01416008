"""What is said of kernels that do not compile: the compiler's words, the program's lines. The real
compilers are asked in test_compile.py."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from types import SimpleNamespace as Is
from typing import Any

import pytest

from builder.frameworks import hook
from builder.frameworks.torch.probes import kernels
from builder.prove.checks import compile as compiling


def kernel(x: Any) -> Any:
    """Stand for a kernel of Triton's."""
    return x


class CompilationError(Exception):
    """Triton's, which names the place in the kernel's own text."""

    def __init__(self, src: str, line: int, message: str) -> None:
        super().__init__(f"at {line}:0:\n{src}\n{message}")
        self.src, self.node, self.error_message = src, Is(lineno=line), message


FIRST = kernel.__code__.co_firstlineno
JITTED = Is(fn=kernel, src="def kernel(x):\n    return x\n")


def raised(error: Exception, inner: Exception | None = None) -> Exception:
    """The error with a traceback."""
    try:
        raise error from inner
    except Exception as caught:
        return caught


def refused(error: Exception, lines: list[str]) -> Any:
    """The error as Kernels.compile marks it."""
    error.refused_by_triton = lines  # type: ignore[attr-defined]
    return error


def test_a_kernels_line_stands_before_that_of_its_launch() -> None:
    error = CompilationError(JITTED.src, 3, "fp8e4nv is not supported")
    (line,) = kernels.kernel_line(Is(fn=JITTED), error)
    assert line == f"{__file__}:{FIRST + 2}:0 [kernel]"
    said = kernels.words(raised(refused(error, [line])))
    first, second, third = said.splitlines()
    assert (first, second) == ("fp8e4nv is not supported", line)
    assert third.startswith(f"{__file__}:") and third.endswith(" [raised]")


def test_an_error_in_a_function_that_a_kernel_calls_is_said_with_the_innermost_words() -> None:
    inner = CompilationError("def other(x):\n    return x", 2, "innermost")
    error = raised(refused(CompilationError(JITTED.src, 3, "ValueError()"), []), inner)
    assert list(kernels.kernel_line(Is(fn=JITTED), inner)) == [], "it is not the kernel's"
    assert kernels.words(error).startswith("innermost\n")


def test_of_the_words_of_ptxas_the_error_is_said() -> None:
    words = (
        "PTXAS error: codegen\n`ptxas` stderr:\nptxas /tmp/x.ptx, line 34; error   : needs sm_80"
    )
    assert kernels.words(raised(refused(RuntimeError(words), []))).startswith("needs sm_80\n")


def test_an_error_that_no_compiler_raised_refuses_nothing() -> None:
    assert kernels.words(raised(ValueError("no data"))) == ""


def test_a_kernel_of_inductor_is_where_its_operation_is_in_the_program() -> None:
    def node(target: str, line: int) -> Any:
        trace = (
            f'  File "/app/train.py", line {line}, in step\n    y = f(x)\n'
            '  File "/opt/venv/lib/python3.13/site-packages/torch/nn.py", line 9, in forward\n'
        )
        return Is(target=target, meta={"stack_trace": trace})

    nodes = [node("aten.relu", 5), node("aten.gelu", 7), node("aten.mm", 9), Is(target="", meta={})]
    graph = Is(graph=Is(nodes=nodes))
    innermost, own = kernels.graph_lines(graph, "triton_poi_fused_gelu_0")
    assert own == "/app/train.py:7:0 [step]" and innermost.endswith("torch/nn.py:9:0 [forward]")
    assert kernels.graph_lines(graph, "triton_poi_fused_x_0")[1] == "/app/train.py:9:0 [step]"
    assert kernels.graph_lines(None, "") == []


def test_the_check_names_the_programs_line_alone() -> None:
    words = (
        "no\n/opt/venv/lib/python3.13/site-packages/triton/jit.py:7:0 [run]\n/app/train.py:8:0 [a]"
    )
    assert compiling._program_line(words) == "train.py:8: "


@pytest.mark.parametrize(
    ("work", "says"),
    [
        (lambda: {"refused": "no"}, {"refused": "no"}),
        (dict, {}),
        (lambda: os.kill(os.getpid(), signal.SIGTRAP), {"remark": "it aborts (SIGTRAP)"}),
        (lambda: 1 // 0, {"remark": "ZeroDivisionError: integer division or modulo by zero"}),
        (sys.exit, {"remark": "it ends"}),
    ],
)
def test_what_the_process_of_the_compiler_says(
    work: Callable[[], Any], says: dict[str, str]
) -> None:
    found = kernels.end(hook.begin(work), 60)
    assert found.keys() == says.keys()
    assert all(found[key].endswith(says[key]) for key in says)


def test_a_compiler_that_takes_too_long_is_not_waited_for() -> None:
    found = kernels.end(hook.begin(lambda: time.sleep(600)), 0.1)
    assert found["remark"].endswith("takes too long")
