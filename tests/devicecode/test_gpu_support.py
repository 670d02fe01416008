"""The table of which release runs on which GPU, and the script that computes it."""

from __future__ import annotations

import importlib.util
import io
from dataclasses import replace
from importlib.machinery import SourceFileLoader
from types import ModuleType

import pytest

from builder.config import device_code
from builder.devicecode import gpu_support, inventory
from builder.devicecode.library import Wheel
from builder.devicecode.verdict import Audit
from builder.facts import accelerators
from builder.frameworks.tensorflow import releases
from tests import ROOT

from .writer import container, library, ptx, sass

PTX = b".version 8.5\n.target sm_90\n.address_size 64\n"


@pytest.fixture(scope="module")
def script() -> ModuleType:
    loader = SourceFileLoader("gpu_support_script", str(ROOT / "tools/gpu-support"))
    spec = importlib.util.spec_from_loader(loader.name, loader)
    assert spec
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


def test_the_page_is_what_the_file_gives(script: ModuleType) -> None:
    releases = gpu_support.read()
    assert (ROOT / "builder/facts/gpu-support.md").read_text() == script.document(releases)
    assert gpu_support.FILE.read_text() == script.dump(releases)
    read = [[f"{wheel.name}=={wheel.version}" for wheel in row.wheels] for row in releases]
    assert read == [wanted for versions in script.RELEASES.values() for wanted in versions]
    assert all(wheel.libraries for row in releases for wheel in row.wheels[:1])
    assert all(len(wheel.sha256) == 64 for row in releases for wheel in row.wheels)


def test_it_says_what_the_rule_says_of_a_locked_wheel(script: ModuleType) -> None:
    """The locks hold the same release for another Python."""
    (release,) = (row for row in gpu_support.read() if row.wheels[0].version == "2.21.0")
    wheels = [each for each in device_code.read(ROOT).values() if each.name == "tensorflow"]
    assert {wheel.version for wheel in wheels} == {"2.21.0"}
    for wheel in wheels:
        of_lock = script.of_wheels("TensorFlow", [(wheel, 12)])
        assert of_lock.targets == release.targets
        for capability in script.gpus():
            cells = [script.cell(each.code, capability, 12) for each in (of_lock, release)]
            assert cells[0] == cells[1], capability


AMPERE = ("sm_35", "sm_50", "sm_60", "sm_70", "sm_75", "compute_80")
HOPPER = ("sm_60", "sm_70", "sm_80", "sm_89", "compute_90")
PUBLISHED = {
    **dict.fromkeys(
        (("TensorFlow", "2.12"), ("TensorFlow", "2.13"), ("TensorFlow", "2.14")), AMPERE
    ),
    ("TensorFlow", "2.15"): ("sm_50", "sm_60", "sm_70", "sm_75", "compute_80"),
    ("TensorFlow", "2.16"): ("sm_50", "sm_60", "sm_70", "sm_80", "compute_90"),
    **{("TensorFlow", f"2.{minor}"): HOPPER for minor in range(17, 22)},
    ("PyTorch", "2.15"): ("sm_75", "sm_80", "sm_86", "sm_90", "sm_100", "sm_120"),
}
"""What the projects publish: TensorFlow's cuda_compute_capabilities in build_info.py, inside of
each wheel; PyTorch's list in libtorch_cuda.so, which torch.cuda.get_arch_list() answers."""
COMPARED = ("6.0", "6.1", "7.0", "7.5", "8.0", "8.9", "9.0", "10.0", "12.0")
"""The GPUs that builder/facts/gpu-support.md names the number of cells for."""
NOT_COMPILED = ("2.16", "2.17", "2.18", "2.19", "2.20")
"""Their build says compute_90; the PTX of 1,149 modules says sm_90a, which no driver compiles."""
RUNS = {"native": "native", "older minor": "native", "PTX": "ptx", "missing": "none"}


