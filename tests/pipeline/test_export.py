"""Images without an engine: a code change onto a base in a real registry, and what is refused."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from io import BytesIO
from pathlib import Path
from typing import Any, NoReturn

import pytest

from builder import registry
from builder.core.errors import CheckFailed, InputError, OutsideError
from builder.core.settings import Settings, TrustSettings
from builder.engine import BuiltImage
from builder.image import base, layers_lock, program
from builder.image.content_store import ContentStore
from builder.image.layer import Layer
from builder.image.program import ImagePlan
from builder.pipeline import export, make, repository
from builder.pipeline.export import Exported
from builder.pipeline.make import BuildOptions
from builder.registry import Registry, manifests
from builder.trust import attestations, dsse, provenance
from builder.trust.dsse import Statement
from builder.trust.provenance import Build
from tests.image.layers import unpacked
from tests.registry.server import RegistryServer
from tests.trust.signing import Pair

TARGET = "cpu"


def no_engine() -> NoReturn:
    raise AssertionError("an engine was asked for")


@dataclass(frozen=True)
class Place:
    """An empty repository of its own in the registry of the whole run."""

    server: RegistryServer
    name: str

    @property
    def settings(self) -> Settings:
        return Settings(registry=f"{self.server.host}/{self.name}")

    def put_base(self, root: Path) -> str:
        """Put the base of the target, of small layers that layers.lock then has; return its tag."""
        plan = make.prepare(root, TARGET).base
        assert plan
        lock = layers_lock.read(root / layers_lock.FILE)
        with Registry(self.server.host) as client:
            for planned in plan.layers:
                blob = client.put_blob(self.name, f"layer {planned.key}".encode())
                blob = replace(blob, media_type=manifests.OCI_LAYER_ZSTD)
                lock.layers[planned.key] = Layer(planned.key, blob, blob.digest, 1)
                lock.names[planned.key] = planned.name
            lock.write()
            image = base.committed(plan, lock)
            assert image
            client.put_blob(self.name, image.configuration)
            client.put_manifest(self.name, plan.tag, image.manifest)
        return plan.tag

    def trained(self, exported: Exported) -> str:
        """trainer/task.py of an image in the registry."""
        where = registry.parse(exported.reference)
        with Registry(self.server.host) as client:
            manifest = client.manifest(where.repository, where.target)
            assert manifest and manifest.digest == exported.digest
            packed = client.blob(where.repository, manifest.layers[-1])
        return unpacked(BytesIO(packed))["app/trainer/task.py"].content.decode()


@pytest.fixture
def place(registry_server: RegistryServer) -> Iterator[Place]:
    yield Place(registry_server, f"tests/{secrets.token_hex(6)}")


def to_registry(root: Path, settings: Settings, **more: Any) -> tuple[Exported, ...]:
    return export.to_registry(root, [TARGET], BuildOptions(settings, **more), no_engine)


@pytest.mark.network
def test_a_code_change_is_one_layer_on_the_base_in_the_registry(copy: Path, place: Place) -> None:
    place.put_base(copy)
    (first,) = to_registry(copy, place.settings)
    assert place.trained(first) == "print('trained')\n"
    (copy / "trainer/task.py").write_text("print('better')\n")
    with ThreadPoolExecutor(2) as pool:  # two at once send the same
        calls = [pool.submit(to_registry, copy, place.settings) for _ in range(2)]
        ((second,), again) = (call.result() for call in calls)
    assert again == (second,) and second.reference != first.reference
    assert place.trained(second) == "print('better')\n"
    (copy / f"images/{TARGET}/Dockerfile").write_text("FROM scratch\n")
    with pytest.raises(CheckFailed, match="is not what image"):
        to_registry(copy, place.settings)


def sign_base(place: Place, tag: str, key: Pair, named: str = "") -> None:
    """Sign the base under a tag; named: the tag that the signer knows it by."""
    with Registry(place.server.host) as client:
        base = client.manifest(place.name, tag)
        assert base
        build = Build("", named or tag, "0" * 16, {}, None, "machine Docker 28", "0.1.0")
        statement = Statement(base.digest, dsse.PROVENANCE, provenance.predicate(build, {}))
        attestations.attach(client, place.name, base, (statement,), key.signer, "2026-11-22")


@pytest.mark.network
def test_a_base_that_nobody_trusted_signed_is_not_built_on(
    copy: Path, place: Place, ours: Pair, other: Pair
) -> None:
    tag = place.put_base(copy)
    trust = TrustSettings(prove=(str(other.public),), build=(str(ours.public),))
    settings = place.settings.model_copy(update={"trust": trust})
    check = repository.base_check(settings)
    assert check

    def refused(reason: str) -> None:
        with pytest.raises(CheckFailed, match=reason) as caught:
            to_registry(copy, settings, check_base=check)
        assert caught.value.exit_code == 4
        assert not [tag for tag in place.server.tags(place.name) if tag.startswith("unproven")]

    refused("is not trusted: nothing signed is attached to it")
    sign_base(place, tag, other)
    refused("signed by none of the keys that are trusted")
    sign_base(place, tag, ours, "base-of-last-year")
    refused("it is signed as base-of-last-year")
    sign_base(place, tag, ours)
    (exported,) = to_registry(copy, settings, check_base=check)
    assert place.trained(exported)
    assert repository.base_check(place.settings) is None


@pytest.mark.network
def test_without_a_base_or_with_another_kind_it_is_told_how_it_gets_there(
    copy: Path, place: Place
) -> None:
    with pytest.raises(InputError, match="no registry is set"):
        to_registry(copy, Settings())
    with pytest.raises(OutsideError, match="the registry does not have the base") as caught:
        to_registry(copy, place.settings)
    assert caught.value.fix.endswith(f"builder build {TARGET} --base-only --to-registry")


@pytest.mark.network
def test_a_base_that_is_not_the_committed_one_is_refused(copy: Path, place: Place) -> None:
    """Whoever may write to the registry moves the base's tag to other bytes."""
    tag = place.put_base(copy)
    target = make.prepare(copy, TARGET)
    plan = target.base
    assert plan
    with Registry(place.server.host) as client:
        manifest = client.manifest(place.name, tag)
        assert manifest
        evil = client.put_blob(place.name, b"a layer with zz_evil.pth")
        first, *others = manifest.content["layers"]
        changed = {**manifest.content, "layers": [{**first, **evil.json()}, *others]}
        client.put_manifest(place.name, tag, registry.manifest(changed))
    with pytest.raises(CheckFailed, match=r"base-.* is sha256:.*, images/layers.lock says sha256"):
        to_registry(copy, place.settings)
    empty = ContentStore(Path("nothing here"))
    available = base.look_up([plan], empty, place.settings, target.layers)
    assert evil.digest not in [layer.blob.digest for layer in available.offered.values()]


