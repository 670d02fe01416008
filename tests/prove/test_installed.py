"""The check `installed`: what was installed is whole, and its versions fit each other."""

from __future__ import annotations

import pytest

from builder.audit.audited import gpu_named
from builder.prove.checks import installed
from builder.prove.image import Image, NotThereError
from builder.prove.receipts import Defect, Finding
from tests.devicecode.writer import linked
from tests.prove.reading import SITE, Files, layer, plain, read

TAG = "cp311-cp311-manylinux_2_28_x86_64"


def package(
    name: str,
    version: str,
    *paths: str,
    requires: tuple[str, ...] = (),
    tag: str = TAG,
    installer: str = "pip",
    site: str = SITE,
) -> Files:
    """A distribution with these files."""
    info = f"{site}/{name.replace('-', '_')}-{version}.dist-info"
    needs = "".join(f"Requires-Dist: {each}\n" for each in requires)
    texts = {
        "METADATA": f"Name: {name}\nVersion: {version}\n{needs}\nRequires-Dist: of the README\n",
        "WHEEL": f"Wheel-Version: 1.0\nTag: {tag}\n",
        "INSTALLER": installer,
        "RECORD": "".join(f"{path},,\n" for path in (*paths, "../../../bin/a", "a/a.pyc")),
    }
    files = {f"{site}/{path}": linked() for path in paths}
    files |= {f"{info}/{path}": text.encode() for path, text in texts.items() if text}
    return {path: (data, 0o644, 0) for path, data in files.items()}


CUDNN = package("nvidia-cudnn-cu12", "9.10.2.21", "nvidia/cudnn/lib/libcudnn.so.9")
TORCH = package(
    "torch", "2.8.0", "torch/lib/libtorch_cuda.so", "torch/_C.cpython-311-x86_64-linux-gnu.so",
    "torch/nn.py",
    requires=(
        "nvidia-cudnn-cu12==9.10.2.21; platform_system == 'Linux'",
        "filelock", "numpy<3; extra == 'all'", "setuptools; python_version >= '3.12'",
    ),
)  # fmt: skip
FILELOCK = package("filelock", "3.20.0", "filelock/__init__.py", tag="py3-none-any")
WHOLE: Files = {**CUDNN, **TORCH, **FILELOCK}


def said(files: Files, *gone: str) -> tuple[list[str], list[str]]:
    """What refuses the image, and what is a finding."""
    left = {path: entry for path, entry in files.items() if not path.endswith(gone or ("\0",))}
    defects, _ = installed.run(read(layer(left)))
    findings = [each.message for each in defects if isinstance(each, Finding)]
    return [each.message for each in defects if type(each) is Defect], findings


def test_what_is_whole_and_fits_is_told_by_its_number() -> None:
    defects, seen = installed.run(read(layer(WHOLE)))
    assert defects == [] and seen == {"note": "3 distributions"}


def test_a_library_that_is_gone_is_refused_and_any_other_file_a_finding() -> None:
    problems, findings = said(WHOLE, "libcudnn.so.9", "torch/nn.py")
    assert problems == [
        f"{SITE}/nvidia/cudnn/lib/libcudnn.so.9: installed by nvidia-cudnn-cu12 9.10.2.21, and gone"
    ]
    assert findings == [f"1 files that were installed are gone, of torch 2.8.0: {SITE}/torch/nn.py"]
    tools = package("nvidia-cuda-nvcc-cu12", "12.9.1", "nvidia/cuda_nvcc/bin/ptxas")
    assert (
        "bin/ptxas: installed by nvidia-cuda-nvcc-cu12" in said({**WHOLE, **tools}, "ptxas")[0][0]
    )


def test_a_copy_elsewhere_may_stand_in_for_a_wheels() -> None:
    """A base with cuDNN, and the wheel's taken out: `loader` says whether it is found."""
    base: Files = {"usr/lib/x86_64-linux-gnu/libcudnn.so.9": (linked(), 0o644, 0)}
    problems, findings = said({**WHOLE, **base}, "cudnn/lib/libcudnn.so.9")
    assert problems == [] and "installed by nvidia-cudnn-cu12" in findings[0]


