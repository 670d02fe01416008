"""The rootfs: what its container starts from, what of it becomes a layer, and making it."""

from __future__ import annotations

import contextlib
import io
import os
import re
import tarfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from socket import gethostname
from types import SimpleNamespace
from typing import Any

import pytest

from builder.config import debian, lockfile
from builder.core import files
from builder.core.errors import OutsideError
from builder.core.files import EPOCH
from builder.core.settings import Settings
from builder.engine import Engine, containers
from builder.image import rootfs
from builder.image.content_store import ContentStore, of_this_machine
from builder.image.layer import Compression, Layer
from builder.image.plan import Rootfs
from builder.image.tarball import LayerWriter
from tests import ROOT
from tests.image.layers import Entry, entries, package, record, unpacked

NEWEST = 1_700_000_000
FIRST = "base-passwd"

# --- what the container starts from ---------------------------------------------------------------

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


def start(folder: Path, **packages: bytes) -> dict[str, Entry]:
    """The entries of the layer that a container of these packages starts from."""
    paths = []
    for name, content in packages.items():
        (folder / name).write_bytes(content)
        paths.append((name.replace("_", "-"), folder / name))
    file = io.BytesIO()
    writer = LayerWriter(file, Compression("gzip", 1))
    rootfs.write_start(writer, "bookworm", paths, paths[:1])
    writer.close("k" * 64)
    file.seek(0)
    with tarfile.open(fileobj=file) as archive:
        names = archive.getnames()
    assert len(set(names)) == len(names), "Docker's graph drivers refuse a path that stands twice"
    file.seek(0)
    return unpacked(file)


@pytest.mark.parametrize(("example", "suite"), [(ONE_LINE, "bookworm"), (DEB822, "trixie")])
def test_sources_come_from_apts_own_example_without_the_other_components(
    example: Any, suite: str
) -> None:
    sources = rootfs.main_only(example)
    assert re.findall("URIs: (.*)", sources) == [
        "http://public.example/debian",
        "http://public.example/debian-security",
    ]
    suites = re.findall("Suites: (.*)", sources)
    assert suites == [f"{suite} {suite}-updates", f"{suite}-security"]
    assert set(re.findall("Components: (.*)", sources)) == {"main"}


def test_required_packages_are_unpacked_and_all_lie_beside_them(tmp_path: Path) -> None:
    example = ("usr/share/doc/apt/examples/sources.list", ONE_LINE.encode())
    begins = start(
        tmp_path,
        apt=package(example, ("usr/share/zoneinfo/UTC", b"data")),
        dash=package(("./bin/", b""), ("./bin/dash", b"program"), ("./bin/sh", "dash")),
        usr_is_merged=package(("usr/", b"")),
        base_files=package(("tmp/", b""), ("usr/", b"")),
    )
    assert begins["bin"].target == "usr/bin"
    assert begins["usr/bin/dash"].size == 7 and begins["usr/bin/sh"].target == "dash"
    assert not {"bin/dash", "usr/share/zoneinfo/UTC", example[0]} & set(begins)
    assert begins["etc/apt/sources.list.d/debian.sources"].size > 100
    assert {"debs/required/apt.deb", "debs/required/dash.deb", "debs/added/apt.deb"} <= set(begins)
    assert begins["usr/sbin/policy-rc.d"].mode == 0o755 and begins["tmp"].mode == 0o1777
    # Podman would write a user called 0 into an image without these files
    assert begins["etc/passwd"].size and begins["etc/group"].size
    assert "\nrm -f /etc/passwd /etc/group\n" in begins["debs/install"].content.decode()


# --- the normalizer -------------------------------------------------------------------------------


