"""Versions chosen by apt in a container, from the real mirror and from archives on loopback."""

import hashlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from builder.config import lockfile, locking
from builder.config.debian import Archives
from builder.core.errors import OutsideError
from builder.core.settings import Settings
from builder.image import apt
from builder.image.apt import ContainerApt
from tests.emulators.answers import Server, serving

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    ("printed", "message"),
    [
        ("E: Unable to locate package nonesuch\n", "Debian bookworm has no package nonesuch"),
        ("E: Version '9' for 'bash' was not found\n", "Debian bookworm has no package bash=9"),
        ("E: Package 'awk' has no installation candidate\n", "Debian bookworm has no package awk"),
        (
            "W: one\nE: Failed to fetch http://me:secret@m.example/x  404  Not Found\nE: two\n",
            "apt could not read Debian bookworm from http://***@m.example/debian: "
            "Failed to fetch http://***@m.example/x  404  Not Found",
        ),
    ],
)
def test_what_apt_refuses_is_one_line_without_a_password(printed: str, message: str) -> None:
    error = apt._refused("bookworm", "http://me:secret@m.example/debian", printed)
    assert error.message == message


@pytest.fixture
def small() -> Iterator[Server]:
    """An archive of one package, which depends on another that the lock has."""
    package = (
        "Package: tool\nVersion: 2:1.0+b1\nArchitecture: all\nDepends: bash\n"
        "Maintainer: T <t@t.example>\nDescription: tool\n"
        f"Filename: pool/main/t/tool/tool_1.0+b1_all.deb\nSize: 7\nSHA256: {'ab' * 32}\n"
    ).encode()
    listed = f" {hashlib.sha256(package).hexdigest()} {len(package)} main/binary-amd64/Packages\n"
    release = (
        "Suite: bookworm\nCodename: bookworm\nArchitectures: amd64 all\nComponents: main\n"
        f"Date: Sat, 11 Jul 2026 10:16:37 UTC\nSHA256:\n{listed}"
    ).encode()
    folder = "/debian/dists/bookworm"
    with serving(
        {
            f"{folder}/Release": (200, {}, release),
            f"{folder}/main/binary-amd64/Packages": (200, {}, package),
        }
    ) as server:
        yield server


@pytest.mark.long
@pytest.mark.engine
@pytest.mark.network
def test_a_locked_root_is_completed_with_what_apt_would_install(small: Server) -> None:
    chooser, root = ContainerApt(ROOT, Settings()), lockfile.read(ROOT, "cpu").root
    assert root is not None
    (python,) = chooser("bookworm", [locking.PYTHON_PACKAGES], root.packages)
    names = {deb.name for deb in python}
    assert {"python3", "ca-certificates"} <= names
    assert not names & {deb.name for deb in root.packages}
    (openmp,) = chooser("bookworm", [("libgomp1",)], (*root.packages, *python))
    assert [deb.name for deb in openmp] == ["libgomp1"]
    assert openmp[0].path.startswith("pool/main/g/")
    with pytest.raises(OutsideError, match="Debian bookworm has no package nonesuch"):
        chooser("bookworm", [("nonesuch",)], ())

    # an archive of the host's own, which then is gone
    mirror = f"{small.address}/debian"
    chooser.archives = Archives(mirror, f"{small.address}/security", "unused", trusted=True)
    (tool,) = chooser("bookworm", [("tool",)], root.packages)[0]
    assert (tool.version, tool.bytes, tool.time) == ("2:1.0+b1", 7, "20260712T101637Z")
    small.answers.clear()
    with pytest.raises(OutsideError, match="apt could not read Debian bookworm from"):
        chooser("bookworm", [("other",)], root.packages)
