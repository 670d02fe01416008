"""The OS root: planned from a lock alone, made with whatever engine answers here."""

import os
import re
import signal
import subprocess
import sys
import tarfile
import time
from dataclasses import replace
from pathlib import Path

import pytest

from builder.bases import normal, osroot
from builder.bases.layer import Compression, Layer
from builder.bases.osroot import Root
from builder.bases.store import Store, of_this_machine
from builder.core import debian, files, network
from builder.core.errors import OutsideError
from builder.core.settings import Settings
from builder.core.templates import EPOCH
from builder.engine import Engine, containers
from builder.lock import model
from tests.bases.packages import package, record

ROOT = Path(__file__).resolve().parents[2]


def locked() -> Root:
    lock = model.read(ROOT, "cpu")
    assert lock.root is not None
    return Root(lock.root.suite, lock.root.packages, lock.apt[model.APT])


def test_the_key_covers_every_byte_and_no_place() -> None:
    root = locked()
    key = root.plan(Compression()).key
    first = root.added[0]
    moved = replace(first, time="20200101T000000Z", archive="debian")
    assert replace(root, added=(moved, *root.added[1:])).plan(Compression()).key == key
    others = [
        root.plan(Compression("gzip", 6)).key,
        replace(root, added=(replace(first, sha256="f" * 64), *root.added[1:]))
        .plan(Compression())
        .key,
        replace(root, added=root.added[1:]).plan(Compression()).key,
        # which packages are unpacked first decides who configures the others
        replace(root, added=root.added[1:], required=(*root.required, first))
        .plan(Compression())
        .key,
    ]
    assert len({key, *others}) == 5


def test_a_plan_says_what_is_in_it_and_what_it_downloads() -> None:
    plan = locked().plan(Compression())
    assert plan.name == "Debian bookworm"
    assert "python3 3.11.2-1+b1" in plan.packages
    assert plan.download == sum(one.bytes for one in locked().packages)
    assert osroot.PLATFORM == "linux/amd64"


def test_the_line_of_a_script_that_failed_is_what_is_said() -> None:
    said = [
        "Setting up thing (1) ...",
        "thing: cannot find its folder",
        "dpkg: error processing package thing (--configure):",
        " installed thing package post-installation script subprocess returned error exit status 1",
        "Errors were encountered while processing:",
        " thing",
    ]
    error = osroot._failed("the engine", 1, said)  # type: ignore[arg-type]
    assert error.message == (
        "Debian's package could not be configured: package thing (--configure): "
        "thing: cannot find its folder"
    )
    error = osroot._failed("the engine", 127, ["env: not found", ""])  # type: ignore[arg-type]
    assert error.message == "the OS root could not be made (exit code 127): env: not found"


# --- on an engine ---------------------------------------------------------------------------------


def make(engine: Engine, store: Store, root: Root) -> Layer:
    archives = debian.archives(Settings(), network.discover())
    return osroot.make(root, engine, archives, store, Compression())


@pytest.fixture(scope="module")
def store() -> Store:
    return of_this_machine()


@pytest.fixture(scope="module")
def layer(engine: Engine, store: Store) -> Layer:
    """The root that this machine builds with: made once, here or by a build."""
    return make(engine, store, locked())


def of(owner: str) -> dict[str, list[str]]:
    """The filters of what a process makes roots with."""
    return {"label": [osroot.KIND, f"{containers.OWNER}={owner}"]}


def left(engine: Engine, owner: str = "") -> list[object]:
    """Containers and images that a test or a run left behind, of this process or of another."""
    having = of(owner or containers.owner(os.getpid()))
    return [
        *engine.client.api.containers(all=True, filters=having),
        *engine.client.api.images(filters=having),
    ]


def said(engine: Engine, store: Store, layer: Layer, script: str, net: str = "none") -> str:
    """What a script prints in a container of the root."""
    command = ["/bin/sh", "-euc", script]
    with osroot.container_of(engine, osroot.KIND, layer, store, command, net) as container:
        container.start()
        status = container.wait()["StatusCode"]
        text = str(container.logs().decode())
        assert status == 0, text
        return text


