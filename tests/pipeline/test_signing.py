"""What is attested of an image, and whether it counts: judged by us and by cosign alike.

The registry is Debian's docker-registry, which knows the fallback tag only, and the same behind a
proxy with the referrers API (tests/emulators/referrers_api.py).
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from builder import registry
from builder.config import targets
from builder.core.errors import CheckFailed, InputError
from builder.core.settings import KEYLESS, Identity, Settings, TrustSettings
from builder.pipeline import make, signing
from builder.pipeline.records import ImageRecord
from builder.pipeline.tags import promote
from builder.pipeline.verify import verify
from builder.registry import Manifest, Registry, manifests, referrers
from builder.registry.client import fallback_tag
from builder.trust import attestations, dsse, keyless
from tests.emulators import sigstore
from tests.emulators.referrers_api import with_referrers
from tests.emulators.registry_faults import faulty
from tests.pipeline.pushing import results
from tests.registry.server import skopeo
from tests.trust.programs import OFFLINE, accepts, cosign, ran
from tests.trust.signing import ACCOUNT, WORKFLOW, Pair, Repository, pair, receipt

KINDS = (dsse.SIGNATURE, dsse.RECEIPT)


@pytest.fixture
def with_api(repository: Repository) -> Iterator[Repository]:
    """The repository behind the referrers API."""
    with (
        with_referrers(repository.client.host) as proxy,
        Registry(proxy.host) as client,
    ):
        name = f"{proxy.host}/{repository.path}"
        yield Repository(client, registry.parse(name))


@pytest.mark.network
@pytest.mark.parametrize("kind", ["repository", "with_api"])
def test_other_programs_read_what_refers_to_an_image(
    request: pytest.FixtureRequest, kind: str, ours: Pair, tmp_path: Path
) -> None:
    repository: Repository = request.getfixturevalue(kind)
    bare = repository.image()
    made = repository.signed(ours)
    name = repository.name(made)
    assert made.digest == bare.digest == repository.head("v100")
    verification = verify("v100", repository.settings(ours))
    assert (verification.receipt, verification.signer) == (receipt(made), str(ours.public))

    for predicate_type in KINDS:
        assert accepts(name, ours.public, predicate_type), predicate_type
    words = ("verify", "--key", ours.public, *OFFLINE, name)
    assert cosign(*words, folder=ours.path.parent).returncode == 0
    words = ("discover", "--plain-http", "--format", "json", "--artifact-type", dsse.BUNDLE, name)
    listed = json.loads(ran("oras", *words, folder=tmp_path).stdout)
    digests = [each["digest"] for each in listed.get("referrers") or listed["manifests"]]
    assert len(digests) == len(KINDS)
    referrer = str(repository.reference.at(digests[0]))
    shown = ran("crane", "manifest", "--insecure", referrer, folder=tmp_path)
    content = json.loads(shown.stdout)
    assert content["subject"]["digest"] == made.digest
    assert skopeo("inspect", "--raw", "--tls-verify=false", f"docker://{name}") == (
        made.data.decode()
    )
    tags = repository.client.tags(repository.path, "sha256-")
    assert (fallback_tag(made.digest) in tags) == (kind == "repository")


@pytest.mark.network
@pytest.mark.parametrize("kind", ["repository", "with_api"])
def test_pushes_at_once_lose_nothing_and_a_second_one_signs_nothing(
    request: pytest.FixtureRequest, kind: str, tmp_path: Path
) -> None:
    repository: Repository = request.getfixturevalue(kind)
    made = repository.image()
    pairs = [pair(tmp_path, f"key{number}") for number in range(4)]

    def sign(key: Pair) -> int:
        with Registry(repository.client.host) as client:
            return len(replace(repository, client=client).sign(made, key.signer))

    for count in (2, 0):
        with ThreadPoolExecutor(len(pairs)) as threads:
            assert list(threads.map(sign, pairs)) == [count] * len(pairs)
    for key in pairs:
        assert verify("v100", repository.settings(key)).signer == str(key.public)


# What it is made of ------------------------------------------------------------------------------


def record(root: Path, target: str = "cpu") -> ImageRecord:
    """Return what a build of today's files would note."""
    plan = make.prepare(root, target)
    assert plan.base
    return ImageRecord(
        target=target,
        reference=f"training:{target}",
        digest=None,
        image_id="sha256:" + "0" * 64,
        inputs=plan.inputs,
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
        framework="tensorflow",
        release="2.21.0",
    )


