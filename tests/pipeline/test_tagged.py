"""The signature and the receipt under cosign 2's tags, which admission controllers still read.

cosign 3 reads them as well, where it is told `--new-bundle-format=false`.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from builder.core.errors import OutsideError
from builder.registry import Manifest, Registry, fallback_tag
from builder.trust import statements, tagged
from tests.emulators.registry_faults import Fault, faulty
from tests.pipeline.pushing import REPOSITORY
from tests.registry.server import RegistryServer
from tests.trust.signing import at, image, pair, receipt, sign
from tests.trust.strangers import OFFLINE, cosign

pytestmark = pytest.mark.network


@pytest.fixture
def there(server: RegistryServer) -> Iterator[Registry]:
    with Registry(server.host) as client:
        yield client


def layers(there: Registry, made: Manifest, kind: str) -> int:
    """How many entries a tag has."""
    found = there.manifest(REPOSITORY, f"{fallback_tag(made.digest)}.{kind}")
    return len(found.layers) if found else 0


def accepted(there: Registry, made: Manifest, key: Path, *words: str) -> bool:
    """Whether cosign accepts what lies under the tags."""
    done = cosign(
        *words, "--new-bundle-format=false", "--key", key, *OFFLINE,
        str(at(there.host).at(made.digest)), folder=key.parent,
    )  # fmt: skip
    return done.returncode == 0


def test_cosign_accepts_both_and_refuses_another_key_and_another_image(
    there: Registry, tmp_path: Path
) -> None:
    ours, other = pair(tmp_path, "ours"), pair(tmp_path, "other")
    made = image(there)
    sign(there, at(there.host), made, receipt(made), ours.signer)
    receipts = ("verify-attestation", "--type", statements.RECEIPT)
    for words in (("verify",), receipts):
        assert accepted(there, made, ours.public, *words), words
        assert not accepted(there, made, other.public, *words), words

    moved = image(there, "never proven", "other")
    for kind in ("sig", "att"):
        held = there.manifest(REPOSITORY, f"{fallback_tag(made.digest)}.{kind}")
        assert held
        there.put_manifest(REPOSITORY, f"{fallback_tag(moved.digest)}.{kind}", held)
    for words in (("verify",), receipts):
        assert not accepted(there, moved, ours.public, *words), words


def test_each_signer_adds_an_entry_once(there: Registry, tmp_path: Path) -> None:
    ours, other = pair(tmp_path, "ours"), pair(tmp_path, "other")
    made = image(there)
    for signer in (ours, other, ours, other):
        sign(there, at(there.host), made, receipt(made), signer.signer)
    assert (layers(there, made, "sig"), layers(there, made, "att")) == (2, 2)
    for key in (ours, other):
        assert accepted(there, made, key.public, "verify")


def test_an_entry_that_another_push_overwrote_is_put_again(
    there: Registry, server: RegistryServer, tmp_path: Path
) -> None:
    """The other push has read the tag before, and writes it after us."""
    ours, other = pair(tmp_path, "ours"), pair(tmp_path, "other")
    made = image(there)
    proven = statements.of_receipt(made.digest, receipt(made))
    tag = f"{fallback_tag(made.digest)}.sig"

    tagged.attach(there, at(there.host), made, proven, other.signer)
    theirs = there.manifest(REPOSITORY, tag)
    assert theirs
    seen: list[int] = []

    def overwrite() -> None:
        seen.append(layers(there, made, "sig"))
        if len(seen) == 2:  # the first time we read what is there, the second what we wrote
            there.put_manifest(REPOSITORY, tag, theirs)

    place = f"/v2/{REPOSITORY}/manifests/{tag}"
    late = Fault("GET", f"{tag}$", times=None, before=overwrite, instead=place)
    with faulty(server.host, late) as proxy, Registry(proxy.host) as client:
        tagged.attach(client, at(proxy.host), made, proven, ours.signer)
    assert seen == [1, 2, 2] and layers(there, made, "sig") == 2


def test_tags_that_others_keep_overwriting_end_in_one_line(
    there: Registry, server: RegistryServer, tmp_path: Path
) -> None:
    ours = pair(tmp_path, "ours")
    made = image(there)
    proven = statements.of_receipt(made.digest, receipt(made))
    missing = Fault("GET", r"\.sig$", status=404, times=None)
    says = "others keep overwriting this tag"
    with (
        faulty(server.host, missing) as proxy,
        Registry(proxy.host) as client,
        pytest.raises(OutsideError, match=says),
    ):
        tagged.attach(client, at(proxy.host), made, proven, ours.signer)
