"""The Debian mirror in this machine's apt sources."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from builder.core import apt
from builder.core.errors import OutsideError

MIRROR = "http://mirror.example/debian"


def mirror(folder: Path, **files: str) -> apt.Mirror:
    """Return the mirror of an /etc/apt with these files of sources.list.d; NAME_SUFFIX=text."""
    (folder / "sources.list.d").mkdir(parents=True)
    for name, text in files.items():
        path = folder / "sources.list.d" / name.replace("_", ".")
        path.write_text(textwrap.dedent(text))
    return apt.mirror(folder)


def test_one_line_sources(tmp_path: Path) -> None:
    found = mirror(
        tmp_path / "apt",
        a_list=f"""\
        # deb http://commented.example/debian bookworm main
        deb-src {MIRROR} bookworm main
        deb [arch=amd64 signed-by=/k/debian-archive-keyring.gpg] {MIRROR} bookworm main # note
        deb {MIRROR}-security bookworm-security main
        """,
    )
    assert found.archive.uri == MIRROR
    assert dict(found.archive.options)["Architectures"] == "amd64"
    assert found.security and found.security.uri == f"{MIRROR}-security"


def test_deb822_sources_with_a_key_in_the_file(tmp_path: Path) -> None:
    found = mirror(
        tmp_path / "apt",
        debian_sources=f"""\
        Types: deb deb-src
        URIs: {MIRROR}/
        # a comment in between
        Suites: trixie trixie-updates
        Components: main contrib
        Signed-By:
         -----BEGIN PGP PUBLIC KEY BLOCK-----
         .
         mQINBGPL0BUBEADmW5NdOOHwPIJl
         -----END PGP PUBLIC KEY BLOCK-----

        Types: deb
        URIs: http://off.example/debian-security
        Suites: trixie-security
        Components: main
        Enabled: no
        """,
    )
    assert (found.archive.uri, found.security) == (MIRROR, None)
    stanza = found.archive.stanza("forky")
    assert "Suites: forky\n" in stanza and "Components: main\n" in stanza
    assert "\n .\n mQINBG" in stanza


def test_third_parties_come_last_and_cloud_images_name_a_list_of_mirrors(tmp_path: Path) -> None:
    (tmp_path / "mirrors").write_text(f"# nearest first\n{MIRROR}\tpriority:1\nhttp://other\n")
    found = mirror(
        tmp_path / "apt",
        a_list="deb [signed-by=/usr/share/keyrings/tool.gpg] https://tool.example bookworm main\n",
        b_list="deb https://engine.example/linux/debian bookworm stable\n",
        c_list="deb cdrom:[Debian 12]/ bookworm main\n",
        z_list=f"deb mirror+file:{tmp_path}/mirrors bookworm main\n",
    )
    assert found.archive.uri == MIRROR
    with pytest.raises(OutsideError, match="no apt source is a Debian archive") as caught:
        mirror(tmp_path / "other", a_list="deb http://archive.example/ubuntu noble main\n")
    assert "install Docker" in caught.value.fix
