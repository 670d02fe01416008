"""What a root's container starts from."""

import io
import re
import tarfile
from pathlib import Path

from builder.bases import seed
from builder.bases.layer import Compression
from builder.bases.tarball import LayerWriter
from tests.bases.packages import package

ONE_LINE = """\
# See sources.list(5)
deb http://public.example/debian bookworm main contrib non-free
deb http://public.example/debian bookworm-updates main contrib
deb http://public.example/debian-security bookworm-security main
#deb-src http://public.example/debian bookworm main
"""
DEB822 = """\
## a comment
Types: deb
URIs: http://public.example/debian
Suites: trixie trixie-updates
Components: main contrib

Types: deb
URIs: http://public.example/debian-security
Suites: trixie-security
Components: main
"""


def test_sources_come_from_apts_own_example_without_the_other_components() -> None:
    for example, suite in ((ONE_LINE, "bookworm"), (DEB822, "trixie")):
        made = seed.main_only(example)
        assert re.findall("URIs: (.*)", made) == [
            "http://public.example/debian",
            "http://public.example/debian-security",
        ]
        assert re.findall("Suites: (.*)", made) == [f"{suite} {suite}-updates", f"{suite}-security"]
        assert set(re.findall("Components: (.*)", made)) == {"main"}


def written(folder: Path, **packages: bytes) -> dict[str, tarfile.TarInfo]:
    """The entries of a seed; the text of its apt sources is that of the sources' `linkname`."""
    paths = []
    for name, content in packages.items():
        (folder / name).write_bytes(content)
        paths.append((name.replace("_", "-"), folder / name))
    file = io.BytesIO()
    writer = LayerWriter(file, Compression("gzip", 1))
    seed.write(writer, "bookworm", paths, paths[:1])
    writer.close("k" * 64)
    file.seek(0)
    with tarfile.open(fileobj=file) as tar:
        return {one.name: one for one in tar}


def test_required_packages_are_unpacked_and_all_lie_beside_them(tmp_path: Path) -> None:
    example = ("usr/share/doc/apt/examples/sources.list", ONE_LINE.encode())
    found = written(
        tmp_path,
        apt=package(example, ("usr/share/zoneinfo/UTC", b"data")),
        dash=package(("./bin/", b""), ("./bin/dash", b"program"), ("./bin/sh", "dash")),
        usr_is_merged=package(("usr/", b"")),
    )
    assert found["bin"].linkname == "usr/bin"
    assert found["usr/bin/dash"].size == 7 and found["usr/bin/sh"].linkname == "dash"
    assert not {"bin/dash", "usr/share/zoneinfo/UTC", example[0]} & set(found)
    assert found["etc/apt/sources.list.d/debian.sources"].size > 100
    assert {"debs/required/apt.deb", "debs/required/dash.deb", "debs/added/apt.deb"} <= set(found)
    assert found["usr/sbin/policy-rc.d"].mode == 0o755 and found["tmp"].mode == 0o1777


def test_a_root_whose_usr_is_not_merged_keeps_its_folders(tmp_path: Path) -> None:
    found = written(
        tmp_path, apt=package(("usr/", b"")), dash=package(("bin/", b""), ("bin/dash", b"x"))
    )
    assert found["bin"].isdir() and "bin/dash" in found


def test_the_container_knows_its_user_and_the_root_gets_debians_own_accounts(
    tmp_path: Path,
) -> None:
    """Podman would write a user called 0 into an image without these files."""
    found = written(tmp_path, apt=package(("usr/", b"")))
    assert found["etc/passwd"].size and found["etc/group"].size
    removed, first = re.findall(r"(?m)^(rm|dpkg) (.*)$", seed._INSTALL)[:2]
    assert removed == ("rm", "-f /etc/passwd /etc/group")
    assert first[0] == "dpkg" and first[1].endswith("base-passwd.deb")