@pytest.mark.engine
@pytest.mark.network
@pytest.mark.slow
class TestRoot:
    def test_dpkg_finds_exactly_what_is_locked(
        self, engine: Engine, store: Store, layer: Layer
    ) -> None:
        script = "dpkg --audit; dpkg-query --show --showformat '${Package}=${Version}\\n'"
        text = said(engine, store, layer, script + "; dpkg --list >/dev/null")
        assert set(text.splitlines()) == {f"{d.name}={d.version}" for d in locked().packages}
        program = (
            "import ssl, sqlite3, venv; print(ssl.create_default_context().cert_store_stats())"
        )
        stats = said(engine, store, layer, f"python3 -c '{program}'")
        assert int(re.findall(r"'x509_ca': (\d+)", stats)[0]) > 100

    def test_packages_are_installed_inside(
        self, engine: Engine, store: Store, layer: Layer
    ) -> None:
        script = "apt-get update -qq; apt-get install -qq --yes hello >/dev/null 2>&1; hello"
        assert "Hello, world!" in said(engine, store, layer, script, "host")

    def test_nothing_of_this_machine_or_of_the_run_is_in_it(
        self, store: Store, layer: Layer
    ) -> None:
        newest = 0
        with (
            store.path(layer).open("rb") as file,
            tarfile.open(fileobj=normal._unpacked(file), mode="r|") as tar,
        ):
            for one in tar:
                newest = max(newest, int(one.mtime))
                assert one.mtime >= EPOCH or not one.isdir()
                assert not re.match(r"(proc|sys|dev|debs|tmp|var/log)/|\.dockerenv", one.name)
                assert one.name != "etc/resolv.conf" or one.size == 0
        assert newest < time.time() - 3600
        passwd, group = osroot.accounts(store, layer)
        assert passwd.startswith("root:x:0:0:") and "\nadm:x:4:" in group

    def test_the_same_packages_give_the_same_bytes(
        self, engine: Engine, layer: Layer, tmp_path: Path
    ) -> None:
        assert make(engine, Store(tmp_path), locked()) == layer
        assert left(engine) == []

    def test_a_package_whose_script_fails_is_named_with_what_it_said(
        self, engine: Engine, tmp_path: Path
    ) -> None:
        control = b"Package: broken\nVersion: 1\nArchitecture: all\nMaintainer: T <t@t.example>\n"
        script = b"#!/bin/sh\necho 'broken: it cannot find its folder' >&2\nexit 3\n"
        content = package(
            control={"control": control + b"Description: x\n", "postinst": script}, packed="gz"
        )
        one = record("broken", content)
        files.write(files.cache_home() / "debs" / f"{one.sha256}.deb", content)
        with pytest.raises(OutsideError, match=r"package broken.*it cannot find its folder"):
            make(engine, Store(tmp_path), replace(locked(), added=(one,)))
        assert left(engine) == []
        assert not [path for path in tmp_path.rglob("*") if path.is_file() and path.stat().st_size]

    def test_a_killed_run_is_swept_by_the_next_one(self, engine: Engine, tmp_path: Path) -> None:
        program = f"""
from pathlib import Path
from builder.bases.store import Store
from builder import engine
from builder.core.settings import Settings
from tests.bases.test_osroot import locked, make
make(engine.connect(Settings()), Store(Path({str(tmp_path)!r})), locked())
"""
        process = subprocess.Popen([sys.executable, "-c", program], env={**os.environ})
        owner = containers.owner(process.pid)
        while not engine.client.api.containers(filters=of(owner)):
            assert process.poll() is None
            time.sleep(0.05)
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert Store(tmp_path).find(locked().plan(Compression()).key) is None
        assert left(engine, owner)
        assert containers.sweep(engine.client, osroot.KIND)
        assert left(engine, owner) == []
