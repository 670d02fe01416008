"""Nothing that is secret, and nothing from elsewhere, leaves this machine."""

from __future__ import annotations

import gzip
import io
import os
import zipfile
from pathlib import Path, PurePosixPath

import pytest

from builder.core import outgoing
from builder.core.errors import InputError

KEY = "-----BEGIN RSA PRIVATE " + "KEY-----\nMIIEowIBAAKCAQEA1234567890\n"


def nothing(path: PurePosixPath) -> bool:
    return False


@pytest.mark.parametrize(
    ("name", "text", "kind"),
    [
        ("key.pem", KEY, "a private key"),
        ("notes.txt", "token ghp_" + "a1B2c3D4e" * 4, "a token .github-pat"),
        (".netrc", "", "a netrc with logins"),
        (
            "settings.toml",
            'index = "https://me:pw' + '@pypi.test/simple"',
            "an address with a pass",
        ),
    ],
)
def test_a_secret_does_not_leave(tmp_path: Path, name: str, text: str, kind: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(InputError, match=rf"^{name}: holds {kind}"):
        outgoing.check(tmp_path, tmp_path / name, nothing)


def test_a_secret_is_seen_wherever_it_is(tmp_path: Path) -> None:
    zipped = io.BytesIO()
    with zipfile.ZipFile(zipped, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a/notes.txt", "x" * (5 << 20) + KEY)
    logins = io.BytesIO()
    with zipfile.ZipFile(logins, "w") as archive:
        archive.writestr("home/.netrc", "")
    for content, words in (
        (bytes(9 << 20) + KEY.encode(), "a private key,"),
        (bytes((4 << 20) - 20) + KEY.encode(), "a private key,"),  # across two windows
        (KEY.encode("utf-16"), "a private key,"),
        (KEY.encode("utf-16-be"), "a private key,"),
        (gzip.compress(KEY.encode()), "a private key,"),
        (zipped.getvalue(), r"a private key \(in it, a/notes.txt\),"),
        (logins.getvalue(), r"a netrc with logins \(in it, home/.netrc\),"),
    ):
        (tmp_path / "data.bin").write_bytes(content)
        with pytest.raises(InputError, match=rf"^data\.bin: holds {words}"):
            outgoing.check(tmp_path, tmp_path / "data.bin", nothing)
    for harmless in (gzip.compress(b"x" * 9999)[:-9], zipped.getvalue()[:900], b"PK\3\4", b""):
        (tmp_path / "data.bin").write_bytes(harmless)
        outgoing.check(tmp_path, tmp_path / "data.bin", nothing)


def test_a_secret_has_its_own_name_behind_a_link(tmp_path: Path) -> None:
    (tmp_path / "id_rsa").write_text("")
    (tmp_path / "data.txt").symlink_to("id_rsa")
    with pytest.raises(InputError, match=r"^data\.txt: holds an SSH key"):
        outgoing.check(tmp_path, tmp_path / "data.txt", nothing)


def test_a_link_to_what_is_left_out_is_refused(tmp_path: Path) -> None:
    (tmp_path / ".env").write_text("x")
    (tmp_path / "env").symlink_to(".env")
    with pytest.raises(InputError, match=r"^env: is a link to \.env, which is left out"):
        outgoing.check(tmp_path, tmp_path / "env", lambda path: path.name.startswith("."))


def test_a_file_of_the_project_passes(tmp_path: Path) -> None:
    (tmp_path / "task.py").write_text("print(1)\n")
    (tmp_path / "same.py").symlink_to("task.py")
    for name in ("task.py", "same.py"):
        outgoing.check(tmp_path, tmp_path / name, nothing)


def test_what_is_read_lies_inside(tmp_path: Path) -> None:
    root = tmp_path / "project"
    root.mkdir()
    (tmp_path / "outside").write_text("x")
    (root / "away").symlink_to("../outside")
    (root / "nowhere").symlink_to("gone")
    os.mkfifo(root / "pipe")
    for name, message in {
        "away": "is a link to a file outside",
        "nowhere": "is a link to a file that is not there",
        "pipe": "is no regular file",
    }.items():
        with pytest.raises(InputError, match=f"^{name}: {message}"):
            outgoing.inside(root, root / name)
    outgoing.inside(root, root / "not-there")
