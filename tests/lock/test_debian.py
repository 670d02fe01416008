"""Debian's packages without installing any."""

import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from builder.core.errors import OutsideError
from builder.core.events import Event, StepLog
from builder.lock import debian
from builder.lock.debian import Mirror, Packages, Source

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


# --- the host's mirror ----------------------------------------------------------------------------


def test_one_line_sources(apt: Callable[..., Path]) -> None:
    etc = apt(
        sources_list=f"""\
        # deb http://commented.example/debian bookworm main
        deb-src {MIRROR} bookworm main
        deb [arch=amd64 signed-by=/k/debian-archive-keyring.gpg] {MIRROR} bookworm main # note
        deb {MIRROR}-security bookworm-security main
        """
    )
    found = debian.mirror(etc)
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
    found = debian.mirror(etc)
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
    assert debian.mirror(etc).archive.uri == MIRROR


def test_cloud_images_name_a_list_of_mirrors(apt: Callable[..., Path], tmp_path: Path) -> None:
    (tmp_path / "mirrors").write_text(f"# nearest first\n{MIRROR}\tpriority:1\nhttp://other\n")
    etc = apt(a_list=f"deb mirror+file:{tmp_path}/mirrors bookworm main\n")
    assert debian.mirror(etc).archive.uri == MIRROR


def test_no_debian_source_is_a_clear_error(apt: Callable[..., Path]) -> None:
    etc = apt(a_list="deb http://archive.example/ubuntu noble main\n")
    with pytest.raises(OutsideError, match="no apt source is a Debian archive") as caught:
        debian.mirror(etc)
    assert "install Docker" in caught.value.fix


def test_host_suite_comes_from_os_release(tmp_path: Path) -> None:
    (tmp_path / "os-release").write_text('ID=debian\nVERSION_CODENAME="trixie"\n')
    assert debian.host_suite(tmp_path / "os-release") == "trixie"
    with pytest.raises(OutsideError, match="names no Debian release"):
        debian.host_suite(tmp_path / "missing")


# --- apt, against a mirror that is a folder -------------------------------------------------------


@pytest.fixture
def mirror(tmp_path: Path) -> Mirror:
    """A real archive in a folder: `tool` 1.0 needs `library`, `library` needs nothing."""
    archive = tmp_path / "archive"
    shown = subprocess.run(
        ["dpkg", "--print-architecture"], capture_output=True, text=True, check=True
    )
    machine = shown.stdout.strip()
    index = archive / f"dists/bookworm/main/binary-{machine}"
    pool = archive / "pool"
    index.mkdir(parents=True)
    pool.mkdir()
    entries = []
    for name, depends, epoch in (("tool", "library", "2:"), ("library", "", "")):
        tree = tmp_path / name
        (tree / "DEBIAN").mkdir(parents=True)
        (tree / "usr/bin").mkdir(parents=True)
        (tree / f"usr/bin/{name}").write_text(f"#!/bin/sh\necho {name} $1\n")
        (tree / f"usr/bin/{name}").chmod(0o755)
        control = f"Package: {name}\nVersion: {epoch}1.0+b1\nArchitecture: all\n"
        control += f"Maintainer: T <t@t.example>\nDescription: {name}\n"
        control += f"Depends: {depends}\n" if depends else ""
        (tree / "DEBIAN/control").write_text(control)
        deb = pool / f"{name}.deb"
        subprocess.run(["dpkg-deb", "-b", "--root-owner-group", tree, deb], check=True)
        digest = subprocess.run(["sha256sum", deb], capture_output=True, text=True, check=True)
        entries.append(
            f"{control}Filename: pool/{name}.deb\nSize: {deb.stat().st_size}\n"
            f"SHA256: {digest.stdout.split()[0]}\n"
        )
    (index / "Packages").write_text("\n".join(entries))
    digest = subprocess.run(
        ["sha256sum", index / "Packages"], capture_output=True, text=True, check=True
    )
    size = (index / "Packages").stat().st_size
    (archive / "dists/bookworm/Release").write_text(
        f"Suite: bookworm\nCodename: bookworm\nArchitectures: {machine} all\nComponents: main\n"
        f"SHA256:\n {digest.stdout.split()[0]} {size} main/binary-{machine}/Packages\n"
    )
    return Mirror(Source(f"file:{archive}", (), (("Trusted", "yes"),)), None)


