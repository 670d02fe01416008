"""Each row of known_bad.yaml: an image with the combination, one beside it, and a job's log."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

from builder.audit.audited import gpu_named
from builder.cli.group import app
from builder.core.errors import CheckFailed
from builder.facts import known_bad
from builder.jobs.why.diagnose import diagnose
from builder.jobs.why.logs import JobLog, Line
from builder.prove.checks import combinations
from builder.prove.image import Image, NotThereError
from tests.devicecode.writer import install
from tests.prove.installed import CUDNN, TENSORFLOW, site
from tests.prove.reading import SITE, archive, layer, plain, read

ROWS = {row.name: row for row in known_bad.rows()}

# the row; what an image holds that it is about, and its GPU; what is fine
CASES: tuple[tuple[str, str, str, str], ...] = (
    ("tensorflow-2.21-cudnn", "tensorflow 2.21.0, nvidia-cudnn-cu12 9.5.1.17", "7.5",
     "tensorflow 2.21.0, nvidia-cudnn-cu12 9.10.2.21"),
    ("cudnn-9.11-before-turing", "jax 0.12.0.1, nvidia-cudnn-cu12 9.11.0.98", "7.0",
     "jax 0.12.0.1, nvidia-cudnn-cu12 9.10.2.21"),
    ("torch-cuda-13-before-turing", "torch 2.15.0, nvidia-cuda-runtime 13.0.96", "7.0",
     "torch 2.11.0+cu126, nvidia-cuda-runtime-cu12 12.6.77"),
    ("xla-ptxas-12.3.103", "tensorflow 2.16.1, nvidia-cuda-nvcc-cu12 12.3.103", "8.0",
     "tensorflow 2.16.1, nvidia-cuda-nvcc-cu12 12.3.107"),
    ("xla-ptxas-12.6-hopper", "jax 0.4.35, nvidia-cuda-nvcc-cu12 12.6.77", "9.0",
     "jax 0.4.35, nvidia-cuda-nvcc-cu12 12.6.85"),
    ("cudnn-9.10-cublas-12.9", "nvidia-cudnn-cu12 9.8.0.87, nvidia-cublas-cu12 12.9.0.13", "8.0",
     "nvidia-cudnn-cu12 9.8.0.87, nvidia-cublas-cu12 12.8.4.1"),
    ("cublas-tensor-memory", "torch 2.11.0, nvidia-cublas 13.1.0.3", "10.0",
     "torch 2.14.1, nvidia-cublas 13.1.1.3"),
    ("cublas-13.5.1-geforce", "torch 2.12.1, nvidia-cublas 13.5.1.27", "12.0",
     "torch 2.12.1, nvidia-cublas 13.4.0.1"),
    ("cublas-13.6-large", "nvidia-cublas 13.6.0.2", "9.0", "nvidia-cublas 13.5.1.27"),
    ("nccl-2.29.2", "torch 2.10.0, nvidia-nccl-cu13 2.29.2", "9.0",
     "torch 2.10.0, nvidia-nccl-cu13 2.29.3"),
    ("nccl-2.25.1-abort", "torch 2.7.0, nvidia-nccl-cu12 2.25.1", "8.0",
     "torch 2.7.1, nvidia-nccl-cu12 2.26.2"),
    ("torch-attention-nan-hopper", "torch 2.13.0, nvidia-cudnn-cu13 9.20.0.48", "9.0",
     "torch 2.15.0, nvidia-cudnn-cu13 9.26.1.1"),
    ("torch-attention-b200", "torch 2.13.0, nvidia-cudnn-cu13 9.20.0.48", "10.0",
     "torch 2.14.1, nvidia-cudnn-cu13 9.24.0.43"),
    ("torch-2.9-conv3d", "torch 2.9.1+cu128, nvidia-cudnn-cu12 9.10.2.21", "8.0",
     "torch 2.9.1, nvidia-cudnn-cu12 9.15.1.9"),
    ("torch-conv3d-bfloat16", "torch 2.8.0, nvidia-cudnn-cu12 9.10.2.21", "8.0",
     "torch 2.7.1, nvidia-cudnn-cu12 9.5.1.17"),
    ("torch-2.7.0-nccl", "torch 2.7.0", "8.0", "torch 2.7.1"),
    ("torch-2.5.0-attention", "torch 2.5.0", "9.0", "torch 2.5.1"),
    ("tensorflow-2.21-blackwell", "tensorflow 2.21.0, nvidia-cudnn-cu12 9.24.0.43", "12.0",
     "tensorflow 2.21.0+nv26.05, nvidia-cudnn-cu12 9.24.0.43"),
    ("tensorflow-2.20-blackwell", "tensorflow 2.20.0", "12.0", "tensorflow 2.17.0+nv25.2"),
    ("tensorflow-cudnn-9.3", "tensorflow 2.18.0, nvidia-cudnn-cu12 9.1.0.70", "8.0",
     "tensorflow 2.18.0, nvidia-cudnn-cu12 9.3.0.75"),
    ("tensorflow-2.12-cudnn-8.6", "tensorflow 2.12.1, nvidia-cudnn-cu11 8.5.0.96", "8.0",
     "tensorflow 2.12.1, nvidia-cudnn-cu11 8.6.0.163"),
    ("jax-cudnn-9.8", "jax 0.6.2, nvidia-cudnn-cu12 9.5.1.17", "8.0",
     "jax 0.6.2, nvidia-cudnn-cu12 9.8.0.87"),
    ("jax-cudnn-9.1", "jax 0.4.31, nvidia-cudnn-cu12 8.9.7.29", "8.0",
     "jax 0.4.31, nvidia-cudnn-cu12 9.1.1.17"),
    ("jax-cudnn-8.8", "jax 0.4.10, nvidia-cudnn-cu11 8.6.0.163", "8.0",
     "jax 0.4.10, nvidia-cudnn-cu11 8.9.4.25"),
    ("cudnn-8.9-pascal", "nvidia-cudnn-cu11 8.9.0.131", "6.0", "nvidia-cudnn-cu11 8.9.2.26"),
    ("cudnn-9.12-attention-nan", "torch 2.9.0, nvidia-cudnn-cu13 9.12.0.46", "9.0",
     "torch 2.9.0, nvidia-cudnn-cu13 9.13.0.50"),
    ("cudnn-9.26-attention-nan", "torch 2.15.0, nvidia-cudnn-cu13 9.26.0.51", "9.0",
     "torch 2.15.0, nvidia-cudnn-cu13 9.28.0.42"),
)  # fmt: skip

LOGS = {
    "tensorflow-2.21-cudnn": "InternalError: Graph execution error: Autotuner could not find any "
    "supported configs for HLO: %cudnn-conv-bias-activation.7 = (f32[32,16,30,30]{3,2,1,0}, "
    'u8[0]{0}) custom-call(%a), custom_call_target="__cudnn$convBiasActivationForward", '
    'backend_config={"device_type":"DEVICE_TYPE_INVALID"}',
    "cudnn-9.11-before-turing": "CUDNNError: CUDNN_STATUS_EXECUTION_FAILED_CUDART (code 5003)",
    "xla-ptxas-12.3.103": "ptxas returned an error during compilation of ptx to sass: 'INTERNAL: "
    "ptxas 12.3.103 has a bug that we think can affect XLA. Please use a different version.'",
    "xla-ptxas-12.6-hopper": "*** WARNING *** Invoking ptxas with version 12.5.82, which "
    "corresponds to a CUDA version <=12.6.2. CUDA versions 12.x.y up to and including 12.6.2 "
    "miscompile certain edge cases around clamping.",
    "tensorflow-2.21-blackwell": "LLVM ERROR: PTX version 8.5 does not support target 'sm_120' "
    "(or 'sm_120a'). Minimum required PTX version is 8.7",
    "tensorflow-2.20-blackwell": "tf_gpu_runtime_wrappers.cc:40] 'cuModuleLoadData(&module, data)'"
    " failed with 'CUDA_ERROR_INVALID_PTX'",
    "jax-cudnn-9.1": "Outdated cuDNN installation found.",
}
"""What programs say that have the combination, as the rows' sources have it."""


