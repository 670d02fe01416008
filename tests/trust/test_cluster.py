"""The policy for a cluster: cosign judges by its rule what we judge by [trust]."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from builder.core import yamlfile
from builder.core.errors import CheckFailed
from builder.pipeline.verify import verify
from builder.registry import Manifest, Registry
from builder.trust import cluster, policy, statements
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


def of(*keys: Pair, suite: str = "", age: float | None = None) -> Policy:
    found = policy.of(settings("h.example.com", *keys, suite=suite, age=age).trust)
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
    assert {one["signatureFormat"] for one in read["spec"]["authorities"]} == {"bundle"}
    (asked,) = read["spec"]["authorities"][0]["attestations"]
    assert asked["predicateType"] == statements.RECEIPT
    assert asked["policy"] == {"type": "rego", "data": cluster.rule(of(ours))}


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
