"""A proven image goes to a real registry whole, under its tags, and comes back as it went."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from builder import registry
from builder.core.errors import CheckFailed, InputError, OutsideError
from builder.core.events import Event, StepDone, StepLog, StepProgress
from builder.core.retry import Retry
from builder.core.settings import Settings
from builder.engine import BuildRequest, Engine, connect, private
from builder.engine.private import daemon
from builder.pipeline.push import PushedImage, push
from builder.pipeline.tags import history_tag, promote, rollback, tags_for
from builder.pipeline.verify import ACCELERATOR, RECEIPT_TYPE, attach, verify
from builder.prove import receipts
from builder.prove.receipts import CheckResult, Receipt
from builder.registry import Registry
from builder.tensorflow import suite as suites
from tests.emulators.registry_faults import Fault, faulty
from tests.registry import server as registry_server
from tests.registry.making import coded, docker_config
from tests.registry.server import RegistryServer, skopeo

pytestmark = [pytest.mark.engine, pytest.mark.network]

REQUIRED = suites.TRAINER.required("V100")
NEWER = replace(
    suites.TRAINER,
    checks=tuple(
        replace(check, version=check.version + (check.name == "loader"))
        for check in suites.TRAINER.checks
    ),
)
"""The suite of a factory whose check of the loader asks for more."""
QUICK = Retry(attempts=3, first=0.01)
REPOSITORY = "team/training"


@dataclass(frozen=True)
class Image:
    """What a build says about an image."""

    reference: str
    digest: str | None
    image_id: str
    labels: Mapping[str, str] = field(default_factory=dict)


@pytest.fixture(scope="module")
def engine() -> Engine:
    return connect(Settings())


@contextmanager
def other_engine(
    folder: Path, monkeypatch: pytest.MonkeyPatch, containerd_store: bool = True
) -> Iterator[Engine]:
    """A private engine of its own, with nothing in it."""
    if not containerd_store:
        whole = daemon.configuration

        def graph_driver(*arguments: Any) -> dict[str, object]:
            result = {**whole(*arguments), "features": {"containerd-snapshotter": False}}
            return result | ({"storage-driver": "vfs"} if result.get("storage-driver") else {})

        monkeypatch.setattr(daemon, "configuration", graph_driver)
    monkeypatch.setenv(private.ENVIRONMENT, str(folder))
    try:
        yield connect(Settings(engine="private"))
    finally:
        private.stop(folder)
        shutil.rmtree(folder, ignore_errors=True)


Build = Callable[..., Image]


@pytest.fixture
def build(engine: Engine, tmp_path: Path) -> Iterator[Build]:
    """Builds the smallest image with some random bytes in it; gone again after the test."""
    made: list[str] = []

    def build(
        text: str,
        base: Image | None = None,
        megabytes: int = 0,
        tag: str = "",
        suite: str = "",
    ) -> Image:
        folder = tmp_path / f"context-{len(made)}"
        folder.mkdir()
        (folder / "file").write_bytes(text.encode() + os.urandom(megabytes * 1_000_000 or 16))
        source = base.reference if base else "scratch"
        (folder / "Dockerfile").write_text(
            f'FROM {source}\nCOPY --link file /{text}\nENTRYPOINT ["/{text}"]\n'
            f'LABEL {ACCELERATOR}="V100"\n' + (f'LABEL {suites.LABEL}="{suite}"\n' if suite else "")
        )
        reference = (
            f"push-test-{hashlib.sha256(str(folder).encode()).hexdigest()[:12]}:{tag or 't'}"
        )
        made.append(reference)
        found = engine.build(BuildRequest(folder / "Dockerfile", folder, (reference,)))
        labels = engine.client.images.get(reference).labels
        return Image(reference, found.digest, found.image_id, labels)

    yield build
    for reference in reversed(made):
        engine.client.images.remove(reference, force=True)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RegistryServer]:
    """An empty registry."""
    with registry_server.registry(tmp_path / "registry") as running:
        yield running


def proof(image: Image, **changes: object) -> Receipt:
    """A receipt that holds for this image."""
    receipt = Receipt(
        target="v100",
        accelerator="V100",
        reference=image.reference,
        digest=image.digest,
        image_id=image.image_id,
        inputs="0123",
        made_by="0.1.0",
        made_at="2026-11-21T12:00:00+00:00",
        device="CPU",
        suite="trainer",
        checks=results(REQUIRED),
    )
    return receipt.model_copy(update=changes)


def results(checks: Mapping[str, int]) -> tuple[CheckResult, ...]:
    """Checks that passed: name -> version."""
    return tuple(
        CheckResult(name=name, version=version, passed=True, seconds=1.0)
        for name, version in checks.items()
    )


def settings(host: str) -> Settings:
    return Settings(registry=f"{host}/{REPOSITORY}")


def sent(
    engine: Engine,
    image: Image,
    host: str,
    *tags: str,
    receipt: Receipt | None = None,
    base: Image | None = None,
    events: list[Event] | None = None,
) -> PushedImage:
    """Push with a receipt that holds."""
    return push(
        engine,
        image,
        receipt or proof(image),
        settings(host),
        tags or ("v100-2.21.0-abc", "v100"),
        base=base,
        retry=QUICK,
        on_event=(events if events is not None else []).append,
    )


# The good way -----------------------------------------------------------------------------------


def test_image_base_and_receipt_arrive_under_every_tag(
    engine: Engine, build: Build, server: RegistryServer
) -> None:
    base = build("base", megabytes=3, tag="base-0123456789abcdef")
    image = build("trainer", base)
    events: list[Event] = []
    result = sent(engine, image, server.host, base=base, events=events)

    assert result.digest == image.digest
    assert result.reference == f"{server.host}/{REPOSITORY}@{image.digest}"
    assert result.base == f"{server.host}/{REPOSITORY}:base-0123456789abcdef"
    assert result.moved == result.tags == ("v100-2.21.0-abc", "v100")
    assert not result.unchanged
    tags = server.tags(REPOSITORY)
    assert tags["v100"] == tags["v100-2.21.0-abc"] == image.digest
    assert tags["base-0123456789abcdef"] == base.digest

    seen = json.loads(
        skopeo("inspect", "--tls-verify=false", f"docker://{server.host}/{REPOSITORY}:v100")
    )
    assert seen["Digest"] == image.digest
    assert isinstance(events[-1], StepDone) and not events[-1].cached

    found = verify("v100", settings(server.host))
    assert found.receipt == proof(image)
    assert found.digest == image.digest
    assert found.receipt_digest == result.receipt
    assert found.labels == {ACCELERATOR: "V100"}


def test_a_second_push_sends_nothing_and_says_so(
    engine: Engine, build: Build, server: RegistryServer
) -> None:
    base = build("base", tag="base-1")
    image = build("trainer", base)
    with faulty(server.host) as proxy:
        sent(engine, image, proxy.host, base=base)
        proxy.seen.clear()
        events: list[Event] = []
        began = time.monotonic()
        result = sent(engine, image, proxy.host, base=base, events=events)
        assert result.unchanged and result.moved == () and result.sent == 0
        assert time.monotonic() - began < 1
        assert proxy.count("^(PUT|POST|PATCH|DELETE)") == 0
        # base, image, receipt (no API, so two), two tags
        assert len(proxy.seen) == 6, proxy.seen
        done = events[-1]
        assert isinstance(done, StepDone) and done.cached and done.detail == "already there"


def test_progress_counts_bytes(engine: Engine, build: Build, server: RegistryServer) -> None:
    image = build("large", megabytes=200)
    events: list[Event] = []
    result = sent(engine, image, server.host, events=events)
    progress = [event for event in events if isinstance(event, StepProgress)]
    assert progress and all(event.unit == "bytes" for event in progress)
    assert progress[-1].total and progress[-1].total >= 200_000_000
    assert result.sent >= 200_000_000


def test_only_the_last_layer_goes_onto_a_base_that_is_there(
    engine: Engine, build: Build, server: RegistryServer
) -> None:
    base = build("base", megabytes=5, tag="base-1")
    sent(engine, build("one", base), server.host, base=base)
    with faulty(server.host) as proxy:
        sent(engine, build("two", base), proxy.host, base=base)
        assert proxy.count("^PUT .*blobs/uploads") <= 4  # layer, config, receipt


def test_another_engine_pulls_the_same_digest(
    engine: Engine,
    build: Build,
    server: RegistryServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    image = build("trainer", build("base", megabytes=1, tag="base-1"))
    sent(engine, image, server.host)
    with other_engine(tmp_path / "engine", monkeypatch) as other:
        pulled = other.client.images.pull(f"{server.host}/{REPOSITORY}", tag="v100")
        assert pulled.attrs["RepoDigests"] == [f"{server.host}/{REPOSITORY}@{image.digest}"]
        assert other.image(f"{server.host}/{REPOSITORY}:v100").digest == image.digest  # type: ignore[union-attr]


def test_an_engine_without_the_containerd_store_knows_the_digest_only_afterwards(
    server: RegistryServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The receipt is bound to the image's id there: in a registry, the digest of its config."""
    (tmp_path / "Dockerfile").write_text('FROM scratch\nCOPY Dockerfile /\nENTRYPOINT ["/x"]\n')
    with other_engine(tmp_path / "engine", monkeypatch, containerd_store=False) as old:
        found = old.build(BuildRequest(tmp_path / "Dockerfile", tmp_path, ("push-test:graph",)))
        assert found.digest is None
        image = Image(found.reference, None, found.image_id)
        result = sent(old, image, server.host)
        again = sent(old, image, server.host)
    assert again.unchanged and again.digest == result.digest
    assert result.image_id == found.image_id
    assert server.tags(REPOSITORY)["v100"] == result.digest
    verified = verify("v100", settings(server.host))
    assert verified.receipt.digest is None
    assert verified.image_id == found.image_id


