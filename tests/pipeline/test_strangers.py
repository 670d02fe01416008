"""What lies beside an image is read by cosign, oras, crane and skopeo of Debian 14.

Asked in two registries: Debian's docker-registry, which knows the fallback tag only, and one with
the referrers API (tests/emulators/referrers_api.py).
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from builder.core.errors import CheckFailed
from builder.pipeline.tags import promote
from builder.pipeline.verify import attach, verify
from builder.registry import Manifest, Registry, fallback_tag
from builder.trust import beside, bundle, statements
from tests.emulators.referrers_api import with_referrers
from tests.pipeline.pushing import REPOSITORY
from tests.registry.server import RegistryServer, skopeo
from tests.trust.signing import Pair, at, image, pair, receipt, settings, sign
from tests.trust.strangers import accepts, program

pytestmark = pytest.mark.network

KINDS = (statements.SIGNATURE, statements.RECEIPT)


@pytest.fixture(params=["fallback tag", "referrers API"])
def host(request: pytest.FixtureRequest, server: RegistryServer) -> Iterator[str]:
    """HOST:PORT of a registry."""
    if request.param == "fallback tag":
        yield server.host
        return
    with with_referrers(server.host) as proxy:
        yield proxy.host


@pytest.fixture
def ours(tmp_path: Path) -> Pair:
    return pair(tmp_path, "ours")


def signed(host: str, key: Pair, text: str = "hello") -> Manifest:
    """A proven image, signed."""
    with Registry(host) as there:
        made = image(there, text, text)
        attach(there, at(host), made, receipt(made))
        sign(there, at(host), made, receipt(made), key.signer)
    return made


def run(name: str, *words: str, folder: Path) -> str:
    """What a stranger says."""
    done = subprocess.run(
        [program(name), *words],
        env={**os.environ, "HOME": str(folder)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_each_stranger_reads_what_lies_beside_an_image(
    host: str, ours: Pair, tmp_path: Path
) -> None:
    made = signed(host, ours)
    name = str(at(host).at(made.digest))
    for kind in KINDS:
        assert accepts(name, ours.public, kind), kind

    kind = ("--artifact-type", bundle.MEDIA_TYPE)
    found = json.loads(
        run("oras", "discover", "--plain-http", "--format", "json", *kind, name, folder=tmp_path)
    )
    digests = [one["digest"] for one in found.get("referrers") or found["manifests"]]
    assert len(digests) == len(KINDS)
    for digest in digests:
        held = json.loads(
            run("crane", "manifest", "--insecure", str(at(host).at(digest)), folder=tmp_path)
        )
        assert held["subject"]["digest"] == made.digest
        (layer,) = held["layers"]
        blob = run(
            "crane", "blob", "--insecure", f"{at(host).name}@{layer['digest']}", folder=tmp_path
        )
        assert json.loads(blob)["mediaType"] == bundle.MEDIA_TYPE
    raw = skopeo("inspect", "--raw", "--tls-verify=false", f"docker://{name}")
    assert raw.encode() == made.data


def test_two_pushes_at_once_lose_no_statement(host: str, ours: Pair, tmp_path: Path) -> None:
    keys = [ours, *(pair(tmp_path, f"key{number}") for number in range(3))]
    with Registry(host) as there:
        made = image(there)

    def one(key: Pair) -> None:
        with Registry(host) as client:
            sign(client, at(host), made, receipt(made), key.signer)

    with ThreadPoolExecutor(len(keys)) as threads:
        list(threads.map(one, keys))
    with Registry(host) as there:
        for key in keys:
            found = beside.find(there, at(host), made.digest, None, (key.signer.public,))
            assert {said.statement.kind for said in found.signed} == set(KINDS)


def test_statements_go_from_either_registry_to_the_other(
    server: RegistryServer, ours: Pair, tmp_path: Path
) -> None:
    with with_referrers(server.host) as proxy:
        for source, target in ((server.host, proxy.host), (proxy.host, server.host)):
            made = signed(source, ours, f"from-{source.rpartition(':')[2]}")
            to = f"{target}/serving/training"
            tag = f"from-{source.rpartition(':')[2]}"
            moved = promote(tag, f"{to}:production", settings(source, ours))
            assert verify(f"{to}:production", settings(target, ours)).digest == made.digest
            for kind in KINDS:
                assert accepts(moved.reference, ours.public, kind), kind


def test_a_registry_with_the_api_gets_no_fallback_tag(server: RegistryServer, ours: Pair) -> None:
    with with_referrers(server.host) as proxy:
        made = signed(proxy.host, ours)
        assert verify("hello", settings(proxy.host, ours)).signer == str(ours.public)
    assert fallback_tag(made.digest) not in server.tags(REPOSITORY)


def test_statements_outlive_a_cleanup_of_what_no_tag_leads_to(
    server: RegistryServer, ours: Pair
) -> None:
    made = signed(server.host, ours)
    server.collect_garbage()
    assert verify("hello", settings(server.host, ours)).signer == str(ours.public)
    for kind in KINDS:
        assert accepts(str(at(server.host).at(made.digest)), ours.public, kind), kind


def test_a_revoked_key_is_revoked_everywhere(host: str, ours: Pair, tmp_path: Path) -> None:
    """Rotation as docs/trust.md tells it: both keys count, images are signed anew, then one."""
    new = pair(tmp_path, "new")
    kept, left = signed(host, ours, "kept"), signed(host, ours, "left")
    assert verify("kept", settings(host, new, ours)).signer == str(ours.public)
    with Registry(host) as there:
        sign(there, at(host), kept, receipt(kept), new.signer)
    assert verify("kept", settings(host, new)).signer == str(new.public)
    with pytest.raises(CheckFailed, match="signed by none of the keys"):
        verify("left", settings(host, new))
    assert accepts(str(at(host).at(kept.digest)), new.public, statements.RECEIPT)
    assert not accepts(str(at(host).at(left.digest)), new.public, statements.RECEIPT)
