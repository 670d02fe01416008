"""A receipt holds for one image and one version of each check, and for nothing else."""

import json
from pathlib import Path

import pytest

from builder.core.errors import CheckFailed, InputError
from builder.pipeline.push import LocalImage
from builder.prove import receipts
from builder.prove.receipts import CheckResult, Defect, Receipt, valid_for
from tests.pipeline.pushing import proof, results

DIGEST = "sha256:" + "a" * 64
OTHER = "sha256:" + "b" * 64
IMAGE_ID = "sha256:" + "c" * 64
REQUIRED = {"loader": 2, "training": 1}


def check(name: str = "loader", version: int = 2, *problems: str) -> CheckResult:
    (result,) = results({name: version})
    defects = tuple(Defect(line, "do this") for line in problems)
    return result.model_copy(update={"passed": not problems, "problems": defects})


def receipt(*checks: CheckResult, digest: str | None = DIGEST) -> Receipt:
    image = LocalImage("training:v100", digest, IMAGE_ID)
    return proof(image, checks=checks or (check(), check("training", 1)))


def test_holds_for_its_image_by_digest_and_by_id() -> None:
    assert valid_for(receipt(), DIGEST, REQUIRED)
    assert valid_for(receipt(), IMAGE_ID, REQUIRED)
    assert valid_for(receipt(digest=None), [IMAGE_ID, OTHER], REQUIRED)


@pytest.mark.parametrize(
    ("proof", "image", "reason"),
    [
        (None, DIGEST, "there is no receipt"),
        (receipt(), OTHER, f"the receipt is for another image: {DIGEST}, not {OTHER}"),
        (receipt(check()), DIGEST, "the receipt holds no check training"),
        (
            receipt(check("loader", 1), check("training", 1)),
            DIGEST,
            "the receipt's check loader is version 1, now it is 2",
        ),
        (
            receipt(check("loader", 2, "libcudnn.so.9 is missing"), check("training", 1)),
            DIGEST,
            "the check loader did not pass: libcudnn.so.9 is missing",
        ),
        (  # though nobody requires that check
            receipt(check(), check("training", 1), check("contents", 1, "a secret")),
            DIGEST,
            "the check contents did not pass: a secret",
        ),
        (receipt().model_copy(update={"checks": ()}), DIGEST, "the receipt holds no check loader"),
    ],
)
def test_says_why_it_does_not_hold(proof: Receipt | None, image: str, reason: str) -> None:
    assert valid_for(proof, image, REQUIRED) == receipts.Validity(reason)


def test_what_is_written_is_read(tmp_path: Path) -> None:
    """Whatever a check saw."""
    path = tmp_path / "build" / "v100" / "receipt.json"
    assert receipts.read(path) is None
    seen = {"ä\u2028": ["\x00", True, None, {"x": 1.5}], "": 10**30}
    written = receipt(check().model_copy(update={"seen": seen}))
    receipts.write(written, path)
    assert receipts.read(path) == written
    assert path.read_bytes() == receipts.dump(written)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"schema_version": 2}, "schema_version is 2, this factory reads 1"),
        ({"digest": "latest"}, "digest: String should match pattern"),
        ({"checks": [{"name": "loader"}]}, r"checks\.0\.version: Field required"),
        ({"extra": 1}, "extra: Extra inputs are not permitted"),
        ({"suite": None}, "suite: Input should be a valid string"),
    ],
)
def test_a_receipt_of_another_shape_is_refused(change: dict[str, object], message: str) -> None:
    value = {**json.loads(receipts.dump(receipt())), **change}
    with pytest.raises(InputError, match=message):
        receipts.parse(json.dumps(value).encode(), "receipt.json")
    with pytest.raises(InputError, match="schema_version is None"):
        receipts.parse(b"[]", "receipt.json")
    with pytest.raises(InputError, match=r"receipt\.json: torn or no JSON") as caught:
        receipts.parse(receipts.dump(receipt())[:-200], "receipt.json")
    assert "delete it" in caught.value.fix


def test_the_failure_names_the_first_problem_and_counts_the_rest() -> None:
    error = receipts.failure("v100", receipt(check("loader", 2, "no libcudnn", "a stub")).problems)
    assert isinstance(error, CheckFailed)
    assert error.message == "v100: no libcudnn (and 1 more)"
    assert error.fix == "do this"


def test_a_check_says_what_it_saw_in_a_word_and_an_older_receipt_reads() -> None:
    """What a receipt has none of is not written: a receipt of a factory that knew no findings is
    the same bytes."""
    told = check().model_copy(update={"findings": (Defect("as root", "a user"),)})
    silent = check().model_copy(update={"not_there": "no certificates"})
    assert [one.status for one in (told, silent, check("x", 1, "no"))] == [
        "passed", "not there", "refused",
    ]  # fmt: skip
    assert silent.note == "no certificates"
    unseen = check().model_copy(update={"seen": {"note": "3 load", "not_followed": "musl's"}})
    assert (unseen.status, unseen.note) == ("not followed", "3 load; not followed: musl's")
    assert "loader could not follow musl's" in valid_for(receipt(unseen), DIGEST, {}).reason
    whole = receipt(told, silent)
    assert receipts.parse(receipts.dump(whole), "here") == whole
    written = json.loads(receipts.dump(receipt()))["checks"][0]
    assert written.keys() == {"name", "version", "passed", "seconds", "problems", "seen"}
