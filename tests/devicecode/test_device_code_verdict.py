"""The verdict on a set of libraries, and who spoils it."""

from __future__ import annotations

import io
import json
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import pytest

from builder.devicecode.__main__ import main
from builder.devicecode.inventory import from_files, from_paths
from builder.devicecode.pruning.errors import InputError
from builder.devicecode.pruning.rule import compute_capability
from builder.devicecode.verdict import Audit, Support, Verdict, as_dict, audit

from .writer import Part, container, elf, entry, install, library, lto, ptx, sass

TENSORFLOW = library(container(sass(60), sass(70), sass(80), sass(89), sass(90), ptx(90)))
CUDNN_9_3 = library(container(*map(sass, (50, 60, 70, 75, 80, 86, 90)), ptx(90)))
CUDNN_9_28 = library(container(*map(sass, (75, 80, 86)), sass(90, "a"), ptx(120, "f")))
CUBLAS_13 = library(container(*map(sass, (75, 80, 86, 90)), ptx(120)))


def site(folder: Path, cudnn: bytes = CUDNN_9_3, version: str = "9.3.0.75") -> Path:
    install(folder, "tensorflow", "2.21.0", {"tensorflow/libtensorflow_cc.so.2": TENSORFLOW})
    install(folder, "nvidia-cudnn-cu12", version, {"nvidia/cudnn/lib/libcudnn_ops.so.9": cudnn})
    return folder


def verdict(device: str, *libraries: bytes) -> Verdict:
    files = ((f"lib{i}.so", io.BytesIO(data)) for i, data in enumerate(libraries))
    return Audit(tuple(from_files(files))).verdict(device)


