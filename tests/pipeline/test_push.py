"""A proven image goes to a real registry whole, under its tags, and only then."""

from __future__ import annotations

import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from builder.config import targets
from builder.core.errors import CheckFailed, InputError, OutsideError
from builder.core.events import Event, StepDone
from builder.core.settings import LOCAL_REPOSITORY, Settings
from builder.engine import BuildRequest, Engine, buildx
from builder.image import content_store, loading
from builder.image.layer import assemble
from builder.pipeline import records
from builder.pipeline.push import LocalImage, PushedImage, push, push_target
from builder.pipeline.records import ImageRecord
from builder.pipeline.verify import verify
from builder.prove import receipts
from builder.prove.receipts import CheckResult
from builder.trust import pushed as pushed_lock
from tests import ROOT
from tests.emulators.registry_faults import Fault, faulty
from tests.image.layers import layer
from tests.pipeline.pushing import REQUIRED, Build, other_engine, proof, results
from tests.registry.server import skopeo
from tests.trust import signing
from tests.trust.signing import Repository

pytestmark = [pytest.mark.engine, pytest.mark.network]
TAGS = ("v100-2.21.0-abc", "v100")


def pushed(
    repository: Repository, engine: Engine, image: LocalImage, host: str = "", **more: Any
) -> PushedImage:
    """Push with a receipt that holds. host: a proxy before the registry."""
    return push(engine, image, proof(image), repository.settings(host=host), TAGS, **more)


