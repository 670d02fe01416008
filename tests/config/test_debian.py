"""Debian's archives, and what the host's apt knows of them."""

from __future__ import annotations

import os
import subprocess
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

from builder.config import debian
from builder.config.debian import AptSource, Archives, HostApt, Mirror
from builder.config.network import BuildNetwork
from builder.core.errors import OutsideError
from builder.core.settings import Settings

MIRROR = "http://mirror.example/debian"
LOGINS = {"m.example.com": ("me", "secret")}


def apt(uri: str, security: str = "", **options: str) -> HostApt:
    source = AptSource(uri, ("bookworm",), tuple(options.items()))
    return HostApt(Mirror(source, AptSource(security, ()) if security else None), (), LOGINS)


def test_the_setting_wins_over_apt_and_apt_over_debians_own() -> None:
    public = debian.archives(Settings(), HostApt())
    assert public.debian.endswith(f"{debian.DOMAIN}/debian")
    own = apt("https://m.example.com/debian")
    with_login = "https://me:secret@m.example.com/debian"
    chosen = debian.archives(Settings(), own)
    assert (chosen.debian, chosen.security) == (with_login, f"{with_login}-security")
    assert chosen.snapshot == public.snapshot
    settings = Settings(debian_mirror="http://a/debian/", debian_snapshot="http://b/")
    named = Archives("http://a/debian", "http://a/debian-security", "http://b")
    assert debian.archives(settings, own) == named
    odd = debian.archives(Settings(), apt("http://a/mirror", "http://a/fixes"))
    assert (odd.debian, odd.security) == ("http://a/mirror", "http://a/fixes")
    assert debian.archives(Settings(), apt("http://a/mirror")).security == public.security


def test_a_sources_list_names_the_keyring_of_a_debian_root_or_trusts_as_the_hosts_apt() -> None:
    option = "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg]"
    assert debian.archives(Settings(), apt(MIRROR)).sources("trixie") == (
        f"{option} {MIRROR} trixie main\n",
        f"{option} {MIRROR} trixie-updates main\n",
        f"{option} {MIRROR}-security trixie-security main\n",
    )
    first, *_ = debian.archives(Settings(), apt(MIRROR, Trusted="yes")).sources("bookworm")
    assert first == f"deb [trusted=yes] {MIRROR} bookworm main\n"


# --- the host's apt -------------------------------------------------------------------------------


@pytest.fixture
def etc(tmp_path: Path) -> Callable[..., Path]:
    """Writes files of /etc/apt: `sources_list` is its sources.list, others are beside it."""

    def write(**files: str) -> Path:
        folder = tmp_path / "etc/apt"
        (folder / "sources.list.d").mkdir(parents=True)
        for name, text in files.items():
            stem, _, suffix = name.rpartition("_")
            path = "sources.list" if stem == "sources" else f"sources.list.d/{stem}.{suffix}"
            (folder / path).write_text(textwrap.dedent(text))
        return folder

    return write


def test_one_line_sources(etc: Callable[..., Path]) -> None:
    folder = etc(
        sources_list=f"""\
        # deb http://commented.example/debian bookworm main
        deb-src {MIRROR} bookworm main
        deb [arch=amd64 signed-by=/k/debian-archive-keyring.gpg] {MIRROR} bookworm main # note
        deb {MIRROR}-security bookworm-security main
        """
    )
    mirror = debian.mirror(folder)
    assert mirror.archive.uri == MIRROR
    assert dict(mirror.archive.options)["Architectures"] == "amd64"
    assert mirror.security and mirror.security.uri == f"{MIRROR}-security"


def test_deb822_sources_with_a_key_in_the_file(etc: Callable[..., Path]) -> None:
    folder = etc(
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
    mirror = debian.mirror(folder)
    assert (mirror.archive.uri, mirror.security) == (MIRROR, None)
    stanza = mirror.archive.stanza("forky")
    assert "Suites: forky\n" in stanza and "Components: main\n" in stanza
    assert "\n .\n mQINBG" in stanza


def test_third_parties_that_use_debians_suite_names_come_last(etc: Callable[..., Path]) -> None:
    folder = etc(
        a_list="deb [signed-by=/usr/share/keyrings/tool.gpg] https://tool.example bookworm main\n",
        b_list="deb https://engine.example/linux/debian bookworm stable\n",
        c_list="deb cdrom:[Debian 12]/ bookworm main\n",
        z_list=f"deb {MIRROR} bookworm main\n",
    )
    assert debian.mirror(folder).archive.uri == MIRROR


def test_cloud_images_name_a_list_of_mirrors(etc: Callable[..., Path], tmp_path: Path) -> None:
    (tmp_path / "mirrors").write_text(f"# nearest first\n{MIRROR}\tpriority:1\nhttp://other\n")
    folder = etc(a_list=f"deb mirror+file:{tmp_path}/mirrors bookworm main\n")
    assert debian.mirror(folder).archive.uri == MIRROR


def test_a_host_of_another_distribution(etc: Callable[..., Path], tmp_path: Path) -> None:
    folder = etc(a_list="deb http://archive.example/ubuntu noble main\n")
    with pytest.raises(OutsideError, match="no apt source is a Debian archive") as caught:
        debian.mirror(folder)
    assert "install Docker" in caught.value.fix
    assert debian.host_apt(tmp_path, {}).mirror is None
    (tmp_path / "os-release").write_text('ID=debian\nVERSION_CODENAME="trixie"\n')
    assert debian.host_suite(tmp_path / "os-release") == "trixie"
    with pytest.raises(OutsideError, match="names no Debian release"):
        debian.host_suite(tmp_path / "missing")


def test_apts_proxy_and_logins_are_taken_over_and_paths_of_the_host_are_not(
    etc: Callable[..., Path], tmp_path: Path
) -> None:
    folder = etc()
    for name in ("apt.conf.d", "auth.conf.d"):
        (folder / name).mkdir()
    (folder / "auth.conf.d/corp.conf").write_text("machine m.corp/debian login me password s\n")
    (folder / "apt.conf.d/99corp").write_text(
        'Acquire { http::Proxy "http://proxy:3128/"; https::CaInfo "/etc/corp.pem"; Retries "3";'
        '  https::Verify-Peer "true"; http::Proxy::mirror.corp "DIRECT"; Languages "none"; };'
    )
    # apt-config reads this machine's files unless it is told of another root
    (folder / "root.conf").write_text(f'Dir "{tmp_path}/";')
    environ = {"PATH": os.environ["PATH"], "APT_CONFIG": str(folder / "root.conf")}
    host = debian.host_apt(tmp_path, environ)
    assert set(host.settings) == {
        ("Acquire::http::Proxy", "http://proxy:3128/"),
        ("Acquire::http::Proxy::mirror.corp", "DIRECT"),
        ("Acquire::https::Verify-Peer", "true"),
        ("Acquire::Retries", "3"),
    }
    assert host.logins == {"m.corp/debian": ("me", "s")}
    secret = tmp_path / "apt"
    secret.write_bytes(BuildNetwork().secrets(host.settings)["apt"])
    dumped = subprocess.run(
        ["apt-config", "dump"],
        env={"PATH": os.environ["PATH"], "APT_CONFIG": str(secret)},
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    assert 'Acquire::http::Proxy "http://proxy:3128/";' in dumped
    assert 'APT::Sandbox::User "root";' in dumped
