"""The check `compile`: what follows from what a compiler said. tests/frameworks/jax/test_compile.py
asks the compilers themselves."""

from __future__ import annotations

from typing import Any

import pytest

from builder.facts import devices
from builder.facts.devices import GIB
from builder.prove import suites
from builder.prove.checks import compile as compiling
from builder.prove.image import NotThereError
from builder.prove.judge import Run
from builder.prove.receipts import Finding
from builder.prove.suite import Check

FOUND: dict[str, Any] = {
    "step": "train",
    "devices": 1,
    "of": 1,
    "arguments": 2 * GIB,
    "outputs": 2 * GIB,
    "temporaries": 3 * GIB,
    "aliased": 2 * GIB,
    "code": 0,
    "flops": 1.57e12,
    "types": ["float32"],
    "calls": {"__cudnn$convForward": {"float32": 4}},
    "room": 12 * GIB,
    "smaller": "take a smaller batch",
    "more": "set a variable",
    "batch": 48,
    "largest_batch": 192,
}
V100, TPU = devices.devices()["V100"], devices.devices()["TPU-v5e"]


def said(run: Run | dict[str, Any], device: devices.Device = V100) -> list[str]:
    """The note, else the problems of what a compiler said."""
    run = Run(0, 9.0, answer={"compile": {**FOUND, **run}}) if isinstance(run, dict) else run
    problems, seen = compiling.judge(run, device)
    assert all(problem.fix for problem in problems)
    return [problem.message for problem in problems] or [seen["note"]]


def test_what_fits_is_said_in_one_line() -> None:
    (line,) = said({})
    assert line == (
        "train compiles for V100; needs 5.0 of 12.0 GiB; a step is at least 1e+02 ms;"
        " a batch of 192 fits"
    )
    (line,) = said({"counted": True})
    assert line.startswith("train fits V100; needs 5.0 of 12.0 GiB; "), "nothing was compiled"
    (line,) = said({"devices": 4, "of": 4})
    assert "; needs 5.0 of 12.0 GiB a device; a step" in line
    (line,) = said({"of": 4})
    assert line.endswith("; it uses 1 of the 4 devices")
    (line,) = said({"counted": True, "remark": "its own Triton kernels compile (4)"})
    assert line.endswith(" a batch of 192 fits; its own Triton kernels compile (4)")
    (line,) = said({"compiler": "a compiler", "largest_batch": 0, "batch": 0})
    assert line.endswith(" ms; by a compiler")
    (line,) = said({"compiler": "a compiler", "uncompiled": True})
    assert line.endswith(
        "; by a compiler, which the program does not use: without it a step may need more"
    )
    (line,) = said({"shapes": 3})
    assert line.endswith("; XLA compiles it again for each of the 3 shapes that it got")
    (line,) = said({"of": 4, "room": TPU.memory}, TPU)
    assert line.startswith("train compiles for TPU-v5e 2x2; needs 5.0 of 15.8 GiB a device; ")
    assert line.endswith("; it uses 1 of the 4 devices")


def test_what_does_not_fit_a_gpu_is_refused_by_our_arithmetic() -> None:
    (line,) = said({"temporaries": 12 * GIB})
    assert line == (
        "train does not fit V100: it needs 14.0 of 15.8 GiB, of which a program gets 12.0"
    )
    (problem,), _ = compiling.judge(Run(0, 1.0, answer={"compile": FOUND | {"room": GIB}}), V100)
    assert problem.fix == "set a variable, or take a smaller batch", "the card has room for it"


def test_what_the_program_does_not_let_xla_compile_is_a_finding() -> None:
    found = FOUND | {"temporaries": 12 * GIB, "uncompiled": True, "compiler": "a compiler"}
    (finding,), _ = compiling.judge(Run(0, 1.0, answer={"compile": found}), V100)
    assert isinstance(finding, Finding)
    assert "needs 14.0 of 15.8 GiB" in finding.message
    assert finding.message.endswith("the program does not use: without it a step may need more")


def test_libtpu_refuses_by_itself() -> None:
    words = (
        "RESOURCE_EXHAUSTED: E1000: CompileTimeHbmOom: Ran out of memory on HBM, the total memory "
        "required for HLO temporaries (899.73G) exceeds available HBM (15.75G). HLO module: x.\nSee"
    )
    (line,) = said({"refused": words}, TPU)
    assert line == "train does not fit TPU-v5e 2x2: HLO temporaries need 899.73GiB of 15.75GiB"


def test_a_refusal_names_the_programs_own_line() -> None:
    words = (
        "UNIMPLEMENTED: Unsupported algorithm on the current device(s): ALG_DOT_BF16_BF16_F32\n\t\n"
        "Suspected Python Code Location:\n"
        "  /opt/venv/lib/python3.13/site-packages/flax/nn.py:7:1 [dense]\n"
        "  /smoke/probes/hook/sitecustomize.py:150:1 [trace]\n"
        "  /app/train.py:16:10 [loss]\n  /app/train.py:20:17 [step]"
    )
    (line,) = said({"refused": words})
    assert line.startswith("train does not compile for V100: train.py:16: UNIMPLEMENTED: Unsupp")
    assert line.endswith("ALG_DOT_BF16_BF16_F32")


