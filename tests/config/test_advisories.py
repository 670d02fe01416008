"""The advisories that an image.yaml accepts: strict, and each mistake with its line and its fix."""

from __future__ import annotations

from datetime import date
from pathlib import Path

import pytest

from builder.config import image_yaml
from builder.config.image_yaml import ImageSpec
from builder.core.errors import InputError

GOOD = """\
  - id: CVE-2023-52425
    package: expat
    reason: the program reads no XML
    until: 2027-03-31
"""


def parse(entries: str) -> ImageSpec:
    text = f"accelerator: V100\nsize_budget: 3 GB\nadvisories:\n{entries}"
    return image_yaml.parse(text, Path("images/v100/image.yaml"))


def test_what_is_accepted_why_and_until_when() -> None:
    (accepted,) = parse(GOOD).advisories
    assert (accepted.id, accepted.package) == ("CVE-2023-52425", "expat")
    assert (accepted.until, accepted.reason) == (date(2027, 3, 31), "the program reads no XML")


@pytest.mark.parametrize(
    ("old", "new", "says", "fix"),
    [
        ("    until: 2027-03-31\n", "", "4: advisories.0.until: is missing", "add until: 2027"),
        ("2027-03-31", "2027-02-31", "7: advisories.0.until: '2027-02-31' is not a day", "2027-03"),
        ("2027-03-31", "1790000000", "7: advisories.0.until: '1790000000' is not", "last day"),
        ("CVE-2023-52425", "expat bug", "4: advisories.0.id: 'expat bug' is not", "as `builder"),
        ("the program reads no XML", "' '", "6: advisories.0.reason: is empty", "write why"),
        ("until:", "expiry: 2\n    until:", "7: advisories.0.expiry: unknown key", "known keys"),
        (GOOD, "  - CVE-2023-52425\n", "4: advisories.0: expected `name: value` lines", "- {id: "),
    ],
)  # fmt: skip
def test_a_mistake_is_one_line_with_its_fix(old: str, new: str, says: str, fix: str) -> None:
    with pytest.raises(InputError) as caught:
        parse(GOOD.replace(old, new))
    assert says in caught.value.message and fix in caught.value.fix