def installed(packages: str, gpu: str = "", *files: str) -> Image:
    """An image with these packages ("torch 2.9.1, ..."), judged for a GPU."""
    names = (
        f"{SITE}/{each.strip().replace(' ', '-')}.dist-info/METADATA"
        for each in packages.split(",")
        if each
    )
    image = read(layer(plain(*names, *files)))
    return replace(image, gpu=gpu_named(gpu)) if gpu else image


def found(image: Image) -> list[str]:
    """The names of the rows that the check finds in an image."""
    defects, _ = combinations.run(image)
    return [name for name, row in ROWS.items() if any(row.source in d.message for d in defects)]


def test_every_row_has_a_case_and_those_with_a_message_a_log() -> None:
    assert len(ROWS) >= 15 and [case[0] for case in CASES] == list(ROWS)
    assert {name for name, row in ROWS.items() if row.says or row.warns} == LOGS.keys()
    for row in ROWS.values():
        assert row.source.startswith("https://") and row.known and row.instead, row.name
        assert not row.seen.endswith(".") and not row.instead.endswith("."), row.name


@pytest.mark.parametrize(("name", "bad", "gpu", "fine"), CASES, ids=[case[0] for case in CASES])
def test_a_combination_is_told_of_any_image_and_the_one_beside_it_is_not(
    name: str, bad: str, gpu: str, fine: str
) -> None:
    row = ROWS[name]
    defects, _ = combinations.run(installed(bad, gpu))
    (defect,) = [defect for defect in defects if row.source in defect.message]
    assert (type(defect).__name__ == "Defect") == row.fails
    assert defect.fix == f"take {row.instead}" and row.seen in defect.message
    assert name not in found(installed(fine, gpu))
    if row.capabilities:
        assert name not in found(installed(bad, "8.9")) + found(installed(bad)), "other GPUs"


