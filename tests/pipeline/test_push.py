"""A proven image goes to a real registry whole, under its tags."""

from __future__ import annotations

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from builder.core.errors import CheckFailed, InputError, OutsideError
from builder.core.events import Event, StepDone, StepLog, StepProgress
from builder.core.retry import Retry
from builder.core.settings import Settings
from builder.core.trustsettings import KEYLESS, NamedIdentity, TrustSettings
from builder.engine import BuildRequest, Engine
from builder.pipeline.push import push
from builder.pipeline.verify import ACCELERATOR, verify
from builder.prove.receipts import CheckResult
from builder.trust import keyless
from tests.emulators import sigstore
from tests.emulators.registry_faults import Fault, faulty
from tests.pipeline.pushing import (
    QUICK,
    REPOSITORY,
    REQUIRED,
    Build,
    Image,
    other_engine,
    proof,
    results,
    sent,
    settings,
)
from tests.registry import server as registry_server
from tests.registry.making import coded, docker_config
from tests.registry.server import RegistryServer, skopeo
from tests.trust import signing

pytestmark = [pytest.mark.engine, pytest.mark.network]


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


def test_a_push_that_is_told_a_key_signs_and_a_second_one_does_not(
    engine: Engine, build: Build, server: RegistryServer, tmp_path: Path
) -> None:
    ours = signing.pair(tmp_path, "ours")
    image = build("trainer")
    where = signing.settings(server.host, ours, key=ours)
    first = push(engine, image, proof(image), where, ("v100",), retry=QUICK)
    assert len(first.signed) == 2
    assert verify("v100", where).signer == str(ours.public)
    assert verify("v100", settings(server.host)).digest == image.digest == first.digest

    again = push(engine, image, proof(image), where, ("v100",), retry=QUICK)
    assert again.signed == () and again.unchanged


def test_an_identity_signs_a_push_and_a_second_one_logs_nothing(
    engine: Engine,
    build: Build,
    server: RegistryServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    who = "builder@my-project.iam.gserviceaccount.com"
    image = build("trainer")
    with sigstore.serving() as there:
        monkeypatch.setenv(keyless.TOKEN, there.token(who))
        root, config = there.files(tmp_path)
        trust = TrustSettings(
            key=KEYLESS,
            prove=(NamedIdentity(who, there.issuer),),
            trusted_root=str(root),
            signing_config=str(config),
        )
        where = replace(settings(server.host), trust=trust)
        first = push(engine, image, proof(image), where, ("v100",), retry=QUICK)
        assert len(first.signed) == 2
        again = push(engine, image, proof(image), where, ("v100",), retry=QUICK)
        assert again.signed == () and again.unchanged
        assert there.seen.count("/api/v1/log/entries") == 2
    assert verify("v100", where).signer == f"{who} ({there.issuer})"  # Sigstore is gone by now


def test_a_key_that_does_not_open_ends_a_push_before_it_sends(
    engine: Engine, build: Build, server: RegistryServer, tmp_path: Path
) -> None:
    ours = signing.pair(tmp_path, "ours")
    ours.path.write_text(ours.public.read_text())
    image = build("trainer")
    with pytest.raises(InputError, match="no private key"):
        push(engine, image, proof(image), signing.settings(server.host, key=ours), ("v100",))
    assert server.tags(REPOSITORY) == {}


def test_a_second_push_sends_nothing_and_says_so(
    engine: Engine, build: Build, server: RegistryServer
) -> None:
    base = build("base", tag="base-1")
    image = build("trainer", base)
    with faulty(server.host) as proxy:
        sent(engine, image, proxy.host, base=base)
        proxy.seen.clear()
        events: list[Event] = []
        result = sent(engine, image, proxy.host, base=base, events=events)
        assert result.unchanged and result.moved == () and result.sent == 0
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
