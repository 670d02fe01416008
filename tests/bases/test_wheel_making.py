"""Layers made from wheels: what is in them, that they are the same every time, and what is left
where a run ends badly."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import marshal
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import CodeType

import pytest

from builder.bases import wheel_making
from builder.bases.bytecode import Compiler
from builder.bases.download import Wheels
from builder.bases.drops import Drop
from builder.bases.layer import Compression, Layer, LayerPlan
from builder.bases.store import Store
from builder.bases.wheels import WheelLayer
from builder.core import files, web
from builder.core.errors import InputError, OutsideError, refusal
from builder.core.events import Event, StepDone
from builder.core.retry import Retry
from builder.devicecode.inventory import from_folder
from builder.devicecode.pruning.prune import PRUNED, prune_file
from builder.devicecode.pruning.rule import compute_capability
from builder.lock.pins import Pin
from tests.bases import built
from tests.bases.built import HERE
from tests.devicecode.writer import container, library, ptx, sass
from tests.emulators.index import Files, serving

PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"
SITE = f"opt/venv/lib/python{PYTHON}/site-packages"
TAG = sys.implementation.cache_tag
ROOT = Path(__file__).resolve().parents[2]
SOURCE = '"""A module."""\n\n\ndef f(x):\n    return {"a", "b", x}\n'


@pytest.fixture
def index() -> Iterator[Files]:
    with serving() as server:
        yield server


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "layers")


def planned(*pins: Pin, key: str = "", **fields: object) -> WheelLayer:
    """A layer of these wheels."""
    made = files.hash_of(key, *(pin.sha256 for pin in pins), *map(str, fields.values()))
    plan = LayerPlan(made, pins[0].name, (), sum(pin.bytes or 0 for pin in pins), "")
    given = {"drops": ((),) * len(pins), "keep": None, "only": None, "linked": False, **fields}
    return WheelLayer(plan, pins, python=PYTHON, compression=Compression(), **given)  # type: ignore[arg-type]


def served(index: Files, content: bytes, name: str) -> Pin:
    """The pin of a wheel that the server has."""
    index.content[f"/{name}.whl"] = content
    return built.pin(content, name)


def make(
    index: Files,
    store: Store,
    *layers: WheelLayer,
    compiler: Compiler = HERE,
    on_event: object = None,
) -> tuple[Layer, ...]:
    pins = [pin for layer in layers for pin in layer.pins]
    with web.Client(proxied=False) as client:
        addresses = {pin.sha256: index.url(f"/{pin.name}.whl") for pin in pins}
        wheels = Wheels(store.folder.parent / "wheels", client, addresses, Retry(2, 0.01))
        return wheel_making.make(
            layers,
            store,
            wheels,
            compiler,
            *([on_event] if on_event else []),  # type: ignore[arg-type]
        )


def leftovers(store: Store) -> set[str]:
    """What lies beside blobs, keys and locks."""
    beside = {path.name for path in store.folder.iterdir()} - {"blobs", "keys"}
    home = store.folder.parent / "wheels"
    return beside | {path.name for path in home.iterdir() if path.suffix != ".lock"}


def test_a_layer_holds_its_wheels_their_bytecode_and_every_folder(
    index: Files, store: Store
) -> None:
    one = served(index, built.wheel({"one/a.py": SOURCE, "one/bad.py": "a b"}, "one"), "one")
    two = served(index, built.wheel({"two/data": "x", "two/tests/t.py": ""}, "two"), "two")
    drops = ((), (Drop("two", ("two/tests/**",), 0, ""),))
    (layer,) = make(index, store, planned(one, two, drops=drops))
    found = built.entries(store, layer)
    names = list(found)
    assert names == sorted(names)
    folders = {name for name, entry in found.items() if entry.kind == "folder"}
    assert all(name.rpartition("/")[0] in {"", *folders} for name in names)
    assert all(found[name].mode == 0o755 for name in folders)
    inside = {name.removeprefix(f"{SITE}/") for name in found if name.startswith(SITE)}
    assert {"one/a.py", "one/bad.py", f"one/__pycache__/a.{TAG}.pyc", "two/data"} <= inside
    assert not {"two/tests", f"one/__pycache__/bad.{TAG}.pyc"} & inside
    assert leftovers(store) == set()


def test_bytecode_is_valid_without_a_date_and_names_the_file_in_the_image(
    index: Files, store: Store
) -> None:
    one = served(index, built.wheel({"one/a.py": SOURCE}, "one"), "one")
    (layer,) = make(index, store, planned(one))
    pyc = built.contents(store, layer)[f"{SITE}/one/__pycache__/a.{TAG}.pyc"]
    unchecked = (1).to_bytes(4, "little")
    source_hash = importlib.util.source_hash(SOURCE.encode())
    assert pyc[:16] == importlib.util.MAGIC_NUMBER + unchecked + source_hash
    code: CodeType = marshal.loads(pyc[16:])
    assert code.co_filename == f"/{SITE}/one/a.py"
    assert code == compile(SOURCE, code.co_filename, "exec", dont_inherit=True)


def test_the_same_wheels_are_the_same_bytes(index: Files, tmp_path: Path) -> None:
    sources = {f"one/m{n}.py": f"{SOURCE}\nx = {n}\n" for n in range(450)}
    one = served(index, built.wheel(sources, "one"), "one")
    made = set()
    for number in range(2):
        (layer,) = make(index, Store(tmp_path / str(number) / "layers"), planned(one))
        made.add(layer.blob.digest)
    assert len(made) == 1


def test_what_is_there_is_not_made_again(index: Files, store: Store) -> None:
    layer = planned(served(index, built.wheel({}, "one"), "one"))
    first = make(index, store, layer)
    index.asked.clear()
    assert make(index, store, layer, layer, compiler=Compiler(("false",))) == first * 2
    assert index.asked == []


def test_nvidias_libraries_are_linked_where_the_loader_looks(index: Files, store: Store) -> None:
    parts = ("nvidia/cudnn/lib/libcudnn.so.9", "nvidia/cudnn/lib/a.txt", "nvidia/cudnn/bin/b.so")
    pin = served(index, built.wheel(dict.fromkeys(parts, "x"), "nvidia"), "nvidia")
    (layer,) = make(index, store, planned(pin, linked=True))
    links = {n: e.target for n, e in built.entries(store, layer).items() if e.kind == "link"}
    assert links == {"usr/lib/x86_64-linux-gnu/libcudnn.so.9": f"/{SITE}/{parts[0]}"}


def test_what_is_pruned_is_what_the_pruning_program_makes(
    index: Files, store: Store, tmp_path: Path
) -> None:
    fat = library(container(sass(70), sass(90), ptx(90)))
    paths = ("tensorflow/a.so.2", "tensorflow/b/c.so", "tensorflow/d.bin", "other/e.so")
    pin = served(index, built.wheel(dict.fromkeys(paths, fat), "tensorflow"), "tensorflow")
    layers = [
        planned(pin),
        *(planned(pin, keep=keep, only="tensorflow") for keep in ("7.0", "9.0")),
    ]
    for layer, made in zip(layers, make(index, store, *layers), strict=True):
        path = tmp_path / "library.so"
        path.write_bytes(fat)
        if layer.keep:
            assert prune_file(path, compute_capability(layer.keep)).changed
        found = built.contents(store, made)
        for name in paths[:2]:
            assert found[f"{SITE}/{name}"] == path.read_bytes()
        for name in paths[2:]:
            assert found[f"{SITE}/{name}"] == fat
    assert leftovers(store) == set()


def test_the_audit_finds_a_record_of_what_was_pruned(
    index: Files, store: Store, tmp_path: Path
) -> None:
    fat, thin = library(container(sass(70), sass(90))), library(container(sass(70)))
    one = {"tensorflow/a.so": fat, "tensorflow/b/c.so": thin}
    two = {"nvidia/cudnn/lib/libcudnn.so.9": fat}
    pins = [
        served(index, built.wheel(files, name), name)
        for files, name in ((one, "tensorflow"), (two, "nvidia-cudnn"))
    ]
    layers = [planned(pin, keep="7.0", only="all") for pin in pins]
    for made in make(index, store, *layers):
        for path, content in built.contents(store, made).items():
            (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / path).write_bytes(content)
    site = tmp_path / SITE
    assert (site / "tensorflow" / PRUNED).read_text().startswith("a.so,sha256=")
    assert (site / "nvidia/cudnn" / PRUNED).read_text().startswith("lib/libcudnn.so.9,sha256=")
    found = {library.path: library for library in from_folder(site)}
    assert len(found) == 3
    assert {library.doubt for library in found.values()} == {""}
    (site / "tensorflow" / PRUNED).unlink()
    doubts = {Path(one.path).name: one.doubt for one in from_folder(site)}
    assert "no record says that it was pruned" in doubts["a.so"]
    assert (doubts["c.so"], doubts["libcudnn.so.9"]) == ("", "")


def test_a_tensorflow_without_device_code_cannot_be_pruned(index: Files, store: Store) -> None:
    pin = served(index, built.wheel({"tensorflow/a.so": "x"}, "tensorflow"), "tensorflow")
    with pytest.raises(InputError, match="tensorflow: none of its libraries has device code"):
        make(index, store, planned(pin, keep="7.0", only="tensorflow"))


@pytest.mark.parametrize(
    ("second", "says"),
    [
        ({"shared.py": "other"}, "two and one install different files there"),
        ({"shared.py/x": ""}, "is a file and a folder"),
    ],
)
def test_two_wheels_that_contradict_each_other_are_refused(
    second: dict[str, str], says: str, index: Files, store: Store
) -> None:
    one = served(index, built.wheel({"shared.py": "one"}, "one"), "one")
    two = served(index, built.wheel(second, "two"), "two")
    with pytest.raises(OutsideError, match=says):
        make(index, store, planned(one, two))
    assert store.find(planned(one, two).plan.key) is None


def test_a_failure_ends_the_run_and_keeps_what_was_whole(index: Files, store: Store) -> None:
    good = planned(served(index, built.wheel({}, "good"), "good"))
    bad = planned(served(index, b"no wheel" * 9, "bad"))
    events: list[Event] = []
    make(index, store, good)
    with pytest.raises(OutsideError, match="the wheel of bad: File is not a zip file"):
        make(index, store, good, bad, on_event=events.append)
    assert store.find(good.plan.key) and not store.find(bad.plan.key)
    assert [e.error for e in events if isinstance(e, StepDone)] == [
        "the wheel of bad: File is not a zip file"
    ]
    assert leftovers(store) == {f"{bad.pins[0].sha256}.whl"}


def test_a_compiler_that_cannot_run_is_told(index: Files, store: Store) -> None:
    layer = planned(served(index, built.wheel({"one/a.py": ""}, "one"), "one"))
    with pytest.raises(OutsideError, match="cannot compile bytecode here: exit code 1"):
        make(index, store, layer, compiler=Compiler(("false",)))
    with pytest.raises(OutsideError, match="No such file or directory"):
        make(index, store, layer, compiler=Compiler(("/nowhere/python",)))


def test_a_full_disk_leaves_nothing_half(index: Files, store: Store, tmp_path: Path) -> None:
    content = built.wheel({"one/a": os.urandom(3_000_000)}, "one")
    layer = planned(served(index, content, "one"))
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        for limit in (1_000_000, len(content) - 1000):  # while it downloads, while it packs
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, before[1]))
            with pytest.raises(OSError) as caught:
                make(index, store, layer)
            assert refusal(caught.value)
            assert store.find(layer.plan.key) is None
            assert leftovers(store) == set()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)
    make(index, store, layer)
    assert store.find(layer.plan.key)


PROGRAM = """
import json, sys
from pathlib import Path
from builder.bases.store import Store
from builder.lock.pins import Pin
from tests.bases import test_wheel_making as tests
port, folder, *pins = json.loads(sys.argv[1])
index = type("", (), {"url": lambda self, path: f"http://127.0.0.1:{port}{path}"})()
layers = [tests.planned(Pin(*pin)) for pin in pins]
tests.make(index, Store(Path(folder)), *layers)
"""


def started(index: Files, store: Store, *pins: Pin) -> subprocess.Popen[bytes]:
    """Another process that makes a layer of each wheel."""
    fields = [(pin.name, pin.version, pin.sha256, pin.bytes) for pin in pins]
    told = json.dumps([index.server_port, str(store.folder), *fields])
    return subprocess.Popen([sys.executable, "-c", PROGRAM, told], cwd=ROOT)


def whole(store: Store, *pins: Pin) -> bool:
    """Whether the store has a whole layer of each wheel, and nothing else but temporary files."""
    layers = [store.find(planned(pin).plan.key) for pin in pins]
    for path in (store.folder / "blobs/sha256").iterdir():
        assert hashlib.sha256(path.read_bytes()).hexdigest() == path.name
    for path in (store.folder / "keys").glob("*.json"):
        assert store.find(path.stem)
    return None not in layers


def test_two_runs_at_once_make_each_layer_once(index: Files, store: Store) -> None:
    pins = [
        served(index, built.wheel({f"{n}/a": os.urandom(2_000_000)}, n), n) for n in ("one", "two")
    ]
    runs = [started(index, store, *pins) for _ in range(2)]
    assert [run.wait(60) for run in runs] == [0, 0]
    assert whole(store, *pins)
    assert sorted(path for path, _ in index.asked) == ["/one.whl", "/two.whl"]
    assert leftovers(store) == set()


@pytest.mark.slow
def test_killed_at_any_moment_the_next_run_goes_on(index: Files, store: Store) -> None:
    sources = {f"one/m{n}.py": SOURCE * 20 for n in range(600)}
    one = served(index, built.wheel({**sources, "one/a": os.urandom(9_000_000)}, "one"), "one")
    two = served(index, built.wheel({"two/a": os.urandom(9_000_000)}, "two"), "two")
    run = started(index, store, one, two)
    began = time.monotonic()
    assert run.wait(60) == 0
    takes = time.monotonic() - began
    first = [store.find(planned(pin).plan.key) for pin in (one, two)]
    shutil.rmtree(store.folder)
    for moment in sorted(random.Random(11).uniform(0.2, 1) for _ in range(10)):
        run = started(index, store, one, two)
        time.sleep(moment * takes)
        run.kill()
        run.wait()
        if (store.folder / "blobs").is_dir():
            whole(store, one, two)
        if moment > 0.7:  # what was whole is found; go on from nothing now and then
            shutil.rmtree(store.folder, ignore_errors=True)
    assert started(index, store, one, two).wait(60) == 0
    assert whole(store, one, two)
    assert [store.find(planned(pin).plan.key) for pin in (one, two)] == first
