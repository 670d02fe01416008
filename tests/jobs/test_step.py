"""The step of a job before the job is sent: what a receipt says of it, and what it costs at least.
tests/frameworks/jax/test_compile.py compiles one in an image."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from builder.core.errors import CheckFailed, InputError, OutsideError
from builder.core.settings import Settings
from builder.jobs import cost, machines, step
from builder.jobs.ready import Ready
from builder.prove.image import NotThereError
from builder.prove.receipts import CheckResult, Defect
from tests.jobs import jobfiles

TPU = "image: tpu-jax\nregion: us-central1\nmachine: ct5lp-hightpu-4t\ntopology: 4x4\n"
GPUS = "image: v100\nregion: us-central1\nmachine: n1-standard-8\naccelerators: 2 x V100\n"
STEPS = "arguments: {steps: 2000, batch-size: 256}\n"
HERE = Path()


def said(topology: str = "", not_there: str = "") -> CheckResult:
    """What a receipt says of the step."""
    seen: dict[str, Any] = {"topology": topology, "note": f"train compiles for {topology}"}
    return CheckResult(
        name="compile",
        version=1,
        passed=True,
        seconds=1.0,
        not_there=not_there,
        seen={} if not_there else seen,
    )


def ready(result: CheckResult | None = None, text: str = TPU) -> Ready:
    made = jobfiles.image("tpu-jax" if text == TPU else "v100")
    return jobfiles.checked(jobfiles.job(text), replace(made, compiled=result))


def compiler(monkeypatch: pytest.MonkeyPatch, answer: Any) -> list[Ready]:
    """Let a compiler answer, or raise; return the jobs that it gets."""
    got: list[Ready] = []

    def compiled(_root: Path, job: Ready, *_: Any) -> Any:
        got.append(job)
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(step, "compiled", compiled)
    return got


@pytest.mark.parametrize(
    "placement", [each for each in machines.combinations() if each.topology], ids=str
)
def test_every_slice_on_offer_has_libtpus_name(placement: machines.Placement) -> None:
    assert step.topology_of(placement).endswith(f":{placement.topology}")


def test_what_the_receipt_says_of_the_slice_is_not_asked_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = compiler(monkeypatch, ((), {"note": "train compiles for TPU-v5e 4x4"}))
    assert step.check(HERE, ready(said("v5e:4x4")), Settings()) == "train compiles for v5e:4x4"
    unknown = ready(said(not_there="not known: it took longer than 120 s"))
    assert step.check(HERE, unknown, Settings()) == (
        "its step on v5e:4x4: not known: it took longer than 120 s"
    )
    others = replace(ready(), image=jobfiles.image("x", "CPU"))
    others = replace(others, image=replace(others.image, accelerator=None))
    assert step.check(HERE, others, Settings()) == ""
    assert asked == []


ONE = GPUS.replace("2 x V100", "1 x V100")
FITS = "train fits V100; needs 6.9 of 14.7 GiB; a batch of 102 fits"


def on_gpu(**more: Any) -> CheckResult:
    """What the receipt of an image for a V100 says."""
    seen: dict[str, Any] = {"device": "V100", "batch": 48, "largest_batch": 102, "note": FITS}
    fields: dict[str, Any] = {"name": "compile", "version": 4, "passed": True, "seconds": 1.0}
    return CheckResult(**{**fields, "seen": seen, **more})


@pytest.mark.parametrize(
    ("text", "result", "note"),
    [
        (ONE, on_gpu(), FITS),
        (f"{ONE}arguments: {{batch-size: 102}}\n", on_gpu(), FITS),
        (ONE, on_gpu(seen={}, not_there="not known: x"), "its step on 1 x V100: not known: x"),
        (ONE, on_gpu(findings=(Defect("it does not fit", "x"),)), "it does not fit"),
        (GPUS, on_gpu(), "its step on 2 x V100: not asked: the receipt is for one V100; "),
        (ONE, on_gpu(seen={"device": "T4"}), "not asked: the receipt is for one T4; "),
        (f"{ONE}environment: {{XLA_FLAGS: --xla_a=1}}\n", on_gpu(), "variables make another"),
        (f"{ONE}arguments: {{batch-size: 256}}\n", on_gpu(), "has a batch of 102, the job 256; "),
        (f"{ONE}arguments: {{batch-size: 256}}\n", on_gpu(seen={"device": "V100"}), ""),
        (ONE.replace("accelerators: 1 x V100\n", ""), on_gpu(), ""),
        (ONE, None, "its step on 1 x V100: not asked: no receipt of the image is at hand; "),
    ],
)
def test_of_gpus_a_job_says_what_the_receipt_says_and_compiles_nothing(
    monkeypatch: pytest.MonkeyPatch, text: str, result: CheckResult | None, note: str
) -> None:
    asked = compiler(monkeypatch, ((), {"note": "compiled"}))
    found = step.check(HERE, ready(result, text), Settings())
    assert note in found and bool(note) == bool(found)
    assert ("builder job cost cats compiles it" in found) == ("not asked" in found)
    assert asked == []


def test_what_the_receipt_refuses_on_a_gpu_is_not_sent() -> None:
    refused = on_gpu(passed=False, problems=(Defect("train does not fit V100", "a smaller batch"),))
    with pytest.raises(CheckFailed, match=r"^cats: train does not fit V100$") as caught:
        step.check(HERE, ready(refused, ONE), Settings())
    assert caught.value.fix == "a smaller batch"
    assert "not asked" in step.check(HERE, ready(refused, GPUS), Settings())


@pytest.mark.parametrize("result", [said("v5e:2x2"), None])
def test_another_slice_than_the_receipts_is_compiled_and_refused(
    monkeypatch: pytest.MonkeyPatch, result: CheckResult | None
) -> None:
    job = ready(result)
    asked = compiler(monkeypatch, ((), {"note": "train compiles for TPU-v5e 4x4"}))
    assert step.check(HERE, job, Settings()) == "train compiles for TPU-v5e 4x4"
    assert asked == [job]
    compiler(monkeypatch, ([Defect("train does not fit TPU-v5e 4x4", "a smaller batch")], {}))
    with pytest.raises(CheckFailed, match=r"^cats: train does not fit TPU-v5e 4x4$"):
        step.check(HERE, job, Settings())
    compiler(monkeypatch, NotThereError("not known: it took longer than 120 s"))
    assert step.check(HERE, job, Settings()).startswith("its step on v5e:4x4: not known: ")


ENVIRONMENT = """environment:
  XLA_FLAGS: --xla_dump_to=gs://b/x  --xla_gpu_enable_cublaslt=false --xla_gpu_autotune_level=4
  LIBTPU_INIT_ARGS: --xla_tpu_scoped_vmem_limit_kib=32768
  JAX_PLATFORMS: tpu
  JAX_COMPILATION_CACHE_DIR: gs://bucket/cache
  NVIDIA_TF32_OVERRIDE: "0"
  PYTORCH_CUDA_ALLOC_CONF: expandable_segments:True
  WIDTH: "64"
  TOKEN: {secret: hub, key: token}
