"""Where Debian's packages are fetched from."""

from builder.core import debian, mirrors
from builder.core.debian import Archives
from builder.core.network import BuildNetwork
from builder.core.settings import Settings


def host(uri: str, security: str = "") -> BuildNetwork:
    def source(address: str) -> mirrors.AptSource:
        return mirrors.AptSource(address, ("bookworm",))

    named = source(security) if security else None
    login = (("m.example.com", ("me", "secret")),)
    return BuildNetwork(mirror=mirrors.Mirror(source(uri), named), mirror_logins=login)


def public() -> Archives:
    return debian.archives(Settings(), BuildNetwork())


def test_the_setting_wins_over_apt_and_apt_over_debians_own() -> None:
    apt = host("https://m.example.com/debian")
    with_login = "https://me:secret@m.example.com/debian"
    found = debian.archives(Settings(), apt)
    assert (found.debian, found.security) == (with_login, f"{with_login}-security")
    assert found.snapshot == public().snapshot
    named = debian.archives(
        Settings(debian_mirror="http://a/debian/", debian_snapshot="http://b/"), apt
    )
    assert named == Archives("http://a/debian", "http://a/debian-security", "http://b")
    assert public().debian.endswith(f"{debian.DOMAIN}/debian")
    odd = debian.archives(Settings(), host("http://a/mirror", "http://a/fixes"))
    assert (odd.debian, odd.security) == ("http://a/mirror", "http://a/fixes")
    assert debian.archives(Settings(), host("http://a/mirror")).security == public().security


def test_the_lines_of_a_sources_list_name_the_keyring_of_a_debian_root() -> None:
    own = host("https://m.example.com/debian")
    where = debian.archives(Settings(), own)
    how = "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg]"
    mirror = "https://me:secret@m.example.com/debian"
    assert debian.sources(where, "trixie", own) == (
        f"{how} {mirror} trixie main\n",
        f"{how} {mirror} trixie-updates main\n",
        f"{how} {mirror}-security trixie-security main\n",
    )


def test_a_mirror_that_apt_trusts_needs_no_key() -> None:
    source = mirrors.AptSource("http://a/debian", ("bookworm",), (("Trusted", "yes"),))
    own = BuildNetwork(mirror=mirrors.Mirror(source, None))
    first, *_ = debian.sources(debian.archives(Settings(), own), "bookworm", own)
    assert first == "deb [trusted=yes] http://a/debian bookworm main\n"
