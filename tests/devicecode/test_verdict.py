"""The verdict on a set of libraries, and which library spoils it."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path

import pytest
import zstandard

from builder.config import device_code
from builder.devicecode import inventory
from builder.devicecode.dynamic import AARCH64, X86_64, Dynamic
from builder.devicecode.library import Library
from builder.devicecode.pruning.fatbin import COMPILED
from builder.devicecode.verdict import Audit, Support, Verdict, carries
from builder.facts import accelerators, cuda
from builder.frameworks.tensorflow import releases
from tests import ROOT

from .writer import Part, container, elf, entry, install, library, lto, ptx, sass

ELSEWHERE = Path(__file__).parent / "data"
"""What was read of real wheels that no lock names."""

TENSORFLOW = library(container(sass(60), sass(70), sass(80), sass(89), sass(90), ptx(90)))
CUDNN_9_3 = library(container(*map(sass, (50, 60, 70, 75, 80, 86, 90)), ptx(90)))
CUDNN_9_28 = library(container(*map(sass, (75, 80, 86)), sass(90, "a"), ptx(120, "f")))


def site(folder: Path, cudnn: bytes = CUDNN_9_3, version: str = "9.3.0.75") -> Audit:
    install(folder, "tensorflow", "2.21.0", {"tensorflow/libtensorflow_cc.so.2": TENSORFLOW})
    install(folder, "nvidia-cudnn-cu12", version, {"nvidia/cudnn/lib/libcudnn_ops.so.9": cudnn})
    return Audit(inventory.of_folder(folder))


def verdict(device: str, *libraries: bytes) -> Verdict:
    files = ((f"lib{i}.so", io.BytesIO(data)) for i, data in enumerate(libraries))
    return Audit(inventory.of_stream(files).compared()).verdict(device)


def status(device: str, *libraries: bytes) -> Support:
    return verdict(device, *libraries).status


@pytest.mark.parametrize(
    ("device", "expected"),
    [
        ("7.0", Support.NATIVE),
        ("7.5", Support.OLDER_MINOR),
        ("8.0", Support.NATIVE),
        ("8.9", Support.OLDER_MINOR),  # cuDNN has sm_86
        ("9.0", Support.NATIVE),
        ("12.0", Support.PTX),
        ("5.2", Support.MISSING),
    ],
)
def test_the_worst_library_decides(device: str, expected: Support) -> None:
    assert status(device, TENSORFLOW, CUDNN_9_3) == expected


@pytest.mark.parametrize(("machine", "said"), [(AARCH64, "arm64, built"), (X86_64, "built")])
def test_a_framework_without_device_code_is_said_to_be_built_without_cuda(
    machine: int, said: str
) -> None:
    own = Library("torch/_C.so", 9, package="torch", version="2.8.0")
    other = replace(own, path="numpy/_core.so", package="numpy")
    libraries = tuple(replace(each, dynamic=Dynamic(machine)) for each in (other, own))
    assert str(Audit(libraries).verdict("9.0")) == (
        f"9.0: no device code (torch 2.8.0: {said} without CUDA)"
    )
    assert str(Audit(libraries[:1]).verdict("9.0")) == "9.0: no device code"


def test_a_verdict_names_the_library_and_what_would_run(tmp_path: Path) -> None:
    spoiled = site(tmp_path, CUDNN_9_28, "9.28.0.42").verdict("7.0")
    assert not spoiled.runs
    assert str(spoiled) == (
        "7.0: missing, because of libcudnn_ops.so.9 (nvidia-cudnn-cu12 9.28.0.42): "
        "missing: .nv_fatbin carries sm_75, sm_80, sm_86, sm_90a, compute_120f"
    )
    assert spoiled.instead.startswith("nvidia-cudnn-cu12 9.10.2.21 or older")
    broken = site(tmp_path / "torn", CUDNN_9_3[: len(CUDNN_9_3) // 2]).verdict("7.0")
    assert (broken.status, broken.runs) == (Support.BROKEN, False)
    assert broken.spoiler and broken.spoiler.library.name == "libcudnn_ops.so.9"
    assert broken.instead == "the same version, downloaded again"


def test_the_oldest_driver_is_at_least_the_first_that_knows_the_gpu() -> None:
    """Libraries of CUDA 12 run with driver 525, and no driver before 570 knows a Blackwell."""
    toolkit = io.BytesIO(elf(Part(".text", b"\x90", flags=6)))
    code = io.BytesIO(library(container(sass(70), sass(90), sass(100))))
    files = [("libcudart.so.12", toolkit), ("libx.so", code)]
    read = Audit(inventory.of_stream(files).compared())
    drivers = {device: read.verdict(device).driver for device in ("7.0", "9.0", "10.0")}
    assert {device: oldest.driver for device, oldest in drivers.items() if oldest} == {
        "7.0": "525",
        "9.0": "525",
        "10.0": "570",
    }


# --- sections -------------------------------------------------------------------------------------


def rodata(*entries: bytes) -> Part:
    return Part(".rodata", b"x" + container(*entries))


SMALL = rodata(sass(60), sass(70), sass(80), sass(89), ptx(90, code_size=3000))
BLACKWELL = Part(".cask_resource", container(sass(100, "f")))
LINKED = Part("__nv_relfatbin", container(sass(70)))
PRUNED = library(container(sass(80)), more=(rodata(sass(70), sass(80)),))


@pytest.mark.parametrize(
    ("data", "device", "expected"),
    [
        # TensorFlow 2.21 on an H100: 1,149 small kernels in .rodata have PTX only
        (library(container(sass(90)), more=(SMALL,)), "9.0", Support.NATIVE),
        (
            library(container(sass(90)), more=(rodata(ptx(60, code_size=90_000_000)),)),
            "9.0",
            Support.PTX,
        ),
        # pruned for another accelerator: data sections stay as they were
        (PRUNED, "7.0", Support.MISSING),
        (PRUNED, "8.9", Support.OLDER_MINOR),
        # cuBLASLt: most of its containers are for Hopper alone
        (library(container(sass(70)), *[container(sass(90, "a"))] * 50), "7.0", Support.NATIVE),
        # a private table decides only where there is nothing else
        (library(container(sass(70)), more=(BLACKWELL,)), "7.0", Support.NATIVE),
        (elf(BLACKWELL), "7.0", Support.MISSING),
        # inputs of device linking prove nothing
        (library(container(sass(80)), more=(LINKED,)), "7.0", Support.MISSING),
        (library(container(sass(80)), more=(LINKED,)), "8.0", Support.NATIVE),
        (elf(Part(".text", b"\x90", flags=6)), "7.0", Support.NO_DEVICE_CODE),
    ],
)
def test_sections_are_judged_each_by_itself(data: bytes, device: str, expected: Support) -> None:
    assert status(device, data) == expected


def test_what_is_no_ptx_that_a_driver_has_to_compile() -> None:
    """cuFFT: thousands of containers with one entry each; the library picks among them."""
    parts = [container(sass(70)), container(sass(90)), container(lto(50))]
    parts += [container(ptx(50, code_size=1_000_000))] * 90
    native = verdict("7.0", library(*parts, section=".ldata"))
    assert (native.status, native.ptx_seconds) == (Support.NATIVE, 0)
    text = b".version 9.4\n.target sm_75\n"
    empty = ptx(75, compression="", payload=text)
    judged = verdict("7.5", library(container(sass(75)), container(empty, sass(90))))
    assert (judged.status, judged.ptx_version, judged.ptx_seconds) == (Support.NATIVE, "", 0)


def test_the_stub_that_nvcc_leaves_is_no_device_code() -> None:
    """libcufftw: one empty cubin for sm_52, which no V100 could run; cuFFT 12.2: packed by zstd."""
    empty = zstandard.compress(elf(Part(".nv.info", b"\0" * 8)))
    zstd = entry(2, 75, compression="zstd", payload=empty, code_size=1000)
    assert status("9.0", library(container(zstd))) == Support.NO_DEVICE_CODE
    stub = entry(2, 52, compression="", payload=elf(Part(".nv.info", b"\0" * 8)))
    kernel = entry(2, 52, compression="", payload=elf(Part(".text.kernel", b"\0" * 8, flags=6)))
    packed = sass(52, compression="zstd", code_size=400)  # no zstd: it cannot be read
    assert status("7.0", library(*[container(stub)] * 3)) == Support.NO_DEVICE_CODE
    assert status("7.0", library(container(kernel))) == Support.MISSING
    assert status("7.0", library(container(packed))) == Support.MISSING


def test_a_table_of_the_programs_own_does_not_spoil_native_code() -> None:
    """PyTorch 2.15.0: 58 containers of `.lrodata` hold one cubin each, for 9.0 or 10.0, which it
    loads there. A library that was pruned for another GPU has several targets in each."""
    torch = [container(*map(sass, (75, 80, 90, 100, 120)))] * 4
    kernels = Part(".lrodata", container(sass(90)) + container(sass(100)))
    for device in ("7.5", "8.9", "9.0", "12.0"):
        assert verdict(device, library(*torch, more=(kernels,))).runs
    assert status("7.0", library(*torch, more=(kernels,))) == Support.MISSING
    assert status("7.5", elf(kernels)) == Support.MISSING
    judged = verdict("9.0", library(container(sass(90)), more=(SMALL,)))
    assert "1 modules compiled from PTX" in str(judged.findings[0])


def test_variants_of_a_library_are_judged_as_a_set(tmp_path: Path) -> None:
    """bitsandbytes 0.50.2: a program opens the one for the CUDA that is there."""
    folder = tmp_path / "bitsandbytes"
    folder.mkdir()
    for name, targets in {"118": (60, 70, 90), "128": (70, 90, 100), "132": (75, 90, 100)}.items():
        data = library(container(*map(sass, targets)))
        (folder / f"libbitsandbytes_cuda{name}.so").write_bytes(data)
    for device in ("7.0", "10.0"):
        assert Audit(inventory.of_folder(tmp_path)).verdict(device).status == Support.NATIVE
    unused = Audit(inventory.of_folder(tmp_path)).verdict("10.0").findings[0]
    assert str(unused) == ("not used: one of 3 variants, of which libbitsandbytes_cuda128.so runs")
    assert Audit(inventory.of_folder(tmp_path)).verdict("3.0").status == Support.MISSING
    (tmp_path / "libcudart.so.13").write_bytes(elf(Part(".text", b"\x90", flags=6)))
    of_cuda_13 = Audit(inventory.of_folder(tmp_path))
    assert of_cuda_13.verdict("7.0").status == Support.MISSING  # only 132 is opened
    assert of_cuda_13.verdict("10.0").status == Support.NATIVE


def test_what_the_reader_does_not_know_is_said_and_not_called_missing() -> None:
    other_kind = verdict("7.0", library(container(entry(0x40, 70))))
    assert (other_kind.status, other_kind.instead) == (Support.NOT_KNOWN, "")
    assert ".nv_fatbin holds code of a kind that is not known (0x40)" in str(other_kind)
    newer = bytearray(container(sass(70)))
    newer[4] = 2
    other_format = verdict("7.0", library(bytes(newer)))
    assert other_format.status == Support.NOT_KNOWN
    assert "containers of a version that is not known" in str(other_format)
    assert other_format.instead == "a newer release of this program, which may know the format"


# --- what was read of real wheels -----------------------------------------------------------------


def real(name: str, version: str, device: str, root: Path = ELSEWHERE) -> Verdict:
    """The verdict on one wheel alone, on one device."""
    read = device_code.read(root).values()
    (wheel,) = (wheel for wheel in read if (wheel.name, wheel.version) == (name, version))
    return Audit(wheel.libraries).verdict(device)


@pytest.mark.parametrize(
    ("wheel", "version", "root", "expected"),
    [
        ("nvidia-cudnn-cu12", "9.28.0.42", ELSEWHERE, "missing native native native"),
        ("nvidia-cudnn-cu12", "9.10.2.21", ROOT, "native older_minor native native"),
        ("nvidia-cudnn-cu12", "9.24.0.43", ROOT, "missing native native native"),
        ("nvidia-curand", "10.4.5.25", ELSEWHERE, "missing native native native"),  # of CUDA 13
        ("nvidia-cusparselt-cu12", "0.8.1", ELSEWHERE, "not_used not_used native native"),
        ("tensorflow", "2.13.1", ELSEWHERE, "native native native ptx"),
        ("tensorflow", "2.21.0", ROOT, "native older_minor native native"),
    ],
)
def test_what_was_read_of_a_wheel_runs_where_it_does(
    wheel: str, version: str, root: Path, expected: str
) -> None:
    for device, word in zip(("7.0", "7.5", "8.0", "9.0"), expected.split(), strict=True):
        assert real(wheel, version, device, root).status == Support[word.upper()], device


def test_why_a_wheel_does_not_run_there() -> None:
    """cuSPARSELt: two helpers of its 995 containers have PTX for any GPU; the kernels start at
    sm_80, as does 2:4 sparsity, which alone uses them. Every PyTorch image has it."""
    assert len(real("nvidia-cudnn-cu12", "9.28.0.42", "7.0").spoilers) == 5
    assert "CUDA 12 build of the same" in real("nvidia-curand", "10.4.5.25", "7.0").instead
    unused = real("nvidia-cusparselt-cu12", "0.8.1", "6.0")
    assert not unused.runs and "only 2:4 sparsity uses it" in str(unused.findings[0])
    slow = real("tensorflow", "2.13.1", "9.0")
    assert slow.runs and 300 < slow.ptx_seconds < 400
    assert slow.spoiler and slow.spoiler.library.name == "libtensorflow_cc.so.2"
    assert "modules compiled from PTX when first used" in str(slow)
    assert real("tensorflow", "2.13.1", "8.9").status == Support.OLDER_MINOR


def test_cufile_is_for_one_feature(tmp_path: Path) -> None:
    """One helper's PTX refuses no image for a B200, and asks for no newer driver."""
    (tmp_path / "libcufile.so.0").write_bytes(library(container(sass(90), ptx(52))))
    (tmp_path / "libcublas.so.13").write_bytes(library(container(sass(90), sass(100))))
    judged = Audit(inventory.of_folder(tmp_path)).verdict("10.0")
    assert (judged.status, judged.ptx_version) == (Support.NATIVE, "")
    assert "only reading files into a GPU's memory" in str(judged.findings[1])


def test_the_tables_say_what_wheels_that_no_lock_names_carry() -> None:
    """cuda.yaml's row for the newest cuDNN, gpu-support.json's for TensorFlow 2.13."""
    read = device_code.read(ELSEWHERE)
    by_name = {wheel.name: Audit(wheel.libraries) for wheel in read.values()}
    every = accelerators.accelerators().values()
    known = {float(a.compute_capability) for a in every if a.compute_capability}
    cudnn = by_name["nvidia-cudnn-cu12"]
    native = {number for number in known if cudnn.verdict(str(number)).status == Support.NATIVE}
    assert native == {float(text) for text in cuda.cuda().cudnn[-1].capabilities} & known
    carried = {t for each in by_name["tensorflow"].libraries for t in carries(each, COMPILED)}
    release = releases.find("2.13")
    assert release and set(release.wheel.targets) == carried