@pytest.mark.network
def test_a_dockerfile_of_ones_own_is_left_to_buildkit(
    copy: Path, place: Place, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    tag = place.put_base(copy)
    (copy / "templates").mkdir()
    (copy / "templates/Dockerfile.j2").write_text("FROM ${REPOSITORY}:{{ base_tag }}\nRUN true\n")
    dockerfile = copy / f"images/{TARGET}/Dockerfile"
    dockerfile.write_text(f"FROM ${{REPOSITORY}}:{tag}\nRUN true\n")
    plans: list[ImagePlan] = []

    def build(engine: Any, plan: ImagePlan, reference: str, *_: object) -> BuiltImage:
        plans.append(plan)
        return BuiltImage(reference, "sha256:1", "sha256:2", None, None)

    monkeypatch.setattr(program, "build", build)
    engine: Any = "engine"
    (exported,) = export.to_registry(copy, [TARGET], BuildOptions(place.settings), lambda: engine)
    assert exported.digest == "sha256:1"
    assert [plan.installs for plan in plans] == [False]
    with pytest.raises(InputError, match="its Dockerfile does more than copy"):
        export.to_layout(
            copy, [TARGET], BuildOptions(Settings()), no_engine, False, tmp_path / "out"
        )


def test_a_layout_is_of_one_target_and_in_a_new_folder(copy: Path, tmp_path: Path) -> None:
    def written(*names: str) -> None:
        export.to_layout(copy, names, BuildOptions(Settings()), no_engine, True, tmp_path)

    with pytest.raises(InputError, match="a layout holds one image"):
        written("cpu", "v100")
    with pytest.raises(InputError, match="exists already"):
        written("cpu")
