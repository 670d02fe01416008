"""An image in a real registry is checked against its receipt."""

from __future__ import annotations

from dataclasses import replace

import pytest

from builder import registry
from builder.core.errors import CheckFailed, OutsideError
from builder.engine import Engine
from builder.pipeline.tags import promote
from builder.pipeline.verify import RECEIPT_TYPE, attach, verify
from builder.prove import receipts
from builder.registry import Descriptor, Registry
from builder.tensorflow import suite as suites
from tests.pipeline.pushing import NEWER, REPOSITORY, Build, proof, results, sent, settings
from tests.registry.server import RegistryServer

pytestmark = [pytest.mark.engine, pytest.mark.network]


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
        content = Descriptor.of(RECEIPT_TYPE, receipts.dump(proof(proven)))
        forged = registry.artifact(RECEIPT_TYPE, content, {}, image.descriptor)
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


def test_a_receipt_of_an_unknown_accelerator_hides_no_older_one(
    engine: Engine, build: Build, server: RegistryServer
) -> None:
    image = build("trainer")
    sent(engine, image, server.host)
    with Registry(server.host) as there:
        manifest = there.manifest(REPOSITORY, "v100")
        assert manifest is not None
        where = registry.parse(f"{server.host}/{REPOSITORY}")
        strange = proof(image, made_at="2099").model_copy(update={"accelerator": "Z900"})
        attach(there, where, manifest, strange)
    assert verify("v100", settings(server.host)).receipt.accelerator == "V100"


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