@pytest.fixture
def packages(mirror: Mirror, tmp_path: Path) -> Packages:
    return Packages("bookworm", mirror, cache=tmp_path / "cache")


def test_candidates_and_closure(packages: Packages) -> None:
    assert packages.candidates(["tool"]) == {"tool": "2:1.0+b1"}
    assert packages.closure(["tool"]) == {"library": "1.0+b1", "tool": "2:1.0+b1"}
    assert packages.closure(["tool=2:1.0+b1"]) == packages.closure(["tool"])
    assert packages.versions(["tool", "absent"]) == {"tool": ("2:1.0+b1",)}


def test_closure_leaves_out_what_is_installed(packages: Packages) -> None:
    assert packages.closure(["tool"], installed={"library": "1.0+b1"}) == {"tool": "2:1.0+b1"}
    gone = {"library": "0.9", "unknown-to-the-mirror": "1"}
    assert packages.closure(["tool"], installed=gone) == {"tool": "2:1.0+b1"}


def test_download_and_unpack(packages: Packages, tmp_path: Path) -> None:
    debs = packages.download(packages.closure(["tool"]))
    assert [deb.name for deb in debs] == ["library_1.0+b1_all.deb", "tool_2%3a1.0+b1_all.deb"]
    debian.unpack(debs, tmp_path / "root")
    assert (tmp_path / "root/usr/bin/tool").exists()
    assert not list(debs[0].parent.glob(".new.*"))


def test_what_is_in_the_cache_is_not_fetched_again(packages: Packages, mirror: Mirror) -> None:
    debs = packages.download({"tool": "2:1.0+b1"})
    Path(mirror.archive.uri.removeprefix("file:")).rename(debs[0].parent / "archive-gone")
    assert packages.download({"tool": "2:1.0+b1"}) == debs


def test_a_package_that_does_not_exist_is_named(packages: Packages) -> None:
    for ask in (
        lambda: packages.candidates(["nonesuch"]),
        lambda: packages.closure(["nonesuch"]),
        lambda: packages.closure(["tool", "nonesuch"]),
        lambda: packages.download({"nonesuch": "1"}),
    ):
        with pytest.raises(OutsideError, match=r"Debian bookworm has no package nonesuch"):
            ask()
    with pytest.raises(OutsideError, match="has no package tool=9"):
        packages.closure(["tool=9"])


def test_a_mirror_that_cannot_be_read_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "apt.conf").write_text('Acquire::Retries::Delay "false";\n')
    monkeypatch.setenv("APT_CONFIG", str(tmp_path / "apt.conf"))
    nowhere = Mirror(Source("http://127.0.0.1:9/debian", (), (("Trusted", "yes"),)), None)
    with pytest.raises(OutsideError, match=r"127\.0\.0\.1:9") as caught:
        Packages("bookworm", nowhere, cache=tmp_path).candidates(["tool"])
    assert "\n" not in caught.value.message
    assert "proxy" in caught.value.fix


def test_a_mirror_without_the_suite_is_one_line(mirror: Mirror, tmp_path: Path) -> None:
    with pytest.raises(OutsideError, match="Debian trixie from file:"):
        Packages("trixie", mirror, cache=tmp_path / "c").candidates(["tool"])


