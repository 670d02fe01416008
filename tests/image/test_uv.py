"""The layers of a lock hold what `uv pip install` makes of it, file by file.

Names, contents and modes are compared. The differences are those that are named here, no others.
UV_TARGETS="v100 a100" names the targets; one with CUDA takes 15 GB and some minutes.
"""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import os
import posixpath
import subprocess
import sys
from pathlib import Path

import pytest

from builder.config import compatibility, debian, image_yaml, lockfile, pins, uv
from builder.config.lockfile import Lock
from builder.config.stack import GLIBC
from builder.core.settings import Settings
from builder.devicecode.pruning import prune
from builder.devicecode.pruning.rule import compute_capability
from builder.facts import frameworks
from builder.image import bytecode, content_store, layers_lock, plan
from builder.image.content_store import ContentStore
from builder.image.download import fetch_debs, wheels_of
from builder.image.layer import Layer
from builder.image.plan import LOADER, VENV, WheelLayer, exclude_rules, site_packages
from builder.image.wheel import excluded
from builder.image.wheel_layers import Making
from tests import ROOT
from tests.image.layers import Entry, entries

TARGETS = os.environ.get("UV_TARGETS", "cpu").split()

pytestmark = [pytest.mark.network, pytest.mark.slow]


@pytest.mark.skipif(not bytecode.runs_here(), reason="Debian's Python runs on Linux x86-64")
@pytest.mark.parametrize("target", TARGETS)
def test_a_base_holds_what_uv_installs(target: str, tmp_path: Path) -> None:
    stack = compatibility.resolve(image_yaml.load(ROOT, target))
    lock = lockfile.read(ROOT, target)
    layers = plan.wheel_layers(lock, stack.prune)
    prefix = installed_by_uv(lock, tmp_path, "copy" if stack.prune else "hardlink")
    site = prefix / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}"
    if stack.prune:
        for path in prune.libraries(site / "site-packages", stack.prune.only):
            owner = path.relative_to(site / "site-packages").parts[0]
            if owner == "tensorflow" or stack.prune.only == "all":
                prune.prune_file(path, compute_capability(stack.prune.keep))
    ours: dict[str, Entry] = {}
    store, found = here_or_made(lock, layers, tmp_path)
    for layer in found:
        for name, entry in entries(store, layer).items():
            assert name not in ours or ours[name] == entry, name  # two layers, one file
            ours[name] = entry
    compare(ours, prefix, lock, pruned=stack.prune is not None)


def here_or_made(
    lock: Lock, layers: tuple[WheelLayer, ...], folder: Path
) -> tuple[ContentStore, tuple[Layer, ...]]:
    """The layers of this machine where it has them all, with the digests that are committed: those
    are made anew in tests/pipeline/test_rebuild.py. Else they are made here, for some minutes."""
    store = content_store.of_this_machine()
    found = tuple(store.find(layer.plan.key) for layer in layers)
    committed = layers_lock.of(ROOT).layers
    if all(layer and layer == committed.get(layer.key) for layer in found):
        return store, tuple(filter(None, found))
    store = ContentStore(folder / "layers")
    return store, made(lock, layers, store)


def made(lock: Lock, layers: tuple[WheelLayer, ...], store: ContentStore) -> tuple[Layer, ...]:
    assert lock.rootfs
    platform = uv.Platform(lock.python, GLIBC[lock.rootfs.suite])
    compiler_debs = fetch_debs(plan.compiler(lock), debian.archives(Settings()))
    with (
        wheels_of(lock.packages.values(), platform) as wheels,
        bytecode.unpacked(compiler_debs.values(), lock.python) as compiler,
    ):
        return Making(store, wheels, compiler).make(layers)


def installed_by_uv(lock: Lock, home: Path, link_mode: str) -> Path:
    """Return the environment. link_mode: a file of uv's cache may be linked, but not pruned."""
    prefix, listed = home / "uv", home / "requirements.txt"
    listed.write_text(pins.dump(lock.packages.values(), lock.target))
    assert lock.rootfs
    command = [uv.uv_program(), "pip", "install", "--quiet", "--no-deps", "--require-hashes"]
    command += ["--requirement", str(listed), "--prefix", str(prefix), "--link-mode", link_mode]
    command += ["--python", sys.executable, "--python-version", lock.python]
    glibc = GLIBC[lock.rootfs.suite]
    command += ["--python-platform", f"x86_64-manylinux_2_{glibc}", "--only-binary", ":all:"]
    subprocess.run(command, check=True, env=None)
    return prefix


def compare(ours: dict[str, Entry], prefix: Path, lock: Lock, pruned: bool) -> None:
    """Compare every file of the environment."""
    running = f"lib/python{sys.version_info.major}.{sys.version_info.minor}/"
    venv = VENV.lstrip("/")
    site = site_packages(lock.python).lstrip("/")
    theirs = {
        f"{venv}/{name}".replace(f"{venv}/{running}", f"{venv}/lib/python{lock.python}/", 1): path
        for path in prefix.rglob("*")
        if (path.is_file() or path.is_symlink())
        and (name := path.relative_to(prefix).as_posix()) != ".lock"  # uv's own, empty
    }
    exclude = [
        rule
        for file, pins in lock.wheels.items()
        for pin in pins
        for rule in exclude_rules(frameworks.of(lock.framework), file, pin.name)
    ]
    missing = {name for name in theirs if name not in ours}
    assert {n for n in missing if not excluded(n.removeprefix(f"{site}/"), exclude)} == set()
    # more than uv: bytecode, folders, what was pruned, and links that the loader finds libraries by
    more = {n for n, entry in ours.items() if entry.kind == "file" and n not in theirs}
    records = {name for name in more if name.endswith(f"/{prune.PRUNED}")}
    assert {name for name in more - records if "/__pycache__/" not in name} == set()
    assert bool(records) is pruned
    for name, entry in ours.items():
        if entry.kind == "link":
            assert name.startswith(LOADER)
            assert ours[entry.target.lstrip("/")].kind == "file"
    differ = {
        n for n in theirs.keys() & ours.keys() if not alike(n, ours[n], theirs[n], ours, site)
    }
    assert differ == set()


def alike(name: str, ours: Entry, theirs: Path, all_of_ours: dict[str, Entry], site: str) -> bool:
    """Whether a file is the same, but for where it says that the environment lies."""
    content = theirs.read_bytes()
    if name.startswith(f"{VENV.lstrip('/')}/bin/"):
        content = content.replace(sys.executable.encode(), f"{VENV}/bin/python".encode(), 1)
    if name.endswith(".dist-info/RECORD") and name.count("/") == site.count("/") + 2:
        rows = list(csv.reader(io.StringIO(content.decode())))
        kept = [row for row in rows if listed(row[0], site) in all_of_ours]
        for row in kept:
            if row[0].startswith("../../../bin/"):  # its first line names the environment
                script = all_of_ours[listed(row[0], site)]
                row[1], row[2] = f"sha256={encoded(script.sha256)}", str(script.size)
        out = io.StringIO()
        csv.writer(out, lineterminator="\n").writerows(kept)
        content = out.getvalue().encode()
    mode = theirs.stat().st_mode & 0o777
    return (ours.sha256, ours.mode) == (hashlib.sha256(content).hexdigest(), mode)


def listed(path: str, site: str) -> str:
    """The path in the image of a row of RECORD."""
    return posixpath.normpath(f"{site}/{path}")


def encoded(sha256: str) -> str:
    return base64.urlsafe_b64encode(bytes.fromhex(sha256)).decode().rstrip("=")
