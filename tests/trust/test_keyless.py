"""An OIDC identity signs instead of a key, through Sigstore; whoever verifies needs no network.

Sigstore runs on loopback (tests/emulators/sigstore.py), with version 1 and 2 of its log.
"""

from __future__ import annotations

import base64
import copy
import json
import logging
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from builder.core.errors import CheckFailed, InputError, OutsideError
from builder.core.trustsettings import KEYLESS, TrustSettings
from builder.trust import bundle, keyless, keys
from builder.trust.bundle import Statement
from builder.trust.identities import OidcIdentity
from builder.trust.keyless import KeylessSigner
from tests.emulators import sigstore
from tests.emulators.sigstore import Sigstore
from tests.trust.signing import pair

SAID = Statement("sha256:" + "a" * 64, "urn:test:said:v1", {"text": "Grüße", "list": [1, 2]})
WORKFLOW = "https://github.com/team/training/.github/workflows/image.yml@refs/heads/main"
ACCOUNT = "builder@my-project.iam.gserviceaccount.com"


@pytest.fixture(scope="module", params=[1, 2], ids=["rekor1", "rekor2"])
def there(request: pytest.FixtureRequest) -> Iterator[Sigstore]:
    with sigstore.serving(request.param) as running:
        yield running


@pytest.fixture
def trust(there: Sigstore, tmp_path: Path) -> TrustSettings:
    root, config = there.files(tmp_path)
    return TrustSettings(key=KEYLESS, trusted_root=str(root), signing_config=str(config))


def signer(there: Sigstore, trust: TrustSettings, identity: str = WORKFLOW) -> KeylessSigner:
    return keyless.signer(trust, {keyless.TOKEN: there.token(identity)})


@pytest.mark.parametrize("identity", [WORKFLOW, ACCOUNT])
def test_a_statement_comes_back_as_the_identity_signed_it(
    there: Sigstore, trust: TrustSettings, identity: str
) -> None:
    ours = signer(there, trust, identity)
    assert ours.public == OidcIdentity(identity, there.issuer, trust.trusted_root)
    data = bundle.seal(SAID, ours)
    asked = len(there.seen)
    assert bundle.unseal(data, (ours.public,)) == (SAID, ours.public)
    assert len(there.seen) == asked, "whoever verifies asks nobody"


def test_one_certificate_is_for_all_statements_of_a_push(
    there: Sigstore, trust: TrustSettings
) -> None:
    there.seen.clear()
    ours = signer(there, trust)
    for kind in ("urn:a", "urn:b", "urn:c"):
        bundle.seal(replace(SAID, kind=kind), ours)
    assert there.seen.count("/api/v2/signingCert") == 1
    assert there.seen.count(f"/api/v{there.rekor}/log/entries") == 3


def test_who_does_not_count(there: Sigstore, trust: TrustSettings, tmp_path: Path) -> None:
    ours = signer(there, trust)
    data = bundle.seal(SAID, ours)
    with sigstore.serving() as other:
        (tmp_path / "other").mkdir()
        foreign, _ = other.files(tmp_path / "other")
        for who, says in (
            (replace(ours.public, name=ACCOUNT), f"do not match {ACCOUNT}"),
            (replace(ours.public, issuer="https://accounts.google.com"), "OIDCIssuer does not"),
            (replace(ours.public, trusted_root=str(foreign)), "did not sign it: "),
        ):
            with pytest.raises(CheckFailed, match=says) as caught:
                bundle.unseal(data, (who,))
            assert "\n" not in caught.value.message
    key = pair(tmp_path, "key")
    with pytest.raises(CheckFailed, match="signed by none of the keys"):
        bundle.unseal(data, (keys.public(str(key.public)),))
    with pytest.raises(CheckFailed, match=r"tlogEntries Field required$"):
        bundle.unseal(bundle.seal(SAID, key.signer), (ours.public,))


# What is not what was signed ---------------------------------------------------------------------


