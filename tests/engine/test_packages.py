"""Debian's packages for a private engine, without installing any."""

import hashlib
import subprocess
from pathlib import Path

import pytest

from builder.core.apt import AptSource, Mirror
from builder.core.errors import OutsideError
from builder.core.files import write
from builder.engine.private.packages import Packages, unpack
from tests.image.layers import package

MIRROR = "http://mirror.example/debian"


# --- apt, against a mirror that is a folder -------------------------------------------------------


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


@pytest.fixture
def mirror(tmp_path: Path) -> Mirror:
    """An archive in a folder: `tool` 1.0 needs `library`, `library` needs nothing."""
    archive = tmp_path / "archive"
    shown = subprocess.run(
        ["dpkg", "--print-architecture"], capture_output=True, text=True, check=True
    )
    machine, entries = shown.stdout.strip(), []
    for name, epoch, more in (("tool", "2:", "Depends: library\n"), ("library", "", "")):
        control = f"Package: {name}\nVersion: {epoch}1.0+b1\nArchitecture: all\n"
        control += f"Maintainer: T <t@t.example>\nDescription: {name}\n{more}"
        deb = package((f"./usr/bin/{name}", b"#!/bin/sh\n"), control={"control": control.encode()})
        write(archive / f"pool/{name}.deb", deb)
        entries.append(
            f"{control}Filename: pool/{name}.deb\nSize: {len(deb)}\nSHA256: {sha256(deb)}\n"
        )
    listed, place = "\n".join(entries).encode(), f"main/binary-{machine}/Packages"
    write(archive / "dists/bookworm" / place, listed)
    write(
        archive / "dists/bookworm/Release",
        f"Suite: bookworm\nCodename: bookworm\nArchitectures: {machine} all\nComponents: main\n"
        f"SHA256:\n {sha256(listed)} {len(listed)} {place}\n",
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
def test_security_and_updates_belong_to_a_release(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Packages, "_apt", lambda *_: "")  # the lists are megabytes
    released, rolling = (
        (Packages(suite, tmp_path).folder / "debian.sources").read_text()
        for suite in ("bookworm", "sid")
    )
    assert "Suites: bookworm-security\n" in released
    assert "Suites: bookworm-updates\n" in released
    assert "Suites: sid\n" in rolling
    assert "security" not in rolling