def exported(first: str, second: str) -> io.BytesIO:
    """An engine's export; of two names of one file, it writes `first` first."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:

        def add(name: str, content: bytes = b"", date: float = 5.5, **fields: object) -> None:
            info = tarfile.TarInfo(name)
            info.size, info.mtime, info.uname = len(content), date, "root"
            info.pax_headers = {"SCHILY.xattr.user.note": "x", "LIBARCHIVE.creationtime": "1"}
            for field, value in fields.items():
                setattr(info, field, value)
            tar.addfile(info, io.BytesIO(content))

        for name in ("./", "dev/", "run/lock/"):
            add(name, type=tarfile.DIRTYPE)
        add("etc/", type=tarfile.DIRTYPE, date=NEWEST + 9, mode=0o755)
        add("etc/hosts", b"127.0.0.1 build-host\n")
        add("etc/resolv.conf", b"nameserver 10.0.0.1\n", date=NEWEST + 9)
        add("etc/made", b"now", date=NEWEST + 9)
        add("etc/passwd", b"root:x:0:0\n")
        add("dev/null", type=tarfile.CHRTYPE)
        for name in ("./.dockerenv", "proc/1/status", "var/log/dpkg.log", "debs/install"):
            add(name, b"x")
        add("var/lib/dpkg/status-old", b"x")
        add("var/lib/dpkg/status", b"x")
        add(first, b"perl")
        add(second, type=tarfile.LNKTYPE, linkname=first)
        add("usr/bin/sh", type=tarfile.SYMTYPE, linkname="dash", date=NEWEST + 9)
        add("usr/bin/ping", b"ping", pax_headers={"SCHILY.xattr.security.capability": "cap"})
    out.seek(0)
    return out


def normalized(store: ContentStore, export: io.BytesIO) -> Layer:
    with store.writing() as out:
        writer = LayerWriter(out, Compression("gzip", 1))
        rootfs.normalize(export, NEWEST, writer)
        return store.keep(out, writer.close("k" * 64))


def test_what_the_run_and_the_engine_left_is_not_in_the_layer(tmp_path: Path) -> None:
    store = ContentStore(tmp_path / "layers")
    layer = normalized(store, exported("usr/bin/perl", "usr/bin/perl5"))
    inside = entries(store, layer)
    assert list(inside) == sorted(inside)
    assert set(inside) == {
        *("dev", "etc", "etc/made", "etc/passwd", "etc/resolv.conf", "run/lock"),
        *("usr/bin/perl", "usr/bin/perl5", "usr/bin/ping", "usr/bin/sh", "var/lib/dpkg/status"),
    }
    assert inside["etc/resolv.conf"].size == 0
    later = {"etc", "etc/made", "usr/bin/sh", "etc/resolv.conf", "dev", "run/lock"}
    assert {name for name, entry in inside.items() if entry.date == EPOCH} == later
    assert {entry.date for name, entry in inside.items() if name not in later} == {5}
    assert inside["usr/bin/perl5"].target == "usr/bin/perl"
    with tarfile.open(store.path(layer)) as tar:
        infos = {info.name: info for info in tar}
    assert {info.uname for info in infos.values()} == {""}
    headers = {name: info.pax_headers for name, info in infos.items() if info.pax_headers}
    assert headers == {"usr/bin/ping": {"SCHILY.xattr.security.capability": "cap"}}
    texts = rootfs.texts(store.path(layer), ("etc/passwd",))
    assert texts == {"etc/passwd": "root:x:0:0\n"}
    other = ContentStore(tmp_path / "other")
    assert normalized(other, exported("usr/bin/perl5", "usr/bin/perl")) == layer, "in any order"


# --- making it ------------------------------------------------------------------------------------


def locked() -> Rootfs:
    lock = lockfile.read(ROOT, "cpu")
    assert lock.rootfs is not None
    return Rootfs(lock.rootfs.suite, lock.rootfs.packages, lock.apt[lockfile.APT])


def make(engine: Engine, store: ContentStore, packages: Rootfs) -> Layer:
    archives = debian.archives(Settings())
    return rootfs.make(packages, engine, archives, store, Compression())


def left(engine: Engine) -> list[Any]:
    """The containers and images that this process left behind."""
    filters = {"label": [f"{containers.OWNER}={containers.owner(os.getpid())}", rootfs.KIND]}
    api: Any = engine.client.api
    return [*api.containers(all=True, filters=filters), *api.images(filters=filters)]


def printed(engine: Engine, layer: Layer, script: str, network: str = "none") -> str:
    """What a script prints in a container of the rootfs."""
    command = ["/bin/sh", "-euc", script]
    with rootfs.container_of(
        engine, rootfs.KIND, layer, of_this_machine(), command, network
    ) as container:
        container.start()
        status = container.wait()["StatusCode"]
        text = str(container.logs().decode())
        assert status == 0, text
        return text


@pytest.fixture(scope="module")
def layer(engine: Engine) -> Layer:
    return make(engine, of_this_machine(), locked())


@pytest.mark.engine
@pytest.mark.network
@pytest.mark.slow
class TestMaking:
    def test_it_holds_what_is_locked_and_nothing_of_this_machine(
        self, engine: Engine, layer: Layer
    ) -> None:
        script = "dpkg --audit; dpkg-query --show --showformat '${Package}=${Version}\\n'"
        text = printed(engine, layer, script + "; dpkg --list >/dev/null")
        assert set(text.splitlines()) == {f"{d.name}={d.version}" for d in locked().packages}
        program = (
            "import ssl, sqlite3, venv; print(ssl.create_default_context().cert_store_stats())"
        )
        stats = printed(engine, layer, f"python3 -c '{program}'")
        assert int(re.findall(r"'x509_ca': (\d+)", stats)[0]) > 100
        script = "apt-get update -qq; apt-get install -qq --yes hello >/dev/null 2>&1; hello"
        assert "Hello, world!" in printed(engine, layer, script, "host")
        inside = entries(of_this_machine(), layer)
        assert max(entry.date for entry in inside.values()) < time.time() - 3600
        outside = re.compile(r"(proc|sys|dev|debs|tmp|var/log)/|\.dockerenv")
        assert not [name for name in inside if outside.match(name)]
        passwd = inside["etc/passwd"].content.decode()
        assert passwd.startswith("root:x:0:0:") and inside["etc/resolv.conf"].size == 0

    @pytest.mark.long
    def test_the_same_packages_give_the_same_bytes(
        self, engine: Engine, layer: Layer, tmp_path: Path
    ) -> None:
        assert make(engine, ContentStore(tmp_path), locked()) == layer
        assert left(engine) == []

    def test_a_package_whose_script_fails_is_named_with_what_it_printed(
        self, engine: Engine, tmp_path: Path
    ) -> None:
        """It is the first of all, so that nothing else is configured before."""
        control = f"Package: {FIRST}\nVersion: 1\nArchitecture: all\nMaintainer: T <t@t.example>\n"
        script = b"#!/bin/sh\necho 'broken: it cannot find its folder' >&2\nexit 3\n"
        content = package(
            control={"control": f"{control}Description: x\n".encode(), "postinst": script},
            packed="gz",
        )
        broken = record(FIRST, content)
        files.write(files.cache_home() / "debs" / f"{broken.sha256}.deb", content)
        named = rf"^Debian's package could not be configured: package {FIRST}.*cannot find its fold"
        required = tuple(broken if one.name == FIRST else one for one in locked().required)
        with pytest.raises(OutsideError, match=named):
            make(engine, ContentStore(tmp_path), Rootfs("bookworm", required))
        assert left(engine) == []
        assert not [path for path in tmp_path.rglob("*") if path.is_file() and path.stat().st_size]


def test_a_stop_ends_the_container_and_what_a_killed_run_left_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stop, ended = threading.Event(), list[bool]()

    @contextlib.contextmanager
    def container_of(*_: object) -> Iterator[Any]:
        try:
            yield SimpleNamespace(start=stop.set)
        finally:
            ended.append(True)

    monkeypatch.setattr(rootfs, "container_of", container_of)
    monkeypatch.setattr(containers, "follow", lambda *_: None)  # which prints nothing, and goes on
    content = package(("a", b"1"))
    apt = record("apt", content)
    (tmp_path / "apt.deb").write_bytes(content)
    packages, paths, nothing = Rootfs("bookworm", (apt,)), {apt: tmp_path / "apt.deb"}, Any
    with pytest.raises(KeyboardInterrupt):
        rootfs._install(packages, paths, 1, nothing, tmp_path / "out.tar", nothing, stop)
    assert ended

    store = ContentStore(tmp_path)
    mine, dead = tmp_path / f"{store.unfinished}x", tmp_path / f".new.{gethostname()},1,7.x"
    for folder in (mine, dead):
        folder.mkdir()
    store.sweep()
    assert mine.exists() and not dead.exists()