"""


def test_a_jobs_variables_reach_the_compile_but_what_leads_out_of_the_container() -> None:
    assert step.variables(jobfiles.job(GPUS + ENVIRONMENT)) == {
        "XLA_FLAGS": "--xla_gpu_enable_cublaslt=false",
        "LIBTPU_INIT_ARGS": "--xla_tpu_scoped_vmem_limit_kib=32768",
        "NVIDIA_TF32_OVERRIDE": "0",
        "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True",
        "WIDTH": "64",
    }
    assert step.variables(jobfiles.job(GPUS)) == {}


@pytest.mark.parametrize(
    ("variable", "asked"),
    [
        ("LIBTPU_INIT_ARGS: --xla_tpu_scoped_vmem_limit_kib=32768", True),
        ("JAX_ENABLE_X64: 'true'", True),
        ("TF_CPP_MIN_LOG_LEVEL: '1'", False),
        ("JAX_PLATFORMS: tpu", False),
        ("TEAM: vision", False),
    ],
)
def test_a_receipt_says_nothing_of_a_job_whose_variables_make_another_program(
    monkeypatch: pytest.MonkeyPatch, variable: str, asked: bool
) -> None:
    job = ready(said("v5e:4x4"))
    job = replace(job, job=jobfiles.job(f"{TPU}environment: {{{variable}}}\n"))
    got = compiler(monkeypatch, ((), {"note": "compiled"}))
    assert (step.check(HERE, job, Settings()) == "compiled") == asked == bool(got)


def test_without_an_engine_a_slice_that_nobody_asked_for_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def none(*_: Any) -> Any:
        raise OutsideError("the private engine does not run", "builder engine start")

    monkeypatch.setattr(step, "connect", none)
    with pytest.raises(CheckFailed, match=r"has to be compiled for v5e:4x4: .* not run$") as caught:
        step.check(HERE, ready(said("v5e:2x2")), Settings())
    assert caught.value.fix == "builder build tpu-jax; then the same again"


def test_a_job_costs_at_least_what_its_steps_take(monkeypatch: pytest.MonkeyPatch) -> None:
    job = ready(text=GPUS + STEPS)
    compiler(monkeypatch, ((), {"least_seconds": 0.062}))
    seconds, basis = step.least(HERE, job, Settings())
    assert seconds == pytest.approx(0.031 * 2000), "two GPUs share a step"
    assert basis == "2,000 steps of 256 examples, each at least 31 ms"
    bill = cost.bill(job, seconds, basis, least=True)
    first, *lines = cost.as_text(bill)
    assert first == f"cats: at least 62 s ({basis})"
    assert sum("at least USD" in line for line in lines) == 2
    assert bill.usd == cost.bill(job, seconds, basis).usd
    compiler(monkeypatch, ((), {"least_seconds": 0.031, "devices": 2}))
    counted = step.least(HERE, job, Settings())[0]
    assert counted == pytest.approx(0.031 * 2000), "it is that of one of two processes"
    compiler(monkeypatch, ((), {"least_seconds": 0.062}))
    slice_ = replace(ready(), job=jobfiles.job(TPU + STEPS))
    assert step.least(HERE, slice_, Settings())[0] == pytest.approx(0.062 * 2000), "chips share it"


@pytest.mark.parametrize(
    ("more", "answer", "why"),
    [
        ("", ((), {"least_seconds": 1.0}), "its arguments name no number of steps"),
        (STEPS, NotThereError("not known: 120 s"), "the time of a step is not known: 120 s"),
        (STEPS, ((), {"least_seconds": 1e-6}), "too small for a bound of its time"),
    ],
)
def test_what_it_takes_is_asked_for_where_nobody_knows(
    monkeypatch: pytest.MonkeyPatch, more: str, answer: Any, why: str
) -> None:
    compiler(monkeypatch, answer)
    with pytest.raises(InputError, match=why) as caught:
        step.least(HERE, ready(text=GPUS + more), Settings())
    assert "--for 22m" in caught.value.fix
