"""Checks and suites: what an image has to go through, and which receipt proves it."""

import importlib
import re
from pathlib import Path
from types import SimpleNamespace

import pytest

from builder.core.errors import CheckFailed, InputError
from builder.facts import frameworks
from builder.pipeline.push import LocalImage
from builder.prove import checks, suites
from builder.prove.checks import size
from builder.prove.image import Image, NotThereError
from builder.prove.receipts import Finding, Receipt
from builder.prove.suite import Answer, Check, Suite
from tests.pipeline.pushing import proof, results
from tests.prove.reading import PROGRAM, TRAINER, layer, plain, read

IMAGE = suites.IMAGE

COMPILED = tuple(frameworks.of("jax").suites()[name] for name in ("trainer", "program"))
"""The suites of a framework whose programs are compiled."""
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
    every = (TRAINER, PROGRAM, suites.ON_GPU, *COMPILED)
    assert {check.name for suite in every for check in suite.checks} == written


def test_builder_prove_asks_whatever_an_image_answers_by_its_layers() -> None:
    """`contents` compares an image with its locks; what it asks beside that, `secrets` does."""
    by_layers = {check.name for suite in (TRAINER, PROGRAM) for check in suite.checks if check.rule}
    assert by_layers - {check.name for check in IMAGE.checks} == {"contents"}, "see OF_ANY"
    assert all(check.rule for check in IMAGE.checks)


def test_the_document_says_which_checks_an_image_needs() -> None:
    text = (Path(__file__).parents[2] / "docs/proof.md").read_text()
    explained = set(re.findall(r"^\*\*`([\w-]+)`: ", text, re.MULTILINE))
    said = re.search(r"checks above, but (.*?) only `trainer`, and(.*?) only `program`", text, re.S)
    assert said
    of_trainer, of_program = (set(re.findall(r"`([\w-]+)`", part)) for part in said.groups())
    for name, others in (("trainer", of_program), ("program", of_trainer)):
        suites_of = [frameworks.of(each).suites()[name] for each in frameworks.OWN]
        assert {check.name for suite in suites_of for check in suite.checks} == explained - others


def test_the_document_lists_what_any_image_is_asked() -> None:
    text = (Path(__file__).parents[2] / "docs/any-image.md").read_text()
    listed = set(re.findall(r"^\| `(\w[\w-]*)` \|", text, re.MULTILINE))
    assert listed == {check.name for check in suites.ON_GPU.checks}


@pytest.mark.parametrize("suite", [TRAINER, PROGRAM, IMAGE])
def test_a_receipt_of_its_suite_with_every_check_holds(suite: Suite) -> None:
    whole = suite.required("V100")
    assert suite.required("TPU").keys() - {"compile"} == suite.required("CPU").keys()
    assert whole.keys() - suite.required("CPU").keys() - {"compile"} == {"device-code"}
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
    judged = TRAINER.holds(receipt("image", every), DIGEST)
    assert judged.reason == "the receipt is of the suite image, the image needs trainer"
    by_capability = receipt("image", IMAGE.required("7.0"), "7.0")
    assert IMAGE.holds(by_capability, DIGEST), "builder prove --gpu 7.0"
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


def test_a_finding_refuses_an_image_of_ours_alone_and_nothing_to_look_at_has_a_reason() -> None:
    def usual(_: Image) -> Answer:
        return [Finding("as root", "a user")], {"note": "seen"}

    def nothing(_: Image) -> Answer:
        raise NotThereError("no certificates")

    asked, there = Check.of("user", 1, usual), layer(plain("/a"))
    others, ours = asked.judge(read(there)), asked.judge(read(there, target="cpu"))
    assert (others.status, others.findings, others.problems) == (
        "passed", (Finding("as root", "a user"),), (),
    )  # fmt: skip
    assert (ours.status, ours.findings, len(ours.problems)) == ("refused", (), 1)
    empty = Check.of("certificates", 1, nothing).judge(read(there))
    assert (empty.status, empty.note) == ("not there", "no certificates")
