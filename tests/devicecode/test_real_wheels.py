"""Real libraries of NVIDIA's, and their own reader as the judge: cuobjdump, from its wheel.

Small ones only: cuRAND (56 MB) for `.nv_fatbin`, CUPTI (14 MB) for containers among other data. The
whole stack of TensorFlow goes through the same comparison in tools/bench/devicecode.py.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from builder.devicecode import inventory
from builder.devicecode.pruning import prune as pruning
from builder.devicecode.pruning.fatbin import ELF, PTX, Container, containers
from builder.devicecode.pruning.rule import compute_capability
from builder.devicecode.verdict import Audit, Support

pytestmark = [pytest.mark.network, pytest.mark.slow]

WHEELS = (
    "nvidia-cuda-cuobjdump==13.5.37",
    "nvidia-curand-cu12==10.3.6.82",
    "nvidia-cuda-cupti-cu12==12.5.82",
)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheels") / "site-packages"
    command = [sys.executable, "-m", "uv", "pip", "install", "--no-deps", "--target", str(folder)]
    command += ["--python-platform", "x86_64-manylinux_2_28", *WHEELS]
    subprocess.run(command, check=True)
    return folder


@pytest.fixture
def cuobjdump(site: Path) -> Path:
    (program,) = site.rglob("bin/cuobjdump")
    program.chmod(0o755)
    return program


def listed(cuobjdump: Path, file: Path) -> Counter[str]:
    """What cuobjdump lists: "sm_70.cubin" and "sm_90.ptx", each with its number."""
    names: list[str] = []
    for option, kind in (("-lelf", "cubin"), ("-lptx", "ptx")):
        run = subprocess.run(
            [cuobjdump, "-all", option, file], capture_output=True, text=True, check=False
        )
        names += re.findall(rf"\.(sm_\w+\.{kind})", run.stdout)
    return Counter(names)


def read(present: list[Container]) -> Counter[str]:
    """The same from our reader. `-lelf` does not print the suffix f, so it is left out here."""
    names: list[str] = []
    for entry in (entry for container in present for entry in container.entries):
        suffix = entry.target.suffix
        if entry.kind == ELF:
            names.append(f"sm_{entry.architecture}{suffix.replace('f', '')}.cubin")
        elif entry.kind == PTX:
            names.append(f"sm_{entry.architecture}{suffix}.ptx")
    return Counter(names)


def test_curand_as_cuobjdump_lists_it(site: Path, cuobjdump: Path) -> None:
    library = site / "nvidia/curand/lib/libcurand.so.10"
    ours = read(list(containers(library.read_bytes())))
    assert ours == listed(cuobjdump, library)
    assert ours["sm_70.cubin"] == 11
    assert ours["sm_90.ptx"] == 10


def test_containers_among_other_data_as_cuobjdump_lists_them(
    site: Path, cuobjdump: Path, tmp_path: Path
) -> None:
    """cuobjdump does not find them in the library; cut out, it reads them as we do."""
    library = site / "nvidia/cuda_cupti/lib/libcupti.so.12"
    data = library.read_bytes()
    present = list(containers(data))
    assert {c.section for c in present} == {".rodata"}
    assert listed(cuobjdump, library) == Counter()
    for number, container in enumerate(present):
        alone = tmp_path / f"{number}.fatbin"
        alone.write_bytes(data[container.offset : container.end])
        assert read([container]) == listed(cuobjdump, alone)


@pytest.mark.parametrize(
    ("keep", "stays"),
    [
        ("7.0", {"sm_70.cubin": 11}),
        ("8.9", {"sm_80.cubin": 11, "sm_86.cubin": 11, "sm_89.cubin": 11}),
        ("12.0", {"sm_90.ptx": 10}),
    ],
)
def test_pruned_curand_loads_and_holds_what_was_kept(
    site: Path, cuobjdump: Path, tmp_path: Path, keep: str, stays: dict[str, int]
) -> None:
    folder = tmp_path / "site-packages/nvidia/curand/lib"
    shutil.copytree(site / "nvidia/curand/lib", folder)
    library = folder / "libcurand.so.10"
    (done,) = pruning.prune(tmp_path, compute_capability(keep), "all")
    on_disk = done.path.stat().st_blocks * 512
    assert on_disk < done.size - done.bytes_gone + 1_000_000, "what is zeroed is a hole"
    assert listed(cuobjdump, library) == Counter(stays)
    program = (
        "import ctypes, sys; v = ctypes.c_int(); "
        "assert ctypes.CDLL(sys.argv[1]).curandGetVersion(ctypes.byref(v)) == 0; print(v.value)"
    )
    run = subprocess.run(
        [sys.executable, "-c", program, library], capture_output=True, text=True, check=True
    )
    assert run.stdout.startswith("10306")
    audit = Audit(inventory.of_folder(tmp_path))
    assert audit.verdict(keep).runs
    assert audit.verdict("6.0").status == Support.MISSING
