"""The way of an image: prepared from its files, few frames deep, layers from where they are."""

from __future__ import annotations

import secrets
import shutil
import sys
import threading
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import FrameType, SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

from builder.cli.group import app
from builder.config import targets
from builder.core.errors import CheckFailed, InputError, OutsideError
from builder.core.settings import LOCAL_REPOSITORY, Settings
from builder.engine import Engine
from builder.image import (
    base,
    content_store,
    download,
    layers_lock,
    loading,
    program,
    registry_layers,
)
from builder.image.content_store import ContentStore
from builder.image.layer import Compression, Layer
from builder.image.tarball import LayerWriter
from builder.pipeline import make, proof
from builder.registry import Reference, Registry
from tests import commands
from tests.emulators.registry_faults import faulty
from tests.image import layers
from tests.registry.server import RegistryServer

TARGET = "v100"
FRAMES = 5

# --- preparing ------------------------------------------------------------------------------------


def test_a_stale_lock_and_an_edited_dockerfile_are_refused(copy: Path) -> None:
    path = copy / "images" / TARGET / "Dockerfile"
    text = path.read_text()
    path.write_text(text.swapcase())
    with pytest.raises(CheckFailed, match=r"Dockerfile is not what image\.yaml and"):
        make.prepare(copy, TARGET)
    path.write_text(text)
    lock = path.with_name("cuda.lock")
    lock.write_text(lock.read_text() + "\n")
    with pytest.raises(CheckFailed, match="was edited"):
        make.prepare(copy, TARGET)


def test_a_line_of_the_program_changes_the_training_image_alone(copy: Path) -> None:
    before = make.prepare(copy, TARGET)
    assert make.prepare(copy, TARGET) == before
    (copy / "trainer/task.py").write_text("print('trained more')\n")
    after = make.prepare(copy, TARGET)
    assert before.base == after.base and before.inputs != after.inputs
    shutil.copytree(copy / "images" / TARGET, copy / "images/again")
    commands.builder("render", root=copy, check=True)
    other = make.prepare(copy, "again")
    assert other.base == after.base and other.image.files == after.image.files
    assert other.inputs != after.inputs, "its labels differ"


def test_another_framework_without_a_program_is_refused_before_anything_is_fetched(
    copy: Path,
) -> None:
    shutil.rmtree(copy / "trainer")  # the packaged one stands in
    path = copy / "images/t4/image.yaml"
    path.write_text("accelerator: T4\ntorch: newest\n")
    with pytest.raises(InputError, match="the packaged trainer has no PyTorch") as refused:
        make.prepare(copy, "t4")
    assert "program: FOLDER:MODULE" in refused.value.fix


# --- short ----------------------------------------------------------------------------------------


def builder_frames(frame: FrameType | None) -> list[str]:
    """The functions of builder/ on a stack, the innermost first; not its comprehensions."""
    names = []
    while frame:
        module = frame.f_globals["__name__"]
        if module.startswith("builder.") and not frame.f_code.co_name.startswith("<"):
            names.append(f"{module}.{frame.f_code.co_name}")
        frame = frame.f_back
    return names


