"""What the locks hold: records of Debian packages, pins of wheels, the wheel that is taken."""

from dataclasses import replace

import pytest

from builder.config import debian_packages, pins, uv
from builder.config.debian_packages import DebianPackage
from builder.config.network import BuildNetwork
from builder.config.pins import Pin
from builder.config.uv import Platform

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


# --- Python ---------------------------------------------------------------------------------------

PYTHON_311 = Platform("3.11", 36)


def test_a_pins_file_reads_back_as_it_was_written() -> None:
    two = (Pin("keras", "3.15.1", "a" * 64, 1_500_000), Pin("numpy", "2.4.6", "b" * 64))
    text = pins.dump(reversed(two), "Why it is there.")
    assert pins.parse(text) == two
    assert text == (
        "# Why it is there.\n"
        "keras==3.15.1 \\\n"
        f"    --hash=sha256:{'a' * 64}  # 1500000 bytes\n"
        "numpy==2.4.6 \\\n"
        f"    --hash=sha256:{'b' * 64}\n"
    )


def test_the_wheel_that_an_installer_would_take() -> None:
    pure = "a-1-py3-none-any.whl"
    exact = "a-1-cp311-cp311-manylinux_2_17_x86_64.manylinux2014_x86_64.whl"
    old = "a-1-cp311-cp311-manylinux1_x86_64.whl"
    for names, best in (
        ([pure], pure),
        ([pure, exact], exact),
        (["a-1-cp38-abi3-manylinux_2_28_x86_64.whl", old], old),
        (["a-1-cp311-cp311-manylinux_2_39_x86_64.whl"], None),  # a newer glibc than the base has
        (["a-1-cp311-cp311-musllinux_1_2_x86_64.whl", "a-1-cp311-cp311-win_amd64.whl"], None),
        (["a-1-cp312-cp312-manylinux_2_17_x86_64.whl", "no wheel"], None),
    ):
        assert uv.best_wheel(names, PYTHON_311) == best


def test_a_known_size_is_not_asked_for_again_and_one_that_nobody_tells_stays_open() -> None:
    wanted = {"keras": Pin("keras", "3.15.1", "a" * 64, url="http://127.0.0.1:9/keras.whl")}
    known = [Pin("keras", "3.15.1", "a" * 64, 7)]
    assert uv.with_sizes(wanted, known, BuildNetwork())["keras"].bytes == 7
    assert uv.with_sizes(wanted, [], BuildNetwork())["keras"].bytes is None


def test_two_versions_of_a_package_are_asked_for_in_two_groups() -> None:
    old, new = Pin("h5py", "3.14.0", "a" * 64), Pin("h5py", "3.16.0", "b" * 64)
    other = Pin("numpy", "2.4.6", "c" * 64)
    assert uv.without_conflict([old, new, other, old]) == [
        {"h5py": old, "numpy": other},
        {"h5py": new},
    ]