def test_the_engine_keeps_no_tag_of_the_push(
    engine: Engine, build: Build, server: RegistryServer
) -> None:
    image = build("trainer")
    sent(engine, image, server.host)
    assert engine.image(image.reference).tags == (image.reference,)  # type: ignore[union-attr]


# Without proof ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (None, "there is no receipt"),
        ({"digest": "sha256:" + "0" * 64, "image_id": "sha256:" + "1" * 64}, "for another image"),
        (
            {"checks": (CheckResult(name="loader", version=1, passed=False, seconds=1),)},
            "the check loader did not pass",
        ),
        (
            {"checks": tuple(one for one in results(REQUIRED) if one.name != "training")},
            "holds no check training",
        ),
    ],
)
def test_nothing_is_sent_without_a_receipt_that_holds(
    engine: Engine,
    build: Build,
    server: RegistryServer,
    change: dict[str, object] | None,
    reason: str,
) -> None:
    image = build("trainer")
    receipt = None if change is None else proof(image, **change)
    with pytest.raises(CheckFailed, match=reason) as caught:
        push(engine, image, receipt, settings(server.host), ("v100",))
    assert caught.value.exit_code == 4
    assert caught.value.fix == f"run: builder smoke {'v100' if receipt else 'TARGET'}"
    assert server.tags(REPOSITORY) == {}


