"""What is signed about an image, and whether it counts: judged by us and by cosign alike.

The registry is Debian's docker-registry, which knows the fallback tag only.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from builder import registry
from builder.core.errors import CheckFailed, InputError
from builder.pipeline import prepare, signing
from builder.pipeline.records import ImageRecord
from builder.pipeline.tags import promote, rollback
from builder.pipeline.verify import attach, verify
from builder.registry import Manifest, Registry, referrers
from builder.spec.advisories import AcceptedAdvisory
from builder.trust import beside, bundle, statements
from builder.trust.provenance import KIND
from tests.emulators.registry_faults import faulty
from tests.pipeline.pushing import REPOSITORY
from tests.registry.server import RegistryServer
from tests.trust.signing import Pair, at, image, pair, receipt, settings, sign
from tests.trust.strangers import OFFLINE, accepts, cosign

pytestmark = pytest.mark.network


@pytest.fixture
def there(server: RegistryServer) -> Iterator[Registry]:
    with Registry(server.host) as client:
        yield client


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    return pair(tmp_path_factory.mktemp("ours"), "prover")


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    return pair(tmp_path_factory.mktemp("other"), "other")


def signed(there: Registry, key: Pair, text: str = "hello", **changes: object) -> Manifest:
    """An image with its receipt, signed."""
    made = image(there, text)
    proof = receipt(made, **changes)
    attach(there, at(there.host), made, proof)
    sign(there, at(there.host), made, proof, key.signer)
    return made


def name(there: Registry, made: Manifest) -> str:
    """The image as strangers name it."""
    return str(at(there.host).at(made.digest))


def test_each_statement_is_accepted_and_the_image_stays_what_it_is(
    there: Registry, ours: Pair, server: RegistryServer
) -> None:
    before = image(there)
    made = signed(there, ours)
    assert made.digest == before.digest == there.head(REPOSITORY, "v100")

    found = verify("v100", settings(there.host, ours))
    assert (found.digest, found.signer) == (made.digest, str(ours.public))
    assert found.receipt == receipt(made)
    for kind in (statements.SIGNATURE, statements.RECEIPT):
        assert accepts(name(there, made), ours.public, kind), kind
    done = cosign(
        "verify", "--key", ours.public, *OFFLINE, name(there, made), folder=ours.path.parent
    )
    assert done.returncode == 0, done.stderr


def test_what_cosign_attests_counts_as_well(there: Registry, ours: Pair, tmp_path: Path) -> None:
    made = image(there)
    (tmp_path / "receipt.json").write_text(receipt(made).model_dump_json())
    (tmp_path / "none.json").write_text(
        '{"mediaType": "application/vnd.dev.sigstore.signingconfig.v0.2+json"}'
    )
    done = cosign("generate-key-pair", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    done = cosign(
        "attest", "--key", "cosign.key", "--type", statements.RECEIPT, "--yes", OFFLINE[1],
        "--predicate", "receipt.json", "--signing-config", "none.json", name(there, made),
        folder=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    theirs = Pair(tmp_path / "cosign.key")
    assert verify("v100", settings(there.host, theirs)).signer == str(theirs.public)


def test_a_second_time_nothing_is_signed(there: Registry, ours: Pair, other: Pair) -> None:
    made = signed(there, ours)
    again = sign(there, at(there.host), made, receipt(made), ours.signer)
    assert again == ()
    assert len(sign(there, at(there.host), made, receipt(made), other.signer)) == 2


# What it is made of ------------------------------------------------------------------------------


def record(root: Path, target: str = "cpu") -> ImageRecord:
    """What a build of today's files would note."""
    plan = prepare.prepare(root, target).plan
    assert plan.base
    return ImageRecord(
        target=target,
        reference=f"training:{target}",
        digest=None,
        image_id="sha256:" + "0" * 64,
        inputs=plan.inputs_hash,
        base=f"training:{plan.base.tag}",
        base_digest="sha256:" + "b" * 64,
        base_origin="built",
        root="",
        compressed_bytes=1,
        unpacked_bytes=1,
        budget_bytes=1,
        packages=(),
        phases={},
        engine="machine Docker 28",
        tensorflow="2.21.0",
    )


