"""What a base is made of: its layers, their order, and what moves each one's key."""

from __future__ import annotations

import io
import subprocess
import sys
import sysconfig
from dataclasses import replace
from pathlib import Path

import pytest

from builder.config import lockfile
from builder.config.lockfile import Lock
from builder.config.pins import Pin
from builder.config.stack import Prune
from builder.core.settings import Settings
from builder.frameworks.tensorflow import FRAMEWORK as TENSORFLOW
from builder.image import base, layers_lock, plan
from builder.image.content_store import ContentStore
from builder.image.layer import Compression, Layer
from builder.image.plan import (
    Availability,
    BasePlan,
    Environment,
    Rootfs,
    WheelLayer,
    exclude_rules,
    wheel_layers,
)
from builder.image.tarball import LayerWriter
from builder.image.wheel import excluded, matches
from builder.pipeline.make import prepare
from builder.registry.manifests import OCI_LAYER_ZSTD, Descriptor
from tests import ROOT
from tests.image.layers import unpacked

OLDER = Pin("tensorflow", "2.20.0", "ab" * 32, 500_000_000)
ZSTD, GZIP = Compression(), Compression("gzip", 6)


@pytest.fixture(scope="module")
def lock() -> Lock:
    return lockfile.read(ROOT, "v100")


def replaced(lock: Lock, file: str, *pins: Pin) -> Lock:
    """The lock with other pins for the packages of these names."""
    names = {pin.name for pin in pins}
    others = [pin for pin in lock.wheels[file] if pin.name not in names]
    return replace(lock, wheels={**lock.wheels, file: (*others, *pins)})


def moved(before: tuple[WheelLayer, ...], after: tuple[WheelLayer, ...]) -> set[str]:
    """The names of layers that have another key."""
    keys = {layer.plan.key for layer in before}
    return {layer.plan.name for layer in after if layer.plan.key not in keys}


# --- wheels ---------------------------------------------------------------------------------------


def test_a_big_wheel_has_a_layer_and_the_small_ones_of_a_file_share_one(lock: Lock) -> None:
    layers = wheel_layers(lock, None)
    names = [layer.plan.name.split(" ")[0] for layer in layers]
    cuda = sorted(pin.name for pin in lock.wheels[lockfile.CUDA] if (pin.bytes or 0) >= plan.BIG)
    assert names == [*cuda, "nvidia-cuda-runtime-cu12", *names[len(cuda) + 1 :]]
    assert names[len(cuda) + 1 :] == ["libclang", "numpy", "tensorflow", "29", "4"]
    assert {pin for layer in layers for pin in layer.pins} == set(lock.packages.values())
    tensorflow = next(layer.plan for layer in layers if layer.plan.name.startswith("tensorflow "))
    assert tensorflow.download == lock.packages["tensorflow"].bytes
    assert tensorflow.packages == (f"tensorflow {lock.release}",)
    unknown = replace(lock.packages["numpy"], bytes=None)
    layers = wheel_layers(replaced(lock, "tensorflow.lock", unknown), None)
    (small,) = (layer for layer in layers if unknown in layer.pins)
    assert len(small.pins) == 30 and small.plan.download is None


def test_another_tensorflow_and_another_pruning_move_what_they_change(lock: Lock) -> None:
    off = wheel_layers(lock, None)
    newer = wheel_layers(replaced(lock, "tensorflow.lock", OLDER), None)
    assert moved(off, newer) == {"tensorflow 2.20.0"}
    pruned = wheel_layers(lock, Prune("7.0", "tensorflow"))
    other = wheel_layers(lock, Prune("7.5", "tensorflow"))
    assert moved(off, pruned) == moved(pruned, other) == {"tensorflow 2.21.0"}
    names = {layer.plan.name for layer in off if layer.plan.name.startswith("nvidia-")}
    assert moved(pruned, wheel_layers(lock, Prune("7.0", "all"))) == names
    assert {layer.owners for layer in pruned} == {(), ("tensorflow",)}


def test_what_moves_a_key(lock: Lock, monkeypatch: pytest.MonkeyPatch) -> None:
    prune = Prune("7.0", "tensorflow")
    before = wheel_layers(lock, prune)
    every, program = {layer.plan.name for layer in before}, plan.pruning_program()
    for file, moves in (("rule.py", {"tensorflow 2.21.0"}), ("announce.py", set())):
        changed = {**program, file: program[file] + "\n"}
        with monkeypatch.context() as patch:
            patch.setattr(plan, "pruning_program", lambda changed=changed: changed)
            assert moved(before, wheel_layers(lock, prune)) == moves, file
    others = [rule for rule in TENSORFLOW.exclude if rule.paths != ("numpy/*/lib/*.a",)]
    with monkeypatch.context() as patch:
        patch.setattr(TENSORFLOW, "exclude", tuple(others))
        assert moved(before, wheel_layers(lock, prune)) == {"numpy 2.4.6"}
    assert moved(before, wheel_layers(lock, prune, GZIP)) == every
    apt = [
        replace(deb, version=f"{deb.version}+b1") if deb.name == "python3.11-minimal" else deb
        for deb in lock.apt[lockfile.APT]
    ]
    rebuilt = replace(lock, apt={**lock.apt, lockfile.APT: tuple(apt)})
    assert moved(before, wheel_layers(rebuilt, prune)) == every, "another Python compiles"
    monkeypatch.setattr(plan, "WHEELS_RECIPE", plan.WHEELS_RECIPE + 1)
    assert moved(before, wheel_layers(lock, prune)) == every