def test_no_registry_and_a_bad_tag_are_the_users_to_mend(engine: Engine, build: Build) -> None:
    image = build("trainer")
    with pytest.raises(InputError, match="no registry is set"):
        push(engine, image, proof(image), Settings(), ("v100",))
    with pytest.raises(InputError, match="a tag is"):
        sent(engine, image, "127.0.0.1:1", "a/b")


# A registry that goes wrong ----------------------------------------------------------------------


@pytest.mark.parametrize("status", [500, 503, 429, None])
def test_a_blob_torn_in_the_middle_is_sent_again(
    engine: Engine, build: Build, server: RegistryServer, status: int | None
) -> None:
    image = build("large", megabytes=5)
    fault = Fault("PUT", "/blobs/uploads/", status, after=1_000_000, times=2)
    events: list[Event] = []
    with faulty(server.host, fault) as proxy:
        result = sent(engine, image, proxy.host, events=events)
    assert fault.happened == 2
    assert result.digest == image.digest == server.tags(REPOSITORY)["v100"]


@pytest.mark.parametrize(
    "fault",
    [
        Fault("PUT", "/blobs/uploads/", 500, after=100_000, times=None),
        Fault("PUT", "/manifests/image-", 500, times=None),
        Fault("HEAD", "/blobs/", 502, times=None),
    ],
    ids=["blob", "manifest", "head"],
)
def test_a_registry_that_stays_broken_is_one_line_and_no_tag_moves(
    engine: Engine, build: Build, server: RegistryServer, fault: Fault
) -> None:
    first = build("first")
    sent(engine, first, server.host)
    image = build("second", megabytes=1)
    with faulty(server.host, replace(fault)) as proxy, pytest.raises(OutsideError) as caught:
        sent(engine, image, proxy.host)
    assert caught.value.exit_code == 3
    assert "(tried 3 times)" in caught.value.message
    assert "\n" not in caught.value.message
    assert server.tags(REPOSITORY)["v100"] == first.digest
    assert image.digest not in server.tags(REPOSITORY).values()


