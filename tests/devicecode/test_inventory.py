"""The libraries of folders, wheels and streams, and what their records say of them."""

from __future__ import annotations

import os
import shutil
import zipfile
from pathlib import Path

import pytest

from builder.core.errors import InputError
from builder.devicecode import inventory, library
from builder.devicecode.pruning import prune as pruning
from builder.devicecode.pruning.rule import compute_capability
from builder.devicecode.verdict import Audit, Support
from builder.reading import images

from .writer import Part, container, elf, install, ptx, sass
from .writer import library as written

V100 = compute_capability("7.0")
WHOLE = written(container(sass(70), sass(80), ptx(80)), container(sass(70), sass(80)))
TEXT = elf(Part(".text", b"\x90" * 99, flags=6))


def site(folder: Path) -> Path:
    """TensorFlow as its wheel installs it; the path of its library."""
    install(folder, "tensorflow", "2.21.0", {"tensorflow/libtensorflow_cc.so.2": WHOLE})
    return folder / "tensorflow/libtensorflow_cc.so.2"


def status(folder: Path) -> Support:
    return Audit(inventory.of_folder(folder)).verdict(V100).status


# --- folders --------------------------------------------------------------------------------------


def test_only_what_is_named_like_a_library_is_read(tmp_path: Path) -> None:
    for name in ("libfoo.so.txt", "also.sorted", "lib.solid", "libm.so", "libm.so.6", "c.so.1.2"):
        (tmp_path / name).write_bytes(WHOLE)
    (tmp_path / "liblink.so").symlink_to("libm.so")
    names = [each.name for each in inventory.of_folder(tmp_path)]
    assert names == ["c.so.1.2", "libm.so", "libm.so.6"]


