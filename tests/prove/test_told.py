"""What each check saw, in a sentence; and where the bytes of an image lie."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from builder.facts import frameworks
from builder.prove import fleet, spread, suites, told, wheels
from builder.prove.receipts import CheckResult, Defect
from builder.reading.images import ImageContent
from tests.devicecode.writer import container, library, lto, ptx, sass
from tests.prove.reading import SITE, layer, read


def check(name: str, seen: dict[str, Any], **more: Any) -> CheckResult:
    return CheckResult(
        name=name, version=1, passed="problems" not in more, seconds=0, seen=seen, **more
    )


RUN = {"exit_code": 143, "seconds": 11.2, "last_checkpoint": 55, "last_step": 55}
SAID = [
    ("size", {"compressed_bytes": 286_000_000, "budget_bytes": None},
     "A pull transfers 286.0 MB; image.yaml sets no bound."),
    ("device-code", {"libraries": {"a.so": "native", "b.so": "native"}, "status": "native",
                     "compute_capability": "7.0", "ptx_seconds": 12.2,
                     "driver": {"driver": "575", "cuda": "12.9"}},
     "2 libraries hold kernels, and a GPU of 7.0 runs all of them natively, with driver 575 or "
     "newer; PTX takes about 12 s to compile."),
    ("combinations", {"note": "27 known combinations", "told": ["x is slow"]},
     "Its versions are none of 27 known combinations that fail; worth knowing: x is slow."),
    ("environment", {"note": "4 variables"}, "None of 4 variables hides the GPU or harms a run."),
    ("machine", {"stop_signal": "SIGTERM"}, "A machine can start it, and stops it by SIGTERM."),
    ("driver", {}, "It holds no library of the driver: the machine's own is loaded."),
    ("permissions", {"note": "USER 1000", "set_id": ["/a"]},
     "It runs as user 1000, and 1 programs give it another's rights."),
    ("shadows", {"note": "the program's folder: /app"},
     "Nothing in /app hides a module of Python."),
    ("loader", {"libraries": {"a": 1}},
     "The framework is imported in the locked version, and finds 1 libraries of CUDA's where it "
     "looks."),
    ("loader", {"note": "178 modules load, by ld.so's way", "not_followed": "musl"},
     "178 modules load, by ld.so's way. Not followed: musl."),
    ("compiler", {"note": "sm_70"}, "A kernel compiles for the GPU: sm_70."),
    ("contents", {"packages": {"a": "1"}, "files": 14_227, "bytes": 1_281_565_204},
     "1 packages are those of the locks; 14,227 files take 1.3 GB unpacked, and no layer holds a "
     "secret."),
    ("installed", {"note": "74 distributions"}, "74 distributions are whole and fit each other."),
    ("certificates", {"note": "/etc/ssl/c"}, "Programs find certificates: /etc/ssl/c."),
    ("entry-point", {"note": "python -m a"}, "It starts `python -m a`, which is there."),
    ("secrets", {"note": "7 layers"}, "None of 7 layers holds a secret."),
    ("pth", {"note": "no .pth file runs code"}, "No .pth file runs code."),
    ("pth", {"note": "4 known .pth hooks"}, "4 known .pth hooks run when Python starts."),
    ("start", {"note": "it ran for 20 s"}, "It was started: it ran for 20 s."),
    ("gpu", {"note": "Tesla T4, driver 550: 1.00 GiB"},
     "It ran on a GPU: Tesla T4, driver 550: 1.00 GiB."),
    ("training", {"first": {"last_step": 50}, "second": {"resumed_at": 40, "last_step": 400},
                  "loss": {"first": 1.18, "last": 0.0026}, "accuracy": 0.97},
     "It trained, was killed at step 50, went on at 40 and reached 400: the loss fell from 1.2 to "
     "0.0026; 97% of held-out digits were right."),
    ("outputs", {"model": {}, "events": {}}, "What it wrote can be read: events, model."),
    ("stopping", RUN, "Stopped by SIGTERM it saved step 55, and ended with 143 after 11 s."),
    ("imports", {"modules": ["a", "b"]}, "The 2 modules that the program imports are there."),
    ("starts", {"seconds": 3.1, "answered": "--help"}, "With --help it ended well after 3 s."),
    ("starts", {"seconds": 60, "answered": "started"}, "It started, and ran for 60 s."),
    ("starts", {"seconds": 3, "answered": "started", "ended": "ended with 1: x"},
     "It started, then ended with 1: x."),
    ("compile", {"note": "train compiles for V100"}, "Its step train compiles for V100."),
]  # fmt: skip


@pytest.mark.parametrize(("name", "seen", "sentence"), SAID)
def test_a_check_says_in_a_sentence_what_it_saw(
    name: str, seen: dict[str, Any], sentence: str
) -> None:
    assert told.sentence(check(name, seen)) == sentence


def test_every_check_of_every_suite_has_a_sentence() -> None:
    every = [suites.ON_GPU]
    for name in frameworks.OWN:
        every += frameworks.of(name).suites().values()
    names = {each.name for suite in every for each in suite.checks}
    assert names == {name for name, _, _ in SAID}, "its sentence: builder/prove/told.py"


def test_why_nothing_was_seen_or_it_was_refused_is_the_sentence() -> None:
    problems = (Defect("it runs as root", "x"), Defect("more", "x"))
    assert told.sentence(check("permissions", {}, problems=problems)) == (
        "It runs as root (and 1 more)."
    )
    assert told.sentence(check("start", {}, not_there="no command")) == "No command."


@pytest.mark.parametrize("seen", [{}, {"note": 7}, {"seconds": "x", "answered": []}, {"first": 1}])
@pytest.mark.parametrize("name", sorted({name for name, _, _ in SAID} | {"of another factory"}))
def test_data_of_another_shape_is_no_error(name: str, seen: dict[str, Any]) -> None:
    assert told.sentence(check(name, seen)).endswith(".")


# --- where the bytes lie --------------------------------------------------------------------------

PATH = f"{SITE}/torch/lib/libtorch_cuda.so"


def kernels(*packed: bytes) -> ImageContent:
    files = {PATH: (library(container(*packed)), 0o644, 0), f"{SITE}/a.py": (b"pass", 0o644, 0)}
    above = {"/a.txt": (b"again", 0o644, 0)}
    return read(layer({**files, "/a.txt": (b"first", 0o644, 0)}), layer(above)).content


def test_each_byte_of_a_layer_is_of_one_kind_and_none_is_lost() -> None:
    content = kernels(sass(70, size=1000))
    (_, lower), (_, upper) = spread.of_layers(content)
    assert lower[spread.PYTHON] == 4 and lower[spread.HIDDEN] == 5 and upper[spread.OTHER] == 5
    size = content.libraries[0].size
    assert lower[spread.DEVICE_CODE] == content.libraries[0].device_code > 1000
    assert lower[spread.DEVICE_CODE] + lower[spread.LIBRARIES] == size


def test_device_code_is_counted_by_gpu_and_kind() -> None:
    found = spread.by_gpu(kernels(sass(70, size=800), ptx(70, size=80), lto(86)).libraries)
    assert list(found) == ["7.0 (V100)", "8.6"]
    assert {kind for kind, count in found["7.0 (V100)"].items() if count} == {"kernels", "PTX"}
    assert found["8.6"]["link inputs"] > 0


def test_what_pruning_took_is_known_by_the_wheel(monkeypatch: pytest.MonkeyPatch) -> None:
    whole, less = (kernels(*packed).libraries[0] for packed in ((sass(70), sass(90)), (sass(70),)))
    monkeypatch.setattr(wheels, "known", lambda _: whole)
    image = replace(less, pruned=True, package="torch", version="2.9")
    gone = whole.device_code - less.device_code
    assert spread.pruned([less]) == {}, "it is as its wheel has it"
    assert spread.pruned([image]) == {
        "torch 2.9": {spread.DEVICE_CODE: less.device_code, spread.PRUNED: gone}
    }


def test_gpus_and_drivers_are_a_matrix_with_a_column_where_an_answer_changes() -> None:
    image = read(
        layer({PATH: (library(container(sass(70), ptx(90))), 0o644, 0)}),
        layer({"/usr/lib/libcudart.so.12": (library(container(sass(70), sass(90))), 0o644, 0)}),
    )
    matrix = fleet.matrix(image)
    assert matrix.drivers == ("driver before 525", "driver 525 and newer")
    assert matrix.gpus["V100 (7.0)"] == ("driver too old", "native")
    assert matrix.answer("V100 (7.0)") == "native, driver 525 and newer"
    assert matrix.answer("P4 (6.1)") == "no code"
    assert fleet.matrix(read(layer({}))).gpus == {}