def expected(capability: str, published: tuple[str, ...]) -> str:
    """What a list of targets says of a GPU: compute_90 is machine code for 9.0, and PTX."""
    own = int(capability.replace(".", ""))
    numbers = {name: int(name.partition("_")[2]) for name in published}
    if any(number // 10 == own // 10 and number <= own for number in numbers.values()):
        return "native"
    ptx = (number for name, number in numbers.items() if name.startswith("compute"))
    return "ptx" if any(number <= own for number in ptx) else "none"


def test_the_wheels_say_what_the_projects_say() -> None:
    compared = 0
    for row in gpu_support.read():
        minor = row.version.rpartition(".")[0]
        for capability in COMPARED:
            if published := PUBLISHED.get((row.framework, minor)):
                runs = expected(capability, published)
                if (row.framework, runs) == ("TensorFlow", "ptx") and minor in NOT_COMPILED:
                    runs = "none"
                support = row.support(capability)
                assert RUNS[support] == runs, (row.framework, row.version, capability)
                compared += 1
    assert compared == 153, "builder/facts/gpu-support.md names the number"


def test_a_gpu_of_a_new_compute_capability_is_a_column_without_a_download(
    script: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A row of accelerators.yaml is enough: 8.6, an A10's, is no column of the page."""
    known = accelerators.accelerators()
    new = replace(known["L4"], name="A10", compute_capability="8.6")
    monkeypatch.setattr(accelerators, "accelerators", lambda: {**known, "A10": new})
    monkeypatch.setattr(script, "fetched", None)
    heads = [line for line in script.document(gpu_support.read()).splitlines() if "V100" in line]
    assert "| | CUDA | P100 | P4 | V100 | T4 | A100 | A10 | L4 | H100 |" in heads[1]
    (release,) = (row for row in gpu_support.of("PyTorch") if row.version == "2.15.0")
    assert [release.support(each) for each in ("8.6", "8.9", "7.0")] == [
        "native", "older minor", "missing",
    ]  # fmt: skip


def test_every_release_that_an_image_may_name_was_read() -> None:
    """The resolver judges a release by its wheel: 2.20 was built for compute_90, and holds PTX that
    no later GPU runs."""
    for release in releases.releases():
        for accelerator in accelerators.accelerators().values():
            if accelerator.kind == "gpu" and not accelerator.refused:
                assert release.wheel.support(accelerator.compute_capability or "") in RUNS


def test_the_oldest_driver_is_that_of_cuda_the_ptx_and_the_gpu(script: ModuleType) -> None:
    code = library(container(sass(70), sass(80), ptx(90, compression="", payload=PTX)))
    libraries = inventory.of_stream([("libx.so", io.BytesIO(code))]).compared()
    release = script.of_wheels("X", [(Wheel("x", "1.0", "0" * 64, libraries), 12)])
    assert {each: script.shown(script.cell(release.code, each, 12)) for each in COMPARED} == {
        **dict.fromkeys(("6.0", "6.1"), "-"),
        **dict.fromkeys(("7.0", "7.5", "8.0", "8.9"), "native (525)"),
        "9.0": "PTX, 1 min (555)",
        **dict.fromkeys(("10.0", "12.0"), "PTX, 1 min (570)"),
    }
    assert script.shown(script.cell(Audit(libraries), "7.0", 13)) == "native (580)"
    hopper = inventory.of_stream([("libx.so", io.BytesIO(library(container(sass(90)))))]).compared()
    assert script.shown(script.cell(Audit(hopper), "7.0", 12)) == "-"


def test_a_wheels_metadata_says_its_cuda(script: ModuleType) -> None:
    for package, requires, major in (
        ("jax-cuda12-plugin", (), 12),
        ("torch", ("filelock", 'nvidia-cublas-cu12==12.6.4.1; platform_system == "Linux"'), 12),
        ("torch", ("sympy>=1.13", "cuda-toolkit[cublas,cudart]==13.2.2"), 13),
        ("tensorflow", ("six", 'cuda_version": "11.2"'), 11),
        ("onnxruntime-gpu", ('nvidia-cuda-runtime~=13.0; extra == "cuda"',), 13),
    ):
        assert script.cuda_major(package, requires) == major
    with pytest.raises(SystemExit, match="nothing says which CUDA"):
        script.cuda_major("numpy", ("packaging",))