def test_what_is_no_library_is_said_to_be_none(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.so")
    (tmp_path / "b.so").touch()
    (tmp_path / "c.so").write_text("<html>not found</html>")
    (tmp_path / "d.so").write_text("/* GNU ld script */\nINPUT(libm.so.6)\n")
    with (tmp_path / "e.so").open("wb") as file:
        file.write(b"\x7fELF\x02\x01\x01")
        file.truncate(200 << 30)
    assert [each.broken for each in inventory.of_folder(tmp_path)] == [
        "not a regular file",
        "it is empty",
        "not an ELF file: starts with b'<html>no'",
        "",
        "larger than 8 GiB: no library is",
    ]
    os.mkfifo(tmp_path / "x.whl")
    assert images.of_paths([tmp_path / "x.whl"]).libraries[0].broken == "not a regular file"
    with pytest.raises(InputError, match="no such file or folder"):
        images.of_paths([tmp_path / "gone"])


def test_a_library_is_the_same_after_json(tmp_path: Path) -> None:
    site(tmp_path)
    (tmp_path / "broken.so").touch()
    text = b".version 8.5\n.target sm_90a\n"
    (tmp_path / "ptx.so").write_bytes(written(container(ptx(90, payload=text, compression=""))))
    for each in inventory.of_folder(tmp_path):
        assert library.from_json(library.as_json(each), each.package, each.version) == each


# --- records --------------------------------------------------------------------------------------


def test_one_byte_that_is_not_the_wheels_is_never_native(tmp_path: Path) -> None:
    path = site(tmp_path)
    assert status(tmp_path) == Support.NATIVE
    for at in range(0, len(WHOLE), 41):
        path.write_bytes(WHOLE[:at] + bytes([WHOLE[at] ^ 1]) + WHOLE[at + 1 :])
        assert status(tmp_path) >= Support.NOT_KNOWN, at
    path.write_bytes(WHOLE + bytes(16))
    assert status(tmp_path) == Support.NOT_KNOWN, "another size"


def test_a_library_that_we_pruned_is_what_our_record_says(tmp_path: Path) -> None:
    path = site(tmp_path)
    pruning.prune(tmp_path, V100)
    assert (tmp_path / pruning.PRUNED).stat().st_mode & 0o444 == 0o444
    pruned = path.read_bytes()
    assert pruned != WHOLE
    assert status(tmp_path) == Support.NATIVE
    # a base prunes the same folder after each of its locks
    install(tmp_path, "tensorflow-text", "2.21.0", {"tensorflow/more.so": WHOLE})
    pruning.prune(tmp_path, V100)
    lines = (tmp_path / pruning.PRUNED).read_text().splitlines()
    assert [line.split(",")[0] for line in lines] == [
        "tensorflow/libtensorflow_cc.so.2",
        "tensorflow/more.so",
    ]
    assert status(tmp_path) == Support.NATIVE
    path.write_bytes(pruned[:-1] + b"\1")
    assert status(tmp_path) == Support.NOT_KNOWN
    path.write_bytes(pruned)
    (tmp_path / pruning.PRUNED).unlink()
    assert status(tmp_path) == Support.NOT_KNOWN, "the wheel says other bytes"


def test_a_stripped_library_is_no_alarm_and_a_record_that_is_none_says_nothing(
    tmp_path: Path,
) -> None:
    install(tmp_path, "numpy", "2.0", {"numpy/core.so": TEXT})
    (tmp_path / "numpy/core.so").write_bytes(elf(Part(".text", b"\x90" * 64, flags=6)))
    assert status(tmp_path) == Support.NO_DEVICE_CODE
    site(tmp_path / "other")
    (record,) = tmp_path.glob("other/*.dist-info/RECORD")
    record.write_text(f'tensorflow/libtensorflow_cc.so.2,,{"9" * 5000}\n"{"x" * 200_000}",,\n')
    (only,) = inventory.of_folder(tmp_path / "other")
    assert (only.doubt, only.version) == ("", "2.21.0")


# --- wheels and streams ---------------------------------------------------------------------------

NAME = "nvidia_cudnn_cu12-9.28.0.42-py3-none-manylinux_2_27_x86_64.whl"
MEMBER = "nvidia/cudnn/lib/libcudnn_ops.so.9"


def wheel(folder: Path, name: str = NAME, members: dict[str, bytes] | None = None) -> Path:
    with zipfile.ZipFile(folder / name, "w", zipfile.ZIP_DEFLATED) as archive:
        for member, data in (members or {MEMBER: WHOLE, "nvidia/__init__.py": b""}).items():
            archive.writestr(member, data)
    return folder / name


def test_a_wheel_is_read_before_anything_is_installed(tmp_path: Path) -> None:
    (only,) = images.of_paths([wheel(tmp_path)]).libraries
    assert (only.path, only.origin) == (f"{NAME}/{MEMBER}", "nvidia-cudnn-cu12 9.28.0.42")
    other = wheel(tmp_path, "tensorflow-2.21.0-cp311-cp311-linux.whl", {"libt.so": WHOLE})
    both = images.of_paths([tmp_path / NAME, other]).libraries
    assert [each.package for each in both] == ["nvidia-cudnn-cu12", "tensorflow"]


def test_a_broken_wheel_and_one_of_a_damaged_library_are_never_fine(tmp_path: Path) -> None:
    path = wheel(tmp_path)
    whole = path.read_bytes()
    at = len(MEMBER) + 60
    flipped = whole[:at] + bytes([whole[at] ^ 0xFF]) + whole[at + 1 :]
    for content in (whole[:-40], flipped, b"<html>not found</html>"):
        path.write_bytes(content)
        assert Audit(images.of_paths([path]).libraries).verdict("7.0").status == Support.BROKEN
    site(tmp_path / "x").write_bytes(WHOLE[:-1] + b"\1")
    packed = shutil.make_archive(str(tmp_path / "tensorflow"), "zip", tmp_path / "x")
    path = Path(packed).rename(tmp_path / "tensorflow-2.21.0-py3-none-any.whl")
    assert Audit(images.of_paths([path]).libraries).verdict(V100).status >= Support.NOT_KNOWN
