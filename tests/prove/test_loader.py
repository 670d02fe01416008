"""The check `loader`: frameworks as their wheels lay them out, with one fault each, and without."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from builder.audit.audited import gpu_named
from builder.frameworks.libraries import CUDNN_PARTS
from builder.prove.checks import loader
from builder.prove.image import Image
from builder.prove.receipts import Defect, Finding
from tests.devicecode.writer import linked
from tests.prove.reading import SITE, layer, read

Libraries = Mapping[str, bytes | None]
"""Path -> bytes; None takes a file away."""

TAG = "cpython-311-x86_64-linux-gnu.so"
PYTHON = linked(
    "libc.so.6", defined=("PyList_New",), interpreter="/lib64/ld-linux-x86-64.so.2"
)  # fmt: skip
GLIBC = linked(soname="libc.so.6", defined=("malloc",), versions=("GLIBC_2.17", "GLIBC_2.34"))
CXX = linked(soname="libstdc++.so.6", defined=("_Znwm",), versions=("GLIBCXX_3.4.29",))
BASE: Libraries = {
    "usr/bin/python3.11": PYTHON,
    "usr/lib/x86_64-linux-gnu/libc.so.6": GLIBC,
    "usr/lib/x86_64-linux-gnu/libstdc++.so.6": CXX,
}
WHEELS = "$ORIGIN/../../nvidia/{}/lib"


def record(package: str, version: str, *paths: str) -> Libraries:
    lines = "".join(f"{path},,\n" for path in paths)
    return {f"{SITE}/{package}-{version}.dist-info/RECORD": lines.encode()}


def wheel(name: str, *libraries: str, **more: object) -> Libraries:
    """One of NVIDIA's wheels."""
    paths = {f"nvidia/{name}/lib/{each}": linked(soname=each, **more) for each in libraries}  # type: ignore[arg-type]
    files: Libraries = {f"{SITE}/{path}": data for path, data in paths.items()}
    return {**files, **record(f"nvidia_{name}_cu12", "12.1", *paths)}


CUDNN_FILES = ("libcudnn.so.9", *(f"libcudnn_{each}.so.9" for each in CUDNN_PARTS[9]))
CUDNN = wheel("cudnn", *CUDNN_FILES, runpath="$ORIGIN")
NCCL = wheel("nccl", "libnccl.so.2", defined=("ncclCommResume",))
TORCH: Libraries = {
    **BASE, **CUDNN, **NCCL, **wheel("cuda_nvrtc", "libnvrtc.so.12"),
    f"{SITE}/torch/_C.{TAG}": linked("libtorch_python.so", runpath="$ORIGIN/lib"),
    f"{SITE}/torch/lib/libtorch_python.so": linked(
        "libtorch_cuda.so", "libc.so.6", runpath="$ORIGIN", undefined=("PyList_New", "at_sum"),
        soname="libtorch_python.so",
    ),
    f"{SITE}/torch/lib/libtorch_cuda.so": linked(
        "libcudnn.so.9", "libnccl.so.2", "libcuda.so.1", "libstdc++.so.6",
        soname="libtorch_cuda.so",
        undefined=("ncclCommResume", "cuMemAlloc_v2", "_Znwm"), defined=("at_sum",),
        wanted=(("libstdc++.so.6", "GLIBCXX_3.4.29"),),
        rpath=":".join(f"$ORIGIN/../../nvidia/{each}/lib" for each in ("cudnn", "nccl")),
    ),
    **record("torch", "2.8.0", "torch/lib/libtorch_cuda.so", "torch/lib/libtorch_python.so"),
    f"{SITE}/torchvision/_C.so": linked("libtorch_cuda.so", undefined=("at_sum",)),
    **record("torchvision", "0.23.0", "torchvision/_C.so"),
}  # fmt: skip


def image(libraries: Libraries, links: Mapping[str, str] | None = None, **config: object) -> Image:
    files = {path: (data, 0o755, 0) for path, data in libraries.items() if data is not None}
    links = {"opt/venv/bin/python3.11": "/usr/bin/python3.11", **(links or {})}
    judged = read(layer(files, links), **config)
    return Image(judged.content, gpu_named("v100"))


def said(judged: Image) -> tuple[list[str], list[str]]:
    """What refuses the image, and what is a finding."""
    defects, _ = loader.run(judged)
    findings = [each.message for each in defects if isinstance(each, Finding)]
    return [each.message for each in defects if type(each) is Defect], findings


def test_pytorch_as_its_wheels_lay_it_out_loads() -> None:
    judged = image(TORCH)
    assert said(judged) == ([], [])
    assert loader.run(judged)[1]["note"] == "1 modules load, by ld.so's way"


