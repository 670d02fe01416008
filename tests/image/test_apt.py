"""Versions chosen by apt in a container, from the real mirror."""

import pytest

from builder.config import lockfile, locking
from builder.config.debian import Archives
from builder.core.errors import OutsideError
from builder.core.settings import Settings
from builder.image import apt
from builder.image.apt import ContainerApt
from tests import ROOT
from tests.emulators.answers import serving


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
    error = apt._failed("bookworm", "http://me:secret@m.example/debian", printed)
    assert error.message == message


@pytest.mark.long
@pytest.mark.engine
@pytest.mark.network
def test_a_locked_root_is_completed_with_what_apt_would_install() -> None:
    chooser, root = ContainerApt(ROOT, Settings()), lockfile.read(ROOT, "cpu").rootfs
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
    with serving() as gone:
        mirror = f"{gone.address}/debian"
    chooser.archives = Archives(mirror, f"{mirror}-security", "unused", trusted=True)
    with pytest.raises(OutsideError, match="apt could not read Debian bookworm from"):
        chooser("bookworm", [("other",)], root.packages)
