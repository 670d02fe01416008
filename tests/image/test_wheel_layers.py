"""Layers made from wheels: what is in them, that they are the same every time, and what is left
where a run ends badly."""

from __future__ import annotations

import importlib.util
import marshal
import os
import resource
import shutil
import signal
import sys
from pathlib import Path
from types import CodeType
from typing import Any

import pytest

from builder.config.pins import Pin
from builder.core import files, web
from builder.core.errors import InputError, OutsideError, refusal
from builder.core.events import Event, StepDone, ignore
from builder.core.retry import Retry
from builder.devicecode import inventory
from builder.devicecode.pruning.prune import PRUNED, prune_file
from builder.devicecode.pruning.rule import compute_capability
from builder.facts.frameworks import Exclude
from builder.image.bytecode import BytecodeCompiler
from builder.image.content_store import ContentStore
from builder.image.download import Wheels
from builder.image.layer import Compression, Layer, LayerPlan
from builder.image.plan import WheelLayer
from builder.image.wheel_layers import Making
from tests.devicecode.writer import container, library, ptx, sass
from tests.emulators.index import Files
from tests.image import layers
from tests.image.layers import THIS_PYTHON, entries, wheel

PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"
SITE = f"opt/venv/lib/python{PYTHON}/site-packages"
TAG = sys.implementation.cache_tag
SOURCE = '"""A module."""\n\n\ndef f(x):\n    return {"a", "b", x}\n'


def planned(*pins: Pin, **fields: object) -> WheelLayer:
    """A layer of these wheels."""
    key = files.hash_of(*(pin.sha256 for pin in pins), *map(str, fields.values()))
    plan = LayerPlan(key, pins[0].name, (), sum(pin.bytes or 0 for pin in pins), "")
    values: dict[str, Any] = {
        "exclude": ((),) * len(pins), "keep": None, "owners": (), "linked": False, **fields
    }  # fmt: skip
    return WheelLayer(plan, pins, python=PYTHON, compression=Compression(), **values)


def served(index: Files, name: str, files: dict[str, Any] | bytes) -> Pin:
    """The pin of a wheel of these files, or of these bytes, that the server has."""
    content = files if isinstance(files, bytes) else wheel(files, name)
    index.content[f"/{name}.whl"] = content
    return layers.pin(content, name)


def make(
    index: Files,
    store: ContentStore,
    *planned: WheelLayer,
    compiler: BytecodeCompiler = THIS_PYTHON,
    on_event: Any = ignore,
) -> tuple[Layer, ...]:
    pins = [pin for layer in planned for pin in layer.pins]
    with web.Client(proxied=False) as client:
        addresses = {pin.sha256: index.url(f"/{pin.name}.whl") for pin in pins}
        wheels = Wheels(store.folder.parent / "wheels", client, addresses, Retry(2, 0.01))
        return Making(store, wheels, compiler, on_event).make(planned)


def leftovers(store: ContentStore) -> set[str]:
    """What lies beside blobs, keys and locks."""
    others = {path.name for path in store.folder.iterdir()} - {"blobs", "keys"}
    home = store.folder.parent / "wheels"
    return others | {path.name for path in home.iterdir() if path.suffix != ".lock"}


def test_a_layer_holds_its_wheels_their_bytecode_and_every_folder(
    index: Files, store: ContentStore
) -> None:
    small = served(index, "one", {"one/a.py": SOURCE, "one/bad.py": "a b"})
    two = served(index, "two", {"two/data": "x", "two/tests/t.py": ""})
    exclude = ((), (Exclude("two", ("two/tests/**",), ""),))
    (layer,) = make(index, store, planned(small, two, exclude=exclude))
    content = entries(store, layer)
    assert list(content) == sorted(content)
    folders = {name for name, entry in content.items() if entry.kind == "folder"}
    assert all(name.rpartition("/")[0] in {"", *folders} for name in content)
    assert all(content[name].mode == 0o755 for name in folders)
    below = {name.removeprefix(f"{SITE}/") for name in content if name.startswith(SITE)}
    assert {"one/a.py", "one/bad.py", f"one/__pycache__/a.{TAG}.pyc", "two/data"} <= below
    assert not {"two/tests", f"one/__pycache__/bad.{TAG}.pyc"} & below
    assert leftovers(store) == set()

    pyc = content[f"{SITE}/one/__pycache__/a.{TAG}.pyc"].content
    source_hash = importlib.util.source_hash(SOURCE.encode())
    unchecked = (1).to_bytes(4, "little")
    assert pyc[:16] == importlib.util.MAGIC_NUMBER + unchecked + source_hash, "it has no date"
    code: CodeType = marshal.loads(pyc[16:])
    assert code.co_filename == f"/{SITE}/one/a.py", "it names the file in the image"


def test_the_same_wheels_are_the_same_bytes_and_are_not_made_twice(
    index: Files, tmp_path: Path
) -> None:
    sources = {f"one/m{n}.py": f"{SOURCE}\nx = {n}\n" for n in range(250)}
    layer = planned(served(index, "one", sources))
    first, second = (ContentStore(tmp_path / name / "layers") for name in ("first", "second"))
    (made,) = make(index, first, layer)
    assert make(index, second, layer) == (made,)
    index.requests.clear()
    assert make(index, first, layer, layer, compiler=BytecodeCompiler(("false",))) == (made, made)
    assert index.requests == []


def test_nvidias_libraries_are_linked_where_the_loader_looks(
    index: Files, store: ContentStore
) -> None:
    parts = ("nvidia/cudnn/lib/libcudnn.so.9", "nvidia/cudnn/lib/a.txt", "nvidia/cudnn/bin/b.so")
    pin = served(index, "nvidia", dict.fromkeys(parts, "x"))
    (layer,) = make(index, store, planned(pin, linked=True))
    links = {name: e.target for name, e in entries(store, layer).items() if e.kind == "link"}
    assert links == {"usr/lib/x86_64-linux-gnu/libcudnn.so.9": f"/{SITE}/{parts[0]}"}


