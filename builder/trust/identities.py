"""Identities that sign without a key, through Sigstore: their bundles are checked offline.

Sigstore's own library checks the certificate's chain at the time of signing, that the certificate
was logged (SCT), the identity and issuer in it, that the signature was logged (inclusion proof,
signed checkpoint, and promise or time stamp), and the signature itself.
Source: sigstore-python 4.5, sigstore/verify/verifier.py.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeVar

from builder.core.errors import CheckFailed, InputError, OutsideError
from builder.trust import envelope

if TYPE_CHECKING:
    from cryptography.x509 import Certificate
    from sigstore.models import TrustedRoot
    from sigstore.verify import Verifier

T = TypeVar("T")

_ISSUER: Final = "1.3.6.1.4.1.57264.1.1"
"""The extension of a certificate that names the issuer (sigstore/fulcio, docs/oid-info.md)."""
_MOST: Final = 300
"""Characters of a reason that an error repeats."""


@dataclass(frozen=True)
class OidcIdentity:
    """An OIDC identity whose word counts.

    name, issuer: as NamedIdentity has them. trusted_root: the file with the keys and certificates
    of the Sigstore that is trusted; None takes Sigstore's public one.
    """

    name: str
    issuer: str
    trusted_root: str | None = None

    @property
    def source(self) -> str:
        """Who that is, for messages."""
        return f"{self.name} ({self.issuer})"

    def opened(self, bundle: bytes) -> bytes:
        """The payload of a bundle that this identity signed.

        Raises CheckFailed for any other bundle, and where the trusted root is none: InputError,
        OutsideError.
        """
        verifier = _verifier(self.trusted_root)
        from sigstore.models import Bundle
        from sigstore.verify import policy

        who = policy.Identity(identity=self.name, issuer=self.issuer)
        try:
            kind, payload = verifier.verify_dsse(Bundle.from_json(bundle), who)
        except Exception as error:  # bytes of a stranger may break any parser of the library
            raise CheckFailed(f"{self.source} did not sign it: {one_line(error)}") from None
        if kind != envelope.PAYLOAD:
            raise envelope.not_a_bundle()
        return payload


def of_certificate(certificate: Certificate, trusted_root: str | None) -> OidcIdentity:
    """The identity that a certificate of Fulcio is for. Raises ValueError where it names none."""
    from cryptography import x509

    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    issuer = certificate.extensions.get_extension_for_oid(x509.ObjectIdentifier(_ISSUER)).value
    known = [
        *names.get_values_for_type(x509.RFC822Name),
        *names.get_values_for_type(x509.UniformResourceIdentifier),
    ]
    if len(known) != 1 or not isinstance(issuer, x509.UnrecognizedExtension):
        raise ValueError("the certificate is for no single e-mail address or workflow")
    return OidcIdentity(known[0], issuer.value.decode(), trusted_root)


def one_line(error: Exception) -> str:
    """What an error says, as the part of a message; without the help of pydantic's errors."""
    said = " ".join(str(error).partition("[type=")[0].split())
    return said[:_MOST] or type(error).__name__


@functools.cache
def trusted_root(name: str | None) -> TrustedRoot:
    """The trusted root in a file, or that of Sigstore's public services.

    The public one comes through TUF and stays in the user's cache. Raises InputError, OutsideError.
    """
    from sigstore.errors import Error
    from sigstore.models import ClientTrustConfig, TrustedRoot

    if name is None:
        try:
            return ClientTrustConfig.production().trusted_root
        except Error as error:
            raise OutsideError(
                f"Sigstore's trusted root cannot be brought: {one_line(error)}",
                'name a copy in builder.toml: trusted_root = "keys/trusted_root.json" in [trust]',
            ) from None
    return from_file(name, TrustedRoot.from_file, "trusted-root")


def from_file(name: str, read: Callable[[str], T], kind: str) -> T:
    """What Sigstore's package reads from a file. kind: as cosign calls it. Raises InputError."""
    from sigstore.errors import Error

    try:
        return read(name)
    except FileNotFoundError:
        said = "there is no such file"
    except (Error, ValueError) as error:
        said = f"this is no {kind.replace('-', ' ')} of Sigstore: {one_line(error)}"
    raise InputError(f"{name}: {said}", f"make one: cosign {kind} create --out FILE")


@functools.cache
def _verifier(name: str | None) -> Verifier:
    """Checks bundles against a trusted root. Raises InputError, OutsideError."""
    from sigstore.errors import Error
    from sigstore.verify import Verifier

    try:
        return Verifier(trusted_root=trusted_root(name))
    except Error as error:  # a root without logs or authorities
        raise InputError(
            f"{name}: nothing can be checked with it: {one_line(error)}",
            "make another: cosign trusted-root create --out FILE",
        ) from None
