"""Checks and suites: what an image has to go through, and which receipt proves it."""

import importlib
import re
from pathlib import Path
from types import SimpleNamespace

import pytest

from builder.core.errors import CheckFailed, InputError
from builder.pipeline.push import LocalImage
from builder.prove import checks, suites
from builder.prove.checks import size
from builder.prove.receipts import Receipt
from builder.prove.suite import Check, Suite
from tests.pipeline.pushing import proof, results
from tests.prove.reading import PROGRAM, TRAINER

DIGEST, OTHER = "sha256:" + "a" * 64, "sha256:" + "b" * 64


def receipt(suite: str, checks: dict[str, int], accelerator: str = "CPU") -> Receipt:
    image = LocalImage("training:x", DIGEST, OTHER)
    return proof(image, accelerator=accelerator, suite=suite, checks=results(checks))


def test_every_check_that_there_is_stands_in_a_suite() -> None:
    written = {"loader", "outputs", "imports"}  # builder/prove/suites.py: of a framework
    for path in Path(checks.__path__[0]).glob("[a-z]*.py"):
        module = importlib.import_module(f"{checks.__name__}.{path.stem}")
        assert isinstance(module.CHECK, Check)
        assert module.CHECK.name == path.stem.replace("_", "-")
        written.add(module.CHECK.name)
    assert {check.name for suite in (TRAINER, PROGRAM) for check in suite.checks} == written


def test_the_document_says_which_checks_an_image_needs() -> None:
    text = (Path(__file__).parents[2] / "docs/proof.md").read_text()
    explained = set(re.findall(r"^\*\*`([\w-]+)`: ", text, re.MULTILINE))
    said = re.search(r"checks above, but (.*?) only `trainer`, and(.*?) only `program`", text, re.S)
    assert said
    of_trainer, of_program = (set(re.findall(r"`([\w-]+)`", part)) for part in said.groups())
    for suite, others in ((TRAINER, of_program), (PROGRAM, of_trainer)):
        assert {check.name for check in suite.checks} == explained - others


@pytest.mark.parametrize("suite", [TRAINER, PROGRAM])
def test_a_receipt_of_its_suite_with_every_check_holds(suite: Suite) -> None:
    whole = suite.required("V100")
    assert suite.required("TPU") == suite.required("CPU")
    assert whole.keys() - suite.required("CPU").keys() == {"device-code"}
    with pytest.raises(InputError):
        suite.required("abacus")
    assert suite.holds(receipt(suite.name, whole, "V100"), DIGEST)
    assert suite.holds(receipt(suite.name, whole, "V100"), [OTHER])
    for name in whole:
        lacks = {other: version for other, version in whole.items() if other != name}
        judged = suite.holds(receipt(suite.name, lacks, "V100"), DIGEST)
        assert judged.reason == f"the receipt holds no check {name}"
        older = suite.holds(receipt(suite.name, {**whole, name: 99}, "V100"), DIGEST)
        assert older.reason.startswith(f"the receipt's check {name} is version 99, now it is")


def test_the_image_says_which_suite_it_needs_and_no_other_holds() -> None:
    every = {**PROGRAM.required("CPU"), **TRAINER.required("CPU")}
    judged = TRAINER.holds(receipt("program", every), DIGEST)
    assert judged.reason == "the receipt is of the suite program, the image needs trainer"
    assert not PROGRAM.holds(receipt("trainer", every), DIGEST)
    assert TRAINER.holds(None, DIGEST).reason == "there is no receipt"
    assert suites.of_image({}) is TRAINER
    assert suites.of_image({suites.LABEL: "program"}) is PROGRAM
    with pytest.raises(CheckFailed, match="'easy', and there is no such suite") as caught:
        suites.of_image({suites.LABEL: "easy"})
    assert caught.value.fix


def test_an_image_over_its_budget_names_its_largest_packages() -> None:
    def answered(compressed: int | None) -> list[str]:
        subject = SimpleNamespace(
            target="cpu",
            spec=SimpleNamespace(size_budget=600_000_000),
            compressed_bytes=compressed,
            largest=(("tensorflow 2.21.0", 200_000_000), ("numpy 2.1.0", 20_000_000)),
        )
        defects, _ = size.run(SimpleNamespace(subject=subject))  # type: ignore[arg-type]
        return [defect.message for defect in defects]

    assert answered(599_000_000) == answered(None) == []
    assert answered(700_000_000) == [
        "0.70 GB to pull are over the budget of 0.60 GB; the largest packages: "
        "tensorflow 2.21.0 (200 MB), numpy 2.1.0 (20 MB)"
    ]
