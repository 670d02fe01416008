"""What is installed of a wheel: places, modes, scripts, RECORD; and which wheels are refused."""

from __future__ import annotations

import io
import random
import stat
import zipfile
from collections.abc import Callable

import pytest

from builder.core.errors import OutsideError
from builder.facts.frameworks import Exclude
from builder.image import wheel as wheels
from builder.image.wheel import InstalledFile, installed
from tests.image.layers import digest, wheel, zipped

SITE = "opt/venv/lib/python3.11/site-packages"
INFO = f"{SITE}/one-1.0.dist-info"
POINTS = "one-1.0.dist-info/entry_points.txt"


def laid_out(content: bytes, *exclude: Exclude) -> dict[str, InstalledFile]:
    return installed(io.BytesIO(content), "one", "3.11", exclude)


def test_every_part_of_a_wheel_has_its_place_and_its_mode() -> None:
    parts = {
        "one/__init__.py": "",
        "one/tool": "",
        "one-1.0.data/purelib/pure.py": "1",
        "one-1.0.data/platlib/plat.so": "2",
        "one-1.0.data/headers/one.h": "3",
        "one-1.0.data/scripts/run": "#!/bin/sh\n",
        "one-1.0.data/data/share/one/table.txt": "5",
    }
    files = laid_out(wheel(parts, modes={"one/tool": 0o744, "one/__init__.py": 0o666}))
    notes = {f"{INFO}/{name}" for name in ("WHEEL", "METADATA", "RECORD", "INSTALLER", "REQUESTED")}
    assert files.keys() == notes | {
        f"{SITE}/one/__init__.py",
        f"{SITE}/one/tool",
        f"{SITE}/pure.py",
        f"{SITE}/plat.so",
        "opt/venv/include/site/python3.11/one/one.h",
        "opt/venv/bin/run",
        "opt/venv/share/one/table.txt",
    }
    assert files["opt/venv/share/one/table.txt"].content() == b"5"
    assert files[f"{INFO}/INSTALLER"].content() == b"uv"
    assert files[f"{INFO}/REQUESTED"].content() == b""
    modes = [files[f"{SITE}/one/{name}"].mode for name in ("tool", "__init__.py")]
    assert modes == [0o755, 0o644]


def test_scripts_and_commands_run_with_the_environments_python() -> None:
    for text, becomes in (
        ("#!python\nprint()\n", "#!/opt/venv/bin/python\nprint()\n"),
        ("#!pythonw\r\nprint()\n", "#!/opt/venv/bin/python\nprint()\n"),
        ("#!/bin/sh\n#!python\n", "#!/bin/sh\n#!python\n"),
        ("\x7fELF", "\x7fELF"),
    ):
        files = laid_out(wheel({"one-1.0.data/scripts/run": text}))
        script = files["opt/venv/bin/run"]
        assert (script.content().decode(), script.mode) == (becomes, 0o755)
        row = f"../../../bin/run,sha256={digest(becomes.encode())},{len(becomes)}"
        assert row in files[f"{INFO}/RECORD"].content().decode().splitlines()
    points = "[console_scripts]\nrun = one.cli:App.main\n[gui_scripts]\nshow=one:show\n[x]\na=b\n"
    files = laid_out(wheel({POINTS: points}))
    assert {name for name in files if "/bin/" in name} == {"opt/venv/bin/run", "opt/venv/bin/show"}
    script = files["opt/venv/bin/run"]
    lines = script.content().decode().splitlines()
    assert (script.mode, lines[0]) == (0o755, "#!/opt/venv/bin/python")
    assert "from one.cli import App" in lines and lines[-1].strip() == "sys.exit(App.main())"


def test_record_lists_what_is_there() -> None:
    parts = {
        "one/a.py": "a",
        "one/tests/test_a.py": "t",
        "one/with, comma.txt": "c",
        "one-1.0.data/platlib/one/lib.so": "l",
    }
    record = "one/a.py,sha256=x,1\none/tests/test_a.py,sha256=y,1\n"
    record += '"one/with, comma.txt",sha256=z,1\none-1.0.data/platlib/one/lib.so,sha256=w,1\n'
    content = wheel(parts, record=record + "one-1.0.dist-info/RECORD,,\n")
    files = laid_out(content, Exclude("one", ("one/tests/**",), ""))
    assert f"{SITE}/one/tests/test_a.py" not in files
    assert files[f"{INFO}/RECORD"].content().decode().splitlines() == [
        f"one-1.0.dist-info/INSTALLER,sha256={digest(b'uv')},2",
        "one-1.0.dist-info/RECORD,,",
        f"one-1.0.dist-info/REQUESTED,sha256={digest(b'')},0",
        "one/a.py,sha256=x,1",
        "one/lib.so,sha256=w,1",
        '"one/with, comma.txt",sha256=z,1',
    ]


@pytest.mark.parametrize(
    "name",
    [
        "../outside.py", "one/../../outside.py", "/etc/passwd", "one//a.py", "one\\..\\a.py",
        "one/a\n.py", "one-1.0.data/data/../../../etc/passwd", "one-1.0.data/elsewhere/a.py",
        "one-1.0.data/data",
    ],
)  # fmt: skip
def test_a_name_that_leads_elsewhere_is_refused(name: str) -> None:
    with pytest.raises(OutsideError, match="the wheel of one: "):
        laid_out(wheel({name: "content"}))


