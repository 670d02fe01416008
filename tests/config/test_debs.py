"""The records of Debian packages, as the locks hold them."""

from dataclasses import replace

import pytest

from builder.config import debian_packages
from builder.config.debian_packages import DebianPackage

ADDUSER = DebianPackage(
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
    debian/20260711T221637Z/pool/main/a/adduser/adduser_3.134_all.deb
    sha256:{"5c1f3f3a" * 8}  # 115816 bytes
"""


def test_a_record_is_three_lines_that_a_person_can_read() -> None:
    assert debian_packages.dump([ADDUSER]) == TEXT
    assert debian_packages.parse("# a comment\n" + TEXT) == (ADDUSER,)
    other = replace(ADDUSER, name="a11y", version="1:2.0-1+b1")
    assert debian_packages.parse(debian_packages.dump([ADDUSER, other])) == (other, ADDUSER)


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
        debian_packages.parse(TEXT.replace(was, now))


def test_the_checksum_is_that_of_the_bytes_wherever_they_are() -> None:
    checksum, moved = debian_packages.checksum, replace(ADDUSER, time="x", archive="y")
    assert checksum([ADDUSER]) == checksum([moved]) != checksum([replace(moved, sha256="0" * 64)])


def test_what_apt_names_becomes_records_of_its_archive() -> None:
    hashed = "ab" * 32
    printed = f"""\
'http://me:x@m.example/debian/pool/main/b/bash/bash_5.2.15-2%2bb13_amd64.deb' \
bash_5.2.15-2+b13_amd64.deb 1490652 SHA256:{hashed}
'http://m.example/debian-security/pool/updates/main/o/openssl/libssl3_3.0.22-1%7edeb12u2_amd64.deb'\
 libssl3_1%3a3.0.22-1~deb12u2_amd64.deb 2039888 SHA256:{hashed}
"""
    dates = {
        "debian": "Sat, 11 Jul 2026 10:16:37 UTC",
        "debian-security": "Fri, 20 Nov 2026 00:12:41 UTC",
    }
    bash, ssl = debian_packages.from_apt(printed, dates)
    assert (bash.version, bash.time, bash.archive) == ("5.2.15-2+b13", "20260712T101637Z", "debian")
    assert bash.path == "pool/main/b/bash/bash_5.2.15-2+b13_amd64.deb"
    assert (ssl.version, ssl.bytes) == ("1:3.0.22-1~deb12u2", 2039888)
    assert (ssl.archive, ssl.time) == ("debian-security", "20261121T001241Z")
    assert debian_packages.parse(debian_packages.dump([bash, ssl])) == (bash, ssl)
