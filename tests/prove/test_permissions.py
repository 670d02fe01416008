"""The probe of the check `permissions`, on an image described by a few files."""

import hashlib
import os
from pathlib import Path
from typing import Any

import pytest

from builder.prove.probes import permissions

SEARCHED = ["/usr/bin", "/opt/site-packages"]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """An image with Debian's `su` (in /bin, a link to /usr/bin), a package and a program."""
    for folder in ("usr/bin", "opt/site-packages", "app/trainer", "var/lib/dpkg/info", "tmp"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "tmp").chmod(0o1777)
    (tmp_path / "bin").symlink_to("usr/bin")
    checksum = hashlib.md5(b"su").hexdigest()
    info = tmp_path / "var/lib/dpkg/info"
    (info / "util-linux.md5sums").write_text(f"{checksum}  bin/su\n{checksum}  bin/bash\n")
    for name in ("su", "bash"):
        (tmp_path / "usr/bin" / name).write_text("su")
        (tmp_path / "usr/bin" / name).chmod(0o755)
    (tmp_path / "usr/bin/su").chmod(0o4755)
    (tmp_path / "app/trainer/task.py").write_text("import os\n")
    return tmp_path


def messages(root: Path, searched: list[str] | None = None, **changed: object) -> list[str]:
    user = f"{os.getuid() + 1}:{os.getgid() + 1}"
    request: dict[str, Any] = {"user": user, "program": "/app", "strict": True, "skip": ["/smoke"]}
    answer = permissions.probe({**request, **changed}, str(root), searched or SEARCHED)
    assert all(problem["fix"] for problem in answer["problems"])
    return [problem["message"] for problem in answer["problems"]]


def test_debians_own_programs_and_a_program_of_roots_are_let_through(root: Path) -> None:
    assert messages(root) == []
    assert messages(root, ["/usr/bin", "/usr/local/bin"]) == [], "only root could make it"


@pytest.mark.parametrize("name", ["helper", "bash", "su"])
def test_a_set_user_id_program_that_debian_does_not_have(root: Path, name: str) -> None:
    program = root / "usr/bin" / name
    program.write_text("another")
    program.chmod(0o4755)
    message = f"programs that run with another user's rights: /usr/bin/{name}"
    assert messages(root) == [message]
    assert messages(root, strict=False) == [], "a published base's own are reported only"


def test_a_bit_that_debian_does_not_set(root: Path) -> None:
    (root / "usr/bin/bash").chmod(0o4755)
    (root / ".tools").mkdir()
    (root / ".tools/helper").write_text("")
    (root / ".tools/helper").chmod(0o2755)
    assert messages(root) == [
        "programs that run with another user's rights: /.tools/helper, /usr/bin/bash"
    ]


def test_what_everybody_may_change_among_programs_and_modules(root: Path) -> None:
    module = root / "opt/site-packages/numpy.py"
    module.write_text("")
    module.chmod(0o666)
    (root / "opt/unsearched").write_text("")
    (root / "opt/unsearched").chmod(0o666)
    assert messages(root) == [
        "everybody may write to what the image runs: /opt/site-packages/numpy.py"
    ]
    module.unlink()
    assert messages(root, ["/tmp/bin"]) == ["everybody may write to what the image runs: /tmp"]
    assert messages(root, ["/tmp"]) == ["everybody may write to what the image runs: /tmp"]


def test_a_program_that_the_images_user_can_overwrite(root: Path) -> None:
    user = f"{os.getuid()}:{os.getgid()}" if os.getuid() else "1234:1234"
    if not os.getuid():
        for path in (root / "app", *(root / "app").rglob("*")):
            os.chown(path, 1234, 1234)
    assert messages(root, user=user) == [
        f"the image's user {user} can overwrite its program: /app, /app/trainer, "
        "/app/trainer/task.py"
    ]
    assert messages(root, user="0") == [], "that an image runs as root, the check of contents says"


def test_a_group_that_may_write_is_enough(root: Path) -> None:
    (root / "app/trainer").chmod(0o775)
    gid = (root / "app/trainer").stat().st_gid
    assert messages(root, user=f"54321:{gid}") == [
        f"the image's user 54321:{gid} can overwrite its program: /app/trainer"
    ]


def test_a_user_who_may_write_to_the_accounts_or_the_loaders_folders_becomes_root(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LD_LIBRARY_PATH", "/opt/lib:/usr/local/nvidia/lib64")
    for name in ("etc/ld.so.conf.d", "opt/lib", "opt/own"):
        (root / name).mkdir(parents=True)
    (root / "etc/ld.so.conf.d/own.conf").write_text("# ours\n/opt/own\n")
    for name in ("etc/passwd", "etc/shadow"):
        (root / name).write_text("")
    assert messages(root) == []
    (root / "etc/passwd").chmod(0o666)
    (root / "opt/own").chmod(0o777)
    (message,) = messages(root)
    assert message.endswith("may write to /etc/passwd, /opt/own, and become root by it")


def test_a_copy_of_python_with_a_capability_is_named(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copied = root / "usr/bin/python-copy"
    copied.write_text("")

    def attribute(path: str, name: str) -> bytes:
        """Stand in for setcap, which needs root: cap_setuid=ep (capabilities(7), VFS version 2)."""
        if path == str(copied) and name == "security.capability":
            return bytes.fromhex("0100000280000000000000000000000000000000")
        raise OSError(61, "No data available")

    monkeypatch.setattr("os.getxattr", attribute)
    (message,) = messages(root)
    assert message.startswith("files with capabilities: /usr/bin/python-copy")