@pytest.fixture
def base(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The tag of an assembled base in this machine's content store."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    store, tag = content_store.of_this_machine(), f"base-{secrets.token_hex(8)}"
    image = assemble([(layer(store, {"a": secrets.token_bytes(3_000_000)}), "tests")], {})
    store.keep_image(tag, image)
    yield tag


# The good way -----------------------------------------------------------------------------------


def test_image_base_and_receipt_arrive_under_every_tag_and_go_there_once(
    engine: Engine, build: Build, repository: Repository, base: str
) -> None:
    image, events = build("trainer"), list[Event]()
    with faulty(repository.client.host) as proxy:
        result = pushed(repository, engine, image, proxy.host, base=base, on_event=events.append)
        assert image.digest == (result.digest if engine.containerd_store else None)
        assert result.reference == f"{proxy.host}/{repository.path}@{result.digest}"
        assert result.base == f"{proxy.host}/{repository.path}:{base}"
        assert result.moved == result.tags == TAGS
        assert not result.unchanged
        store = content_store.of_this_machine()
        assembled = store.find_image(base)
        assert assembled and repository.head(base) == assembled.digest
        assert repository.head("v100") == repository.head("v100-2.21.0-abc") == result.digest
        assert isinstance(events[-1], StepDone) and not events[-1].cached
        assert engine.client.images.get(image.reference).tags == [image.reference]

        proxy.seen.clear()
        again = pushed(repository, engine, image, proxy.host, base=base, on_event=events.append)
        assert again.unchanged and again.moved == () and again.sent == 0
        assert proxy.count("^(PUT|POST|PATCH|DELETE)") == 0
        # base, image, receipt (no API, so two), two tags
        assert len(proxy.seen) == 6, proxy.seen
        done = events[-1]
        assert isinstance(done, StepDone) and done.cached and done.detail == "already there"

    name = f"docker://{repository.client.host}/{repository.path}:v100"
    assert f'"Digest": "{result.digest}"' in skopeo("inspect", "--tls-verify=false", name)
    verified = verify("v100", repository.settings())
    assert verified.receipt == proof(image)


def test_a_push_writes_down_where_it_led_the_tags_that_move(
    engine: Engine, build: Build, repository: Repository, tmp_path: Path
) -> None:
    for folder in ("images/v100", "trainer"):
        shutil.copytree(ROOT / folder, tmp_path / folder)
    led: list[str] = []
    target = targets.of(tmp_path, "v100")
    for text in ("a", "b"):
        image = build(text)
        record = ImageRecord(
            target="v100", reference=image.reference, digest=image.digest, image_id=image.image_id,
            inputs="", base=None, base_digest=None, base_origin="", root="", compressed_bytes=1,
            unpacked_bytes=1, budget_bytes=None, packages=(), phases={}, engine="",
            framework="tensorflow", release="2.21.0",
        )  # fmt: skip
        records.write(tmp_path, record)
        receipts.write(proof(image), records.folder(tmp_path, "v100") / receipts.FILE)
        result = push_target(target, repository.settings(), engine, ("nightly",))
        led.insert(0, result.digest)
        assert "v100-2.21.0" in result.tags
        names = (f"{repository.reference}:{tag}" for tag in ("nightly", "v100"))
        assert pushed_lock.of(tmp_path) == dict.fromkeys(names, tuple(led))
    assert verify("v100", repository.settings(), tmp_path).digest == led[0]


def test_a_base_that_nobody_has_any_more_ends_a_push(
    engine: Engine, build: Build, repository: Repository, base: str
) -> None:
    image = build("trainer")
    with pytest.raises(OutsideError, match="neither this machine's cache nor") as caught:
        pushed(repository, engine, image, base="base-of-yore")
    assert "builder build" in caught.value.fix
    pushed(repository, engine, image, base=base)
    shutil.rmtree(content_store.of_this_machine().folder)
    assert pushed(repository, engine, image, base=base).unchanged, (
        "that the registry has it is enough"
    )


def test_a_base_that_the_cache_lost_is_sent_by_the_engine(
    engine: Engine, build: Build, repository: Repository, base: str
) -> None:
    store, image, name = (
        content_store.of_this_machine(),
        build("trainer"),
        f"{LOCAL_REPOSITORY}:{base}",
    )
    assembled = store.find_image(base)
    assert assembled
    loading.load(engine, assembled, store, name)
    try:
        shutil.rmtree(store.folder / "blobs")
        if engine.containerd_store:
            pushed(repository, engine, image, base=base)
        else:  # it would send another manifest
            with pytest.raises(OutsideError, match="neither this machine's cache nor"):
                pushed(repository, engine, image, base=base)
    finally:
        engine.client.images.remove(name)
    assert repository.head(base) == (assembled.digest if engine.containerd_store else None)


def test_a_key_signs_once_and_one_that_does_not_open_ends_a_push_before_it_sends(
    engine: Engine, build: Build, repository: Repository, tmp_path: Path
) -> None:
    ours, image = signing.pair(tmp_path, "ours"), build("trainer")
    trusting = repository.settings(ours, key=ours)
    first = push(engine, image, proof(image), trusting, ("v100",))
    assert len(first.signed) == 2
    assert verify("v100", trusting).signer == str(ours.public)
    assert verify("v100", repository.settings()).digest == first.digest
    again = push(engine, image, proof(image), trusting, ("v100",))
    assert again.signed == () and again.unchanged

    ours.path.write_text(ours.public.read_text())
    other = build("other")
    with pytest.raises(InputError, match="no private key"):
        push(engine, other, proof(other), trusting, ("other",))
    assert repository.head("other") is None


@pytest.mark.slow
@pytest.mark.root
def test_an_engine_without_the_containerd_store_knows_the_digest_only_afterwards(
    repository: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The receipt is bound to the image's id there: in a registry, the digest of its config."""
    (tmp_path / "Dockerfile").write_text('FROM scratch\nCOPY Dockerfile /\nENTRYPOINT ["/x"]\n')
    with other_engine(tmp_path / "engine", monkeypatch, containerd_store=False) as old:
        built = buildx.build(
            old, BuildRequest(tmp_path / "Dockerfile", tmp_path, ("push-test:graph",))
        )
        assert built.digest is None
        image = LocalImage("push-test:graph", None, built.image_id)
        result = pushed(repository, old, image)
        again = pushed(repository, old, image)
    assert again.unchanged and again.digest == result.digest == repository.head("v100")
    assert result.image_id == built.image_id
    verified = verify("v100", repository.settings())
    assert (verified.receipt.digest, verified.image_id) == (None, built.image_id)


# Without proof ----------------------------------------------------------------------------------


def test_nothing_is_sent_without_a_receipt_that_holds_a_registry_and_good_tags(
    engine: Engine, repository: Repository
) -> None:
    image = LocalImage("training:v100", "sha256:" + "a" * 64, "sha256:" + "a" * 64)
    other = {"digest": "sha256:" + "0" * 64, "image_id": "sha256:" + "1" * 64}
    failed = CheckResult(name="loader", version=1, passed=False, seconds=1)
    fewer = tuple(check for check in results(REQUIRED) if check.name != "training")
    for receipt, reason in (
        (None, "there is no receipt"),
        (proof(image, **other), "for another image"),
        (proof(image, checks=(failed,)), "the check loader did not pass"),
        (proof(image, checks=fewer), "holds no check training"),
    ):
        with pytest.raises(CheckFailed, match=reason) as caught:
            push(engine, image, receipt, repository.settings(), ("v100",))
        assert caught.value.fix == f"run: builder smoke {'v100' if receipt else 'TARGET'}"
    assert repository.client.tags(repository.path, "") == ()
    with pytest.raises(InputError, match="no registry is set"):
        push(engine, image, proof(image), Settings(), ("v100",))
    with pytest.raises(InputError, match="a tag is"):
        push(engine, image, proof(image), repository.settings(host="127.0.0.1:1"), ("a/b",))


# A registry that goes wrong ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        (Fault("HEAD", "/blobs/", 502, times=None), "502"),
        # the receipt cannot be put: the image is there whole, and no tag may lead to it
        (Fault("PUT", "/manifests/sha256:", 400, times=None), "answered 400"),
        (Fault("GET", "/manifests/image-", times=None, instead="FIRST"), "the registry has"),
    ],
    ids=["head", "receipt", "other bytes"],
)
def test_a_push_that_cannot_be_finished_is_one_line_and_no_tag_moves(
    engine: Engine, build: Build, repository: Repository, fault: Fault, message: str
) -> None:
    first, image = build("first"), build("second", megabytes=1)
    digest = pushed(repository, engine, first).digest
    if fault.instead:
        fault.instead = f"/v2/{repository.path}/manifests/v100"
    with (
        faulty(repository.client.host, fault) as proxy,
        pytest.raises((OutsideError, CheckFailed)) as caught,
    ):
        pushed(repository, engine, image, proxy.host)
    assert message in caught.value.message and "\n" not in caught.value.message
    assert repository.head("v100") == digest