@pytest.mark.network
def test_an_image_has_five_attestations_and_its_base_has_two(
    repository: Repository, ours: Pair, root: Path
) -> None:
    contents = signing.contents(targets.of(root, "cpu"), record(root), "0.1.0")
    assert contents.base_build
    made, tag = repository.proven(), contents.base_build.base
    base = repository.image("base", tag)
    with faulty(repository.client.host) as proxy, Registry(proxy.host) as client:

        def sign() -> int:
            name, path = repository.reference, repository.path
            statements = signing.statements(client, name, made, receipt(made), contents)
            return len(signing.sign(client, path, statements, ours.signer, "2026-11-22"))

        assert sign() == 6
        assert len(proxy.seen) <= 50, "\n".join(proxy.seen)
        assert proxy.count("HEAD /.*blobs") == 2  # none is asked for that is new
        proxy.seen.clear()
        assert sign() == 0 and proxy.count("P[OU][A-Z]+ ") == 0
    for manifest, kinds in (
        (made, (*KINDS, "cyclonedx", "slsaprovenance1")),
        (base, (dsse.SIGNATURE, "slsaprovenance1")),
    ):
        for kind in kinds:
            assert accepts(repository.name(manifest), ours.public, kind), kind
    trusted, path = (ours.signer.public,), repository.path
    (bill,) = attestations.find(repository.client, path, made.digest, dsse.SBOM, trusted).verified
    names = {each["name"]: each for each in bill.statement.predicate["components"]}
    assert names["libexpat1"]["hashes"] and names["tensorflow-cpu"]["hashes"]


def test_what_is_no_longer_true_is_not_signed(root: Path) -> None:
    old = replace(record(root), inputs="0" * 64)
    with pytest.raises(InputError, match="cpu: its files changed since the build"):
        signing.contents(targets.of(root, "cpu"), old, "0.1.0")


# What does not count -----------------------------------------------------------------------------


def refused(repository: Repository, made: Manifest, key: Pair, reason: str) -> None:
    """Check that we refuse an image with exit code 4, and that cosign refuses it too."""
    settings = repository.settings(key)
    for deed in (
        lambda: verify(made.digest, settings),
        lambda: promote(made.digest, "production", settings),
    ):
        with pytest.raises(CheckFailed, match=reason) as caught:
            deed()
        assert caught.value.exit_code == 4 and "\n" not in caught.value.message
    assert repository.head("production") is None
    assert not accepts(repository.name(made), key.public, dsse.RECEIPT)


def attestation(repository: Repository, made: Manifest, key: Pair, kind: str) -> Manifest:
    """Return the referrer that holds an attestation."""
    client, path = repository.client, repository.path
    (good, *_) = attestations.find(client, path, made.digest, kind, (key.signer.public,)).verified
    manifest = client.manifest(path, good.digest)
    assert manifest
    return manifest


@pytest.mark.network
def test_unsigned_signed_by_another_key_or_by_one_that_is_revoked(
    repository: Repository, ours: Pair, other: Pair
) -> None:
    """Rotation as docs/trust.md tells it: both keys count, images are signed anew, then one."""
    made = repository.proven()
    assert verify("v100", repository.settings()).signer == ""
    refused(repository, made, ours, "no signed receipt is attached to it")
    repository.sign(made, other.signer)
    refused(repository, made, ours, "signed by none of the keys that are trusted")
    kept, left = (repository.signed(ours, name, name) for name in ("kept", "left"))
    assert verify("kept", repository.settings(other, ours)).signer == str(ours.public)
    repository.sign(kept, other.signer)
    assert verify("kept", repository.settings(other)).signer == str(other.public)
    assert accepts(repository.name(kept), other.public, dsse.RECEIPT)
    refused(repository, left, other, "signed by none of the keys")


@pytest.mark.network
def test_attestations_of_another_image(repository: Repository, ours: Pair) -> None:
    """Their signatures are good: only the subjects tell, of the statement and of the referrer."""
    proven, made = repository.signed(ours), repository.image("never proven", "other")
    client, path = repository.client, repository.path
    listed = client.manifest(path, fallback_tag(proven.digest))
    assert listed
    client.put_manifest(path, fallback_tag(made.digest), listed)  # the whole list is moved over
    with pytest.raises(CheckFailed, match=f"refers to {proven.digest}"):
        verify("other", repository.settings(ours))
    client.put_manifest(path, fallback_tag(made.digest), manifests.index(()))
    for kind in KINDS:
        good = attestation(repository, proven, ours, kind)
        moved = registry.manifest({**good.content, "subject": made.descriptor.json()})
        referrers.attach(client, path, moved)
    refused(repository, made, ours, f"about {proven.digest}")


@pytest.mark.network
def test_a_changed_payload_under_the_old_signature(repository: Repository, ours: Pair) -> None:
    made, path = repository.image(), repository.path
    statement = dsse.Statement(made.digest, dsse.RECEIPT, receipt(made).model_dump(mode="json"))
    content = json.loads(ours.signer.seal(statement.payload))
    payload = base64.b64decode(content["dsseEnvelope"]["payload"]).replace(b'"V100"', b'"H100"')
    content["dsseEnvelope"]["payload"] = base64.b64encode(payload).decode()
    bundle = json.dumps(content).encode()
    for blob in (registry.EMPTY, bundle):
        repository.client.put_blob(path, blob)
    described = registry.Descriptor.of(dsse.BUNDLE, bundle)
    artifact = registry.artifact(dsse.BUNDLE, described, {}, made.descriptor)
    referrers.attach(repository.client, path, artifact)
    refused(repository, made, ours, "signed by none of the keys")


