"""Images without an engine: a code change onto a base in a real registry, and what is refused."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import Any, NoReturn

import pytest

from builder import registry
from builder.core.errors import CheckFailed, InputError, OutsideError
from builder.core.settings import Settings
from builder.engine import BuiltImage
from builder.image import base, layers_lock, program
from builder.image.content_store import ContentStore
from builder.image.layer import Layer
from builder.image.program import BuiltPlan
from builder.pipeline import export, make
from builder.pipeline.export import Exported
from builder.pipeline.make import BuildOptions, prepare
from builder.registry import manifests
from tests.image.layers import unpacked
from tests.trust.signing import Repository

TARGET = "cpu"


def no_engine() -> NoReturn:
    raise AssertionError("an engine was asked for")


def put_base(repository: Repository, root: Path) -> str:
    """Put the base of the target, of small layers that layers.lock then has; return its tag."""
    plan = make.prepare(root, TARGET).base
    assert plan
    lock, client = layers_lock.read(root / layers_lock.FILE), repository.client
    for planned in plan.layers:
        blob = client.put_blob(repository.path, f"layer {planned.key}".encode())
        blob = replace(blob, media_type=manifests.OCI_LAYER_ZSTD)
        lock.layers[planned.key] = Layer(planned.key, blob, blob.digest, 1)
        lock.names[planned.key] = planned.name
    lock.write()
    image = base.committed(plan, lock)
    assert image
    client.put_blob(repository.path, image.configuration)
    client.put_manifest(repository.path, plan.tag, image.manifest)
    return plan.tag


def trained(repository: Repository, exported: Exported) -> str:
    """Return trainer/task.py of an image in the registry."""
    tag = registry.parse(exported.reference).target
    manifest = repository.client.manifest(repository.path, tag)
    assert manifest and manifest.digest == exported.digest
    packed = repository.client.blob(repository.path, manifest.layers[-1])
    return unpacked(BytesIO(packed))["app/trainer/task.py"].content.decode()


def to_registry(root: Path, settings: Settings, **more: Any) -> tuple[Exported, ...]:
    return export.to_registry([prepare(root, TARGET)], BuildOptions(settings, **more), no_engine)


@pytest.mark.network
def test_a_code_change_is_one_layer_on_the_base_in_the_registry(
    copy: Path, repository: Repository
) -> None:
    with pytest.raises(InputError, match="no registry is set"):
        to_registry(copy, Settings())
    with pytest.raises(OutsideError, match="the registry does not have the base") as caught:
        to_registry(copy, repository.settings())
    assert caught.value.fix.endswith(f"builder build {TARGET} --base-only --to-registry")
    put_base(repository, copy)
    (first,) = to_registry(copy, repository.settings())
    assert trained(repository, first) == "print('trained')\n"
    (copy / "trainer/task.py").write_text("print('better')\n")
    with ThreadPoolExecutor(2) as pool:  # two at once send the same
        calls = [pool.submit(to_registry, copy, repository.settings()) for _ in range(2)]
        ((second,), again) = (call.result() for call in calls)
    assert again == (second,) and second.reference != first.reference
    assert trained(repository, second) == "print('better')\n"
    (copy / f"images/{TARGET}/Dockerfile").write_text("FROM scratch\n")
    with pytest.raises(CheckFailed, match="is not what image"):
        to_registry(copy, repository.settings())


@pytest.mark.network
def test_a_base_that_is_not_the_committed_one_is_refused(
    copy: Path, repository: Repository
) -> None:
    """Whoever may write to the registry moves the base's tag to other bytes."""
    tag = put_base(repository, copy)
    target = make.prepare(copy, TARGET)
    plan = target.base
    assert plan
    client = repository.client
    manifest = client.manifest(repository.path, tag)
    assert manifest
    evil = client.put_blob(repository.path, b"a layer with zz_evil.pth")
    first, *others = manifest.content["layers"]
    changed = {**manifest.content, "layers": [{**first, **evil.json()}, *others]}
    client.put_manifest(repository.path, tag, registry.manifest(changed))
    with pytest.raises(CheckFailed, match=r"base-.* is sha256:.*, images/layers.lock says sha256"):
        to_registry(copy, repository.settings())
    empty = ContentStore(Path("nothing here"))
    available = base.look_up([plan], empty, repository.settings(), target.layers)
    assert evil.digest not in [layer.blob.digest for layer in available.offered.values()]


@pytest.mark.network
def test_a_dockerfile_of_ones_own_is_left_to_buildkit(
    copy: Path, repository: Repository, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    tag = put_base(repository, copy)
    (copy / "templates").mkdir()
    (copy / "templates/Dockerfile.j2").write_text("FROM ${REPOSITORY}:{{ base_tag }}\nRUN true\n")
    dockerfile = copy / f"images/{TARGET}/Dockerfile"
    dockerfile.write_text(f"FROM ${{REPOSITORY}}:{tag}\nRUN true\n")
    plans: list[BuiltPlan] = []

    def build(engine: Any, plan: BuiltPlan, reference: str, *_: object) -> BuiltImage:
        plans.append(plan)
        return BuiltImage("sha256:1", "sha256:2", None, None)

    monkeypatch.setattr(program, "build", build)
    engine: Any = "engine"
    (exported,) = export.to_registry(
        [prepare(copy, TARGET)], BuildOptions(repository.settings()), lambda: engine
    )
    assert exported.digest == "sha256:1"
    assert [plan.installs for plan in plans] == [False]
    with pytest.raises(InputError, match="its Dockerfile does more than copy"):
        export.to_layout(
            [prepare(copy, TARGET)], BuildOptions(Settings()), no_engine, False, tmp_path / "out"
        )


def test_a_layout_is_of_one_target_and_in_a_new_folder(copy: Path, tmp_path: Path) -> None:
    def written(*names: str) -> None:
        wanted = [prepare(copy, name) for name in names]
        export.to_layout(wanted, BuildOptions(Settings()), no_engine, True, tmp_path)

    with pytest.raises(InputError, match="a layout holds one image"):
        written("cpu", "v100")
    with pytest.raises(InputError, match="exists already"):
        written("cpu")
