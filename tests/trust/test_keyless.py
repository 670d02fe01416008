"""An OIDC identity signs instead of a key, through Sigstore; whoever verifies needs no network.

Sigstore runs on loopback (tests/emulators/sigstore.py).
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from requests.adapters import HTTPAdapter

from builder.core.errors import CheckFailed, InputError, OutsideError
from builder.core.settings import KEYLESS, TrustSettings
from builder.trust import attestations, keyless
from builder.trust.identities import OidcIdentity
from builder.trust.keyless import KeylessSigner
from tests.emulators import sigstore
from tests.emulators.sigstore import Sigstore
from tests.trust.signing import ACCOUNT, WORKFLOW, pair
from tests.trust.test_attestations import STATEMENT


@pytest.fixture(scope="module", name="service")
def running() -> Iterator[Sigstore]:
    with sigstore.serving() as service:
        yield service


@pytest.fixture(scope="module")
def trust(service: Sigstore, tmp_path_factory: pytest.TempPathFactory) -> TrustSettings:
    root, config = service.files(tmp_path_factory.mktemp("sigstore"))
    return TrustSettings(key=KEYLESS, trusted_root=str(root), signing_config=str(config))


@pytest.fixture(scope="module")
def ours(service: Sigstore, trust: TrustSettings) -> KeylessSigner:
    """A signer with a certificate for WORKFLOW."""
    return signer(service, trust)


def signer(service: Sigstore, trust: TrustSettings, identity: str = WORKFLOW) -> KeylessSigner:
    return keyless.signer(trust, {keyless.TOKEN: service.token(identity)})


@pytest.mark.parametrize("identity", [WORKFLOW, ACCOUNT])
def test_a_statement_comes_back_as_the_identity_signed_it(
    service: Sigstore, trust: TrustSettings, identity: str
) -> None:
    service.paths.clear()
    ours = signer(service, trust, identity)
    assert ours.public == OidcIdentity(identity, service.issuer, trust.trusted_root)
    for statement in (STATEMENT, replace(STATEMENT, predicate_type="urn:another")):
        bundle = ours.seal(statement.payload)
        assert attestations.verify(bundle, (ours.public,)) == (statement, ours.public)
    # one certificate for all attestations of a push; whoever verifies asks nobody
    assert service.paths == ["/api/v2/signingCert", *["/api/v1/log/entries"] * 2]


def test_who_does_not_count(ours: KeylessSigner, tmp_path: Path) -> None:
    bundle = ours.seal(STATEMENT.payload)
    with sigstore.serving() as other:
        foreign, _ = other.files(tmp_path)
    key = pair(tmp_path, "key").signer
    for signed, trusted, reason in (
        (bundle, replace(ours.public, name=ACCOUNT), f"do not match {ACCOUNT}"),
        (bundle, replace(ours.public, issuer="https://x.example.com"), "OIDCIssuer does not"),
        (bundle, replace(ours.public, trusted_root=str(foreign)), "did not sign it: "),
        (bundle, key.public, "signed by none of the keys"),
        (key.seal(STATEMENT.payload), ours.public, r"tlogEntries Field required$"),
    ):
        with pytest.raises(CheckFailed, match=reason) as caught:
            attestations.verify(signed, (trusted,))
        assert "\n" not in caught.value.message


# Signing that does not work -----------------------------------------------------------------------


def test_a_token_that_cannot_sign(
    service: Sigstore, trust: TrustSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sigstore.oidc.detect_credential", lambda: None)
    google = {"iss": "https://accounts.google.com"}
    for token, reason in (
        ("", "there is no OIDC identity here"),
        ("no token", "the OIDC token is not accepted"),
        (service.token(WORKFLOW, exp=1), "the OIDC token is not accepted"),
        (service.token(WORKFLOW, aud="somebody else"), "the OIDC token is not accepted"),
        (service.token(WORKFLOW, **google), "required 'email' claim"),
    ):
        with pytest.raises(InputError, match=reason) as caught:
            keyless.signer(trust, {keyless.TOKEN: token})
        assert "audience sigstore" in caught.value.fix


def test_what_sigstore_refuses_is_one_line(
    service: Sigstore, trust: TrustSettings, ours: KeylessSigner, monkeypatch: pytest.MonkeyPatch
) -> None:
    with sigstore.serving() as other, pytest.raises(OutsideError, match="gave no cert") as caught:
        signer(other, trust)  # a token of an issuer that this Fulcio does not know
    assert "\n" not in caught.value.message
    monkeypatch.setattr(service, "status", 503)
    with pytest.raises(OutsideError, match="Sigstore gave no certificate"):
        signer(service, trust)
    with pytest.raises(OutsideError, match="Sigstore did not sign"):
        ours.seal(STATEMENT.payload)


def test_no_request_waits_for_ever(
    service: Sigstore, trust: TrustSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The library itself sets no limit."""
    timeouts: list[object] = []
    send = HTTPAdapter.send

    def recorded(adapter: HTTPAdapter, *args: Any, **options: Any) -> Any:
        timeouts.append(options["timeout"])
        return send(adapter, *args, **options)

    monkeypatch.setattr(HTTPAdapter, "send", recorded)
    signer(service, trust).seal(STATEMENT.payload)
    assert timeouts == [keyless._TIMEOUT] * 2

    config = json.loads(Path(str(trust.signing_config)).read_text())
    config["rekorTlogUrls"][0]["majorApiVersion"] = 2  # its client has a session of the same name
    (tmp_path / "config.json").write_text(json.dumps(config))
    (log,) = keyless._signing_config(str(tmp_path / "config.json")).get_tlogs()
    assert log._session.adapters  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", ["trusted_root", "signing_config"])
@pytest.mark.parametrize(
    ("file", "reason"), [("nothing.json", "there is no such file"), ("odd.json", "this is no ")]
)
def test_files_that_name_no_sigstore(
    file: str, reason: str, service: Sigstore, trust: TrustSettings, tmp_path: Path, name: str
) -> None:
    (tmp_path / "odd.json").write_text('{"mediaType": "text/plain"}')
    path = str(tmp_path / file)
    with pytest.raises(InputError, match=f"{path}: {reason}"):
        signer(service, trust.model_copy(update={name: path}))


def test_neither_token_nor_key_leaves_the_process(
    service: Sigstore, trust: TrustSettings, caplog: pytest.LogCaptureFixture
) -> None:
    token = service.token(WORKFLOW)
    with caplog.at_level(logging.DEBUG):
        ours = keyless.signer(trust, {keyless.TOKEN: token})
        bundle = ours.seal(STATEMENT.payload)
    shown = caplog.text + repr(ours) + bundle.decode()
    for secret in (token, token.rpartition(".")[2], "PRIVATE KEY"):
        assert secret not in shown
