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
from builder.core.settings import TrustSettings
from builder.trust import identities
from builder.trust.identities import OidcIdentity, one_line

if TYPE_CHECKING:
    from sigstore.models import SigningConfig
    from sigstore.sign import Signer

TOKEN: Final = "SIGSTORE_ID_TOKEN"
"""The variable that holds an OIDC token for the audience `sigstore`; cosign reads the same one."""

_LOCK: Final = threading.Lock()
"""The library's session is for one thread."""
_TIMEOUT: Final = 60.0
"""Seconds to wait for Fulcio or Rekor. The library itself would wait for ever."""
_NO_TOKEN: Final = (
    f"run this in GitHub Actions (id-token: write) or Cloud Build, or set {TOKEN} to a token for"
    " the audience sigstore"
)


@dataclass(frozen=True)
class KeylessSigner:
    """Signs as `public` for the ten minutes of its certificate."""

    public: OidcIdentity
    _signer: Signer = field(repr=False)

    def seal(self, payload: bytes) -> bytes:
        """Return the bundle of an in-toto statement, logged and verified. Raises OutsideError."""
        from sigstore.dsse import Statement

        with _explained("Sigstore did not sign"), _LOCK:
            bundle = self._signer.sign_dsse(Statement(payload)).to_json().encode()
            self.public.verify(bundle)
        return bundle


def signer(trust: TrustSettings, environ: Mapping[str, str]) -> KeylessSigner:
    """Return a signer with a certificate from Fulcio for this process's identity.

    Raises InputError without an identity, OutsideError where Sigstore refuses or is out of reach.
    """
    from sigstore.oidc import IdentityError, IdentityToken, detect_credential
    from sigstore.sign import Signer, SigningContext

    config = _signing_config(trust.signing_config)
    root = identities.trusted_root(trust.trusted_root)
    try:
        raw = environ.get(TOKEN) or detect_credential()
        if not raw:
            raise InputError("there is no OIDC identity here to sign with", _NO_TOKEN)
        token = IdentityToken(raw)
    except IdentityError as error:
        raise InputError(f"the OIDC token is not accepted: {one_line(error)}", _NO_TOKEN) from None
    with _explained("Sigstore gave no certificate"):
        fulcio, rekor = config.get_fulcio(), config.get_tlogs()[0]
        for session in (fulcio.session, rekor._session):  # type: ignore[attr-defined]
            _set_timeout(session)
        context = SigningContext(
            fulcio=fulcio, rekor=rekor, trusted_root=root, tsa_clients=config.get_tsas()
        )
        certified = Signer(token, context, cache=True)
        # the library shows its certificate in no other way before the first signature
        identity = identities.of_certificate(certified._signing_cert(), trust.trusted_root)
    return KeylessSigner(identity, certified)


def _signing_config(path: str | None) -> SigningConfig:
    """Return the addresses of Fulcio, Rekor and the time stamp authority. Raises FactoryError."""
    from sigstore.models import ClientTrustConfig, SigningConfig

    if path is not None:
        return identities.from_file(path, SigningConfig.from_file, "signing-config")
    with _explained("Sigstore's addresses cannot be fetched"):
        return ClientTrustConfig.production().signing_config


def _set_timeout(session: Any) -> None:
    """Let requests of a session end after _TIMEOUT seconds without an answer."""
    from requests.adapters import HTTPAdapter

    class Adapter(HTTPAdapter):
        def send(self, *args: Any, **options: Any) -> Any:
            return super().send(*args, **{**options, "timeout": options.get("timeout") or _TIMEOUT})

    for scheme in ("https://", "http://"):
        session.mount(scheme, Adapter())


@contextlib.contextmanager
def _explained(what: str) -> Iterator[None]:
    """Raise any error of the library as OutsideError: it raises those of a dozen kinds."""
    try:
        yield
    except FactoryError as error:
        raise OutsideError(f"{what}: {error.message}", error.fix) from None
    except Exception as error:
        raise OutsideError(
            f"{what}: {one_line(error)}",
            "look whether Fulcio and Rekor can be reached from here, and run this again",
        ) from None