# --- the rootfs and the environment ---------------------------------------------------------------


def test_the_keys_of_rootfs_and_environment_cover_every_byte_and_no_address(lock: Lock) -> None:
    assert lock.rootfs is not None
    rootfs = Rootfs(lock.rootfs.suite, lock.rootfs.packages, lock.apt[lockfile.APT])
    planned = rootfs.plan(ZSTD)
    assert planned.name == "Debian bookworm" and "python3 3.11.2-1+b1" in planned.packages
    assert planned.download == sum(deb.bytes for deb in rootfs.packages)
    first, *others = rootfs.added
    elsewhere = replace(first, time="20200101T000000Z", archive="debian")
    assert replace(rootfs, added=(elsewhere, *others)).plan(ZSTD).key == planned.key
    below = replace(planned, key="b" * 64)
    plans = [
        planned,
        rootfs.plan(GZIP),
        replace(rootfs, added=(replace(first, sha256="f" * 64), *others)).plan(ZSTD),
        replace(rootfs, added=tuple(others)).plan(ZSTD),
        # which packages are unpacked first decides who configures the others
        replace(rootfs, added=tuple(others), required=(*rootfs.required, first)).plan(ZSTD),
        Environment("3.11", 1000, None).plan(planned, ZSTD),
        Environment("3.13", 1000, None).plan(planned, ZSTD),
        Environment("3.11", 1001, None).plan(planned, ZSTD),
        Environment("3.11", 1000, "7.0").plan(planned, ZSTD),
        Environment("3.11", 1000, "8.0").plan(planned, ZSTD),
        Environment("3.11", 1000, None).plan(planned, GZIP),
        Environment("3.11", 1000, None).plan(below, ZSTD),
    ]
    assert len({layer.key for layer in plans}) == len(plans)


def test_the_environment_has_its_user_its_python_and_its_hook() -> None:
    out = io.BytesIO()
    writer = LayerWriter(out, ZSTD)
    accounts = ("root:x:0:0:root:/root:/bin/bash\n", "root:x:0:\n")
    base.write_environment(Environment("3.11", 1234, "7.0"), writer, *accounts)
    writer.close("k")
    out.seek(0)
    entries = unpacked(out)
    texts = {name: entry.content.decode() for name, entry in entries.items()}
    assert texts["etc/passwd"].splitlines()[1:] == [
        "trainer:x:1234:1234::/home/trainer:/usr/sbin/nologin"
    ]
    assert texts["etc/group"].endswith("trainer:x:1234:\n")
    assert (entries["home/trainer"].owner, entries["home/trainer"].mode) == ((1234, 1234), 0o755)
    assert entries["app"].owner == (0, 0), "a job cannot overwrite its program"
    links = {name: entry.target for name, entry in entries.items() if entry.kind == "link"}
    assert links["opt/venv/bin/python"] == "python3" and links["opt/venv/lib64"] == "lib"
    assert links["opt/venv/bin/python3"] == "/usr/bin/python3"
    assert "home = /usr/bin\n" in texts["opt/venv/pyvenv.cfg"]
    hook = "opt/venv/lib/python3.11/site-packages/training_image_gpu"
    assert texts[f"{hook}.pth"].endswith('announce("7.0")\n')
    assert "def announce" in texts[f"{hook}.py"]
    assert not any("training_image" in name for name in Environment("3.11", 1, None).files)
    folders = {name for name, entry in entries.items() if entry.kind == "folder"}
    assert all(name.rpartition("/")[0] in {"", *folders} for name in entries)


# --- the exclude list -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pattern", "path", "is_meant"),
    [
        ("tensorflow/include/**", "tensorflow/include/a/b.h", True),
        ("tensorflow/include/**", "tensorflow/includes.py", False),
        ("tensorflow/include/**", "other/tensorflow/include/b.h", False),
        ("numpy/*/tests/**", "numpy/a/b/tests/test_a.py", False),
        ("keras/**_test.py", "keras/src/a/b_test.py", True),
        ("keras/**_test.py", "keras/src/a/b_test.pyc", False),
        ("nvidia/cufft/lib/libcufftw.so*", "nvidia/cufft/lib/libcufftw.so.11", True),
        ("nvidia/cufft/lib/libcufftw.so*", "nvidia/cufft/lib/libcufftwXso", False),
    ],
)
def test_a_rule_means_what_it_looks_like(pattern: str, path: str, is_meant: bool) -> None:
    assert matches(path, pattern) is is_meant