def leaves(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path of each text in a bundle."""
    if isinstance(value, dict | list):
        for name, one in value.items() if isinstance(value, dict) else enumerate(value):
            yield from leaves(one, (*path, name))
    elif isinstance(value, str):
        yield path


def changed(content: Any, path: tuple[Any, ...], change: Callable[[str], Any]) -> bytes:
    """The bundle with another text at one place."""
    found = copy.deepcopy(content)
    place = found
    for name in path[:-1]:
        place = place[name]
    place[path[-1]] = change(place[path[-1]])
    return json.dumps(found).encode()


def flipped(text: str) -> str:
    """Another byte in the middle, encoded as before where it was."""
    try:
        data = bytearray(base64.b64decode(text, validate=True))
        data[len(data) // 2] ^= 1
        return base64.b64encode(data).decode()
    except (ValueError, IndexError):
        middle = len(text) // 2
        return text[:middle] + chr(ord(text[middle]) ^ 1) + text[middle + 1 :]


def test_no_changed_text_of_a_bundle_says_anything_else(
    there: Sigstore, trust: TrustSettings
) -> None:
    ours = signer(there, trust)
    content = json.loads(bundle.seal(SAID, ours))
    refused = 0
    for path in leaves(content):
        for change in (flipped, lambda _: "", lambda _: None, lambda _: {"a": [1]}):
            try:
                found, _ = bundle.unseal(changed(content, path, change), (ours.public,))
            except CheckFailed as error:
                assert "\n" not in error.message
                refused += 1
            else:
                assert found == SAID
    assert refused > 3 * len(list(leaves(content)))


def test_an_entry_of_the_log_that_is_of_another_signature(
    there: Sigstore, trust: TrustSettings
) -> None:
    ours = signer(there, trust)
    one, two = (
        json.loads(bundle.seal(replace(SAID, kind=kind), ours)) for kind in ("urn:a", "urn:b")
    )
    one["verificationMaterial"] = two["verificationMaterial"]
    with pytest.raises(CheckFailed, match="did not sign it"):
        bundle.unseal(json.dumps(one).encode(), (ours.public,))


def test_a_signature_that_nobody_logged_or_timed(there: Sigstore, trust: TrustSettings) -> None:
    ours = signer(there, trust)
    whole = json.loads(bundle.seal(SAID, ours))
    for name in ("tlogEntries", "certificate"):
        content = copy.deepcopy(whole)
        del content["verificationMaterial"][name]
        with pytest.raises(CheckFailed, match="did not sign it"):
            bundle.unseal(json.dumps(content).encode(), (ours.public,))
    content = copy.deepcopy(whole)
    content["verificationMaterial"].pop("timestampVerificationData")
    content["verificationMaterial"]["tlogEntries"][0].pop("inclusionPromise", None)
    with pytest.raises(CheckFailed, match="inclusion promise or signed timestamp"):
        bundle.unseal(json.dumps(content).encode(), (ours.public,))


def test_a_signature_after_the_certificate_expired(there: Sigstore, trust: TrustSettings) -> None:
    """The log, or the time stamp authority, saw it an hour later. The push does not keep it."""
    ours = signer(there, trust)
    there.late, there.stamps.ago = timedelta(hours=1), timedelta(hours=-1)
    try:
        with pytest.raises(OutsideError, match=r"Sigstore did not sign: .*did not sign it"):
            bundle.seal(SAID, ours)
    finally:
        there.late = there.stamps.ago = timedelta()


# Signing that does not work ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"exp": 1}, "the OIDC token is not accepted"),
        ({"aud": "somebody else"}, "the OIDC token is not accepted"),
        ({"iss": "https://accounts.google.com"}, "required 'email' claim"),
    ],
)
def test_a_token_that_cannot_sign(
    there: Sigstore, trust: TrustSettings, changes: dict[str, Any], says: str
) -> None:
    with pytest.raises(InputError, match=says) as caught:
        keyless.signer(trust, {keyless.TOKEN: there.token(WORKFLOW, **changes)})
    assert "audience sigstore" in caught.value.fix


def test_without_an_identity(trust: TrustSettings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sigstore.oidc.detect_credential", lambda: None)
    with pytest.raises(InputError, match="there is no OIDC identity here"):
        keyless.signer(trust, {})
    with pytest.raises(InputError, match="the OIDC token is not accepted"):
        keyless.signer(trust, {keyless.TOKEN: "no token"})


def test_what_sigstore_refuses_is_one_line(there: Sigstore, trust: TrustSettings) -> None:
    ours = signer(there, trust)
    with sigstore.serving() as other, pytest.raises(OutsideError, match="gave no cert") as caught:
        signer(other, trust)  # a token of an issuer that this Fulcio does not know
    assert "\n" not in caught.value.message
    there.status = 503
    try:
        with pytest.raises(OutsideError, match="Sigstore gave no certificate"):
            signer(there, trust)
        with pytest.raises(OutsideError, match="Sigstore did not sign"):
            bundle.seal(SAID, ours)
    finally:
        there.status = 200


@pytest.mark.parametrize("name", ["trusted_root", "signing_config"])
def test_files_that_say_no_sigstore(
    there: Sigstore, trust: TrustSettings, tmp_path: Path, name: str
) -> None:
    for file, says in (("nothing.json", "there is no such file"), ("odd.json", "this is no ")):
        (tmp_path / "odd.json").write_text('{"mediaType": "text/plain"}')
        broken = replace(trust, **{name: str(tmp_path / file)})
        with pytest.raises(InputError, match=says) as caught:
            signer(there, broken)
        assert str(tmp_path / file) in caught.value.message


def test_neither_token_nor_key_leaves_the_process(
    there: Sigstore, trust: TrustSettings, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    token = there.token(WORKFLOW)
    with caplog.at_level(logging.DEBUG):
        ours = keyless.signer(trust, {keyless.TOKEN: token})
        data = bundle.seal(SAID, ours)
    shown = caplog.text + repr(ours) + data.decode()
    written = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    for secret in (token, token.rpartition(".")[2], "PRIVATE KEY"):
        assert secret not in shown and secret.encode() not in written
