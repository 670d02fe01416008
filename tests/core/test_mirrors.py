"""The host's Debian mirrors, read from apt's own files."""

import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

from builder.core import mirrors
from builder.core.errors import OutsideError

MIRROR = "http://mirror.example/debian"


@pytest.fixture
def apt(tmp_path: Path) -> Callable[..., Path]:
    """Makes an /etc/apt of the given files."""

    def make(**files: str) -> Path:
        etc = tmp_path / "apt"
        (etc / "sources.list.d").mkdir(parents=True)
        for name, text in files.items():
            stem, _, suffix = name.rpartition("_")
            path = etc / (
                "sources.list" if stem == "sources" else f"sources.list.d/{stem}.{suffix}"
            )
            path.write_text(textwrap.dedent(text))
        return etc

    return make


def test_one_line_sources(apt: Callable[..., Path]) -> None:
    etc = apt(
        sources_list=f"""\
        # deb http://commented.example/debian bookworm main
        deb-src {MIRROR} bookworm main
        deb [arch=amd64 signed-by=/k/debian-archive-keyring.gpg] {MIRROR} bookworm main # note
        deb {MIRROR}-security bookworm-security main
        """
    )
    found = mirrors.mirror(etc)
    assert found.archive.uri == MIRROR
    assert dict(found.archive.options)["Architectures"] == "amd64"
    assert found.security and found.security.uri == f"{MIRROR}-security"


def test_deb822_sources_with_a_key_in_the_file(apt: Callable[..., Path]) -> None:
    etc = apt(
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
        """
    )
    found = mirrors.mirror(etc)
    assert found.archive.uri == MIRROR
    assert "mQINBGPL0BUBEADmW5NdOOHwPIJl" in dict(found.archive.options)["Signed-By"]
    assert found.security is None
    stanza = found.archive.stanza("forky")
    assert "Suites: forky\n" in stanza
    assert "Components: main\n" in stanza
    assert "\n .\n mQINBG" in stanza


def test_third_parties_that_use_debians_suite_names_come_last(apt: Callable[..., Path]) -> None:
    etc = apt(
        a_list="deb [signed-by=/usr/share/keyrings/tool.gpg] https://tool.example bookworm main\n",
        b_list="deb https://engine.example/linux/debian bookworm stable\n",
        c_list="deb cdrom:[Debian 12]/ bookworm main\n",
        z_list=f"deb {MIRROR} bookworm main\n",
    )
    assert mirrors.mirror(etc).archive.uri == MIRROR


def test_cloud_images_name_a_list_of_mirrors(apt: Callable[..., Path], tmp_path: Path) -> None:
    (tmp_path / "mirrors").write_text(f"# nearest first\n{MIRROR}\tpriority:1\nhttp://other\n")
    etc = apt(a_list=f"deb mirror+file:{tmp_path}/mirrors bookworm main\n")
    assert mirrors.mirror(etc).archive.uri == MIRROR


def test_no_debian_source_is_a_clear_error(apt: Callable[..., Path]) -> None:
    etc = apt(a_list="deb http://archive.example/ubuntu noble main\n")
    with pytest.raises(OutsideError, match="no apt source is a Debian archive") as caught:
        mirrors.mirror(etc)
    assert "install Docker" in caught.value.fix


def test_host_suite_comes_from_os_release(tmp_path: Path) -> None:
    (tmp_path / "os-release").write_text('ID=debian\nVERSION_CODENAME="trixie"\n')
    assert mirrors.host_suite(tmp_path / "os-release") == "trixie"
    with pytest.raises(OutsideError, match="names no Debian release"):
        mirrors.host_suite(tmp_path / "missing")
