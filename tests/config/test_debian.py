"""Debian's archives, and what the host's apt knows of them."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from builder.config import debian
from builder.config.debian import Archives, HostApt
from builder.config.network import BuildNetwork
from builder.core.apt import AptSource, Mirror
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


def test_apts_proxy_and_logins_are_taken_over_and_paths_of_the_host_are_not(tmp_path: Path) -> None:
    folder = tmp_path / "etc/apt"
    for name in ("apt.conf.d", "auth.conf.d"):
        (folder / name).mkdir(parents=True)
    (folder / "auth.conf.d/corp.conf").write_text("machine m.corp/debian login me password s\n")
    (folder / "apt.conf.d/99corp").write_text(
        'Acquire { http::Proxy "http://proxy:3128/"; https::CaInfo "/etc/corp.pem"; Retries "3";'
        '  https::Verify-Peer "true"; http::Proxy::mirror.corp "DIRECT"; Languages "none"; };'
    )
    # apt-config reads this machine's files unless it is told of another root
    (folder / "root.conf").write_text(f'Dir "{tmp_path}/";')
    environ = {"PATH": os.environ["PATH"], "APT_CONFIG": str(folder / "root.conf")}
    host = debian.host_apt(tmp_path, environ)
    assert host.mirror is None
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