def test_a_link_is_refused_and_a_file_that_stands_twice_with_other_content() -> None:
    out = io.BytesIO(wheel({"one/a.py": ""}))
    with zipfile.ZipFile(out, "a") as archive:
        link = zipfile.ZipInfo("one/link")
        link.external_attr = (stat.S_IFLNK | 0o777) << 16
        archive.writestr(link, "/etc/passwd")
    with pytest.raises(OutsideError, match="'one/link' is no regular file"):
        laid_out(out.getvalue())
    twice = {"one/a.py": "a", "one-1.0.data/purelib/one/a.py": "a"}
    assert laid_out(wheel(twice))[f"{SITE}/one/a.py"].content() == b"a"
    with pytest.raises(OutsideError, match=r"two different files for /opt/venv/.*/one/a\.py"):
        laid_out(wheel({**twice, "one/a.py": "b"}))


def test_content_that_is_not_what_the_zip_says_is_refused() -> None:
    good = wheel({"one/a.py": bytes(range(256)) * 40})
    directory = good.index(b"PK\1\2")
    for at, change in ((directory + 24, (5).to_bytes(4, "little")), (60, b"\xff")):
        damaged = bytearray(good)
        damaged[at : at + len(change)] = change
        files = laid_out(bytes(damaged))
        with pytest.raises(OutsideError, match=r"the wheel of one: .*one/a\.py"):
            files[f"{SITE}/one/a.py"].content()


def test_a_file_is_read_to_its_end_wherever_a_piece_of_it_ends() -> None:
    """The first 256 KiB of one of these unpack to 256 KiB, so that nothing is left between."""
    noise = random.Random(1).randbytes(2 << 18)
    for zeros in range(112, 122):
        content = bytes(zeros) + noise
        assert laid_out(wheel({"one/a": content}))[f"{SITE}/one/a"].content() == content


def declared(content: bytes, name: str, size: int) -> bytes:
    """Return the wheel, whose list says that this file unpacks to so many bytes."""
    changed = bytearray(content)
    at = content.rindex(b"PK\1\2", 0, content.rindex(name.encode()))
    changed[at + 24 : at + 28] = size.to_bytes(4, "little")
    return bytes(changed)


def overlapping(content: bytes) -> bytes:
    """Return the wheel with one file at the place of the one before it."""
    changed = bytearray(content)
    second = content.index(b"PK\1\2", content.index(b"PK\1\2") + 4)
    changed[second + 42 : second + 46] = bytes(4)
    return bytes(changed)


REFUSED: dict[str, Callable[[], bytes]] = {
    "not a zip file": lambda: wheel({})[:-30],
    "0 folders": lambda: zipped([("one/a.py", b"")]),
    "2 folders": lambda: zipped([("a-1.dist-info/WHEEL", b""), ("b-1.dist-info/WHEEL", b"")]),
    "no RECORD": lambda: zipped([("one-1.dist-info/WHEEL", b"")]),
    "its RECORD cannot be read": lambda: wheel({}, record=b"\xff"),
    "entry_points.txt cannot be read": lambda: wheel({POINTS: "x"}),
    "command '../a'": lambda: wheel({POINTS: "[console_scripts]\n../a = one:b\n"}),
    "command 'a'": lambda: wheel({POINTS: "[console_scripts]\na = one:b()\n"}),
    "RECORD' has 1073741824 bytes": lambda: declared(
        wheel({}), "one-1.0.dist-info/RECORD", 1 << 30
    ),
    r"points\.txt' has 1073741824 bytes": lambda: declared(wheel({POINTS: ""}), POINTS, 1 << 30),
    "RECORD' has 17825792 bytes": lambda: wheel({}, record=bytes(17 << 20)),
    "is not what its checksum": lambda: declared(
        wheel({}, record=bytes(9 << 20)), "-info/RECORD", 9
    ),
    "its RECORD has more than 4000 lines": lambda: wheel({}, record=b"a\r" * 5000),
    "bin/a' has 17825801 bytes": lambda: wheel(
        {"one-1.0.data/scripts/a": b"#!python\n" + bytes(17 << 20)}
    ),
    "overlaps another file": lambda: overlapping(wheel({"one/a.py": "x"})),
    "'a/a/a/a/a/a.* has too long a name": lambda: wheel({"/".join("a" * 70): ""}),
    "ä.* has too long a name": lambda: wheel({f"one/{'ä' * 200}": ""}),
    "has 2001 files": lambda: zipped((f"one/{number}", b"") for number in range(2_001)),
    r"one/a\.py' has 68157440 bytes": lambda: declared(
        wheel({"one/a.py": "x"}), "one/a.py", 65 << 20
    ),
    "its list of files has": lambda: zipped((f"{'a' * 60_000}{n}", b"") for n in range(600)),
    "has a name that leads elsewhere": lambda: wheel({"": "x"}),
    "negative seek|Bad offset": lambda: wheel({})[:-10] + b"\xff\xff\xff\x7f" + wheel({})[-6:],
}


@pytest.mark.parametrize("reason", REFUSED)
def test_what_is_no_wheel_or_beyond_its_bounds_is_refused(
    monkeypatch: pytest.MonkeyPatch, reason: str
) -> None:
    """Of files, memory and depth. What is damaged is the wheel's fault by its name."""
    monkeypatch.setattr(wheels, "_MOST_FILES", 2000)
    with pytest.raises(OutsideError, match=f"^the wheel of one: .*({reason})"):
        laid_out(REFUSED[reason]())
