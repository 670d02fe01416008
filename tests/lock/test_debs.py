"""The records of Debian packages, as the locks hold them."""

import re
from dataclasses import replace

import pytest

from builder.lock import debs
from builder.lock.debs import Deb

ADDUSER = Deb(
    "adduser",
    "3.134",
    "debian",
    "20260711T221637Z",
    "pool/main/a/adduser/adduser_3.134_all.deb",
    "5c1f3f3a" * 8,
    115816,
)
TEXT = f"""\
adduser=3.134
    debian/20260711T221637Z/pool/main/a/adduser/adduser_3.134_all.deb sha256:{"5c1f3f3a" * 8}\
  # 115816 bytes
"""


def test_a_record_is_two_lines_that_a_person_can_read() -> None:
    assert debs.dump([ADDUSER]) == TEXT
    assert debs.parse("# a comment\n" + TEXT) == (ADDUSER,)


def test_records_are_sorted_by_name() -> None:
    other = replace(ADDUSER, name="a11y", version="1:2.0-1+b1")
    assert debs.parse(debs.dump([ADDUSER, other])) == (other, ADDUSER)
    assert debs.versions([other]) == {"a11y": "1:2.0-1+b1"}


@pytest.mark.parametrize(
    ("was", "now"),
    [
        ("sha256:5c", "sha256:zz"),
        ("    debian/", "    ubuntu/"),
        ("115816 bytes", "many bytes"),
        ("T221637Z", ""),
        ("pool/", "../"),
        ("/main/", "/../../"),
        ("adduser=3.134\n", "adduser=3.134\nbash=5\n"),
    ],
)
def test_what_is_no_record_is_refused(was: str, now: str) -> None:
    with pytest.raises(ValueError, match=r"no record|leads out"):
        debs.parse(TEXT.replace(was, now))


def test_the_checksum_is_that_of_the_bytes_wherever_they_are() -> None:
    moved = replace(ADDUSER, time="20260801T000000Z", archive="debian-security")
    assert debs.checksum([ADDUSER]) == debs.checksum([moved])
    assert debs.checksum([ADDUSER]) != debs.checksum([replace(ADDUSER, sha256="0" * 64)])
    assert re.fullmatch("sha256:[0-9a-f]{64}", debs.checksum([]))
