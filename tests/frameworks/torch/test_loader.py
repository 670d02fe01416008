"""The probe that asks PyTorch for its libraries, in images that are broken in ten ways.

PyTorch is a module here that says what a broken one would say: five gigabytes of it are proven with
the target v100-torch.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from builder.frameworks.torch.probes import loader

TORCH = """
from types import SimpleNamespace as Is
__version__ = "2.10.0+cu128"
version = Is(cuda="12.8")
backends = Is(cudnn=Is(version=lambda: 91002))
cuda = Is(nccl=Is(version=lambda: (2, 27, 5)))
_C = Is(_cuda_getArchFlags=lambda: "sm_70 sm_75 sm_80 sm_90")
class ones:
    def __init__(self, *_): pass
    def __matmul__(self, _): return self
    def sum(self): return 64
"""
REQUEST = {
    "release": "2.10.0",
    "cuda": "12.8",
    "cudnn": "9.10.2.21",
    "capability": "7.0",
    "locked": {"nvidia-nccl-cu12": "2.27.5"},
}


def asked(*folders: Path) -> list[str]:
    """Run the probe as an image does, with these folders on Python's path; return its problems."""
    code = "import runpy, sys; sys.path[:0] = sys.argv[3:]; sys.argv[1:] = sys.argv[2:3]; "
    code += f"runpy.run_path({str(loader.__file__)!r}, run_name='__main__')"
    done = subprocess.run(
        [sys.executable, "-I", "-c", code, "-", json.dumps(REQUEST), *map(str, folders)],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return [problem["message"] for problem in answer["problems"]]


def installed(folder: Path, text: str = TORCH) -> Path:
    (folder / "torch").mkdir(parents=True)
    (folder / "torch/__init__.py").write_text(text)
    return folder


def test_a_good_one_passes(tmp_path: Path) -> None:
    assert asked(installed(tmp_path)) == []


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ('cuda="12.8"', "cuda=None", "was built without CUDA: it sees no GPU"),
        ('cuda="12.8"', 'cuda="13.2"', "CUDA 13.2, the lock says 12.8"),
        ("91002", "92800", "cuDNN 9.28.0, the lock says 9.10.2"),
        ("91002", "90300", "cuDNN 9.3.0, the lock says 9.10.2"),
        ("sm_70 sm_75", "sm_75", "nothing runs on 7.0"),
        ("(2, 27, 5)", "(2, 30, 7)", "NCCL 2.30.7, the lock says 2.27.5"),
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
    problems = asked(installed(tmp_path, TORCH.replace(old, new)))
    assert [problem for problem in problems if says in problem], problems


def test_two_of_them_and_none_of_them(tmp_path: Path) -> None:
    two = asked(installed(tmp_path / "a"), installed(tmp_path / "b"))
    assert two and two[0].startswith("two copies of PyTorch are on Python's path")
    (none,) = asked(tmp_path / "c")
    assert none.endswith("finds no package torch")
