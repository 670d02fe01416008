"""What an identity signed beside an image, judged by us and by cosign alike, without a network.

Sigstore and the registry run on loopback. The registry is Debian's docker-registry.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from builder.core.errors import CheckFailed
from builder.core.settings import Settings
from builder.core.trustsettings import KEYLESS, NamedIdentity, TrustSettings
from builder.pipeline.verify import attach, verify
from builder.registry import Registry
from builder.trust import keyless, statements
from tests.emulators import sigstore
from tests.emulators.sigstore import Sigstore
from tests.pipeline.pushing import REPOSITORY
from tests.registry.server import RegistryServer
from tests.trust.signing import at, image, receipt, sign
from tests.trust.strangers import cosign

pytestmark = pytest.mark.network

WORKFLOW = "https://github.com/team/training/.github/workflows/image.yml@refs/heads/main"


@pytest.fixture(params=[1, 2], ids=["rekor1", "rekor2"])
def there(request: pytest.FixtureRequest) -> Iterator[Sigstore]:
    with sigstore.serving(request.param) as running:
        yield running


@pytest.fixture
def trust(there: Sigstore, tmp_path: Path) -> TrustSettings:
    root, config = there.files(tmp_path)
    return TrustSettings(
        key=KEYLESS,
        prove=(NamedIdentity(WORKFLOW, there.issuer),),
        trusted_root=str(root),
        signing_config=str(config),
    )


def accepted(who: NamedIdentity, root: str | None, *words: str, kind: str = "") -> bool:
    """Whether cosign accepts what this identity said."""
    command = ("verify-attestation", "--type", kind) if kind else ("verify",)
    done = cosign(
        *command,
        "--certificate-identity",
        who.identity,
        "--certificate-oidc-issuer",
        who.issuer,
        "--trusted-root",
        root or "",
        "--allow-insecure-registry",
        *words,
        folder=Path(root or "").parent,
    )
    return done.returncode == 0


def test_cosign_accepts_what_an_identity_signed_and_refuses_what_we_refuse(
    there: Sigstore, trust: TrustSettings, server: RegistryServer, tmp_path: Path
) -> None:
    where = Settings(registry=f"{server.host}/{REPOSITORY}", trust=trust)
    with Registry(server.host) as client:
        made = image(client)
        attach(client, at(server.host), made, receipt(made))
        signer = keyless.signer(trust, {keyless.TOKEN: there.token(WORKFLOW)})
        sign(client, at(server.host), made, receipt(made), signer)
    (ours,) = trust.prove
    assert isinstance(ours, NamedIdentity)
    name = str(at(server.host).at(made.digest))
    assert accepted(ours, trust.trusted_root, name)
    assert accepted(ours, trust.trusted_root, name, kind=statements.RECEIPT)
    assert verify("v100", where).signer == f"{WORKFLOW} ({there.issuer})"

    (tmp_path / "other").mkdir()
    with sigstore.serving() as other:
        foreign = str(other.files(tmp_path / "other")[0])
    for who, root in (
        (replace(ours, identity=WORKFLOW.replace("main", "other")), trust.trusted_root),
        (replace(ours, issuer="https://accounts.google.com"), trust.trusted_root),
        (ours, foreign),
    ):
        assert not accepted(who, root, name, kind=statements.RECEIPT)
        with pytest.raises(CheckFailed, match=r"is not proven: .*did not sign it") as caught:
            verify("v100", replace(where, trust=TrustSettings(prove=(who,), trusted_root=root)))
        assert caught.value.exit_code == 4


def test_what_cosign_attests_as_an_identity_counts_as_well(
    there: Sigstore, trust: TrustSettings, server: RegistryServer, tmp_path: Path
) -> None:
    with Registry(server.host) as client:
        made = image(client)
    (tmp_path / "receipt.json").write_text(receipt(made).model_dump_json())
    (tmp_path / "token").write_text(there.token(WORKFLOW))
    assert trust.trusted_root and trust.signing_config
    done = cosign(
        "attest", "--identity-token", "token", "--type", statements.RECEIPT, "--yes",
        "--predicate", "receipt.json", "--signing-config", trust.signing_config,
        "--trusted-root", trust.trusted_root, "--allow-insecure-registry",
        str(at(server.host).at(made.digest)), folder=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    where = Settings(registry=f"{server.host}/{REPOSITORY}", trust=trust)
    assert verify("v100", where).signer.startswith(WORKFLOW)
