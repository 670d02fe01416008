"""What is installed of a wheel: places, modes, scripts, RECORD; and which wheels are refused."""

from __future__ import annotations

import io
import stat
import zipfile

import pytest

from builder.bases.drops import Drop
from builder.bases.wheel import Installed, installed
from builder.core.errors import OutsideError
from tests.bases.built import digest, wheel, zipped

SITE = "opt/venv/lib/python3.11/site-packages"
INFO = f"{SITE}/one-1.0.dist-info"


def laid_out(content: bytes, *drops: Drop) -> dict[str, Installed]:
    return installed(io.BytesIO(content), "one", "3.11", drops)


def test_every_part_of_a_wheel_has_its_place() -> None:
    parts = {
        "one/__init__.py": "",
        "one-1.0.data/purelib/pure.py": "1",
        "one-1.0.data/platlib/plat.so": "2",
        "one-1.0.data/headers/one.h": "3",
        "one-1.0.data/scripts/run": "#!/bin/sh\n",
        "one-1.0.data/data/share/one/table.txt": "5",
    }
    found = laid_out(wheel(parts))
    info = {f"{INFO}/{name}" for name in ("WHEEL", "METADATA", "RECORD", "INSTALLER", "REQUESTED")}
    assert found.keys() == info | {
        f"{SITE}/one/__init__.py",
        f"{SITE}/pure.py",
        f"{SITE}/plat.so",
        "opt/venv/include/site/python3.11/one/one.h",
        "opt/venv/bin/run",
        "opt/venv/share/one/table.txt",
    }
    assert found["opt/venv/share/one/table.txt"].content() == b"5"
    assert found[f"{INFO}/INSTALLER"].content() == b"uv"
    assert found[f"{INFO}/REQUESTED"].content() == b""


def test_what_may_be_run_stays_so_and_nothing_else() -> None:
    modes = {"one/tool": 0o744, "one/data": 0o640, "one/open": 0o666}
    found = laid_out(wheel(dict.fromkeys(modes, ""), modes=modes))
    assert {name: found[f"{SITE}/{name}"].mode for name in modes} == {
        "one/tool": 0o755,
        "one/data": 0o644,
        "one/open": 0o644,
    }


@pytest.mark.parametrize(
    ("text", "becomes"),
    [
        ("#!python\nprint()\n", "#!/opt/venv/bin/python\nprint()\n"),
        ("#!pythonw\r\nprint()\n", "#!/opt/venv/bin/python\nprint()\n"),
        ("#!/bin/sh\n#!python\n", "#!/bin/sh\n#!python\n"),
        ("\x7fELF", "\x7fELF"),
    ],
)
def test_a_script_runs_with_the_environments_python(text: str, becomes: str) -> None:
    found = laid_out(wheel({"one-1.0.data/scripts/run": text}))
    script = found["opt/venv/bin/run"]
    assert (script.content().decode(), script.mode) == (becomes, 0o755)
    row = f"../../../bin/run,sha256={digest(becomes.encode())},{len(becomes)}"
    assert row in found[f"{INFO}/RECORD"].content().decode().splitlines()


def test_commands_get_scripts() -> None:
    points = (
        "[console_scripts]\nrun = one.cli:App.main\n[gui_scripts]\nshow=one:show\n[other]\na=b\n"
    )
    found = laid_out(wheel({"one-1.0.dist-info/entry_points.txt": points}))
    assert {name for name in found if "/bin/" in name} == {"opt/venv/bin/run", "opt/venv/bin/show"}
    script = found["opt/venv/bin/run"]
    lines = script.content().decode().splitlines()
    assert script.mode == 0o755
    assert lines[0] == "#!/opt/venv/bin/python"
    assert "from one.cli import App" in lines
    assert lines[-1].strip() == "sys.exit(App.main())"
    compile(script.content(), "run", "exec")


