"""An image in a real registry is verified against its receipt."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from builder import registry
from builder.core.errors import CheckFailed, OutsideError
from builder.frameworks.tensorflow import suite as suites
from builder.pipeline.verify import ACCELERATOR, RECEIPT_TYPE, attach, verify
from builder.prove import receipts
from builder.registry import Descriptor, referrers
from tests.pipeline.pushing import NEWER, REPOSITORY, results
from tests.registry.server import RegistryServer
from tests.trust.signing import Repository, at, image, receipt

pytestmark = pytest.mark.network

PROGRAM = suites.PROGRAM.required("V100")
"""The checks of an image with a program that is not our trainer."""


def test_verify_says_what_is_wrong(repository: Repository) -> None:
    settings = repository.settings()
    with pytest.raises(OutsideError, match="has no such image"):
        verify("nothing", settings)
    repository.image("bare", "bare")
    with pytest.raises(CheckFailed, match="no receipt refers to it") as caught:
        verify(f"{repository.reference}:bare", settings)
    assert caught.value.exit_code == 4

    made = repository.proven()
    assert verify("v100", settings).receipt == receipt(made)
    with pytest.raises(CheckFailed, match="check loader is version 1, now it is 2"):
        verify(made.digest, settings, suite=NEWER)
    repository.client.put_manifest(
        repository.reference.repository, "list", registry.index((made.descriptor,))
    )
    with pytest.raises(CheckFailed, match="is a list of images"):
        verify("list", settings)


def test_receipts_that_prove_nothing_hide_no_older_one(repository: Repository) -> None:
    made = repository.image("hello", "v100", **{ACCELERATOR: "V100"})
    for changes, reason in (
        ({"accelerator": "A100"}, "its label says V100, its receipt A100"),
        ({"accelerator": "Z900"}, "Z900"),
        ({"digest": f"sha256:{'a' * 64}"}, "the receipt is for another image"),
        ({"checks": ()}, "holds no check size"),
    ):
        strange = receipt(made, made_at="2099", **changes)
        attach(repository.client, repository.reference, made, strange)
        with pytest.raises(CheckFailed, match=reason):
            verify("v100", repository.settings())
        repository.client.put_manifest(
            repository.reference.repository, registry.fallback_tag(made.digest), registry.index(())
        )
    for proof in (receipt(made), receipt(made, made_at="2026-11-22"), strange):
        attach(repository.client, repository.reference, made, proof)
    empty = registry.artifact(RECEIPT_TYPE, made.descriptor, {}, made.descriptor)
    empty = registry.manifest({**empty.content, "layers": []})
    referrers.attach(repository.client, repository.reference.repository, empty)
    for change in ({"checks": [{"name": ["size"]}]}, {"made_at": {}}, {"schema_version": []}):
        odd = json.dumps({**receipt(made).model_dump(mode="json"), **change}).encode()
        repository.client.put_blob(repository.reference.repository, odd)
        content = Descriptor.of(RECEIPT_TYPE, odd)
        artifact = registry.artifact(
            RECEIPT_TYPE, content, {referrers.CREATED: "9"}, made.descriptor
        )
        referrers.attach(repository.client, repository.reference.repository, artifact)
    verification = verify("v100", repository.settings())  # the newest that holds
    assert verification.receipt == receipt(made, made_at="2026-11-22")


def test_a_receipt_of_another_image_proves_nothing(repository: Repository) -> None:
    """Someone lists a receipt that holds elsewhere for an image without one."""
    proven, made = repository.proven(), repository.image("other", "other")
    name = repository.reference.repository
    content = Descriptor.of(RECEIPT_TYPE, receipts.dump(receipt(proven)))
    moved = registry.artifact(RECEIPT_TYPE, content, {}, made.descriptor)
    referrers.attach(repository.client, name, moved)
    with pytest.raises(CheckFailed, match="the receipt is for another image"):
        verify("other", repository.settings())

    (theirs,) = repository.client.referrers(name, proven.digest, RECEIPT_TYPE)
    entry = replace(theirs, artifact_type=RECEIPT_TYPE)
    repository.client.put_manifest(
        name, registry.fallback_tag(made.digest), registry.index((entry,))
    )
    with pytest.raises(CheckFailed, match=f"refers to {proven.digest}"):
        verify("other", repository.settings())


def test_bytes_changed_on_the_registrys_disk_are_noticed(server: RegistryServer) -> None:
    with registry.Registry(server.host) as client:
        made = image(client)
        attach(client, at(server.host), made, receipt(made))
    reference = f"{server.host}/{REPOSITORY}@{made.digest}"
    settings = Repository(client, at(server.host)).settings()
    for digest in (
        made.digest,
        made.config.digest,
        registry.digest_of(receipts.dump(receipt(made))),
    ):
        file = server.blob_file(digest)
        whole = file.read_bytes()
        file.write_bytes(whole + b"\n")
        server.kill()  # it keeps what it read in memory
        server.start()
        with pytest.raises(CheckFailed, match=f"{digest}: the registry has other bytes"):
            verify(reference, settings)
        file.write_bytes(whole)


def test_a_receipt_cannot_choose_the_weaker_suite(repository: Repository) -> None:
    """Whether it names that suite, or holds only the checks of it."""
    program = {"suite": "program", "checks": results(PROGRAM)}
    made = repository.proven("trainer", **program)
    with pytest.raises(CheckFailed, match="of the suite program, the image needs trainer"):
        verify("v100", repository.settings())
    weaker = receipt(made, suite="trainer", made_at="2027", checks=results(PROGRAM))
    attach(repository.client, repository.reference, made, weaker)
    with pytest.raises(CheckFailed, match="holds no check size"):
        verify("v100", repository.settings())

    labelled = repository.image("script", "script", **{suites.LABEL: "program"})
    attach(repository.client, repository.reference, labelled, receipt(labelled, **program))
    assert verify("script", repository.settings()).receipt.suite == "program"
    with pytest.raises(CheckFailed, match="of the suite program, the image needs trainer"):
        verify("script", repository.settings(), suite=suites.TRAINER)
    easy = repository.image("easy", "easy", **{suites.LABEL: "easy"})
    attach(repository.client, repository.reference, easy, receipt(easy))
    with pytest.raises(CheckFailed, match="says 'easy', and there is no such suite"):
        verify("easy", repository.settings())