def test_few_frames_lie_between_the_command_and_a_wheel_that_is_fetched(
    copy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stack of the thread that fetches follows that of the main thread, which waits for it."""
    stacks: list[list[str]] = []

    def fetch(*_: object) -> None:
        main = sys._current_frames()[threading.main_thread().ident or 0]
        stacks.append([*builder_frames(sys._getframe(1)), *builder_frames(main)])
        raise OutsideError("no network in this test")

    empty: Any = SimpleNamespace(api=SimpleNamespace(images=lambda _: []), images=None)
    engine: Any = SimpleNamespace(
        product="Docker", release=(28, 5), knows_content=True, containerd_store=True,
        image=lambda _: None, client=empty, origin="machine", version="28", architecture="amd64",
    )  # fmt: skip
    monkeypatch.chdir(copy)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr("builder.engine.discovery.connect", lambda *_, **__: engine)
    monkeypatch.setattr(base._Maker, "rootfs", lambda *_: layer_of("rootfs"))
    monkeypatch.setattr(download, "fetch_debs", lambda *_: {})
    monkeypatch.setattr("builder.image.bytecode.runs_here", lambda: True)
    monkeypatch.setattr("builder.image.bytecode.unpacked", lambda *_: nullcontext())
    monkeypatch.setattr(download.uv, "addresses", lambda *_: {})
    monkeypatch.setattr(download.Wheels, "fetch", fetch)
    ended = CliRunner().invoke(app, ["image", TARGET]).exception
    assert "no network in this test" in str(ended)
    frames = max(stacks, key=len)
    assert frames[-1] == "builder.cli.images.image"
    assert len(frames) - 1 <= FRAMES, frames


def test_what_is_made_for_one_target_is_known_of_the_others(
    copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the proof of the second could not compare its base with the new lines."""
    monkeypatch.setattr(make, "load_bases", lambda *_: {})
    monkeypatch.setattr(make, "build_image", lambda _root, target, *_: target.layers)
    seen: list[object] = []

    def prove(_root: Path, _engine: Any, _target: object, record: object, _: object) -> Any:
        seen.append(record)
        return None, True

    files, built = targets.all_of(copy, (TARGET, "cpu")), make.BuildOptions(Settings())
    make.make(copy, files, built, lambda: SimpleNamespace(), prove)
    assert len(seen) == 2 and seen[0] is seen[1]


# --- where layers come from -----------------------------------------------------------------------


def layer_of(key: str) -> Layer:
    """A layer of 5 MB that does not compress, in this machine's store under a key."""
    store = content_store.of_this_machine()
    with store.writing() as out:
        writer = LayerWriter(out, Compression())
        writer.file("content", secrets.token_bytes(5_000_000))
        return store.keep(out, writer.close(key))


@pytest.mark.network
def test_a_layer_is_looked_for_on_this_machine_then_in_the_registry(
    root: Path,
    registry_server: RegistryServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    planned, store = make.prepare(root, "cpu").base, content_store.of_this_machine()
    assert planned
    name = f"tests/{secrets.token_hex(6)}"
    where = Settings(registry=f"{registry_server.host}/{name}")
    stored, offered, *_ = (layer_of(layer.key) for layer in planned.layers[:2])
    with Registry(registry_server.host) as client:
        to = Reference(client.host, name, "base-1")
        registry_layers.publish(client, to, layers.image(offered), store)
    store._entry(offered.key).unlink()
    lock = layers_lock.read(tmp_path / "layers.lock")
    assert not base.look_up([planned], store, where, lock).stored, "no line, so it does not count"
    for layer, name in ((stored, "a"), (offered, "b")):
        lock.check(layer, name)
    available = base.look_up([planned], store, where, lock)
    assert not available.remake, "another run may have made what is missing, meanwhile"
    assert available.stored == {stored.key: stored}
    assert available.offered == {offered.key: offered}
    assert len(available.missing) == len(planned.layers) - 2
    assert store.find(offered.key) is None, "it is only looked up"
    path = store.path(stored)
    path.write_bytes(path.read_bytes()[:-1] + b"?")  # as large as before
    available = base.look_up([planned], store, Settings(), lock)
    assert available.refused == (planned.layers[0].name,) and not available.stored
    assert available.remake == {stored.key}
    fresh = base.look_up([planned], store, where, lock, fresh=True)
    assert len(fresh.missing) == len(planned.layers)


@pytest.mark.network
def test_a_base_that_the_registry_has_whole_is_one_request_and_is_handed_on_as_it_comes(
    root: Path,
    registry_server: RegistryServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    planned, store = make.prepare(root, "cpu").base, content_store.of_this_machine()
    assert planned
    lock, name = layers_lock.read(tmp_path / "layers.lock"), f"tests/{secrets.token_hex(6)}"
    made = [lock.check(layer_of(layer.key), layer.name) for layer in planned.layers]
    image = base.committed(planned, lock)
    assert image
    with Registry(registry_server.host) as client:
        to = Reference(registry_server.host, name, planned.tag)
        registry_layers.publish(client, to, image, store)
    other, there = ContentStore(tmp_path / "other"), list[int]()
    with faulty(registry_server.host) as proxy:
        where = Settings(registry=f"{proxy.host}/{name}")
        available = base.look_up([planned], other, where, lock)
        assert proxy.count("HEAD .*") == 1
        assert list(available.offered.values()) == made
        base.assemble(
            [planned], available, other, where, lock, lambda: pytest.fail("no engine"),
            on_layer=lambda _: there.append(sum(map(other.has, made))),
        )  # fmt: skip
        assert proxy.count("HEAD .*") == 1 and proxy.count("GET .*/blobs/") == len(made)
    assert len(there) == len(made) and there[0] < len(made)


@pytest.mark.engine
@pytest.mark.network
@pytest.mark.parametrize("reached", [True, False])
def test_an_engine_pulls_a_base_that_the_registry_has_whole_or_gets_its_layers(
    root: Path,
    engine: Engine,
    registry_server: RegistryServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    reached: bool,
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    target, maker = make.prepare(root, "cpu"), ContentStore(tmp_path / "maker")
    assert target.base
    with monkeypatch.context() as patch:
        patch.setattr(content_store, "of_this_machine", lambda: maker)
        made = [layer_of(layer.key) for layer in target.base.layers]
    lock, name = layers_lock.read(tmp_path / "layers.lock"), f"tests/{secrets.token_hex(6)}"
    for layer in made:
        lock.check(layer, layer.key)
    image = base.committed(target.base, lock)
    assert image
    with Registry(registry_server.host) as client:
        to = Reference(registry_server.host, name, target.base.tag)
        registry_layers.publish(client, to, image, maker)
    if not reached:
        monkeypatch.setattr(loading, "pull", lambda *_: None)
    options = make.BuildOptions(Settings(registry=f"{registry_server.host}/{name}"))
    try:
        (loaded,) = make.load_bases([replace(target, layers=lock)], options, engine).values()
        assert loading.present(engine, loaded.image, loaded.reference)
    finally:
        engine.client.images.remove(f"{LOCAL_REPOSITORY}:{target.base.tag}", noprune=True)
    assert (loaded.origin, loaded.image.digest) == ("registry", image.digest)
    here = content_store.of_this_machine().paths(image.layers)
    pulled = reached and engine.knows_content
    assert set(here) == (set() if pulled else {layer.diff_id for layer in made})


def test_an_image_with_a_layer_that_nobody_accounts_for_is_not_proven(root: Path) -> None:
    target, store = make.prepare(root, "cpu"), content_store.of_this_machine()
    base_image = target.committed_base
    assert base_image and isinstance(target.image, program.AssembledPlan)
    known = program.assemble(target.image, base_image, store)
    record: Any = SimpleNamespace(target="cpu", digest=known.digest, image_id=known.config_digest)
    proof._account(known, record)
    record.image_id = f"sha256:{'0' * 64}"
    with pytest.raises(CheckFailed, match=r"cpu: sha256:0+ is not what the locks and the program"):
        proof._account(known, record)


# --- proving --------------------------------------------------------------------------------------


def test_a_proof_reads_the_layers_that_are_here_and_the_engines_own(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    target, store = make.prepare(root, "cpu"), content_store.of_this_machine()
    base_image = target.committed_base
    assert base_image and isinstance(target.image, program.AssembledPlan)
    known = program.assemble(target.image, base_image, store)
    record: Any = SimpleNamespace(
        target="cpu", digest=known.digest, image_id=known.digest,
        inputs="", compressed_bytes=1, packages=(),
    )  # fmt: skip
    monkeypatch.setattr(proof.smoking, "smoke", lambda _, subject, *__: subject)
    engine: Any = SimpleNamespace(architecture="amd64")
    subject: Any = proof.prove(root, engine, target, record)
    [(diff_id, path)] = subject.layers.items()
    assert diff_id == known.layers[-1].diff_id and path.is_file(), "the engine pulled the base"


def test_an_engine_on_arm64_proves_nothing(root: Path) -> None:
    arm: Any = SimpleNamespace(architecture="arm64")
    record: Any = None
    with pytest.raises(OutsideError, match=r"cpu: built, not proven here: .*is arm64") as caught:
        proof.prove(root, arm, make.prepare(root, "cpu"), record)
    assert caught.value.fix.startswith("builder cloud build cpu, or ")
