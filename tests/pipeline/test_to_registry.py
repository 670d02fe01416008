"""A code change onto a base in a real registry: the first time checked, then from memory."""

from __future__ import annotations

import io
import re
import tarfile
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

import pytest
import zstandard

from builder import registry
from builder.core.errors import CheckFailed, InputError, OutsideError
from builder.core.settings import Settings
from builder.core.trustsettings import TrustSettings
from builder.engine import BuiltImage, Engine
from builder.pipeline import append, build, prepare, to_registry
from builder.pipeline.plan import ImagePlan
from builder.registry import DOCKER_MANIFEST, OCI_MANIFEST, Descriptor, Registry, manifests
from builder.trust import beside, statements
from builder.trust.provenance import HowMade
from tests.emulators.registry_faults import Fault, faulty
from tests.registry import server as registry_server
from tests.registry.server import RegistryServer
from tests.trust import signing
from tests.trust.signing import Pair

ROOT = Path(__file__).parents[2]
TARGET = "cpu"
PLATFORM = {"architecture": "amd64", "os": "linux"}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RegistryServer]:
    with registry_server.registry(tmp_path_factory.mktemp("registry")) as running:
        yield running


def no_engine() -> NoReturn:
    raise AssertionError("an engine was asked for")


def put_base(server: RegistryServer, repository: str, kind: str = OCI_MANIFEST) -> None:
    """A base of one small layer under the tag that the target's Dockerfile names."""
    reading = append.read((ROOT / "images" / TARGET / "Dockerfile").read_text())
    assert reading
    with Registry(server.host) as there:
        layer = there.put_blob(repository, b"a layer")
        config = manifests.configuration(
            PLATFORM, {"Env": ["PATH=/bin"]}, [manifests.Added(layer.digest, "tests")], 0
        )
        there.put_blob(repository, config)
        image = manifests.image(
            Descriptor.of(manifests.OCI_CONFIG, config),
            [replace(layer, media_type=manifests.OCI_LAYER_ZSTD)],
        )
        content = {**image.content, "mediaType": kind}
        there.put_manifest(repository, reading.base, registry.manifest(content))


def trained(server: RegistryServer, sent: to_registry.Unproven) -> str:
    """trainer/task.py of an image in the registry."""
    where = registry.parse(sent.reference)
    with Registry(server.host) as there:
        found = there.manifest(where.repository, where.target)
        assert found
        assert found.digest == sent.digest
        layers = [Descriptor.read(one) for one in found.content["layers"]]
        assert len(layers) == 2
        packed = there.blob(where.repository, layers[-1])
    plain = zstandard.ZstdDecompressor().decompressobj().decompress(packed)
    with tarfile.open(fileobj=io.BytesIO(plain)) as archive:
        file = archive.extractfile("app/trainer/task.py")
        assert file
        return file.read().decode()


def test_without_a_registry_there_is_nowhere_to_build_to(copy: Path) -> None:
    with pytest.raises(InputError, match="no registry is set"):
        to_registry.build(copy, Settings(), [TARGET], no_engine)


