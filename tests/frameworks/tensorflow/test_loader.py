"""The loader probe, on images described by a few files: each thing that breaks one has a name."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from builder.frameworks.tensorflow.probes import opens

from ..standins import LIBRARIES, LOCKED, PTXAS, Image, number, shared_object


@pytest.fixture
def image(tmp_path: Path) -> Image:
    return Image(tmp_path / "image")


def test_a_whole_image_passes_and_each_version_is_the_librarys_own(image: Image) -> None:
    """A libcuda that the loader does not come across is left to the check `driver`."""
    shared_object(image.root / "usr/local/cuda/lib64/stubs/libcuda.so.1")
    messages, seen = image.probe()
    assert messages == []
    versions = {name: library["version"] for name, library in seen["libraries"].items()}
    assert versions["libcudart.so.12"] == "12.9"
    assert versions["libcublas.so.12"] == versions["libcublasLt.so.12"] == "12.9.1"
    assert versions["libcufft.so.11"] == "11.4.1"
    assert versions["libcudnn.so.9"] == "9.10.2"
    assert versions["libnvrtc.so.12"] == versions["libnvJitLink.so.12"] == "12.9"
    assert versions["libnccl.so.2"] == "2.30.7"


def test_what_is_missing_is_named_with_what_fails_without_it(image: Image) -> None:
    """A library of cuDNN's own, one that lies where nobody looks, two that are nowhere."""
    parts = image.library("libcudnn_ops.so.9"), image.library("libnvrtc.so.12")
    for path in (*parts, image.library("libcufft.so.11")):
        path.unlink()
    hidden = image.root / "opt/elsewhere/libcusolver.so.11"
    hidden.parent.mkdir()
    image.library(hidden.name).rename(hidden)
    (hidden.parent / "libcufft.so.11").symlink_to("nowhere")  # it is no file to advise
    (image.nvidia / "cuda_nvcc/bin/ptxas").unlink()
    (image.nvidia / "cuda_nvcc/nvvm/libdevice/libdevice.10.bc").unlink()
    messages, seen = image.probe()
    assert messages[0] == (
        "libcufft.so.11 is not where TensorFlow looks for it: TensorFlow sees no GPU and trains on "
        "the CPU: it registers GPUs only if all of these load"
    )
    assert messages[1].startswith("libcusolver.so.11 is not where TensorFlow looks for it")
    assert messages[2] == (
        "libnvrtc.so.12 is not where libcudnn_graph looks for it: cuDNN compiles no kernels at run "
        "time: fused operations and some convolutions fail"
    )
    assert messages[3].startswith(f"a part of cuDNN does not open: {parts[0]}: cannot open shared")
    assert messages[3].endswith("cuDNN fails at the first operation that needs it")
    assert [message.split(" in ")[0] for message in messages[4:]] == [
        "XLA finds no nvvm/libdevice/libdevice.10.bc",
        "XLA finds no ptxas",
    ]
    assert image.fixes == [
        "install nvidia-cufft-cu12 as locked",
        f"name {hidden.parent} in a file in /etc/ld.so.conf.d and run ldconfig",
        "install nvidia-cuda-nvrtc-cu12 as locked",
        "install nvidia-cudnn whole, as locked",
        *["install nvidia-cuda-nvcc-cu12 as locked"] * 2,
    ]
    assert seen["looked"]["libnvrtc.so.12"] == [
        str(image.nvidia / folder / "lib") for folder in ("cudnn", "cuda_nvrtc", "nvjitlink")
    ]


def test_both_compilers_have_to_compile_for_the_images_gpu(image: Image) -> None:
    """NVRTC opens libnvrtc-builtins, its second library, only then."""
    path = image.library("libnvrtc.so.12")
    functions = LIBRARIES["cuda_nvrtc/lib/libnvrtc.so.12"]
    log = {"nvrtcGetProgramLogSize": number(0), "nvrtcGetProgramLog": number(0)}
    shared_object(path, {**functions, **log, "nvrtcCompileProgram": number(7)})
    ptxas = image.write("nvidia/cuda_nvcc/bin/ptxas", PTXAS.replace("70", "75"))
    assert image.probe()[0] == [
        f"{path} does not compile a kernel for 7.0: code 7; what is compiled at run time fails",
        f"{ptxas} does not compile for 7.0: no --gpu-name=sm_70",
    ]


def test_a_libcuda_on_the_loaders_path_is_wrong(image: Image) -> None:
    stub = shared_object(image.root / "usr/local/cuda/lib64/stubs/libcuda.so.1")
    image.environ = {"LD_LIBRARY_PATH": str(stub.parent)}
    for image.kind in ("gpu", "cpu"):
        image.build_info(is_cuda_build=image.kind == "gpu", cuda_version="12.5", cudnn_version="9")
        assert image.probe()[0] == [
            f"a libcuda is on the loader's path: {stub}; it shadows the driver's, and TensorFlow "
            "sees no GPU"
        ]


def test_a_second_copy_in_the_way(image: Image) -> None:
    old = shared_object(image.root / "usr/lib/libcudnn.so.9", {"cudnnGetVersion": number(90101)})
    image.environ = {"LD_LIBRARY_PATH": f"/nowhere;{old.parent}"}
    messages, _ = image.probe()
    ours = image.library("libcudnn.so.9")
    assert f"{old} is version 9.1.1, the lock says 9.10.2.21" in messages
    assert any("the image is to have 9.10, and TensorFlow wants 9.x" in m for m in messages)
    assert (
        f"libcudnn.so.9 is on the loader's path more than once: it takes {old} and leaves {ours}"
        in messages
    )


