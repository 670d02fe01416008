"""image.yaml's prune: what is kept, which targets share a base, and the labels that say so."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from builder.config import compatibility, image_yaml, lockfile
from builder.config.stack import RUNS_ON, Prune, Stack, check_runs_on
from builder.core.errors import CheckFailed, InputError
from builder.devicecode import inventory
from builder.devicecode.pruning import announce
from builder.image import dockerfile, plan
from builder.image.dockerfile import Rendered
from builder.image.plan import pruning_program
from builder.prove import report
from tests.devicecode.writer import container, install, library, sass

ROOT = Path(__file__).parents[2]
DIGEST = "sha256:" + "0" * 64
A100 = ("NVIDIA A100", 8, 0)
V100 = ("Tesla V100", 7, 0)
T4 = ("Tesla T4", 7, 5)


def stack(accelerator: str, more: str = "") -> Stack:
    text = f"accelerator: {accelerator}\nsize_budget: 3 GB\n{more}"
    return compatibility.resolve(image_yaml.parse(text, ROOT / "images/probe/image.yaml"))


def rendered(accelerator: str, more: str = "") -> Rendered:
    chosen = stack(accelerator, more)
    return dockerfile.render(chosen.spec, chosen, lockfile.read(ROOT, "v100"))


# --- what is kept ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("accelerator", "mode", "kept"),
    [
        ("V100", "tensorflow", "7.0"),
        ("T4", "tensorflow", "7.0"),
        ("A100", "tensorflow", "8.0"),
        ("L4", "tensorflow", "8.9"),
        ("H100", "tensorflow", "9.0"),
        ("V100", "all", "7.0"),
        ("T4", "all", "7.5"),
    ],
)
def test_what_is_kept(accelerator: str, mode: str, kept: str) -> None:
    assert stack(accelerator, f"prune: {mode}\n").prune == Prune(kept, mode)  # type: ignore[arg-type]


def test_tensorflow_is_the_default_and_off_is_off() -> None:
    assert stack("A100").prune == Prune("8.0", "tensorflow")
    assert stack("A100", "prune: off\n").prune is None
    assert stack("CPU").prune is None


def test_a_gpu_that_only_has_ptx_keeps_its_own_capability() -> None:
    old = stack("H100", "tensorflow: 2.15.1\nallow_ptx: true\n")
    assert old.runs == "ptx"
    assert old.prune == Prune("9.0", "tensorflow")


@pytest.mark.parametrize(
    ("text", "message", "fix"),
    [
        ("accelerator: CPU\nprune: all\n", "CPU runs no device code", "remove prune"),
        (
            f"accelerator: V100\nprune: all\nbase: x.example/y@{DIGEST}\n",
            "a published base cannot be made smaller",
            "remove prune",
        ),
        ("accelerator: V100\nprune: some\n", "prune: 'some' is not one of off", ""),
    ],
)
def test_what_cannot_be_pruned_is_refused(
    text: str, message: str, fix: str, write_target: Callable[..., Path], project: Path
) -> None:
    write_target(text + "size_budget: 3 GB\n")
    with pytest.raises(InputError, match=message) as error:
        compatibility.resolve(image_yaml.load(project, "v100"))
    assert fix in error.value.fix


def hash_of(accelerator: str, more: str = "") -> str:
    base = rendered(accelerator, more).base
    assert base is not None
    return base.hash


# --- bases ----------------------------------------------------------------------------------


def test_gpus_that_keep_the_same_share_a_base() -> None:
    bases = {name: hash_of(name) for name in ("V100", "T4", "A100", "L4", "H100")}
    assert bases["V100"] == bases["T4"]
    assert len(set(bases.values())) == 4
    assert hash_of("V100", "prune: all\n") != hash_of("T4", "prune: all\n")


def test_off_leaves_no_trace() -> None:
    made = rendered("V100", "prune: off\n")
    assert "runs-on" not in made.dockerfile
    off, on = (hash_of("V100", f"prune: {mode}\n") for mode in ("off", "tensorflow"))
    assert off != on


def test_a_change_of_the_program_that_prunes_is_another_base(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before, off = hash_of("V100"), hash_of("V100", "prune: off\n")
    program = pruning_program()
    assert {"__main__.py", "prune.py", "announce.py"} <= program.keys()
    assert not {"inventory.py", "verdict.py"} & program.keys()  # the audit rebuilds no base
    changed = {**program, "prune.py": program["prune.py"] + "\n"}
    monkeypatch.setattr(plan, "pruning_program", lambda: changed)
    assert hash_of("V100") != before
    assert hash_of("V100", "prune: off\n") == off


def test_labels_say_what_was_done() -> None:
    text = rendered("V100", "prune: all\n").dockerfile
    assert 'training-image-factory.prune="all"' in text
    assert f'{RUNS_ON}="7.0"' in text
    assert "TensorFlow's and NVIDIA's libraries: hashes in RECORD no longer match" in text


# --- another GPU ----------------------------------------------------------------------------------


def test_a_push_for_another_accelerator_is_refused() -> None:
    check_runs_on({RUNS_ON: "7.0"}, "7.5", "t4")
    check_runs_on({}, "9.0", "h100")
    for other in ("8.0", "6.1", None):
        with pytest.raises(CheckFailed, match=r"has device code for compute capability 7\.0 only"):
            check_runs_on({RUNS_ON: "7.0"}, other, "v100")
    with pytest.raises(CheckFailed):
        check_runs_on({RUNS_ON: "8.9"}, "8.0", "a100")


@pytest.mark.parametrize(
    ("keep", "gpus", "named"),
    [
        ("7.0", [V100, T4], []),
        ("7.5", [V100, T4], ["Tesla V100 (7.0)"]),
        ("7.0", [V100, A100], ["NVIDIA A100 (8.0)"]),
        ("9.0", [], []),
    ],
)
def test_the_line_names_the_gpus_that_cannot(
    keep: str, gpus: list[tuple[str, int, int]], named: list[str]
) -> None:
    line = announce.complaint(keep, gpus)
    assert bool(line) == bool(named)
    assert all(name in line for name in named)
    assert "\n" not in line


@pytest.mark.parametrize("driver", ["none", "broken", "another GPU"])
def test_python_says_it_when_it_starts(tmp_path: Path, driver: str) -> None:
    """The `.pth` file as the image has it: one line for another GPU, else nothing."""
    program = Path(announce.__file__).read_text()
    if driver != "none":
        program = program.replace("/proc/driver/nvidia/version", "/proc/version")
    if driver == "another GPU":
        program += f"\ndef devices():\n    return [{A100!r}]\n"
    (tmp_path / "training_image_gpu.py").write_text(program)
    (tmp_path / "training_image_gpu.pth").write_text(
        'import training_image_gpu; training_image_gpu.announce("7.0")\n'
    )
    script = f"import site; site.addsitedir({str(tmp_path)!r}); site.addsitedir({str(tmp_path)!r})"
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={"PATH": os.environ["PATH"]},
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout) == (0, "")
    lines = done.stderr.splitlines()
    assert len(lines) == (driver == "another GPU"), done.stderr
    assert all("not for NVIDIA A100 (8.0)" in line for line in lines)


# --- what is left ---------------------------------------------------------------------------------


def test_what_is_left_is_told_by_package_and_library(tmp_path: Path) -> None:
    small, large = library(container(sass(70))), library(container(sass(70, size=4096)))
    install(tmp_path, "tensorflow", "2.21.0", {"tensorflow/a.so": small, "tensorflow/b.so": large})
    install(tmp_path, "nvidia-x-cu12", "1.0", {"nvidia/x/lib/x.so": small})
    (tmp_path / "loose.so").write_bytes(library())
    packages = report.by_package(inventory.of_folder(tmp_path))
    assert [package.name for package in packages] == ["tensorflow 2.21.0", "nvidia-x-cu12 1.0", ""]
    assert [library.name for library in packages[0].libraries] == ["b.so", "a.so"]
    assert packages[0].size == len(small) + len(large)
    assert packages[0].device_code > 4096
    assert packages[2].device_code == 0