def test_record_lists_what_is_there() -> None:
    files = {
        "one/a.py": "a",
        "one/tests/test_a.py": "t",
        "one/with, comma.txt": "c",
        "one-1.0.data/platlib/one/lib.so": "l",
    }
    record = "one/a.py,sha256=x,1\none/tests/test_a.py,sha256=y,1\n"
    record += '"one/with, comma.txt",sha256=z,1\none-1.0.data/platlib/one/lib.so,sha256=w,1\n'
    content = wheel(files, record=record + "one-1.0.dist-info/RECORD,,\n")
    found = laid_out(content, Drop("one", ("one/tests/**",), 0, ""))
    assert f"{SITE}/one/tests/test_a.py" not in found
    assert found[f"{INFO}/RECORD"].content().decode().splitlines() == [
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
        "../outside.py",
        "one/../../outside.py",
        "/etc/passwd",
        "one//a.py",
        "./a.py",
        "one\\..\\a.py",
        "one/a\n.py",
        "one-1.0.data/data/../../../etc/passwd",
        "one-1.0.data/elsewhere/a.py",
        "one-1.0.data/data",
    ],
)
def test_a_name_that_leads_elsewhere_is_refused(name: str) -> None:
    with pytest.raises(OutsideError, match="the wheel of one: "):
        laid_out(wheel({name: "content"}))


def test_a_link_is_refused() -> None:
    out = io.BytesIO(wheel({"one/a.py": ""}))
    with zipfile.ZipFile(out, "a") as archive:
        link = zipfile.ZipInfo("one/link")
        link.external_attr = (stat.S_IFLNK | 0o777) << 16
        archive.writestr(link, "/etc/passwd")
    with pytest.raises(OutsideError, match="'one/link' is no regular file"):
        laid_out(out.getvalue())


def test_a_file_that_stands_twice_is_refused_where_the_two_differ() -> None:
    parts = {"one/a.py": "a", "one-1.0.data/purelib/one/a.py": "a"}
    assert laid_out(wheel(parts))[f"{SITE}/one/a.py"].content() == b"a"
    with pytest.raises(OutsideError, match=r"two different files for /opt/venv/.*/one/a\.py"):
        laid_out(wheel({**parts, "one/a.py": "b"}))


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "not a zip file"),
        (wheel({})[:-30], "not a zip file"),
        (zipped([("one/a.py", b"")]), "0 folders"),
        (zipped([("a-1.dist-info/WHEEL", b""), ("b-1.dist-info/WHEEL", b"")]), "2 folders"),
        (zipped([("one-1.dist-info/WHEEL", b"")]), "no RECORD"),
        (wheel({}, record=b"\xff"), "its RECORD cannot be read"),
        (wheel({"one-1.0.dist-info/entry_points.txt": "x"}), "entry_points.txt cannot be read"),
        (
            wheel({"one-1.0.dist-info/entry_points.txt": "[console_scripts]\n../a = one:b\n"}),
            "command '../a'",
        ),
        (
            wheel({"one-1.0.dist-info/entry_points.txt": "[console_scripts]\na = one:b()\n"}),
            "command 'a'",
        ),
    ],
)
def test_what_is_no_wheel_is_refused(content: bytes, says: str) -> None:
    with pytest.raises(OutsideError, match=says):
        laid_out(content)


@pytest.mark.parametrize("size", [0, 5])
def test_content_that_is_not_what_the_directory_says_is_refused(size: int) -> None:
    content = bytearray(wheel({"one/a.py": "x" * 1000}))
    directory = content.index(b"PK\1\2")
    content[directory + 24 : directory + 28] = size.to_bytes(4, "little")
    found = laid_out(bytes(content))
    with pytest.raises(OutsideError, match="is not what its checksum says"):
        found[f"{SITE}/one/a.py"].content()


def test_a_damaged_byte_is_noticed() -> None:
    content = bytearray(wheel({"one/a.py": bytes(range(256)) * 40}))
    content[60] ^= 0xFF
    found = laid_out(bytes(content))
    with pytest.raises(OutsideError, match=r"the wheel of one: .*one/a\.py"):
        found[f"{SITE}/one/a.py"].content()
