"""image.yaml's prune: what is kept, which targets share a base, and the labels that say so."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from builder.config import compatibility, image_yaml, lockfile
from builder.config.stack import RUNS_ON, Prune, Stack, check_runs_on
from builder.core.errors import CheckFailed, InputError
from builder.devicecode.pruning import announce
from builder.image import dockerfile, plan
from builder.image.dockerfile import Rendered
from builder.image.plan import pruning_program
from tests import ROOT

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
    ("accelerator", "more", "kept"),
    [
        ("T4", "prune: tensorflow\n", Prune("7.0", "tensorflow")),
        ("L4", "", Prune("8.9", "tensorflow")),
        ("T4", "prune: all\n", Prune("7.5", "all")),
        ("A100", "prune: off\n", None),
        ("CPU", "", None),
        # only PTX: its own capability stays
        ("H100", "tensorflow: 2.15.1\nallow_ptx: true\n", Prune("9.0", "tensorflow")),
    ],
)
def test_what_is_kept(accelerator: str, more: str, kept: Prune | None) -> None:
    assert stack(accelerator, more).prune == kept


@pytest.mark.parametrize(
    ("accelerator", "more", "message", "fix"),
    [
        ("CPU", "prune: all\n", "CPU runs no device code", "remove prune"),
        (
            "V100",
            f"prune: all\nbase: x.example/y@{DIGEST}\n",
            "base cannot be made",
            "remove prune",
        ),
        ("V100", "prune: some\n", "prune: 'some' is not one of off", "write off"),
    ],
)
def test_what_cannot_be_pruned_is_refused(
    accelerator: str, more: str, message: str, fix: str
) -> None:
    with pytest.raises(InputError, match=message) as error:
        stack(accelerator, more)
    assert error.value.fix.startswith(fix)


def hash_of(accelerator: str, more: str = "") -> str:
    base = rendered(accelerator, more).base
    assert base is not None
    return base.hash


# --- bases ----------------------------------------------------------------------------------


def test_gpus_that_keep_the_same_share_a_base_and_off_leaves_no_trace() -> None:
    bases = {name: hash_of(name) for name in ("V100", "T4", "A100", "L4", "H100")}
    assert bases["V100"] == bases["T4"] and len(set(bases.values())) == 4
    assert hash_of("V100", "prune: all\n") != hash_of("T4", "prune: all\n")
    assert hash_of("V100", "prune: off\n") != bases["V100"]
    assert "runs-on" not in rendered("V100", "prune: off\n").dockerfile
    text = rendered("V100", "prune: all\n").dockerfile
    assert 'training-image-factory.prune="all"' in text and f'{RUNS_ON}="7.0"' in text
    assert "TensorFlow's and NVIDIA's libraries: hashes in RECORD no longer match" in text


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


# --- another GPU ----------------------------------------------------------------------------------


@pytest.mark.parametrize("other", ["8.0", "6.1", None])
def test_a_push_for_another_accelerator_is_refused(other: str | None) -> None:
    check_runs_on({RUNS_ON: "7.0"}, "7.5", "t4")
    check_runs_on({}, "9.0", "h100")
    with pytest.raises(CheckFailed, match=r"has device code for compute capability 7\.0 only"):
        check_runs_on({RUNS_ON: "7.0"}, other, "v100")


def test_the_line_names_the_gpus_that_cannot() -> None:
    assert not announce.complaint("7.0", [V100, T4]) and not announce.complaint("9.0", [])
    line = announce.complaint("7.5", [V100, T4])
    assert "Tesla V100 (7.0)" in line and "T4" not in line and "\n" not in line


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