def test_a_rule_speaks_of_its_wheels_alone() -> None:
    own = exclude_rules(TENSORFLOW, "tensorflow.lock", "tensorflow")
    assert own == exclude_rules(TENSORFLOW, "tensorflow.lock", "tensorflow-cpu")
    assert excluded("tensorflow/include/a.h", own)
    of_numpy = exclude_rules(TENSORFLOW, "tensorflow.lock", "numpy")
    assert not excluded("tensorflow/include/a.h", of_numpy)
    assert exclude_rules(TENSORFLOW, lockfile.EXTRA, "numpy") == (), "what a user adds comes whole"


TRAIN = """
import sys
import keras
import numpy
import tensorflow as tf
model = keras.Sequential([keras.layers.Conv2D(4, 3), keras.layers.Flatten(), keras.layers.Dense(2)])
model.compile("sgd", "mse", jit_compile=True)
model.fit(numpy.zeros((4, 8, 8, 1)), numpy.zeros((4, 2)), verbose=0)
model.export(sys.argv[1], verbose=False)
tf.saved_model.load(sys.argv[1])
mapped = {line.split(maxsplit=5)[-1].strip() for line in open("/proc/self/maps") if "/" in line}
print(*mapped, *(str(getattr(m, "__file__", "")) for m in list(sys.modules.values())), sep="\\n")
"""


@pytest.mark.tensorflow
def test_training_loads_nothing_that_is_excluded(tmp_path: Path) -> None:
    site = Path(sysconfig.get_path("purelib"))
    ours = [rule for rule in TENSORFLOW.exclude if rule.wheels != "libclang"]
    tops = {pattern.partition("/")[0] for rule in ours for pattern in rule.paths}
    files = [path.relative_to(site) for top in sorted(tops) for path in (site / top).rglob("*")]
    left_out = {path for path in files if excluded(path.as_posix(), ours)}
    assert any(path.is_relative_to("tensorflow/include") for path in left_out)
    assert any(path.match("numpy/*/tests/*.py") for path in left_out)
    printed = subprocess.run(
        [sys.executable, "-c", TRAIN, tmp_path / "model"],
        capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    below = f"{site}/"
    loaded = [Path(line.removeprefix(below)) for line in printed.splitlines() if below in line]
    assert any(path.match("tensorflow/libtensorflow_cc.so*") for path in loaded)
    assert [path for path in loaded if path in left_out] == []


# --- what a build takes ---------------------------------------------------------------------------

NOWHERE = Path("nothing here")


def test_a_build_says_what_it_downloads_by_where_each_layer_is() -> None:
    def cold(*plans: BasePlan) -> Availability:
        return base.look_up(plans, ContentStore(NOWHERE), Settings(), layers_lock.read(NOWHERE))

    def made(key: str, size: int) -> Layer:
        blob = Descriptor(OCI_LAYER_ZSTD, f"sha256:{key}", size)
        return Layer(key, blob, f"sha256:{key[::-1]}", 9)

    cpu = prepare(ROOT, "cpu").base
    assert cpu
    nothing, count = cold(cpu), len(cpu.layers)
    takes = nothing.estimate([cpu])
    wheels = sum(pin.bytes or 0 for layer in cpu.wheels for pin in layer.pins)
    assert takes.download == wheels + sum(deb.bytes for deb in cpu.rootfs.packages)
    assert takes.layers == takes.missing == count
    size = f"{takes.download / 1e6:,.0f} MB to download"
    assert str(takes) == f"{count} of {count} layers to make: {size}"

    rootfs = cpu.layers[0]
    tensorflow = next(layer for layer in cpu.layers if layer.name.startswith("tensorflow"))
    stored = {rootfs.key: made(rootfs.key, 39_000_000)}
    offered = {tensorflow.key: made(tensorflow.key, 250_000_000)}
    missing = {k: layer for k, layer in nothing.missing.items() if k not in {**stored, **offered}}
    warm = Availability(stored, offered, missing).estimate([cpu])
    assert (warm.layers, warm.missing) == (takes.layers, takes.missing - 2)
    compiler = sum(deb.bytes for deb in cpu.compiler)  # of the rootfs's packages
    spared = (rootfs.download or 0) - compiler + (tensorflow.download or 0)
    assert warm.download == takes.download - spared + 250_000_000

    small = cpu.wheels[-1]
    unknown = replace(small, pins=tuple(replace(pin, bytes=None) for pin in small.pins))
    plans = [replace(cpu, wheels=(*cpu.wheels[:-1], unknown))] * 2
    takes = cold(*plans).estimate(plans)
    assert takes.layers == count, "what several targets share counts once"
    assert takes.unknown == len(small.pins)
    assert str(takes).endswith(f" MB and {takes.unknown} packages of unknown size to download")
