"""Debian's packages for a private engine, without installing any."""

import subprocess
import threading
from pathlib import Path

import pytest

from builder.core.errors import OutsideError
from builder.core.events import Event, StepLog
from builder.core.mirrors import AptSource, Mirror
from builder.engine.private.packages import Packages, unpack
from tests.debian import tool

MIRROR = "http://mirror.example/debian"


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
    return Mirror(AptSource(f"file:{archive}", (), (("Trusted", "yes"),)), None)


@pytest.fixture
def packages(mirror: Mirror, tmp_path: Path) -> Packages:
    return Packages("bookworm", mirror, cache=tmp_path / "cache")


def test_candidates_and_closure(packages: Packages) -> None:
    assert packages.candidates(["tool"]) == {"tool": "2:1.0+b1"}
    assert packages.closure(["tool"]) == {"library": "1.0+b1", "tool": "2:1.0+b1"}


def test_download_and_unpack(packages: Packages, tmp_path: Path) -> None:
    debs = packages.download(packages.closure(["tool"]))
    assert [deb.name for deb in debs] == ["library_1.0+b1_all.deb", "tool_2%3a1.0+b1_all.deb"]
    unpack(debs, tmp_path / "root")
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
    nowhere = Mirror(AptSource("http://127.0.0.1:9/debian", (), (("Trusted", "yes"),)), None)
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
    archive = Path(__file__).parent / "data/apt/expired-archive"
    checked = (("Signed-By", str(archive / "key.gpg")), ("Check-Valid-Until", "yes"))
    configuration = Packages._configuration
    monkeypatch.setattr(  # this machine's apt may be told not to look at dates
        Packages,
        "_configuration",
        lambda self: configuration(self) + 'Acquire::Check-Date "true";\n',
    )
    expired = Mirror(AptSource(f"file:{archive}", (), checked), None)
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
        unpack([tmp_path / "half.deb"], tmp_path / "root")


def test_the_hosts_apt_hooks_do_not_run(
    packages: Packages, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tmp_path / "apt.conf"
    hook = tmp_path / "hook-ran"
    config.write_text(f'APT::Update::Post-Invoke {{ "touch {hook}"; }};\n')
    monkeypatch.setenv("APT_CONFIG", str(config))
    packages.candidates(["tool"])
    assert not hook.exists()


# --- from the real mirror -------------------------------------------------------------------------


@pytest.mark.network
def test_a_tool_runs_with_its_own_libraries_whatever_the_host_has() -> None:
    """From a suite with a newer libc than Debian 12's."""
    jq = tool("jq", suite="trixie")
    said = subprocess.run([jq, "-n", "-c", "[1,2]|add"], capture_output=True, text=True, check=True)
    assert said.stdout == "3\n"
    assert tool("jq", suite="trixie") == jq


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
        tool("nonesuch", ("hostname",))
