"""The probe that asks PyTorch for its libraries, in images that are broken in a dozen ways.

PyTorch is a module here that says what a broken one would say, and opens stand-ins: five gigabytes
of the real ones are proven with the target v100-torch (test_broken.py).
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from ..standins import LIBRARIES, number, run, shared_object, through_pointer

TORCH = """
import ctypes, pathlib
from types import SimpleNamespace as Is
__version__ = "2.10.0+cu128"
for path in pathlib.Path(__file__).parents[1].glob("nvidia/*/lib/lib*.so.*"):
    if "cudnn_" not in path.name:
        ctypes.CDLL(str(path))
version = Is(cuda="12.8")
backends = Is(cudnn=Is(version=lambda: 91002))
_C = Is(_cuda_getArchFlags=lambda: "sm_70 sm_75 sm_80 sm_90")
class ones:
    def __init__(self, _): pass
    def __matmul__(self, _): return self
    def sum(self): return 64
"""
REQUEST = {
    "release": "2.10.0",
    "cuda": "12.8",
    "cudnn": "9.10.2.21",
    "capability": "7.0",
    "locked": {"nvidia-nccl-cu12": "2.30.7", "nvidia-cudnn-cu12": "9.10.2.21"},
}
NEEDED = ("cudnn", "nccl", "cuda_nvrtc", "cublas")


UNLOCKED = {"release": "", "cuda": "", "cudnn": "", "locked": {}}
"""What is asked of an image that has no lock."""


def asked(*folders: Path, program: Path = Path(), **request: object) -> list[str]:
    """Return the problems of the probe with these folders on Python's path."""
    environ = {"PYTHONPATH": ":".join(map(str, folders))}
    probe = "builder.frameworks.torch.probes.loader"
    answer = run(REQUEST | request, environ, probe, at=str(program))
    assert all(problem["fix"] for problem in answer["problems"])
    return [problem["message"] for problem in answer["problems"]]


def installed(folder: Path, text: str = TORCH) -> Path:
    (folder / "torch").mkdir(parents=True)
    (folder / "torch/__init__.py").write_text(text)
    for path, functions in LIBRARIES.items():
        if path.startswith(NEEDED):
            shared_object(folder / "nvidia" / path, functions)
    return folder


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("", "", ""),
        ('cuda="12.8"', "cuda=None", "was built without CUDA: it sees no GPU"),
        ('cuda="12.8"', 'cuda="13.2"', "CUDA 13.2, the lock says 12.8"),
        ("91002", "92800", "cuDNN 9.28.0, the lock says 9.10.2"),
        ("sm_70 sm_75", "sm_75", "nothing runs on 7.0"),
        ("2.10.0+cu128", "2.15.0", "release 2.15.0, the lock says 2.10.0"),
        ("return 64", "return 60", "a product of matrices on the CPU is 60.0, not 64"),
        (
            "version =",
            "raise OSError('libcudnn.so.9: cannot open shared object file')\nversion =",
            "does not import: libcudnn.so.9: cannot open",
        ),
    ],
)
def test_a_broken_one_is_refused_with_its_cause(
    old: str, new: str, says: str, tmp_path: Path
) -> None:
    assert old in TORCH
    problems = asked(installed(tmp_path / "site", TORCH.replace(old, new)))
    assert len(problems) == bool(says) and all(says in problem for problem in problems)


def test_a_library_that_is_another_one_is_there_twice_or_the_drivers(tmp_path: Path) -> None:
    site = installed(tmp_path / "site")
    nccl = site / "nvidia/nccl/lib/libnccl.so.2"
    shared_object(nccl, {"ncclGetVersion": through_pointer(23203)})
    cublas = LIBRARIES["cublas/lib/libcublas.so.12"]
    twice = shared_object(site / "nvidia/other/lib/libcublas.so.12", cublas)
    cuda = shared_object(site / "nvidia/other/lib/libcuda.so.1")
    (site / "nvidia/cudnn/lib/libcudnn_ops.so.9").unlink()
    shared_object(
        site / "nvidia/cuda_nvrtc/lib/libnvrtc.so.12",
        {
            **LIBRARIES["cuda_nvrtc/lib/libnvrtc.so.12"],
            **{"nvrtcCompileProgram": number(7)},
            **{"nvrtcGetProgramLogSize": number(0), "nvrtcGetProgramLog": number(0)},
        },
    )
    parts, version, *others = asked(site)
    assert parts.startswith("a part of cuDNN does not open: ") and "libcudnn_ops.so.9" in parts
    assert version == f"{nccl} is version 2.32.3, the lock says 2.30.7"
    assert sorted(others) == [
        f"{site}/nvidia/cuda_nvrtc/lib/libnvrtc.so.12 does not compile a kernel for 7.0: code 7; "
        "what is compiled at run time fails",
        f"the image holds a libcuda: {cuda}; it shadows the machine's driver",
        f"two copies of libcublas.so.12 get into one process: {site}/nvidia/cublas/lib/"
        f"libcublas.so.12 and {twice}",
    ]


def test_two_of_them_and_none_of_them(tmp_path: Path) -> None:
    one, two = installed(tmp_path / "a"), installed(tmp_path / "b")
    shutil.rmtree(two / "nvidia")
    assert asked(one, two)[0].startswith("two copies of PyTorch are on Python's path")
    beside = asked(one, program=two)
    assert beside[0].startswith("two copies of PyTorch"), "`python -m` looks there first"
    (none,) = asked(tmp_path / "c")
    assert none.endswith("finds no package torch")


def test_in_an_image_without_a_lock_no_version_is_wrong(tmp_path: Path) -> None:
    site = installed(tmp_path, TORCH.replace("2.10.0+cu128", "2.15.0").replace("12.8", "13.2"))
    assert len(asked(site)) == 2
    assert asked(site, **UNLOCKED) == []
    shutil.rmtree(site / "nvidia/cudnn")
    (site / "torch/__init__.py").write_text("raise OSError('libcudnn.so.9: cannot open')")
    assert asked(site, **UNLOCKED) == ["PyTorch does not import: libcudnn.so.9: cannot open"]