def test_condas_record_is_that_of_a_build_and_refuses_nothing() -> None:
    conda = package("torch", "2.8.0", "torch/lib/libtorch_cuda.so", installer="conda")
    problems, findings = said(conda, "libtorch_cuda.so")
    assert problems == [] and "libtorch_cuda.so: installed by torch 2.8.0, and gone" in findings[0]


def test_two_distributions_that_own_one_library() -> None:
    both = {
        **package("opencv-python", "4.12.0", "cv2/cv2.abi3.so", "cv2/__init__.py"),
        **package("opencv-python-headless", "4.11.0", "cv2/cv2.abi3.so", "cv2/__init__.py"),
    }
    problems, (finding,) = said(both)
    assert problems == []
    assert finding.startswith("opencv-python 4.12.0 and opencv-python-headless 4.11.0 both install")
    namespace = {
        **package("a", "1.0", "nvidia/__init__.py"),
        **package("b", "1.0", "nvidia/__init__.py"),
    }
    assert said(namespace) == ([], [])


@pytest.mark.parametrize(
    ("version", "refused"), [("9.1.0.70", True), ("9.12.0.46", False)], ids=["older", "newer"]
)
def test_an_older_release_than_a_framework_requires_is_refused(version: str, refused: bool) -> None:
    other = package("nvidia-cudnn-cu12", version, "nvidia/cudnn/lib/libcudnn.so.9")
    problems, findings = said({**TORCH, **FILELOCK, **other})
    text = f"torch 2.8.0 requires nvidia-cudnn-cu12==9.10.2.21 ({version})"
    assert (problems, findings) == (([text], []) if refused else ([], [text]))


def test_what_any_other_package_requires_is_a_finding() -> None:
    old = package("keras", "2.15.0", "keras/__init__.py", tag="py3-none-any")
    mine = package("mine", "1.0", "mine.py", requires=("keras>=3", "absent"), tag="py3-none-any")
    problems, findings = said({**mine, **old})
    assert problems == [] and findings == [
        "mine 1.0 requires keras>=3 (2.15.0), absent (not there)"
    ]


@pytest.mark.parametrize(
    ("tag", "fits"),
    [
        (TAG, True),
        ("py3-none-any", True),
        ("cp38-abi3-manylinux_2_17_x86_64", True),
        ("py2.py3-none-manylinux1_x86_64", True),
        ("cp312-cp312-manylinux_2_28_x86_64", False),
        ("cp313-abi3-manylinux_2_28_x86_64", False),
        ("cp311-cp311-manylinux_2_28_aarch64", False),
        ("cp311-cp311-macosx_11_0_arm64", False),
    ],
)
def test_what_is_for_another_python_or_machine(tag: str, fits: bool) -> None:
    problems, findings = said(
        {**CUDNN, **FILELOCK, **package("torch", "2.8.0", "torch/_C.so", tag=tag)}
    )
    assert findings == []
    assert [text.startswith("torch 2.8.0 is for ") for text in problems] == [True] * (not fits)


def test_what_the_factory_made_is_asked_by_its_locks() -> None:
    with pytest.raises(NotThereError, match="locks"):
        installed.run(read(layer(WHOLE), Labels={"training-image-factory.accelerator": "V100"}))
    with pytest.raises(NotThereError, match="no Python packages"):
        installed.run(read(layer({"a": (b"", 0o644, 0)})))


def test_triton_compiles_with_the_images_own_compiler() -> None:
    triton = package("triton", "3.4.0", "triton/_C/libtriton.so")
    headers = plain("/usr/include/python3.11/Python.h")
    gcc: Files = {"usr/bin/gcc": (b"", 0o755, 0)}
    for files, lacks in (
        (triton, "a C compiler and Python.h is not there"),
        ({**triton, **headers}, "own compiler, and a C compiler is not there"),
        ({**triton, **headers, **gcc}, ""),
        (headers, ""),
    ):
        content = read(layer({**WHOLE, **files})).content
        defects, _ = installed.run(Image(content, gpu_named("v100")))
        assert [lacks in each.message for each in defects] == ([True] if lacks else [])
    assert said({**WHOLE, **triton}) == ([], []), "for the CPU"
