"""The policy for a cluster: cosign judges by its rule what we judge by [trust]."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from builder.core import yamlfile
from builder.core.errors import CheckFailed, InputError
from builder.pipeline.verify import verify
from builder.registry import Manifest, Registry
from builder.trust import cluster, keys, policy, statements
from builder.trust.identities import OidcIdentity
from builder.trust.policy import Policy
from tests.registry import server as registry_server
from tests.registry.server import RegistryServer
from tests.trust.signing import Pair, at, image, pair, receipt, settings, sign
from tests.trust.strangers import accepts

DAY = 86400.0


@pytest.fixture
def ours(tmp_path: Path) -> Pair:
    return pair(tmp_path, "ours")


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RegistryServer]:
    with registry_server.registry(tmp_path / "registry") as running:
        yield running


def of(*pairs: Pair, suite: str = "", age: float | None = None) -> Policy:
    found = policy.of(settings("h.example.com", *pairs, suite=suite, age=age).trust)
    assert found
    return found


def test_it_names_the_repository_and_each_key(ours: Pair, tmp_path: Path) -> None:
    other = pair(tmp_path, "other")
    text = yamlfile.dump(cluster.image_policy(at("h.example.com"), of(ours, other)))
    read = YAML(typ="safe").load(text)
    assert read["metadata"]["name"] == "team-training"
    assert read["spec"]["images"][0]["glob"] == "h.example.com/team/training@*"
    assert [one["key"]["data"] for one in read["spec"]["authorities"]] == [
        ours.public.read_text(), other.public.read_text(),
    ]  # fmt: skip
    assert all("signatureFormat" not in one for one in read["spec"]["authorities"])
    (asked,) = read["spec"]["authorities"][0]["attestations"]
    assert asked["predicateType"] == statements.RECEIPT
    assert asked["policy"] == {"type": "rego", "data": cluster.rule(of(ours))}


IDENTITY = OidcIdentity("ci@example.com", "https://accounts.google.com")


def test_an_identity_in_the_words_of_each_controller(ours: Pair) -> None:
    mixed = replace(of(ours), prove=(keys.public(str(ours.public)), IDENTITY))
    named = [{"issuer": IDENTITY.issuer, "subject": IDENTITY.name}]
    _, authority = cluster.image_policy(at("h.example.com"), mixed)["spec"]["authorities"]
    assert authority["signatureFormat"] == "bundle"  # policy-controller takes no other of these
    assert authority["keyless"]["identities"] == named
    _, attestor = cluster.validating_policy(at("h.example.com"), mixed)["spec"]["attestors"]
    assert attestor == {"name": "prover2", "cosign": {"keyless": {"identities": named}}}
    with pytest.raises(InputError, match="Binary Authorization knows keys alone"):
        cluster.platform_policy(at("h.example.com"), mixed)
    own = replace(mixed, prove=(replace(IDENTITY, trusted_root="keys/root.json"),))
    for write in (cluster.image_policy, cluster.validating_policy):
        with pytest.raises(InputError, match="a Sigstore that a cluster has to be told about"):
            write(at("h.example.com"), own)


def test_kyverno_is_asked_for_the_same(ours: Pair) -> None:
    spec = cluster.validating_policy(at("h.example.com"), of(ours, suite="trainer", age=30 * DAY))[
        "spec"
    ]
    (attestor,) = spec["attestors"]
    assert attestor["cosign"]["key"]["data"] == ours.public.read_text()
    assert attestor["cosign"]["ctlog"]["insecureIgnoreTlog"]
    asked = [one["expression"] for one in spec["validations"]]
    for kind in ("containers", "initContainers", "ephemeralContainers"):
        about = [one for one in asked if one.startswith(f"images.{kind}.all(image, ")]
        assert len(about) == 4
        assert any("[attestors.prover1]) > 0" in one for one in about)
        assert any('.suite in ["trainer"]' in one for one in about)
        assert any('<= duration("2592000s")' in one for one in about)
    assert len(cluster.validating_policy(at("h"), of(ours))["spec"]["validations"]) == 6


def test_binary_authorization_is_told_each_key(ours: Pair, tmp_path: Path) -> None:
    other = pair(tmp_path, "other")
    told = cluster.platform_policy(at("h.example.com"), of(ours, other))
    (check,) = told["gkePolicy"]["checkSets"][0]["checks"]
    authorities = check["sigstoreSignatureCheck"]["sigstoreAuthorities"]
    found = [one["publicKeySet"]["publicKeys"] for one in authorities]
    assert found == [[{"publicKeyPem": one.public.read_text()}] for one in (ours, other)]


def for_cosign(rule: str) -> str:
    """The rule under the names that cosign asks for; policy-controller asks for its own."""
    renamed = rule.replace("package sigstore", "package signature").replace("isCompliant", "allow")
    assert renamed.count("allow") == rule.count("isCompliant") == 2
    return renamed


@pytest.mark.network
def test_cosign_judges_by_the_rule_as_we_do(server: RegistryServer, ours: Pair) -> None:
    ago = {days: (datetime.now(UTC) - timedelta(days=days)).isoformat() for days in (2, 40)}
    with Registry(server.host) as there:

        def proven(text: str, **changes: object) -> Manifest:
            made = image(there, text)
            sign(there, at(server.host), made, receipt(made, **changes), ours.signer)
            return made

        fresh, old = proven("fresh", made_at=ago[2]), proven("old", made_at=ago[40])
        program = proven("program", made_at=ago[2], suite="program")
        whole = receipt(fresh).checks
        broken = proven(
            "broken", checks=(whole[0].model_copy(update={"passed": False}), *whole[1:])
        )
    for suite, age, good, bad in (
        ("", None, (fresh, old), (broken,)),
        ("", 30 * DAY, (fresh,), (old, broken)),
        ("trainer", None, (fresh, old), (program,)),
        ("trainer", 30 * DAY, (fresh,), (old, program)),
    ):
        file = ours.path.with_name("rule.rego")
        file.write_text(for_cosign(cluster.rule(of(ours, suite=suite, age=age))))
        mine = settings(server.host, ours, suite=suite, age=age)
        for made in (*good, *bad):
            theirs = accepts(
                str(at(server.host).at(made.digest)), ours.public, statements.RECEIPT,
                "--policy", file,
            )  # fmt: skip
            assert theirs == (made in good), (suite, age)
            if made in good:
                verify(made.digest, mine)
            else:
                with pytest.raises(CheckFailed):
                    verify(made.digest, mine)
