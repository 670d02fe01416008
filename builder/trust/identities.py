"""OIDC identities that sign without a key, through Sigstore. Their bundles are verified offline.

sigstore-python checks the certificate's chain at the time of signing, that the certificate was
logged (SCT), the identity and issuer in it, that the signature was logged (inclusion proof, signed
checkpoint, and promise or time stamp), and the signature itself.
Source: sigstore-python 4.5, sigstore/verify/verifier.py.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeVar

from builder.core.errors import CheckFailed, InputError, OutsideError
from builder.trust import dsse

if TYPE_CHECKING:
    from cryptography.x509 import Certificate
    from sigstore.models import TrustedRoot
    from sigstore.verify import Verifier

T = TypeVar("T")

_ISSUER: Final = "1.3.6.1.4.1.57264.1.1"
"""The extension of a certificate that names the issuer (sigstore/fulcio, docs/oid-info.md)."""
_REASON_LENGTH: Final = 300
"""Characters of a reason that an error repeats."""


@dataclass(frozen=True)
class OidcIdentity:
    """An OIDC identity whose attestations count."""

    name: str
    """As a certificate of Sigstore has it."""
    issuer: str
    """Who vouches for it."""
    trusted_root: str | None = None
    """The file with the keys and certificates of the Sigstore that is trusted; None for the public
    one."""

    @property
    def source(self) -> str:
        return f"{self.name} ({self.issuer})"

    def verify(self, bundle: bytes) -> bytes:
        """Return the payload of a bundle that this identity signed. Raises CheckFailed.

        Raises InputError and OutsideError where the trusted root cannot be used.
        """
        verifier = _verifier(self.trusted_root)
        from sigstore.models import Bundle
        from sigstore.verify import policy

        identity = policy.Identity(identity=self.name, issuer=self.issuer)
        try:
            kind, payload = verifier.verify_dsse(Bundle.from_json(bundle), identity)
        except Exception as error:  # bytes of a stranger may break any parser of the library
            raise CheckFailed(f"{self.source} did not sign it: {one_line(error)}") from None
        if kind != dsse.PAYLOAD:
            raise dsse.not_a_bundle()
        return payload


def of_certificate(certificate: Certificate, trusted_root: str | None) -> OidcIdentity:
    """Return the identity that a certificate of Fulcio names. Raises ValueError for none."""
    from cryptography import x509

    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    issuer = certificate.extensions.get_extension_for_oid(x509.ObjectIdentifier(_ISSUER)).value
    identities = [
        *names.get_values_for_type(x509.RFC822Name),
        *names.get_values_for_type(x509.UniformResourceIdentifier),
    ]
    if len(identities) != 1 or not isinstance(issuer, x509.UnrecognizedExtension):
        raise ValueError("the certificate is for no single e-mail address or workflow")
    return OidcIdentity(identities[0], issuer.value.decode(), trusted_root)


def one_line(error: Exception) -> str:
    """Return what an error says, as part of a message; without the help of pydantic's errors."""
    text = " ".join(str(error).partition("[type=")[0].split())
    return text[:_REASON_LENGTH] or type(error).__name__


@functools.cache
def trusted_root(path: str | None) -> TrustedRoot:
    """Return the trusted root in a file, or that of Sigstore's public services.

    The public one comes through TUF and stays in the user's cache. Raises InputError, OutsideError.
    """
    from sigstore.errors import Error
    from sigstore.models import ClientTrustConfig, TrustedRoot

    if path is not None:
        return from_file(path, TrustedRoot.from_file, "trusted-root")
    try:
        return ClientTrustConfig.production().trusted_root
    except Error as error:
        raise OutsideError(
            f"Sigstore's trusted root cannot be fetched: {one_line(error)}",
            'name a copy in builder.toml: trusted_root = "keys/trusted_root.json" in [trust]',
        ) from None


def from_file(path: str, read: Callable[[str], T], kind: str) -> T:
    """Return what sigstore-python reads from a file. kind: cosign's word. Raises InputError."""
    from sigstore.errors import Error

    try:
        return read(path)
    except FileNotFoundError:
        reason = "there is no such file"
    except (Error, ValueError) as error:
        reason = f"this is no {kind.replace('-', ' ')} of Sigstore: {one_line(error)}"
    raise InputError(f"{path}: {reason}", f"make one: cosign {kind} create --out FILE")


@functools.cache
def _verifier(path: str | None) -> Verifier:
    from sigstore.errors import Error
    from sigstore.verify import Verifier

    try:
        return Verifier(trusted_root=trusted_root(path))
    except Error as error:  # a root without logs or authorities
        raise InputError(
            f"{path}: nothing can be verified with it: {one_line(error)}",
            "make another: cosign trusted-root create --out FILE",
        ) from None