def test_a_library_that_has_not_the_type_is_refused() -> None:
    (line,) = said({"calls": {"__cudnn$convForward": {"bfloat16": 2}}})
    assert line == (
        "train calls __cudnn$convForward in bfloat16, which cudnn has from 8.0 on: V100 is 7.0"
    )
    assert "compiles" in said({"calls": {"__cublas$lt$matmul": {"bfloat16": 2}}})[0]


def test_a_type_that_xla_replaces_is_said() -> None:
    assert said({"types": ["bfloat16"]})[0].endswith("; bfloat16 becomes float32 there")
    both = {"types": ["bfloat16"], "calls": {"__cudnn$convForward": {"bfloat16": 1}}}
    assert "becomes" not in said(both, devices.devices()["H100"])[0]
    assert "becomes" not in said({"types": ["bfloat16"]}, devices.devices()["H100"])[0]


def test_a_mesh_that_the_devices_cannot_divide_is_the_programs() -> None:
    traceback = (
        "Traceback (most recent call last):",
        '  File "/app/train.py", line 31, in main',
        '  File "/opt/venv/lib/python3.13/site-packages/jax/api.py", line 2, in device_put',
        "ValueError: dimension 0 of size 6 should be divisible by 4",
    )
    (line,) = said(Run(1, 3.0, tail=traceback), TPU)
    assert line == (
        "on the devices of TPU-v5e 2x2 the program ends: "
        "ValueError: dimension 0 of size 6 should be divisible by 4 (train.py:31)"
    )
    (problem,), _ = compiling.judge(Run(1, 3.0, tail=traceback), TPU, "v5e:4x4")
    assert problem.message.startswith("on the devices of TPU-v5e 4x4 the program ends: ")


@pytest.mark.parametrize(
    "target", ["__cudnn$fmhaSoftmaxBackward", "_scaled_dot_product_cudnn_attention"]
)
def test_cudnns_attention_is_refused_before_ampere(target: str) -> None:
    attends = {"calls": {target: {"float16": 2}}}
    (line,) = said(attends)
    assert line == (f"train calls {target} in float16, which cudnn has from 8.0 on: V100 is 7.0")
    assert "fits" in said(attends, devices.devices()["A100-40GB"])[0]


@pytest.mark.parametrize(
    "line",
    [
        "F1129 13:04:56 11848 parse_flags_from_env.cc:234] Unknown flag in XLA_FLAGS: --xla_x=1",
        "ERROR: Unknown command line flag 'xla_x'",
    ],
)
def test_a_flag_that_a_compiler_does_not_know_is_refused(line: str) -> None:
    """As jaxlib 0.12.0.1 and its libtpu say it."""
    (problem,), _ = compiling.judge(Run(1, 3.0, tail=(line, "=== Source Location ===")), TPU)
    assert problem.message.startswith("on TPU-v5e 2x2 the program ends: Unknown ")
    assert problem.message.rstrip("'").endswith(("xla_x", "xla_x=1"))


@pytest.mark.parametrize(
    ("run", "why"),
    [
        (Run(0, 3.0), "not asked: the program compiles no step"),
        (Run(2, 3.0, tail=("train: unknown option",)), "not known: .*: train: unknown option"),
        (Run(137, 120.0, timed_out=True), "not known: it took longer than 120 s"),
        ({"step": "", "failed": "NotImplementedError: topology"}, "not known: NotImplementedError"),
        ({"arguments": "many"}, "not known: Input should be a valid integer.* in its answer"),
        ({"flops": float("nan")}, "not known: Input should be a finite number in its answer"),
        (Run(0, 1.0, answer={"compile": [1]}), "not known: .* in its answer"),
        ({"failed": "No supported GPU devices found"}, "not known: train could not be compiled"),
    ],
)
def test_what_nobody_could_find_out_refuses_nothing(run: Run | dict[str, Any], why: str) -> None:
    with pytest.raises(NotThereError, match=why):
        said(run)


def test_tensorflow_is_not_asked_for_a_tpu() -> None:
    with pytest.raises(NotThereError, match="not asked: TensorFlow's steps are compiled for GPUs"):
        compiling.CompileTarget(TPU, "tensorflow")
    assert compiling.CompileTarget(TPU, "jax") and compiling.CompileTarget(V100, "tensorflow")


def test_a_receipt_holds_without_an_answer_but_not_without_the_question() -> None:
    suite = suites.of_image({"training-image-factory.framework": "jax"})
    (check,) = (check for check in suite.checks if check.name == "compile")
    assert isinstance(check, Check) and check.may_be_unanswered
    assert "compile" in suite.required("V100") and "compile" in suite.required("TPU")
    assert "compile" not in suite.required("CPU")
    assert "compile" in suites.of_image({}).required("V100")