def test_a_copy_behind_ours_is_one_too_many_and_a_link_is_none(image: Image) -> None:
    """The links come first, in LD_LIBRARY_PATH; the copy behind them, too."""
    links, behind = image.root / "usr/lib", image.root / "usr/lib64/libcublas.so.12"
    links.mkdir(parents=True)
    for path in image.nvidia.rglob("lib*.so.*"):
        (links / path.name).symlink_to(path)
    image.environ = {"LD_LIBRARY_PATH": f"{links}:{behind.parent}"}
    unsearched = shared_object(image.root / "opt/backup/libnccl.so.2")
    assert image.probe()[0] == [
        f"libnccl.so.2 is in the image twice: {links / unsearched.name} and {unsearched}"
    ]
    image.strict = False  # what the loader does not come across is no matter
    shared_object(behind, LIBRARIES["cublas/lib/libcublas.so.12"])
    assert image.probe()[0] == [
        f"libcublas.so.12 is on the loader's path more than once: it takes {links / behind.name} "
        f"and leaves {behind}"
    ]


def test_a_library_that_does_not_open_has_a_name(image: Image) -> None:
    path = image.library("libcufft.so.11")
    shared_object(path, needed=["libgone.so.1"])
    text = image.library("libcusolver.so.11")
    text.write_text("/* GNU ld script */ INPUT(libcusolver.so.11.2)")
    missing, script = image.probe()[0]
    assert missing.startswith("libcufft.so.11 does not open: libgone.so.1: cannot open shared")
    assert script.startswith(f"libcusolver.so.11 does not open: {text}: ")
    shared_object(text, LIBRARIES["cusolver/lib/libcusolver.so.11"])
    shared_object(path, {"cufftGetProperty": b"\x0f\x0b"})  # ud2
    assert image.probe()[0] == ["opening libcufft.so.11 ended the process: signal 4"]


def test_a_tensorflow_that_was_built_for_something_else_or_is_not_there(image: Image) -> None:
    image.build_info(is_cuda_build=True, cuda_version="14.0.0", cudnn_version="9")
    assert "CUDA 14.0.0" in image.probe()[0][0]
    image.kind = "cpu"
    assert image.probe()[0] == [
        "TensorFlow in this image was built with CUDA, which nothing here uses"
    ]
    image.kind = "gpu"
    image.build_info(is_cuda_build=False)
    assert image.probe()[0] == [
        f"TensorFlow in {image.tensorflow} was built without CUDA: it will see no GPU"
    ]
    assert image.fixes == ["lock `tensorflow`, not `tensorflow-cpu`, for this accelerator"]
    image.locked = {**LOCKED, "tensorflow": "2.21.0"}  # another copy comes first on PYTHONPATH
    image.probe()
    assert image.fixes == [
        "the lock has tensorflow 2.21.0: take this other copy out of the image, or "
        f"{image.tensorflow.parent} out of PYTHONPATH"
    ]
    (image.tensorflow / "libtensorflow_framework.so.2").unlink()
    assert image.probe()[0][-1] == f"no libtensorflow_framework.so in {image.tensorflow}"
    image.tensorflow.rename(image.tensorflow.with_name("other"))
    assert image.probe()[0] == [f"{sys.executable} finds no package tensorflow"]


def test_cuda_11_has_names_of_its_own() -> None:
    names = [row.name for row in opens.opened((11, 8, 0), 8)]
    assert {"libcudart.so.11.0", "libcufft.so.10", "libcublas.so.11", "libcupti.so.11.8"} < {*names}
    assert "libcudnn_ops_infer.so.8" in names
    assert not any("nvJitLink" in name for name in names)


def test_libtpu_is_opened_by_its_variable_and_not_by_its_package(image: Image) -> None:
    image.kind = "tpu"
    image.build_info(is_cuda_build=False)
    libtpu = shared_object(image.site / "libtpu/libtpu.so")
    assert image.probe()[0] == [
        "TPU_LIBRARY_PATH is not set, and no libtpu.so is on the loader's path: TensorFlow "
        "sees no TPU"
    ]
    assert image.fixes == [f"set TPU_LIBRARY_PATH={libtpu} in the image"]
    image.environ = {"TPU_LIBRARY_PATH": str(libtpu)}
    messages, seen = image.probe()
    assert (messages, seen["libraries"]["libtpu.so"]["path"]) == ([], str(libtpu))
    image.environ = {"TPU_LIBRARY_PATH": "/lib/libtpu.so"}
    assert image.probe()[0][0].startswith("TPU_LIBRARY_PATH=/lib/libtpu.so: there is no such")


@pytest.mark.parametrize("tag", ["runpath", "rpath"])
def test_a_copy_in_ld_library_path_wins_over_runpath_and_not_over_rpath(
    image: Image, tag: str
) -> None:
    """The loader decides it, and the probe says which file it took."""
    old = shared_object(image.root / "usr/lib/libnccl.so.2", LIBRARIES["nccl/lib/libnccl.so.2"])
    image.environ = {"LD_LIBRARY_PATH": str(old.parent)}
    folders = ":".join(f"$ORIGIN/../nvidia/{name.split('/')[0]}/lib" for name in LIBRARIES)
    shared_object(image.tensorflow / "libtensorflow_framework.so.2", **{tag: folders})
    ours = image.library("libnccl.so.2")
    first, other = (old, ours) if tag == "runpath" else (ours, old)
    assert image.probe()[0] == [
        f"libnccl.so.2 is on the loader's path more than once: it takes {first} and leaves {other}"
    ]
