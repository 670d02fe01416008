"""Versions chosen by apt in a container, from the real mirror and from archives on loopback."""

import hashlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from builder.bases import apt, store
from builder.bases.apt import ContainerApt
from builder.core import debian, mirrors, network
from builder.core.debian import Archives
from builder.core.errors import OutsideError
from builder.core.network import BuildNetwork
from builder.core.settings import Settings
from builder.engine import Engine
from builder.lock import making, model
from tests.bases.test_osroot import locked
from tests.emulators.answers import Server, serving

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    ("said", "message"),
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
def test_what_apt_refuses_is_one_line_without_a_password(said: str, message: str) -> None:
    error = apt._refused("bookworm", "http://me:secret@m.example/debian", said)
    assert error.message == message


@pytest.fixture
def chooser(engine: Engine) -> ContainerApt:
    host = network.discover()
    archives = debian.archives(Settings(), host)
    return ContainerApt(locked(), engine, host, archives, store.of_this_machine())


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


@pytest.mark.engine
@pytest.mark.network
@pytest.mark.slow
class TestChoosing:
    def test_a_locked_root_is_completed_with_what_apt_would_install(
        self, chooser: ContainerApt
    ) -> None:
        held = model.read(ROOT, "cpu")
        assert held.root is not None
        (python,) = chooser("bookworm", [making.PYTHON_PACKAGES], held.root.packages)
        names = {deb.name for deb in python}
        assert {"python3", "ca-certificates"} <= names
        assert not names & {deb.name for deb in held.root.packages}
        (openmp,) = chooser("bookworm", [("libgomp1",)], (*held.root.packages, *python))
        assert [deb.name for deb in openmp] == ["libgomp1"]
        assert openmp[0].path.startswith("pool/main/g/")

    def test_a_package_that_there_is_not_is_named(self, chooser: ContainerApt) -> None:
        with pytest.raises(OutsideError, match="Debian bookworm has no package nonesuch"):
            chooser("bookworm", [("nonesuch",)], ())

    def test_an_archive_of_the_host_is_asked_and_a_mirror_that_is_gone_is_one_line(
        self, chooser: ContainerApt, small: Server
    ) -> None:
        trusted = mirrors.AptSource(f"{small.address}/debian", (), (("Trusted", "yes"),))
        host = BuildNetwork(mirror=mirrors.Mirror(trusted, None))
        archives = Archives(f"{small.address}/debian", f"{small.address}/security", "unused")
        made = model.read(ROOT, "cpu").root
        assert made is not None
        chooser._choose("bookworm", [("hello",)], ())  # the root is made, from the real mirror
        own = replace(chooser, host=host, archives=archives, _known={})
        (tool,) = own("bookworm", [("tool",)], made.packages)[0]
        assert (tool.version, tool.bytes, tool.time) == ("2:1.0+b1", 7, "20260712T101637Z")
        small.answers.clear()
        with pytest.raises(OutsideError, match="apt could not read Debian bookworm from"):
            own("bookworm", [("other",)], made.packages)