@pytest.mark.parametrize(
    ("device", "status"),
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
def test_the_worst_library_decides(tmp_path: Path, device: str, status: Support) -> None:
    assert audit([site(tmp_path)]).verdict(device).status == status


def test_todays_cudnn_has_nothing_for_a_v100(tmp_path: Path) -> None:
    found = audit([site(tmp_path, CUDNN_9_28, "9.28.0.42")]).verdict("7.0")
    assert not found.runs
    assert str(found) == (
        "7.0: missing, because of libcudnn_ops.so.9 (nvidia-cudnn-cu12 9.28.0.42): "
        "missing: .nv_fatbin carries sm_75, sm_80, sm_86, sm_90a, compute_120f"
    )
    assert found.instead.startswith("nvidia-cudnn-cu12 9.10.2.21 or older")


def test_cuda_13_has_nothing_for_a_v100(tmp_path: Path) -> None:
    install(tmp_path, "nvidia-cublas", "13.0.0.19", {"nvidia/cu13/lib/libcublas.so.13": CUBLAS_13})
    found = audit([tmp_path]).verdict("7.0")
    assert found.status == Support.MISSING
    assert "CUDA 12" in found.instead
    assert audit([tmp_path]).verdict("7.5").runs


def test_tensorflow_2_13_on_an_h100_is_compiled_from_ptx(tmp_path: Path) -> None:
    old = library(container(*map(sass, (35, 50, 60, 70, 75, 80)), ptx(80, code_size=176_000_000)))
    install(tmp_path, "tensorflow", "2.13.1", {"tensorflow/libtensorflow_cc.so.2": old})
    found = audit([tmp_path]).verdict("9.0")
    assert found.status == Support.PTX
    assert found.runs
    assert 300 < found.ptx_seconds < 340
    assert "1 modules compiled from PTX when first used (176.0 MB, up to 5 min)" in str(found)
    assert "2.21" in found.instead


def test_little_ptx_beside_native_code_is_native() -> None:
    """TensorFlow 2.21 on an H100: 1,149 small kernels in .rodata have PTX only."""
    small = container(sass(60), sass(70), sass(80), sass(89), ptx(90, code_size=3000))
    found = verdict("9.0", library(container(sass(90)), more=(Part(".rodata", b"x" + small),)))
    assert found.status == Support.NATIVE
    assert "1 modules compiled from PTX" in str(found.findings[0])


def test_much_ptx_beside_native_code_is_ptx() -> None:
    large = container(sass(60), ptx(60, code_size=90_000_000))
    found = verdict("9.0", library(container(sass(90)), more=(Part(".rodata", large),)))
    assert found.status == Support.PTX


def test_a_section_without_anything_is_missing_though_another_has_it() -> None:
    """What a library pruned for another accelerator looks like: data sections stay as they were."""
    data = library(container(sass(80)), more=(Part(".rodata", container(sass(70), sass(80))),))
    assert verdict("7.0", data).status == Support.MISSING
    assert verdict("8.9", data).status == Support.OLDER_MINOR


def test_containers_for_newer_devices_only_are_no_hole() -> None:
    """cuBLASLt: most of its containers are for Hopper alone."""
    found = verdict("7.0", library(container(sass(70)), *[container(sass(90, "a"))] * 50))
    assert found.status == Support.NATIVE
    assert found.findings[0].nothing == 50


def test_private_tables_decide_only_where_there_is_nothing_else() -> None:
    blackwell = Part(".cask_resource", container(sass(100, "f")))
    assert verdict("7.0", library(container(sass(70)), more=(blackwell,))).status == Support.NATIVE
    assert verdict("7.0", elf(blackwell)).status == Support.MISSING


def test_a_table_with_one_container_for_each_target_is_not_ptx() -> None:
    """cuFFT: thousands of containers with one entry each; the library picks among them."""
    parts = [container(sass(70)), container(sass(90)), container(lto(50))]
    parts += [container(ptx(50, code_size=1_000_000))] * 90
    found = verdict("7.0", library(*parts, section=".ldata"))
    assert found.status == Support.NATIVE
    assert found.ptx_seconds == 0


def test_the_stub_that_nvcc_leaves_is_no_device_code() -> None:
    """libcufftw: one empty cubin for sm_52, which no V100 could run."""
    stub = entry(2, 52, compression="", payload=elf(Part(".nv.info", b"\0" * 8)))
    kernel = entry(2, 52, compression="", payload=elf(Part(".text.kernel", b"\0" * 8, flags=6)))
    assert verdict("7.0", library(container(stub))).status == Support.NO_DEVICE_CODE
    assert verdict("7.0", library(*[container(stub)] * 3)).status == Support.NO_DEVICE_CODE
    assert verdict("7.0", library(container(kernel))).status == Support.MISSING


def test_a_stub_that_cannot_be_looked_into_counts_as_code() -> None:
    zstd = container(sass(52, compression="zstd", code_size=400))
    assert verdict("7.0", library(zstd)).status == Support.MISSING


def test_inputs_of_device_linking_prove_nothing() -> None:
    linked = Part("__nv_relfatbin", container(sass(70)))
    assert verdict("7.0", library(container(sass(80)), more=(linked,))).status == Support.MISSING
    assert verdict("8.0", library(container(sass(80)), more=(linked,))).status == Support.NATIVE


def test_an_image_without_device_code_does_not_run_on_a_gpu() -> None:
    found = verdict("7.0", elf(Part(".text", b"\x90", flags=6)))
    assert found.status == Support.NO_DEVICE_CODE
    assert not found.runs


@pytest.mark.parametrize("kept", [0.999, 0.5, 0.01, 0.0])
def test_a_broken_download_is_never_fine(tmp_path: Path, kept: float) -> None:
    cut = CUDNN_9_3[: int(len(CUDNN_9_3) * kept)]
    found = audit([site(tmp_path, cut)]).verdict("7.0")
    assert found.status == Support.BROKEN
    assert not found.runs
    assert found.spoiler is not None
    assert found.spoiler.library.name == "libcudnn_ops.so.9"
    assert found.instead == "the same version, downloaded again"


def test_a_linker_script_is_no_broken_library() -> None:
    assert verdict("7.0", TENSORFLOW, b"/* GNU ld script */\nINPUT(libm.so.6)\n").runs


def test_only_what_is_named_like_a_library_is_read(tmp_path: Path) -> None:
    for name in ("libfoo.so.txt", "also.sorted", "lib.solid", "libm.so", "libm.so.6", "c.so.1.2"):
        (tmp_path / name).write_bytes(TENSORFLOW)
    (tmp_path / "liblink.so").symlink_to("libm.so")
    assert [lib.name for lib in from_paths([tmp_path])] == ["c.so.1.2", "libm.so", "libm.so.6"]


def wheel(folder: Path, name: str, members: dict[str, bytes]) -> Path:
    path = folder / name
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for member, data in members.items():
            archive.writestr(member, data)
    return path


CUDNN_WHEEL = "nvidia_cudnn_cu12-9.28.0.42-py3-none-manylinux_2_27_x86_64.whl"
LIBRARY = "nvidia/cudnn/lib/libcudnn_ops.so.9"


def test_a_wheel_is_judged_before_anything_is_installed(tmp_path: Path) -> None:
    path = wheel(tmp_path, CUDNN_WHEEL, {LIBRARY: CUDNN_9_28, "nvidia/__init__.py": b""})
    found = audit([path]).verdict("7.0")
    assert found.status == Support.MISSING
    assert found.spoiler is not None
    assert found.spoiler.library.origin == "nvidia-cudnn-cu12 9.28.0.42"
    assert found.spoiler.library.path == f"{CUDNN_WHEEL}/{LIBRARY}"


def test_several_wheels_at_once_keep_their_order(tmp_path: Path) -> None:
    first = wheel(tmp_path, CUDNN_WHEEL, {LIBRARY: CUDNN_9_28})
    second = wheel(tmp_path, "tensorflow-2.21.0-cp311-cp311-linux.whl", {"libt.so": TENSORFLOW})
    packages = [lib.package for lib in audit([first, second]).libraries]
    assert packages == ["nvidia-cudnn-cu12", "tensorflow"]


@pytest.mark.parametrize("damage", ["cut", "flipped", "no wheel"])
def test_a_broken_wheel_is_never_fine(tmp_path: Path, damage: str) -> None:
    path = wheel(tmp_path, CUDNN_WHEEL, {LIBRARY: CUDNN_9_3})
    data = bytearray(path.read_bytes())
    if damage == "cut":
        del data[-40:]
    elif damage == "flipped":
        at = len(LIBRARY) + 60
        data[at] ^= 0xFF
    else:
        data = bytearray(b"<html>not found</html>")
    path.write_bytes(data)
    assert audit([path]).verdict("7.0").status == Support.BROKEN


def layer(members: dict[str, bytes]) -> IO[bytes]:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    packed.seek(0)
    return packed


def files(packed: IO[bytes]) -> Iterator[tuple[str, IO[bytes]]]:
    with tarfile.open(fileobj=packed, mode="r|") as archive:
        for member in archive:
            file = archive.extractfile(member)
            if file:
                yield member.name, file


def test_a_layer_is_read_as_a_stream() -> None:
    packages = "opt/venv/lib/python3.11/site-packages"
    members = {
        f"{packages}/{LIBRARY}": CUDNN_9_28,
        f"{packages}/nvidia_cudnn_cu12-9.28.0.42.dist-info/RECORD": f"{LIBRARY},,\n".encode(),
        "etc/passwd": b"root",
    }
    (only,) = from_files(files(layer(members)))
    assert only.origin == "nvidia-cudnn-cu12 9.28.0.42"
    assert Audit((only,)).verdict("7.0").status == Support.MISSING


def test_a_path_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file or folder"):
        audit([tmp_path / "gone"])


def test_the_audit_as_data(tmp_path: Path) -> None:
    found = audit([site(tmp_path, CUDNN_9_28, "9.28.0.42")])
    data = json.loads(json.dumps(as_dict(found, [compute_capability("7.0")])))
    (only,) = data["verdicts"]
    assert (only["status"], only["runs"]) == ("missing", False)
    assert only["spoiler"].endswith("libcudnn_ops.so.9")
    assert {lib["version"] for lib in data["libraries"]} == {"2.21.0", "9.28.0.42"}


def test_the_command_line_says_no_with_exit_code_4(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = site(tmp_path, CUDNN_9_28, "9.28.0.42")
    assert main(["audit", str(folder), "--gpu", "8.0"]) == 0
    assert main(["audit", str(folder), "--gpu", "8.0", "--gpu", "7.0"]) == 4
    assert "instead: nvidia-cudnn-cu12 9.10.2.21 or older" in capsys.readouterr().out
    assert main(["audit", str(folder), "--gpu", "V100"]) == 2
    assert "not a compute capability" in capsys.readouterr().err