@pytest.mark.network
def test_a_code_change_is_sent_without_a_second_check(
    copy: Path, server: RegistryServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_base(server, "team/warm")
    settings = Settings(f"{server.host}/team/warm")
    (first,) = to_registry.build(copy, settings, [TARGET], no_engine)
    assert trained(server, first) == "print('trained')\n"

    (copy / "trainer/task.py").write_text("print('better')\n")
    with monkeypatch.context() as patch:
        patch.setattr(prepare, "prepare", no_engine)
        (second,) = to_registry.build(copy, settings, [TARGET], no_engine)
    assert trained(server, second) == "print('better')\n"
    assert second.reference != first.reference

    (copy / f"images/{TARGET}/Dockerfile").write_text("FROM scratch\n")
    with pytest.raises(CheckFailed, match="is not what image"):
        to_registry.build(copy, settings, [TARGET], no_engine)


def sign_base(there: Registry, repository: str, tag: str, key: Pair, said: str = "") -> None:
    """Sign the base under a tag; said: the tag that the signer knows it by."""
    base = there.manifest(repository, tag)
    assert base
    made = HowMade("", said or tag, "0" * 16, {}, None, "machine Docker 28", "0.1.0")
    statement = statements.of_provenance(base.digest, made, {})
    where = registry.parse(f"{there.host}/{repository}")
    beside.attach(there, where, base, (statement,), key.signer, "2026-11-22")


@pytest.mark.network
def test_a_base_that_nobody_trusted_signed_is_not_built_on(
    copy: Path, server: RegistryServer, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder, repository = tmp_path_factory.mktemp("keys"), "team/trusting"
    ours, other = signing.pair(folder, "ours"), signing.pair(folder, "other")
    reading = append.read((ROOT / "images" / TARGET / "Dockerfile").read_text())
    assert reading
    put_base(server, repository)
    trust = TrustSettings(prove=(str(other.public),), build=(str(ours.public),))
    settings = Settings(f"{server.host}/{repository}", trust=trust)

    def refused(says: str) -> None:
        with pytest.raises(CheckFailed, match=says) as caught:
            to_registry.build(copy, settings, [TARGET], no_engine)
        assert caught.value.exit_code == 4
        assert not [tag for tag in server.tags(repository) if tag.startswith("unproven")]

    with Registry(server.host) as there:
        refused("is not trusted: no signed statement lies beside it")
        sign_base(there, repository, reading.base, other)
        refused("signed by none of the keys that are trusted")
        sign_base(there, repository, reading.base, ours, "base-of-last-year")
        refused("it is signed as base-of-last-year")
        sign_base(there, repository, reading.base, ours)
        (sent,) = to_registry.build(copy, settings, [TARGET], no_engine)
        assert trained(server, sent)


@pytest.mark.network
def test_two_at_once_send_the_same(copy: Path, server: RegistryServer) -> None:
    put_base(server, "team/twice")
    settings = Settings(f"{server.host}/team/twice")
    with ThreadPoolExecutor(2) as pool:
        sent = pool.map(lambda _: to_registry.build(copy, settings, [TARGET], no_engine), range(2))
        assert len(set(sent)) == 1


@pytest.mark.network
def test_a_registry_without_the_base_says_how_it_gets_there(
    copy: Path, server: RegistryServer
) -> None:
    settings = Settings(f"{server.host}/team/empty")
    with pytest.raises(OutsideError, match="the registry does not have the base") as caught:
        to_registry.build(copy, settings, [TARGET], no_engine)
    assert caught.value.fix.endswith(f"builder build {TARGET} --base-only --to-registry")


@pytest.mark.network
def test_a_base_in_dockers_own_format_is_refused(copy: Path, server: RegistryServer) -> None:
    put_base(server, "team/docker", DOCKER_MANIFEST)
    settings = Settings(f"{server.host}/team/docker")
    with pytest.raises(
        OutsideError, match=r"is no OCI image but application/vnd\.docker"
    ) as caught:
        to_registry.build(copy, settings, [TARGET], no_engine)
    assert "--base-only --to-registry" in caught.value.fix


@pytest.mark.network
def test_a_dockerfile_that_does_more_is_prepared_once_and_left_to_an_engine(
    copy: Path, server: RegistryServer, calls: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(append, "read", lambda _: None)
    asked: list[ImagePlan] = []

    def built(engine: Engine, image: ImagePlan, reference: str, *how: object) -> BuiltImage:
        asked.append(image)
        return BuiltImage(reference, "sha256:1", "sha256:2", None, None)

    monkeypatch.setattr(build, "with_buildkit", built)
    to_registry.build(copy, Settings(f"{server.host}/team/more"), [TARGET], lambda: "engine")
    assert len(asked) == 1
    assert not asked[0].installs
    assert (calls["load"], calls["render"], calls["plan"]) == (1, 1, 1)


@pytest.mark.network
@pytest.mark.parametrize(
    ("lies", "said"),
    [
        (Fault("PUT", "/blobs/uploads/", 201, after=1, times=None), "has lost this blob"),
        (Fault("PUT", "/manifests/unproven-", 201, after=1, times=None), "the registry says None"),
        (
            Fault("HEAD", "/blobs/", 200, headers={"Content-Length": "1"}, times=None),
            "the registry has other bytes|other bytes",
        ),
    ],
)
def test_what_the_registry_says_it_took_is_read_back(
    copy: Path, server: RegistryServer, lies: Fault, said: str
) -> None:
    """Each of these was the image's digest and exit code 0."""
    repository = f"team/lies-{lies.method.lower()}-{len(lies.path)}"
    put_base(server, repository)
    with faulty(server.host, lies) as proxy, pytest.raises((CheckFailed, OutsideError)) as caught:
        to_registry.build(copy, Settings(f"{proxy.host}/{repository}"), [TARGET], no_engine)
    assert re.search(said, caught.value.message), caught.value.message
    assert lies.happened