def test_a_registry_killed_in_the_middle_leaves_no_tag_and_the_next_push_goes_on(
    engine: Engine, build: Build, server: RegistryServer
) -> None:
    image = build("large", megabytes=20)
    dying = Fault("PUT", "/blobs/uploads/", None, after=5_000_000, before=server.kill)
    with faulty(server.host, dying) as proxy, pytest.raises(OutsideError) as caught:
        sent(engine, image, proxy.host)
    assert caught.value.exit_code == 3
    assert server.tags(REPOSITORY) == {}
    server.start()
    assert sent(engine, image, server.host).digest == server.tags(REPOSITORY)["v100"]


def test_a_registry_that_comes_back_is_waited_for(
    engine: Engine, build: Build, server: RegistryServer
) -> None:
    image = build("large", megabytes=5)

    def restart() -> None:
        server.kill()
        threading.Timer(0.5, server.start).start()

    dying = Fault("PUT", "/blobs/uploads/", None, after=1_000_000, before=restart)
    events: list[Event] = []
    with faulty(server.host, dying) as proxy:
        result = push(
            engine,
            image,
            proof(image),
            settings(proxy.host),
            ("v100",),
            retry=Retry(attempts=5, first=0.5),
            on_event=events.append,
        )
    assert result.digest == server.tags(REPOSITORY)["v100"]
    assert any(isinstance(event, StepLog) and "trying again" in event.line for event in events)


def test_an_interruption_before_the_tags_leaves_them_where_they_were(
    engine: Engine, build: Build, server: RegistryServer
) -> None:
    first, image = build("first"), build("second")
    sent(engine, first, server.host)
    # the receipt cannot be put: the image lies there whole, and no tag may lead to it
    broken = Fault("PUT", "/manifests/sha256:", 400, times=None)
    with faulty(server.host, broken) as proxy, pytest.raises(OutsideError):
        sent(engine, image, proxy.host)
    tags = server.tags(REPOSITORY)
    assert tags["v100"] == first.digest
    assert image.digest in tags.values()  # under image-...


def test_other_bytes_in_the_registry_are_seen_before_a_tag_moves(
    engine: Engine, build: Build, server: RegistryServer
) -> None:
    first, image = build("first"), build("second")
    sent(engine, first, server.host)
    place = f"/v2/{REPOSITORY}/manifests/v100"
    other = Fault("GET", "/manifests/image-", times=None, instead=place)
    with faulty(server.host, other) as proxy, pytest.raises(CheckFailed) as caught:
        sent(engine, image, proxy.host)
    assert f"the registry has {first.digest}, the engine has {image.digest}" in caught.value.message
    assert server.tags(REPOSITORY)["v100"] == first.digest


def test_two_pushes_of_one_image_at_once_both_succeed(
    engine: Engine, build: Build, server: RegistryServer
) -> None:
    image = build("large", megabytes=5)
    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(lambda _: sent(engine, image, server.host), range(4)))
    assert {result.digest for result in results} == {image.digest}
    assert engine.image(image.reference).tags == (image.reference,)  # type: ignore[union-attr]


# Logging in -------------------------------------------------------------------------------------


