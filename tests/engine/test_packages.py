"""Debian's packages for a private engine, without installing any."""

import subprocess
from pathlib import Path

import pytest

from builder.core.apt import AptSource, Mirror
from builder.core.errors import OutsideError
from builder.engine.private.packages import Packages, unpack

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


def test_what_the_index_names_is_fetched_and_unpacked(
    mirror: Mirror, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hook, config = tmp_path / "hook-ran", tmp_path / "apt.conf"
    config.write_text(f'APT::Update::Post-Invoke {{ "touch {hook}"; }};\n')
    monkeypatch.setenv("APT_CONFIG", str(config))
    packages = Packages("bookworm", tmp_path / "apt", mirror)
    assert not hook.exists(), "the host's hooks do not run"
    (tool,) = packages.download(["tool"])
    assert (tool.name, tool.version) == ("tool", "2:1.0+b1")
    library, again = packages.download(["tool"], dependencies=True)
    assert (library.path.name, again) == ("library_1.0+b1_all.deb", tool)
    unpack([library, tool], tmp_path / "root")
    assert (tmp_path / "root/usr/bin/tool").exists()
    for names, dependencies in ((["nonesuch"], False), (["tool", "nonesuch"], True)):
        with pytest.raises(
            OutsideError, match=r"Debian bookworm from file:.*: Unable to locate package nonesuch"
        ):
            packages.download(names, dependencies)

    pool = Path(mirror.archive.uri.removeprefix("file:")) / "pool/tool.deb"
    pool.write_bytes(bytes(pool.stat().st_size))
    tool.path.unlink()
    with pytest.raises(OutsideError, match=r"Debian bookworm from file:.*[hH]ash"):
        packages.download(["tool"])
    tool.path.write_bytes(b"!<arch>\n")
    with pytest.raises(OutsideError, match=r"_all\.deb: could not be unpacked"):
        unpack([tool], tmp_path / "root")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(OutsideError, match="apt-get is missing"):
        packages.download(["tool"])


def test_a_mirror_that_cannot_be_read_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "apt.conf").write_text('Acquire::Retries::Delay "false";\n')
    monkeypatch.setenv("APT_CONFIG", str(tmp_path / "apt.conf"))
    nowhere = Mirror(AptSource("http://127.0.0.1:9/debian", (), (("Trusted", "yes"),)), None)
    with pytest.raises(OutsideError, match=r"127\.0\.0\.1:9") as caught:
        Packages("bookworm", tmp_path / "apt", nowhere)
    assert "\n" not in caught.value.message
    assert "proxy" in caught.value.fix


def test_a_snapshot_whose_lists_have_expired_is_used_if_it_is_signed(tmp_path: Path) -> None:
    """An archive signed with a key of its own, whose lists were valid until 2022."""
    archive = Path(__file__).parent / "data/apt/expired-archive"
    for key, known in ((archive / "key.gpg", True), (tmp_path / "no.gpg", False)):
        signed = (("Signed-By", str(key)),)
        source = Mirror(AptSource(f"file:{archive}", (), signed), None)
        if known:
            Packages("bookworm", tmp_path / "known", source)
        else:
            with pytest.raises(OutsideError, match="Debian bookworm from file:"):
                Packages("bookworm", tmp_path / "unknown", source)


# --- from the real mirror -------------------------------------------------------------------------


@pytest.mark.network
def test_security_and_updates_belong_to_a_release(tmp_path: Path) -> None:
    released, rolling = (
        (Packages(suite, tmp_path).folder / "debian.sources").read_text()
        for suite in ("bookworm", "sid")
    )
    assert "Suites: bookworm-security\n" in released
    assert "Suites: bookworm-updates\n" in released
    assert "Suites: sid\n" in rolling
    assert "security" not in rolling