def test_an_image_has_all_four_statements_and_its_base_has_two(
    there: Registry, ours: Pair, root: Path
) -> None:
    known = signing.about(root, record(root), "0.1.0")
    made = image(there)
    assert known.base_made
    base = image(there, "base", known.base_made.base)
    where = at(there.host)
    said = signing.said(there, where, made, receipt(made), known)
    assert len(signing.sign(there, where, said, ours.signer, "2026-11-22")) == 6
    for digest, kinds in (
        (made.digest, ("urn:training-image-factory:receipt:v1", "cyclonedx", "slsaprovenance1")),
        (base.digest, ("slsaprovenance1",)),
    ):
        for kind in (*kinds, statements.SIGNATURE):
            assert accepts(str(where.at(digest)), ours.public, kind), kind
    (bill,) = beside.find(there, where, made.digest, statements.BILL, (ours.signer.public,)).signed
    names = {one["name"]: one for one in bill.statement.predicate["components"]}
    assert names["libexpat1"]["version"].startswith("2.5.0") and names["libexpat1"]["hashes"]
    assert names["tensorflow-cpu"]["hashes"]
    (how,) = beside.find(there, where, base.digest, KIND, (ours.signer.public,)).signed
    assert how.statement.predicate["buildDefinition"]["externalParameters"] == {
        "target": "",
        "base": known.base_made.base,
    }
    assert there.head(REPOSITORY, "v100") == made.digest
    assert signing.sign(there, where, said, ours.signer, "2026-11-22") == ()


def test_signing_takes_few_requests(server: RegistryServer, ours: Pair, root: Path) -> None:
    """They wait for each other as little as they can, and none asks what is known already."""
    known = signing.about(root, record(root), "0.1.0")
    assert known.base_made
    with Registry(server.host) as there:
        made, _ = image(there), image(there, "base", known.base_made.base)
        there.put_blob(REPOSITORY, registry.EMPTY)  # as the receipt of a push
    with faulty(server.host) as proxy, Registry(proxy.host) as there:
        said = signing.said(there, at(proxy.host), made, receipt(made), known)
        signing.sign(there, at(proxy.host), said, ours.signer, "2026-11-22")
        assert len(proxy.seen) == 52, "\n".join(proxy.seen)
        assert proxy.count("HEAD /.*blobs") == 2
        proxy.seen.clear()
        assert signing.sign(there, at(proxy.host), said, ours.signer, "2026-11-22") == ()
        assert proxy.count("P[OU][A-Z]+ ") == 0


def test_what_is_accepted_is_a_statement_of_its_own(
    there: Registry, ours: Pair, root: Path
) -> None:
    fields = {"id": "CVE-2023-52425", "package": "expat", "reason": "no XML", "until": "2999-12-31"}
    accepted = (AcceptedAdvisory.model_validate(fields),)
    known = replace(signing.about(root, record(root), "0.1.0"), accepted=accepted)
    made = image(there)
    said = signing.said(there, at(there.host), made, receipt(made), known)
    signing.sign(there, at(there.host), said, ours.signer, "2026-11-22")
    assert accepts(name(there, made), ours.public, "openvex")


def test_what_is_no_longer_true_is_not_signed(root: Path) -> None:
    old = replace(record(root), inputs="0" * 64)
    with pytest.raises(InputError, match="cpu: its files changed since the build"):
        signing.about(root, old, "0.1.0")


# What does not count -----------------------------------------------------------------------------


def refused(there: Registry, made: Manifest, key: Pair, says: str) -> None:
    """We refuse an image with exit code 4, wherever it counts, and cosign refuses it too."""
    where = settings(there.host, key)
    tags = there.head(REPOSITORY, "production")
    for deed in (
        lambda: verify(made.digest, where),
        lambda: promote(made.digest, "production", where),
    ):
        with pytest.raises(CheckFailed, match=says) as caught:
            deed()
        assert caught.value.exit_code == 4
        assert "\n" not in caught.value.message
    assert there.head(REPOSITORY, "production") == tags
    assert not accepts(name(there, made), key.public, statements.RECEIPT)


def test_an_image_that_nobody_signed(there: Registry, ours: Pair) -> None:
    made = image(there)
    attach(there, at(there.host), made, receipt(made))
    assert verify("v100", settings(there.host)).signer == ""
    refused(there, made, ours, "no signed receipt lies beside it")


def test_another_key(there: Registry, ours: Pair, other: Pair) -> None:
    refused(there, signed(there, other), ours, "signed by none of the keys that are trusted")


def test_a_statement_of_another_image_moved_over(there: Registry, ours: Pair) -> None:
    """Its signature is good, and it refers to this image: only its subject tells."""
    proven = signed(there, ours)
    made = image(there, "never proven", "other")
    for kind in (statements.RECEIPT, statements.SIGNATURE):
        (good,) = beside.find(
            there, at(there.host), proven.digest, kind, (ours.signer.public,)
        ).signed
        held = there.manifest(REPOSITORY, good.digest)
        assert held is not None
        moved = registry.manifest({**held.content, "subject": made.descriptor.json()})
        referrers.attach(there, REPOSITORY, moved)
    refused(there, made, ours, f"about {proven.digest}")