FAULTS: dict[str, tuple[Libraries, dict[str, str], str]] = {
    "an older NCCL": (
        wheel("nccl", "libnccl.so.2"), {},
        "libtorch_cuda.so does not fit what it is loaded with: nothing that it loads defines "
        "ncclCommResume; it is linked to nvidia-nccl-cu12 12.1, which",
    ),
    "an older libstdc++": (
        {"usr/lib/x86_64-linux-gnu/libstdc++.so.6":
            linked(soname="libstdc++.so.6", defined=("_Znwm",), versions=("GLIBCXX_3.4.28",))}, {},
        "it needs GLIBCXX_3.4.29 of /usr/lib/x86_64-linux-gnu/libstdc++.so.6, which has no such",
    ),
    "a moved wheel": (
        {f"{SITE}/nvidia/nccl/lib/libnccl.so.2": None, "opt/nccl/libnccl.so.2": linked()}, {},
        "libtorch_cuda.so needs libnccl.so.2, which lies in /opt/nccl/libnccl.so.2, where nothing",
    ),
    "a part of cuDNN gone": (
        {f"{SITE}/nvidia/cudnn/lib/libcudnn_graph.so.9": None}, {},
        "cuDNN opens libcudnn_graph.so.9, which is not in the image",
    ),
    "a link to another library": (
        {f"{SITE}/nvidia/cudnn/lib/libcudnn_graph.so.9": None,
         "usr/lib/libz.so.1.2": linked(soname="libz.so.1")},
        {f"{SITE}/nvidia/cudnn/lib/libcudnn_graph.so.9": "/usr/lib/libz.so.1.2"},
        "cuDNN opens libcudnn_graph.so.9, which is libz.so.1 by another name (/usr/lib/l",
    ),
    "torchvision of another PyTorch": (
        {f"{SITE}/torchvision/_C.so": linked("libtorch_cuda.so", undefined=("at_old_sum",))}, {},
        "torchvision/_C.so does not fit what it is loaded with: nothing that it loads defines "
        "at_old_sum; it is linked to torch 2.8.0",
    ),
    "a library of torchtext's of another PyTorch, which its module loads first": (
        {f"{SITE}/torchtext/_torchtext.so": linked(
            "libtorchtext.so", "libtorch_cuda.so", runpath="$ORIGIN/lib", undefined=("at_sum",)),
         f"{SITE}/torchtext/lib/libtorchtext.so": linked(
            "libtorch_cuda.so", soname="libtorchtext.so", undefined=("at_old_sum",)),
         **record("torchtext", "0.18.0", "torchtext/_torchtext.so")}, {},
        "torchtext/lib/libtorchtext.so does not fit what it is loaded with: nothing that it loads "
        "defines at_old_sum; it is linked to torch 2.8.0",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_of_pytorch_is_refused_with_its_cause(name: str) -> None:
    changes, links, message = FAULTS[name]
    problems, _ = said(image({**TORCH, **changes}, links))
    assert len(problems) == 1 and message in problems[0], problems


def test_another_package_may_bring_a_library_for_each_release() -> None:
    """NVIDIA's DALI does: one of them has to fit."""
    old = linked("libtorch_cuda.so", undefined=("at_old_sum",))
    variants: Libraries = {
        f"{SITE}/dali/libdali_torch_2_7.so": old,
        f"{SITE}/dali/libdali_torch_2_8.so": linked("libtorch_cuda.so", undefined=("at_sum",)),
    }
    problems, findings = said(image({**TORCH, **variants}))
    assert problems == [] and "libdali_torch_2_7.so does not fit" in findings[0]


def test_the_second_copy_that_is_taken_first_is_a_finding() -> None:
    base = {"usr/local/cuda/lib64/libcudnn.so.9": linked(soname="libcudnn.so.9")}
    plain: Libraries = {
        **TORCH, **base,
        f"{SITE}/torch/lib/libtorch_cuda.so": linked(
            "libcudnn.so.9", soname="libtorch_cuda.so", defined=("at_sum",),
            runpath="$ORIGIN/../../nvidia/cudnn/lib",
        ),
    }  # fmt: skip
    parts = {
        f"usr/local/cuda/lib64/libcudnn_{each}.so.9": linked(soname=f"libcudnn_{each}.so.9")
        for each in CUDNN_PARTS[9]
    }
    _, findings = said(image({**plain, **parts}, Env=["LD_LIBRARY_PATH=/usr/local/cuda/lib64"]))
    assert len(findings) == 1 and "for libcudnn.so.9, and not that of nvidia-cu" in findings[0]
    assert said(image(plain)) == ([], [])


STUB = "usr/local/cuda/lib64/stubs/libcuda.so.1"
COMPAT = "usr/local/cuda/compat/lib.real/libcuda.so.1"


@pytest.mark.parametrize(
    ("path", "env", "conf", "refused"),
    [
        (STUB, "LD_LIBRARY_PATH=/usr/local/cuda/lib64/stubs", "", True),
        (COMPAT, "", "/usr/local/cuda/compat/lib.real\n", True),
        (STUB, "LD_LIBRARY_PATH=/usr/local/cuda/lib64", "", False),
        # TensorFlow's own images: the machine's driver is found before
        (STUB, "", "/usr/lib/x86_64-linux-gnu\n/usr/local/cuda/lib64/stubs\n", False),
        # NVIDIA's own images: a script makes the folder compat/lib at the start, where it is needed
        (COMPAT, "LD_LIBRARY_PATH=/usr/local/cuda/compat/lib:/usr/local/nvidia/lib64", "", False),
    ],
)
def test_a_libcuda_on_the_loaders_path_is_refused(
    path: str, env: str, conf: str, refused: bool
) -> None:
    driver: Libraries = {path: linked(soname="libcuda.so.1"), "etc/ld.so.conf": conf.encode()}
    problems, _ = said(image({**TORCH, **driver}, Env=[env] if env else []))
    assert [f"a program takes /{path} for the driver" in text for text in problems] == (
        [True] * refused
    )


OPENED = {
    "cuda_runtime": ("libcudart.so.12",), "cublas": ("libcublas.so.12", "libcublasLt.so.12"),
    "cufft": ("libcufft.so.11",), "cusparse": ("libcusparse.so.12",),
    "nvjitlink": ("libnvJitLink.so.12",), "cuda_nvrtc": ("libnvrtc.so.12",),
    "cuda_cupti": ("libcupti.so.12",),
}  # fmt: skip
FRAMEWORK = f"{SITE}/tensorflow/libtensorflow_framework.so.2"


def tensorflow(*also_searched: str) -> Libraries:
    """`pip install tensorflow[and-cuda]==2.21.0`: no folder of cuSOLVER is in its search path."""
    folders = [*OPENED, "cudnn", "nccl", *also_searched]
    return {
        **BASE, **CUDNN, **NCCL,
        **{path: data for name, files in OPENED.items()
           for path, data in wheel(name, *files, runpath=":".join(
               f"$ORIGIN/../../{each}/lib" for each in folders)).items()},
        **wheel("cusolver", "libcusolver.so.11"),
        **{f"{SITE}/nvidia/cudnn/lib/{name}": linked(
            soname=name, runpath="$ORIGIN:$ORIGIN/../../cuda_nvrtc/lib")
           for name in ("libcudnn.so.9", "libcudnn_graph.so.9")},
        FRAMEWORK: linked(soname="libtensorflow_framework.so.2",
                          runpath=":".join(f"$ORIGIN/../nvidia/{each}/lib" for each in folders)),
        f"{SITE}/tensorflow/python/_pywrap_tensorflow_internal.so": linked(
            "libtensorflow_framework.so.2", runpath="$ORIGIN/.."),
        **record("tensorflow", "2.21.0", "tensorflow/libtensorflow_framework.so.2"),
    }  # fmt: skip


def test_tensorflow_with_cuda_of_pip_does_not_find_cusolver() -> None:
    """It is in the image, and TensorFlow does not look there: it trains on the CPU."""
    problems, findings = said(image(tensorflow()))
    assert len(problems) == 1 and findings == []
    assert problems[0].startswith(
        f"TensorFlow 2.21.0 opens libcusolver.so.11, which lies in /{SITE[1:]}/nvidia/cusolver/lib"
        "/libcusolver.so.11, where libtensorflow_framework does not look for it: TensorFlow sees no"
    )
    folder = f"{SITE}/nvidia/cusolver/lib"
    for repaired in (
        image(tensorflow("cusolver")),
        image(tensorflow(), Env=[f"LD_LIBRARY_PATH={folder}"]),
        image({**tensorflow(), "etc/ld.so.conf": folder.encode()}),
        image(tensorflow(), {"usr/lib/libcusolver.so.11": f"{folder}/libcusolver.so.11"}),
    ):
        assert said(repaired) == ([], [])


def test_what_an_entry_script_exports_counts_and_what_it_computes_is_a_finding() -> None:
    folder = f"{SITE}/nvidia/cusolver/lib"
    literal = f'#!/bin/sh\nexport LD_LIBRARY_PATH="{folder}:$LD_LIBRARY_PATH"\nexec "$@"\n'
    files: Libraries = {**tensorflow(), "entry.sh": literal.encode()}
    assert said(image(files, Entrypoint=["/entry.sh"])) == ([], [])
    computed = '#!/bin/sh\nexport LD_LIBRARY_PATH=$(python -c "import nvidia")\n'
    judged = image({**files, "entry.sh": computed.encode()}, Entrypoint=["/entry.sh"])
    problems, findings = said(judged)
    assert problems == [] and "libcusolver.so.11" in findings[0]
    assert loader.CHECK.judge(judged).status == "not followed"
    assert "entry point's script computes" in loader.run(judged)[1]["not_followed"]


def test_a_library_that_another_opens_is_asked_for() -> None:
    """libcusparse opens libnvJitLink."""
    gone: Libraries = {f"{SITE}/nvidia/nvjitlink/lib/libnvJitLink.so.12": None}
    problems, _ = said(image({**tensorflow("cusolver"), **gone}))
    assert len(problems) == 1 and "opens libnvJitLink.so.12, which is not in" in problems[0]


def test_another_libc_is_not_followed() -> None:
    musl = {"usr/bin/python3.11": linked(interpreter="/lib/ld-musl-x86_64.so.1")}
    judged = image({**TORCH, **musl, **wheel("nccl", "libnccl.so.2")})
    assert said(judged) == ([], [])
    assert loader.CHECK.judge(judged).status == "not followed"
    assert loader.run(judged)[1]["not_followed"].startswith("symbols, because")