def test_a_closed_registry_wants_a_login_and_takes_dockers_own(
    engine: Engine, build: Build, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    image = build("trainer")
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    auth = registry_server.basic_auth(tmp_path / "closed")
    with registry_server.registry(tmp_path / "closed", auth) as closed:
        with pytest.raises(OutsideError) as caught:
            sent(engine, image, closed.host)
        assert caught.value.message.startswith(f"not logged in to {closed.host}")
        assert caught.value.fix == f"run: docker login {closed.host}"
        assert caught.value.exit_code == 3

        docker_config(tmp_path, {"auths": {closed.host: {"auth": coded()}}})
        sent(engine, image, closed.host)
        assert closed.tags(REPOSITORY)["v100"] == image.digest


# Verify -----------------------------------------------------------------------------------------


def test_verify_says_what_is_wrong(engine: Engine, build: Build, server: RegistryServer) -> None:
    where = settings(server.host)
    image, bare = build("trainer"), build("bare")
    sent(engine, image, server.host)

    with pytest.raises(OutsideError, match="has no such image"):
        verify("nothing", where)

    engine.client.api.tag(bare.image_id, f"{server.host}/{REPOSITORY}", "bare")
    engine.client.api.push(f"{server.host}/{REPOSITORY}", tag="bare")
    engine.client.api.remove_image(f"{server.host}/{REPOSITORY}:bare")
    with pytest.raises(CheckFailed, match="no receipt lies beside it") as caught:
        verify(f"{server.host}/{REPOSITORY}:bare", where)
    assert caught.value.exit_code == 4

    with pytest.raises(CheckFailed, match="check loader is version 1, now it is 2"):
        verify(f"sha256:{str(image.digest)[7:]}", where, suite=NEWER)

    sent(engine, image, server.host, receipt=proof(image, accelerator="A100", made_at="2027"))
    assert verify("v100", where).receipt.accelerator == "V100"


def test_a_receipt_of_another_image_proves_nothing(
    engine: Engine, build: Build, server: RegistryServer
) -> None:
    """Someone copies a receipt that holds elsewhere beside an image without one."""
    proven, other = build("proven"), build("other")
    sent(engine, proven, server.host)
    sent(engine, other, server.host, "other")
    with Registry(server.host) as there:
        image = there.manifest(REPOSITORY, "other")
        assert image is not None
        forged = registry.artifact(
            RECEIPT_TYPE, receipts.dump(proof(proven)), RECEIPT_TYPE, image.descriptor, {}
        )
        there.put_manifest(REPOSITORY, forged.digest, forged)
        entry = replace(forged.descriptor, artifact_type=RECEIPT_TYPE)
        there.put_manifest(
            REPOSITORY, registry.fallback_tag(image.digest), registry.index((entry,))
        )
    with pytest.raises(CheckFailed, match="the receipt is for another image"):
        verify("other", settings(server.host))


@pytest.mark.parametrize("what", ["manifest", "receipt", "config"])
def test_bytes_changed_on_the_registrys_disk_are_seen(
    engine: Engine, build: Build, server: RegistryServer, what: str
) -> None:
    image = build("trainer")
    result = sent(engine, image, server.host)
    where = settings(server.host)
    found = verify("v100", where)
    digest = {
        "manifest": str(image.digest),
        "config": found.image_id,
        "receipt": registry.digest_of(receipts.dump(found.receipt)),
    }[what]
    file = server.blob_file(digest)
    file.write_bytes(file.read_bytes().replace(b'"V100"', b'"A100"') + b"\n")
    server.kill()  # it keeps what it read in memory
    server.start()
    with pytest.raises(CheckFailed, match=f"{digest}: the registry has other bytes"):
        verify(result.reference, where)


# An image with a program that is not our trainer ------------------------------------------------

PROGRAM = suites.PROGRAM.required("V100")


def test_what_a_push_accepts_of_a_programs_image_verify_and_promote_accept(
    engine: Engine, build: Build, server: RegistryServer
) -> None:
    where = settings(server.host)
    image = build("program", suite="program")
    receipt = proof(image, suite="program", checks=results(PROGRAM))
    sent(engine, image, server.host, "v100-script", receipt=receipt)
    assert verify("v100-script", where).receipt == receipt
    assert promote("v100-script", "live", where).moved
    assert server.tags(REPOSITORY)["live"] == image.digest
    with pytest.raises(CheckFailed, match="of the suite program, the image needs trainer"):
        verify("v100-script", where, suite=suites.TRAINER)


@pytest.mark.parametrize("named", [True, False])
def test_a_receipt_cannot_choose_the_weaker_suite_for_an_image_of_our_trainer(
    engine: Engine, build: Build, server: RegistryServer, named: bool
) -> None:
    """Whether it names that suite, or holds only the checks of it."""
    image = build("trainer")
    weaker = proof(image, suite="program" if named else "trainer", checks=results(PROGRAM))
    reason = "of the suite program, the image needs trainer" if named else "holds no check size"
    with pytest.raises(CheckFailed, match=reason):
        sent(engine, image, server.host, receipt=weaker)
    sent(engine, image, server.host)
    with Registry(server.host) as there:  # past the push, straight beside the image
        manifest = there.manifest(REPOSITORY, "v100")
        assert manifest is not None
        where = registry.parse(f"{server.host}/{REPOSITORY}")
        attach(there, where, manifest, proof(image, made_at="2026", checks=()))
        attach(there, where, manifest, weaker.model_copy(update={"made_at": "2027"}))
    assert verify("v100", settings(server.host)).receipt.suite == "trainer"
    assert "training" in {one.name for one in verify("v100", settings(server.host)).receipt.checks}


def test_a_suite_that_nobody_knows_is_refused(
    engine: Engine, build: Build, server: RegistryServer
) -> None:
    image = build("trainer", suite="easy")
    with pytest.raises(CheckFailed, match="says 'easy', and there is no such suite"):
        sent(engine, image, server.host)


# Promote, and back -------------------------------------------------------------------------------


def test_promote_moves_a_tag_and_every_step_leads_back(
    engine: Engine, build: Build, server: RegistryServer
) -> None:
    where = settings(server.host)
    images = [build(f"image{number}") for number in range(4)]
    for number, image in enumerate(images):
        sent(engine, image, server.host, f"version-{number}")
    a, b, c, d = (image.digest for image in images)

    def now() -> str:
        return server.tags(REPOSITORY)["production"]

    assert promote("version-0", "production", where).previous is None
    for number in (1, 2):
        promote(f"version-{number}", "production", where)
    assert now() == c
    assert not promote("version-2", "production", where).moved

    assert rollback("production", where).digest == b == now()
    assert rollback("production", where).digest == a == now()
    with pytest.raises(OutsideError, match="no way back"):
        rollback("production", where)

    # forward from the middle: what was gone back from does not come again
    promote("version-1", "production", where)
    promote("version-3", "production", where)
    assert now() == d
    assert rollback("production", where).digest == b
    assert rollback("production", where).digest == a


def test_a_push_can_be_taken_back(engine: Engine, build: Build, server: RegistryServer) -> None:
    where = settings(server.host)
    first, second = build("first"), build("second")
    sent(engine, first, server.host)
    with pytest.raises(OutsideError, match="it never moved, so there is no way back"):
        rollback("v100", where)
    sent(engine, second, server.host)
    assert server.tags(REPOSITORY)[history_tag("v100")]
    back = rollback("v100", where)
    assert (back.digest, back.previous) == (first.digest, second.digest)
    assert server.tags(REPOSITORY)["v100"] == first.digest


def test_what_is_not_proven_is_not_promoted(
    engine: Engine, build: Build, server: RegistryServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    image = build("trainer")
    sent(engine, image, server.host)
    monkeypatch.setattr(suites, "of_image", lambda _: NEWER)
    with pytest.raises(CheckFailed):
        promote("v100", "production", settings(server.host))
    assert "production" not in server.tags(REPOSITORY)


@pytest.mark.parametrize("place", ["production", "production-history"])
def test_a_torn_promotion_leaves_the_tag_and_the_way_back(
    engine: Engine, build: Build, server: RegistryServer, place: str
) -> None:
    images = [build(f"image{number}") for number in range(3)]
    for number, image in enumerate(images):
        sent(engine, image, server.host, f"version-{number}")
    where = settings(server.host)
    promote("version-0", "production", where)
    promote("version-1", "production", where)
    torn = Fault("PUT", f"/manifests/{place}$", 400, times=None)
    with faulty(server.host, torn) as proxy, pytest.raises(OutsideError):
        promote("version-2", "production", settings(proxy.host))
    assert server.tags(REPOSITORY)["production"] == images[1].digest
    assert rollback("production", where).digest == images[0].digest


# Tags -------------------------------------------------------------------------------------------


def test_tags_carry_the_commit_and_say_when_the_tree_differs(tmp_path: Path) -> None:
    def git(*arguments: str) -> str:
        command = ["git", "-c", "user.name=x", "-c", "user.email=x@x", *arguments]
        return subprocess.run(
            command, cwd=tmp_path, check=True, capture_output=True, text=True
        ).stdout.strip()

    assert tags_for("v100", "2.21.0", tmp_path) == ("v100-2.21.0", "v100")
    git("init", "-q")
    assert tags_for("v100", "2.21.0", tmp_path) == ("v100-2.21.0", "v100")
    (tmp_path / "file").write_text("1")
    git("add", ".")
    git("commit", "-qm", "x")
    commit = git("rev-parse", "--short=12", "HEAD")
    assert tags_for("v100", "2.21.0", tmp_path, ("mine",)) == (
        f"v100-2.21.0-{commit}",
        "mine",
        "v100",
    )
    (tmp_path / "file").write_text("2")
    assert tags_for("v100", "2.21.0", tmp_path)[0] == f"v100-2.21.0-{commit}-dirty"