def test_the_list_of_another_image_moved_over(there: Registry, ours: Pair) -> None:
    """The whole fallback tag is copied: the statements still refer to the other image."""
    proven = signed(there, ours)
    made = image(there, "never proven", "other")
    listed = there.manifest(REPOSITORY, registry.fallback_tag(proven.digest))
    assert listed is not None
    there.put_manifest(REPOSITORY, registry.fallback_tag(made.digest), listed)
    with pytest.raises(CheckFailed, match=f"refers to {proven.digest}"):
        verify("other", settings(there.host, ours))


def test_a_statement_that_was_changed(there: Registry, ours: Pair) -> None:
    """Someone writes another receipt under the old signature."""
    made = image(there)
    data = json.loads(bundle.seal(statements.of_receipt(made.digest, receipt(made)), ours.signer))
    payload = base64.b64decode(data["dsseEnvelope"]["payload"]).replace(b'"V100"', b'"H100"')
    data["dsseEnvelope"]["payload"] = base64.b64encode(payload).decode()
    whole = json.dumps(data).encode()
    for blob in (registry.EMPTY, whole):
        there.put_blob(REPOSITORY, blob)
    referrers.attach(
        there,
        REPOSITORY,
        registry.artifact(
            bundle.MEDIA_TYPE,
            registry.Descriptor.of(bundle.MEDIA_TYPE, whole),
            {},
            made.descriptor,
        ),
    )
    refused(there, made, ours, "signed by none of the keys")


def test_a_flipped_byte_on_the_registrys_disk(
    there: Registry, ours: Pair, server: RegistryServer
) -> None:
    made = signed(there, ours)
    (good,) = beside.find(
        there, at(there.host), made.digest, statements.RECEIPT, (ours.signer.public,)
    ).signed
    held = there.manifest(REPOSITORY, good.digest)
    assert held is not None
    file = server.blob_file(held.layers[0].digest)
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)
    refused(there, made, ours, "the registry has other bytes")


def test_a_proof_that_is_too_old_or_too_weak(there: Registry, ours: Pair) -> None:
    then = (datetime.now(UTC) - timedelta(days=40)).isoformat(timespec="seconds")
    signed(there, ours, made_at=then)
    month, year = (settings(there.host, ours, age=days * 86400.0) for days in (30, 365))
    with pytest.raises(CheckFailed, match=r"proven 40\.0 days ago, and 30\.0 days are the most"):
        verify("v100", month)
    assert verify("v100", year).receipt.made_at == then

    made = image(there, "program")
    proof = receipt(made, suite="program")
    sign(there, at(there.host), made, proof, ours.signer)
    with pytest.raises(CheckFailed, match="suite program, and trainer is the least"):
        verify(made.digest, settings(there.host, ours, suite="trainer"))


def test_a_fresh_proof_counts_beside_an_old_one(there: Registry, ours: Pair) -> None:
    then = (datetime.now(UTC) - timedelta(days=40)).isoformat(timespec="seconds")
    now = datetime.now(UTC).isoformat(timespec="seconds")
    made = signed(there, ours, made_at=then)
    sign(there, at(there.host), made, receipt(made, made_at=now), ours.signer)
    assert verify("v100", settings(there.host, ours, age=86400.0)).receipt.made_at == now


def test_a_key_is_rotated_and_revoked(there: Registry, ours: Pair, other: Pair) -> None:
    """Both keys count for a while, then the new one alone."""
    made = signed(there, ours)
    assert verify("v100", settings(there.host, other, ours)).signer == str(ours.public)
    sign(there, at(there.host), made, receipt(made), other.signer)
    assert verify("v100", settings(there.host, other)).signer == str(other.public)

    unsigned_anew = signed(there, ours, "left behind")
    refused(there, unsigned_anew, other, "signed by none of the keys")


def test_the_way_back_asks_for_the_signature_but_not_for_the_age(
    there: Registry, ours: Pair, other: Pair
) -> None:
    then = (datetime.now(UTC) - timedelta(days=40)).isoformat(timespec="seconds")
    old, new = signed(there, ours, "old", made_at=then), signed(there, ours, "new")
    where = settings(there.host, ours)
    for one in (old, new):
        promote(one.digest, "production", where)
    with pytest.raises(CheckFailed, match="signed by none"):
        rollback("production", settings(there.host, other))
    assert there.head(REPOSITORY, "production") == new.digest
    assert rollback("production", settings(there.host, ours, age=86400.0)).digest == old.digest