@pytest.mark.parametrize("name", LOGS)
def test_a_job_that_ended_so_is_told_of_the_combination(name: str) -> None:
    lines = (Line("starting", "log:1"), Line(LOGS[name], "log:2"))
    diagnosis = diagnose(JobLog("job", lines, state="failed"))
    assert (diagnosis.ending, diagnosis.source) == (name, ROWS[name].source)
    assert ROWS[name].seen in diagnosis.happened and ROWS[name].instead in diagnosis.do


def test_libraries_that_no_wheel_brings_are_known_by_the_names_of_their_files() -> None:
    files = ("usr/lib/x86_64-linux-gnu/libcudnn.so.9.5.1", "usr/local/cuda/lib64/libcublas.so.12")
    assert found(installed("tensorflow 2.21.0", "", *files)) == ["tensorflow-2.21-cudnn"]
    newer = installed("tensorflow 2.21.0, nvidia-cudnn-cu12 9.24.0.43", "", *files)
    assert found(newer) == [], "the framework loads the wheel's"
    assert found(installed("", "9.0", "usr/lib/libnccl.so.2.29.2")) == ["nccl-2.29.2"]
    with pytest.raises(NotThereError):
        combinations.run(installed(""))


def test_prove_refuses_an_image_with_the_pair(tmp_path: Path) -> None:
    names = ("tensorflow-2.21.0", "nvidia_cudnn_cu12-9.3.0.75")
    paths = [f"{SITE}/{name}.dist-info/METADATA" for name in names]
    path = archive(tmp_path / "image.tar", layer(plain(*paths)), config={"User": "1000"})
    result = CliRunner().invoke(app, ["prove", str(path), "--json"])
    (check,) = [c for c in json.loads(result.stdout)["checks"] if c["check"] == "combinations"]
    assert check["status"] == "refused"
    assert check["problems"][0]["message"].startswith("TensorFlow 2.21.0 with cuDNN 9.3.0.75: ")
    assert check["problems"][0]["fix"].startswith("take cuDNN 9.24.0.43")


def test_audit_refuses_what_is_installed_with_the_pair(tmp_path: Path) -> None:
    site(tmp_path / "bad", version="9.5.1.17")

    def run(*words: str) -> Result:
        return CliRunner().invoke(app, ["-q", "audit", str(tmp_path / "bad"), *words])

    refused = run("--gpu", "T4")
    assert isinstance(refused.exception, CheckFailed)
    assert "T4: TensorFlow 2.21.0 with cuDNN 9.5.1.17: a convolution" in refused.exception.message
    assert "instead: cuDNN 9.24.0.43" in refused.stdout
    (line,) = json.loads(run("--gpu", "T4", "--json").stdout)[0]["known_bad"]
    assert line.startswith("T4: TensorFlow 2.21.0 with cuDNN 9.5.1.17")
    assert "::error title=known to fail on T4::TensorFlow" in run("--gpu", "T4", "--github").stdout
    every = run()
    assert every.exception is None, "no GPU was named"
    assert ", T4, " in every.stdout and ": TensorFlow 2.21.0 with cuDNN 9.5.1.17: " in every.stdout


def test_audit_knows_jax_by_its_compiled_half(tmp_path: Path) -> None:
    cudnn = {"nvidia/cudnn/lib/libcudnn_ops.so.9": CUDNN}
    install(tmp_path, "jaxlib", "0.6.2", {"jaxlib/_jax.so": TENSORFLOW})
    install(tmp_path, "nvidia-cudnn-cu12", "9.5.1.17", cudnn)
    refused = CliRunner().invoke(app, ["-q", "audit", str(tmp_path), "--gpu", "H100"]).exception
    assert isinstance(refused, CheckFailed)
    assert "H100: JAX 0.6.2 with cuDNN 9.5.1.17: cuDNN is refused" in refused.message