# An identity instead of a key --------------------------------------------------------------------


@pytest.mark.network
def test_an_identity_signs_what_cosign_accepts_and_the_other_way_round(
    repository: Repository, tmp_path: Path
) -> None:
    with sigstore.serving() as service:
        root, config = map(str, service.files(tmp_path))
        ours = Identity(identity=WORKFLOW, issuer=service.issuer)
        trust = TrustSettings(key=KEYLESS, prove=(ours,), trusted_root=root, signing_config=config)
        made = repository.proven()
        signer = keyless.signer(trust, {keyless.TOKEN: service.token(WORKFLOW)})
        repository.sign(made, signer)

        theirs = repository.image("theirs", "theirs")
        (tmp_path / "receipt.json").write_text(receipt(theirs).model_dump_json())
        (tmp_path / "token").write_text(service.token(WORKFLOW))
        done = cosign(
            "attest", "--identity-token", "token", "--type", dsse.RECEIPT, "--yes", OFFLINE[1],
            "--predicate", "receipt.json", "--signing-config", config, "--trusted-root", root,
            repository.name(theirs), folder=tmp_path,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
    # Sigstore is gone by now: nobody asks it
    settings = repository.settings().model_copy(update={"trust": trust})
    for tag in ("v100", "theirs"):
        assert verify(tag, settings).signer == f"{WORKFLOW} ({ours.issuer})"

    with sigstore.serving() as another:
        (tmp_path / "another").mkdir()
        foreign = str(another.files(tmp_path / "another")[0])
    for identity, trusted_root, counts in (
        (ours, root, True),
        (Identity(identity=ACCOUNT, issuer=ours.issuer), root, False),
        (Identity(identity=WORKFLOW, issuer="https://accounts.google.com"), root, False),
        (ours, foreign, False),
    ):
        done = cosign(
            "verify-attestation", "--type", dsse.RECEIPT, OFFLINE[1],
            "--certificate-identity", identity.identity,
            "--certificate-oidc-issuer", identity.issuer, "--trusted-root", trusted_root,
            repository.name(made), folder=tmp_path,
        )  # fmt: skip
        assert (done.returncode == 0) == counts, done.stderr
        trust = TrustSettings(prove=(identity,), trusted_root=trusted_root)
        if not counts:
            with pytest.raises(CheckFailed, match=r"is not proven: .*did not sign it"):
                verify("v100", Settings(registry=settings.registry, trust=trust))


@pytest.mark.network
def test_cosign_judges_by_the_rule_of_a_cluster(
    repository: Repository, ours: Pair, root: Path
) -> None:
    """policy-controller asks the rule of docs/trust.md under other names than cosign does. An image
    of others is admitted where the list of suites names `image`."""
    ago = {days: (datetime.now(UTC) - timedelta(days=days)).isoformat() for days in (2, 40)}
    failed = receipt(repository.image()).checks[0].model_copy(update={"passed": False})
    images = {
        text: repository.signed(ours, text, text, made_at=ago[days], **changes)
        for text, days, changes in (
            ("fresh", 2, {}),
            ("old", 40, {}),
            ("program", 2, {"suite": "program"}),
            ("theirs", 2, {"suite": "image"}),
            ("ran", 2, {"suite": "image", "checks": results({"start": 2, "gpu": 1})}),
            ("broken", 2, {"checks": (failed, *receipt(repository.image()).checks[1:])}),
        )
    }
    text = (root / "docs" / "trust.md").read_text(encoding="utf-8")
    rule = text[text.index("package sigstore") :].partition("\n\n")[0]
    rule = rule.replace("package sigstore", "package signature").replace("isCompliant", "allow")
    path, suites = ours.path.parent / "rule.rego", '["trainer"]'
    assert rule.count(suites) == 1
    is_one = f"{suites}[_] == input.predicate.suite"
    asked = 'input.predicate.checks[_].name == "gpu"'
    assert is_one in rule and asked in text
    for instead, admitted in (
        (is_one, {"fresh"}),
        (is_one.replace(suites, '["trainer", "image"]'), {"fresh", "theirs", "ran"}),
        (is_one.replace("trainer", "image") + f"\n  {asked}", {"ran"}),
    ):
        path.write_text(rule.replace(is_one, instead))
        for name, made in images.items():
            arguments = (repository.name(made), ours.public, dsse.RECEIPT, "--policy", path)
            assert accepts(*arguments) == (name in admitted), (name, instead)
    with pytest.raises(CheckFailed):
        verify("broken", repository.settings(ours))
