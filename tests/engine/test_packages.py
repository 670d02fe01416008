"""Debian's packages for a private engine, without installing any."""

import subprocess
import threading
from pathlib import Path

import pytest

from builder.config.debian import AptSource, Mirror
from builder.core.errors import OutsideError
from builder.engine.private.packages import Package, Packages, unpack
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


def test_download_and_unpack(packages: Packages, tmp_path: Path) -> None:
    (tool_alone,) = packages.download(["tool"])
    assert (tool_alone.name, tool_alone.version) == ("tool", "2:1.0+b1")
    library, tool_again = packages.download(["tool"], dependencies=True)
    assert tool_again == tool_alone
    assert (library.path.name, tool_again.path.name) == (
        "library_1.0+b1_all.deb",
        "tool_2%3a1.0+b1_all.deb",
    )
    unpack([library, tool_again], tmp_path / "root")
    assert (tmp_path / "root/usr/bin/tool").exists()
    assert not list(library.path.parent.glob(".new.*"))


def test_a_file_in_the_cache_is_used_if_it_is_the_one_of_the_index(
    packages: Packages, mirror: Mirror
) -> None:
    (package,) = packages.download(["tool"])
    before = package.path.stat().st_mtime_ns
    assert packages.download(["tool"]) == (package,)
    assert package.path.stat().st_mtime_ns == before
    content = package.path.read_bytes()
    package.path.write_bytes(b"damaged")
    assert packages.download(["tool"]) == (package,)
    assert package.path.read_bytes() == content
    for deb in Path(mirror.archive.uri.removeprefix("file:")).rglob("*.deb"):
        deb.unlink()  # the lists stay: apt links to those of a folder
    assert packages.download(["tool"]) == (package,)


def test_a_package_that_does_not_exist_is_named(packages: Packages) -> None:
    for names, dependencies in ((["nonesuch"], False), (["tool", "nonesuch"], True)):
        with pytest.raises(
            OutsideError, match=r"Debian bookworm from file:.*: Unable to locate package nonesuch"
        ):
            packages.download(names, dependencies)


def test_a_mirror_that_cannot_be_read_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "apt.conf").write_text('Acquire::Retries::Delay "false";\n')
    monkeypatch.setenv("APT_CONFIG", str(tmp_path / "apt.conf"))
    nowhere = Mirror(AptSource("http://127.0.0.1:9/debian", (), (("Trusted", "yes"),)), None)
    with pytest.raises(OutsideError, match=r"127\.0\.0\.1:9") as caught:
        Packages("bookworm", nowhere, cache=tmp_path).download(["tool"])
    assert "\n" not in caught.value.message
    assert "proxy" in caught.value.fix


def test_a_mirror_without_the_suite_is_one_line(mirror: Mirror, tmp_path: Path) -> None:
    with pytest.raises(OutsideError, match="Debian trixie from file:"):
        Packages("trixie", mirror, cache=tmp_path / "c").download(["tool"])


def test_a_snapshot_whose_lists_have_expired_is_used_if_it_is_signed(tmp_path: Path) -> None:
    """An archive signed with a key of its own, whose lists were valid until 2022."""
    archive = Path(__file__).parent / "data/apt/expired-archive"
    for key, known in ((archive / "key.gpg", True), (tmp_path / "no.gpg", False)):
        signed = (("Signed-By", str(key)),)
        source = Mirror(AptSource(f"file:{archive}", (), signed), None)
        packages = Packages("bookworm", source, cache=tmp_path / f"cache-{known}")
        if known:
            packages.refresh()
        else:
            with pytest.raises(OutsideError, match="Debian bookworm from file:"):
                packages.refresh()


def test_without_apt_it_says_what_is_missing(
    packages: Packages, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(OutsideError, match="apt-get is missing"):
        packages.download(["tool"])


def test_several_at_once_share_one_cache(packages: Packages, mirror: Mirror) -> None:
    cache = packages.folder.parent.parent
    seen: list[tuple[Package, ...]] = []

    def fetch() -> None:
        seen.append(Packages("bookworm", mirror, cache=cache).download(["tool"], True))

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
        unpack([Package("half", "1", tmp_path / "half.deb")], tmp_path / "root")


def test_the_hosts_apt_hooks_do_not_run(
    packages: Packages, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tmp_path / "apt.conf"
    hook = tmp_path / "hook-ran"
    config.write_text(f'APT::Update::Post-Invoke {{ "touch {hook}"; }};\n')
    monkeypatch.setenv("APT_CONFIG", str(config))
    packages.download(["tool"])
    assert not hook.exists()


# --- from the real mirror -------------------------------------------------------------------------


@pytest.mark.network
def test_a_tool_runs_with_its_own_libraries_whatever_the_host_has() -> None:
    """From a suite with a newer libc than Debian 12's."""
    jq = tool("jq", suite="trixie")
    done = subprocess.run([jq, "-n", "-c", "[1,2]|add"], capture_output=True, text=True, check=True)
    assert done.stdout == "3\n"
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
