"""Signing without a key: Sigstore certifies a key of this process for an OIDC identity.

The key is made for one push, lives in memory alone and ends with the process. Fulcio binds it to
the identity in the token, and Rekor logs each signature. The token comes from SIGSTORE_ID_TOKEN, or
from where this runs: GitHub Actions, Google Cloud (so Cloud Build), GitLab, Buildkite, CircleCI.
Source: sigstore-python 4.5 (sigstore/sign.py); PyPI id 1.6, which asks the surroundings.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from builder.core.errors import FactoryError, InputError, OutsideError
from builder.core.trustsettings import TrustSettings
from builder.trust import identities
from builder.trust.identities import OidcIdentity, one_line

if TYPE_CHECKING:
    from sigstore.models import SigningConfig
    from sigstore.sign import Signer

TOKEN: Final = "SIGSTORE_ID_TOKEN"
"""The variable that holds an OIDC token for the audience `sigstore`; cosign reads the same one."""

_ONE_AT_A_TIME: Final = threading.Lock()
_PATIENCE: Final = 60.0
"""Seconds to wait for Fulcio or Rekor. The library itself would wait for ever."""
_NO_TOKEN: Final = (
    f"run this in GitHub Actions (id-token: write) or Cloud Build, or set {TOKEN} to a token for"
    " the audience sigstore"
)


@dataclass(frozen=True)
class KeylessSigner:
    """Signs as one identity for the ten minutes of its certificate. public: whom that counts as."""

    public: OidcIdentity
    _inner: Signer = field(repr=False)

    def sealed(self, payload: bytes) -> bytes:
        """The bundle of an in-toto statement, logged and checked. Raises OutsideError."""
        from sigstore.dsse import Statement

        # the library's session is for one thread
        with _explaining("Sigstore did not sign"), _ONE_AT_A_TIME:
            bundle = self._inner.sign_dsse(Statement(payload)).to_json().encode()
            self.public.opened(bundle)
        return bundle


def signer(trust: TrustSettings, environ: Mapping[str, str]) -> KeylessSigner:
    """A signer with a certificate from Fulcio for this process's identity.

    Raises InputError without an identity, OutsideError where Sigstore refuses or is out of reach.
    """
    from sigstore.oidc import IdentityError, IdentityToken, detect_credential
    from sigstore.sign import Signer as Inner
    from sigstore.sign import SigningContext

    config = _signing_config(trust.signing_config)
    root = identities.trusted_root(trust.trusted_root)
    try:
        raw = environ.get(TOKEN) or detect_credential()
        if not raw:
            raise InputError("there is no OIDC identity here to sign with", _NO_TOKEN)
        token = IdentityToken(raw)
    except IdentityError as error:
        raise InputError(f"the OIDC token is not accepted: {one_line(error)}", _NO_TOKEN) from None
    with _explaining("Sigstore gave no certificate"):
        fulcio, rekor = config.get_fulcio(), config.get_tlogs()[0]
        for session in (fulcio.session, rekor._session):  # type: ignore[attr-defined]
            _be_patient(session)
        context = SigningContext(
            fulcio=fulcio, rekor=rekor, trusted_root=root, tsa_clients=config.get_tsas()
        )
        inner = Inner(token, context, cache=True)
        # the library shows its certificate in no other way before the first signature
        who = identities.of_certificate(inner._signing_cert(), trust.trusted_root)
    return KeylessSigner(who, inner)


def _signing_config(name: str | None) -> SigningConfig:
    """Where Fulcio, Rekor and the time stamp authority are. Raises InputError, OutsideError."""
    from sigstore.models import ClientTrustConfig, SigningConfig

    if name is None:
        with _explaining("Sigstore's addresses cannot be brought"):
            return ClientTrustConfig.production().signing_config
    return identities.from_file(name, SigningConfig.from_file, "signing-config")


def _be_patient(session: Any) -> None:
    """Let requests of a session end after _PATIENCE seconds without an answer."""
    from requests.adapters import HTTPAdapter

    class Patient(HTTPAdapter):
        def send(self, *given: Any, **how: Any) -> Any:
            return super().send(*given, **{**how, "timeout": how.get("timeout") or _PATIENCE})

    for scheme in ("https://", "http://"):
        session.mount(scheme, Patient())


@contextlib.contextmanager
def _explaining(what: str) -> Iterator[None]:
    """Any error of the library as one of ours: it raises those of a dozen kinds."""
    try:
        yield
    except FactoryError as error:
        raise OutsideError(f"{what}: {error.message}", error.fix) from None
    except Exception as error:
        raise OutsideError(
            f"{what}: {one_line(error)}",
            "look whether Fulcio and Rekor can be reached from here, and run this again",
        ) from None