def test_a_snapshot_whose_lists_have_expired_is_used_and_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An archive signed with a key of its own, whose lists were valid until 2022."""
    archive = Path(__file__).parent / "data/expired-archive"
    checked = (("Signed-By", str(archive / "key.gpg")), ("Check-Valid-Until", "yes"))
    configuration = Packages._configuration
    monkeypatch.setattr(  # this machine's apt may be told not to look at dates
        Packages,
        "_configuration",
        lambda self: configuration(self) + 'Acquire::Check-Date "true";\n',
    )
    expired = Mirror(Source(f"file:{archive}", (), checked), None)
    events: list[Event] = []
    packages = Packages("bookworm", expired, cache=tmp_path / "c", on_event=events.append)
    assert packages.candidates(["tool"]) == {"tool": "2:1.0+b1"}
    (said,) = [event.line for event in events if isinstance(event, StepLog)]
    assert "is expired" in said
    assert "used all the same" in said
    assert "Check-Valid-Until: no\n" in (packages.folder / "debian.sources").read_text()


def test_without_apt_it_says_what_is_missing(
    packages: Packages, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(OutsideError, match="apt-get is missing"):
        packages.candidates(["tool"])


def test_several_at_once_share_one_cache(packages: Packages, mirror: Mirror) -> None:
    cache = packages.folder.parent.parent
    seen: list[tuple[Path, ...]] = []

    def fetch() -> None:
        own = Packages("bookworm", mirror, cache=cache)
        seen.append(own.download(own.closure(["tool"])))

    threads = [threading.Thread(target=fetch) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(seen) == 4
    assert len(set(seen)) == 1


def test_a_broken_package_is_named(tmp_path: Path) -> None:
    (tmp_path / "half.deb").write_bytes(b"!<arch>\n")
    with pytest.raises(OutsideError, match=r"half\.deb: could not be unpacked"):
        debian.unpack([tmp_path / "half.deb"], tmp_path / "root")


def test_the_hosts_apt_hooks_do_not_run(
    packages: Packages, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tmp_path / "apt.conf"
    hook = tmp_path / "hook-ran"
    config.write_text(f'APT::Update::Post-Invoke {{ "touch {hook}"; }};\n')
    monkeypatch.setenv("APT_CONFIG", str(config))
    packages.candidates(["tool"])
    assert not hook.exists()


# --- files ----------------------------------------------------------------------------------------


def test_write_replaces_and_leaves_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "a/b"
    debian.write(path, "one")
    debian.write(path, "two", 0o755)
    assert path.read_text() == "two"
    assert path.stat().st_mode & 0o777 == 0o755
    assert list(path.parent.iterdir()) == [path]


def test_a_lock_makes_other_processes_wait(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    program = f"from builder.lock.debian import *\nwith locked(Path({str(path)!r})): print('in')"
    with debian.locked(path):
        root = Path(__file__).resolve().parents[2]
        other = subprocess.Popen(
            [sys.executable, "-c", program], cwd=root, stdout=subprocess.PIPE, text=True
        )
        with pytest.raises(subprocess.TimeoutExpired):
            other.wait(0.5)
    assert other.communicate(timeout=30)[0] == "in\n"


# --- from the real mirror -------------------------------------------------------------------------


@pytest.mark.network
def test_a_tool_runs_with_its_own_libraries_whatever_the_host_has() -> None:
    """From a suite with a newer libc than Debian 12's."""
    jq = debian.tool("jq", suite="trixie")
    said = subprocess.run([jq, "-n", "-c", "[1,2]|add"], capture_output=True, text=True, check=True)
    assert said.stdout == "3\n"
    assert debian.tool("jq", suite="trixie") == jq


@pytest.mark.network
def test_security_and_updates_belong_to_a_release() -> None:
    sources = []
    for suite in ("bookworm", "sid"):
        packages = Packages(suite)
        packages.refresh()
        sources.append((packages.folder / "debian.sources").read_text())
    released, rolling = sources
    assert "Suites: bookworm-security\n" in released
    assert "Suites: bookworm-updates\n" in released
    assert "Suites: sid\n" in rolling
    assert "security" not in rolling


@pytest.mark.network
def test_a_tool_that_its_package_does_not_hold() -> None:
    with pytest.raises(OutsideError, match="hostname has no nonesuch"):
        debian.tool("nonesuch", ("hostname",))