def test_libraries_are_pruned_and_the_audit_finds_a_record_of_it(
    index: Files, store: ContentStore, tmp_path: Path
) -> None:
    whole, kept = library(container(sass(70), sass(90), ptx(90))), library(container(sass(70)))
    paths = ("tensorflow/a.so.2", "tensorflow/d.bin", "other/e.so")
    contents = {**dict.fromkeys(paths, whole), "tensorflow/b/c.so": kept}
    tensorflow = served(index, "tensorflow", contents)
    cudnn = served(index, "nvidia-cudnn", {"nvidia/cudnn/lib/libcudnn.so.9": whole})
    plans = [
        planned(pin, keep="7.0", owners=("tensorflow", "nvidia")) for pin in (tensorflow, cudnn)
    ]
    site, pruned = tmp_path / SITE, tmp_path / "library.so"
    for layer in make(index, store, *plans):
        for path, entry in entries(store, layer).items():
            if entry.kind == "file":
                (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
                (tmp_path / path).write_bytes(entry.content)
    pruned.write_bytes(whole)
    assert prune_file(pruned, compute_capability("7.0")).changed
    for name in (paths[0], "nvidia/cudnn/lib/libcudnn.so.9"):
        assert (site / name).read_bytes() == pruned.read_bytes()
    for name in paths[1:]:
        assert (site / name).read_bytes() == whole
    assert leftovers(store) == set()
    without = served(index, "tensorflow", {"tensorflow/a.so": "x"})
    with pytest.raises(InputError, match="tensorflow: none of its libraries has device code"):
        make(index, store, planned(without, keep="7.0", owners=("tensorflow",)))

    assert (site / "tensorflow" / PRUNED).read_text().startswith("a.so.2,sha256=")
    assert (site / "nvidia/cudnn" / PRUNED).read_text().startswith("lib/libcudnn.so.9,sha256=")
    shutil.rmtree(site / "other")
    libraries = {library.path: library for library in inventory.of_folder(site)}
    assert {library.doubt for library in libraries.values()} == {""}
    (site / "tensorflow" / PRUNED).unlink()
    doubts = {Path(each.path).name: each.doubt for each in inventory.of_folder(site)}
    assert "no record says that it was pruned" in doubts["a.so.2"]
    assert (doubts["c.so"], doubts["libcudnn.so.9"]) == ("", "")


def test_bytecode_is_compiled_once_for_layers_that_are_pruned_for_several_gpus(
    index: Files, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled: list[str] = []
    plain = BytecodeCompiler.compile

    def counted(self: BytecodeCompiler, sources: Any, *more: Any) -> dict[str, bytes]:
        compiled.extend(sources)
        return plain(self, sources, *more)

    monkeypatch.setattr(BytecodeCompiler, "compile", counted)
    whole = library(container(sass(70), sass(80), sass(90)))
    pin = served(index, "tensorflow", {"tensorflow/a.so": whole, "tensorflow/a.py": SOURCE})
    plans = [planned(pin, keep=gpu, owners=("tensorflow",)) for gpu in ("7.0", "8.0", "9.0")]
    plans.append(planned(pin, exclude=((Exclude("tensorflow", ("tensorflow/a.so",), ""),),)))
    made = make(index, ContentStore(tmp_path / "together/layers"), *plans)
    assert compiled == [f"/{SITE}/tensorflow/a.py"] * 2, "once for the GPUs, once for other rules"
    alone = ContentStore(tmp_path / "alone/layers")
    assert made == tuple(make(index, alone, layer)[0] for layer in plans)
    assert all(f"{SITE}/tensorflow/__pycache__/a.{TAG}.pyc" in entries(alone, one) for one in made)


@pytest.mark.parametrize(
    ("second", "reason"),
    [
        ({"shared.py": "other"}, "two and one install different files there"),
        ({"shared.py/x": ""}, "is a file and a folder"),
    ],
)
def test_two_wheels_that_contradict_each_other_are_refused(
    second: dict[str, str], reason: str, index: Files, store: ContentStore
) -> None:
    layer = planned(served(index, "one", {"shared.py": "one"}), served(index, "two", second))
    with pytest.raises(OutsideError, match=reason):
        make(index, store, layer)
    assert store.find(layer.plan.key) is None


def test_a_failure_ends_the_run_and_keeps_what_was_whole(index: Files, store: ContentStore) -> None:
    good = planned(served(index, "good", {"good/a.py": ""}))
    bad = planned(served(index, "bad", b"no wheel" * 9))
    events: list[Event] = []
    make(index, store, good)
    reason = "the wheel of bad: File is not a zip file"
    with pytest.raises(OutsideError, match=reason):
        make(index, store, good, bad, on_event=events.append)
    assert store.find(good.plan.key) and not store.find(bad.plan.key)
    assert [event.error for event in events if isinstance(event, StepDone)] == [reason]
    assert leftovers(store) == {f"{bad.pins[0].sha256}.whl"}
    other = planned(good.pins[0], linked=True)
    with pytest.raises(OutsideError, match="cannot compile bytecode here: exit code 1"):
        make(index, store, other, compiler=BytecodeCompiler(("false",)))
    with pytest.raises(OutsideError, match="No such file or directory"):
        make(index, store, other, compiler=BytecodeCompiler(("/nowhere/python",)))


def test_a_full_disk_leaves_nothing_half(index: Files, store: ContentStore) -> None:
    content = wheel({"one/a": os.urandom(3_000_000)}, "one")
    layer = planned(served(index, "one", content))
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
