"""Nothing that is secret, and nothing from elsewhere, leaves this machine."""

from __future__ import annotations

import os
from pathlib import Path, PurePosixPath

import pytest

from builder.core import outgoing
from builder.core.errors import InputError

KEY = "-----BEGIN RSA PRIVATE " + "KEY-----\nMIIEowIBAAKCAQEA1234567890\n"


def nothing(path: PurePosixPath) -> bool:
    return False


@pytest.mark.parametrize(
    ("name", "content", "kind"),
    [
        ("key.pem", KEY.encode(), "a private key"),
        ("notes.txt", b"token ghp_" + b"a1B2c3D4e" * 4, "a token .github-pat"),
        (".netrc", b"", "a netrc with logins"),
        ("a.toml", b'index = "https://me:pw' + b'@pypi.test/simple"', "an address with a pass"),
        ("far.bin", bytes(9 << 20) + KEY.encode(), "a private key,"),
        ("across-two-windows.bin", bytes((4 << 20) - 20) + KEY.encode(), "a private key,"),
        ("utf-16.bin", KEY.encode("utf-16"), "a private key,"),
        ("utf-16-be.bin", KEY.encode("utf-16-be"), "a private key,"),
        ("plain.bin", b"", ""),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_secret_does_not_leave(tmp_path: Path, name: str, content: bytes, kind: str) -> None:
    (tmp_path / name).write_bytes(content)
    if not kind:
        outgoing.check(tmp_path, tmp_path / name, nothing)
        return
    with pytest.raises(InputError, match=rf"^{name}: holds {kind}"):
        outgoing.check(tmp_path, tmp_path / name, nothing)


def test_a_link_leads_neither_to_a_secret_nor_to_what_is_left_out(tmp_path: Path) -> None:
    for name in ("id_rsa", ".env", "task.py"):
        (tmp_path / name).write_text("x")
        (tmp_path / f"to-{name}").symlink_to(name)

    def check(name: str) -> None:
        outgoing.check(tmp_path, tmp_path / name, lambda path: path.name.startswith("."))

    with pytest.raises(InputError, match=r"^to-id_rsa: holds an SSH key"):
        check("to-id_rsa")
    with pytest.raises(InputError, match=r"^to-\.env: is a link to \.env, which is left out"):
        check("to-.env")
    check("task.py")
    check("to-task.py")


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
