"""Keys that sign statements: a pair of files that cosign reads, too, or one in Cloud KMS.

The pair is ECDSA P-256. The private key lies in cosign's format (sigstore/sigstore,
pkg/cryptoutils/encrypted.go): PKCS #8, sealed by NaCl's secretbox under a password that scrypt
stretches. The password comes from the environment alone.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

from builder.core import files
from builder.core.errors import CheckFailed, InputError
from builder.core.trustsettings import CLOUD_KEY
from builder.trust import envelope

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import (
        EllipticCurvePrivateKey,
        EllipticCurvePublicKey,
    )

PASSWORD: Final = "COSIGN_PASSWORD"
"""The variable that holds a private key's password; cosign reads the same one."""

_LABEL: Final = "ENCRYPTED SIGSTORE PRIVATE KEY"
_LABELS: Final = (_LABEL, "ENCRYPTED COSIGN PRIVATE KEY")
_SCRYPT: Final = {"N": 65536, "r": 8, "p": 1}
_MOST_MEMORY: Final = 256 * 1024 * 1024
"""Bytes that scrypt may use. cosign's own parameters need a quarter of it."""


class KeySigner(Protocol):
    """A key that signs: SHA-256 and ECDSA P-256, the signature as ASN.1 DER."""

    @property
    def public(self) -> PublicKey: ...
    def sign(self, data: bytes) -> bytes: ...


@dataclass(frozen=True)
class PublicKey:
    """A public key. der: SubjectPublicKeyInfo. source: where it was found, for messages."""

    der: bytes
    source: str = ""

    @property
    def hint(self) -> str:
        """The name of the key in a bundle, as cosign computes it."""
        return base64.b64encode(hashlib.sha256(self.der).digest()).decode()

    @property
    def pem(self) -> str:
        """The key as a file holds it."""
        text = base64.b64encode(self.der).decode()
        lines = [text[at : at + 64] for at in range(0, len(text), 64)]
        return "\n".join(["-----BEGIN PUBLIC KEY-----", *lines, "-----END PUBLIC KEY-----", ""])

    def opened(self, bundle: bytes) -> bytes:
        """The payload of a bundle that the owner of this key signed. Raises CheckFailed."""
        found = envelope.parse(bundle)
        signed = envelope.signed(found.payload)
        if not any(self.accepts(one, signed) for one in found.signatures):
            raise CheckFailed("it is signed by none of the keys that are trusted")
        return found.payload

    def accepts(self, signature: bytes, data: bytes) -> bool:
        """Whether the owner of this key signed these bytes."""
        from cryptography.exceptions import InvalidSignature
        from cryptography.hazmat.primitives.asymmetric.ec import ECDSA
        from cryptography.hazmat.primitives.hashes import SHA256

        try:
            _public(self.der, self.source).verify(signature, data, ECDSA(SHA256()))
        except InvalidSignature:
            return False
        return True


@dataclass(frozen=True)
class KeyFile:
    """A private key that was read from a file. It is shown nowhere, its source is."""

    private: EllipticCurvePrivateKey
    source: str

    def __repr__(self) -> str:
        return f"KeyFile({self.source!r})"

    @property
    def public(self) -> PublicKey:
        """The other half of the pair."""
        from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

        der = self.private.public_key().public_bytes(
            Encoding.DER, PublicFormat.SubjectPublicKeyInfo
        )
        return PublicKey(der, self.source)

    def sign(self, data: bytes) -> bytes:
        """The signature of these bytes."""
        from cryptography.hazmat.primitives.asymmetric.ec import ECDSA
        from cryptography.hazmat.primitives.hashes import SHA256

        return self.private.sign(data, ECDSA(SHA256()))


def signer(name: str) -> KeySigner:
    """The key of this name: the path of a private key, or gcpkms://... Raises InputError."""
    if name.startswith(CLOUD_KEY):
        from builder.trust.kms import KmsKey

        return KmsKey.of(name)
    return KeyFile(_opened(_text(name), name, os.environ), name)


def public(name: str) -> PublicKey:
    """The public key of this name: the path of a PEM file, or gcpkms://... Raises InputError."""
    if name.startswith(CLOUD_KEY):
        from builder.trust.kms import KmsKey

        return KmsKey.of(name).public
    return of_pem(_text(name), name)


def of_pem(text: str, source: str) -> PublicKey:
    """The public key in a PEM text. Raises InputError for anything but ECDSA P-256."""
    if "PRIVATE KEY" in text:
        raise InputError(f"{source}: this is a private key", "name its public half, KEY.pub")
    body = "".join(line for line in text.split("\n") if line and not line.startswith("-----"))
    if "-----BEGIN PUBLIC KEY-----" not in text:
        raise _not_a_key(source)
    try:
        der = base64.b64decode(body, validate=True)
    except ValueError:
        raise _not_a_key(source) from None
    _public(der, source)
    return PublicKey(der, source)


def create(path: Path, password: str) -> PublicKey:
    """Make a pair: the private key at `path`, readable by its owner alone, the public beside it.

    password: "" seals the key with the empty one, as cosign does. Raises InputError where a file of
    either name is there already.
    """
    from cryptography.hazmat.primitives.asymmetric import ec

    beside = path.with_name(f"{path.name.removesuffix('.key')}.pub")
    for one in (path, beside):
        if one.exists():
            raise InputError(
                f"{one}: is there already, and a key that is lost cannot be made again",
                "name another file, or move this one away",
            )
    private = ec.generate_private_key(ec.SECP256R1())
    files.write(path, _sealed(private, password), mode=0o600)
    made = KeyFile(private, str(beside)).public
    files.write(beside, made.pem)
    return made


def _sealed(private: EllipticCurvePrivateKey, password: str) -> str:
    """The private key as cosign writes it."""
    from cryptography.hazmat.primitives.serialization import (
        Encoding,
        NoEncryption,
        PrivateFormat,
    )
    from nacl.secret import SecretBox

    der = private.private_bytes(Encoding.DER, PrivateFormat.PKCS8, NoEncryption())
    salt, nonce = os.urandom(32), os.urandom(SecretBox.NONCE_SIZE)
    box = SecretBox(_stretched(password, salt, _SCRYPT))
    content = {
        "kdf": {"name": "scrypt", "params": _SCRYPT, "salt": _base64(salt)},
        "cipher": {"name": "nacl/secretbox", "nonce": _base64(nonce)},
        "ciphertext": _base64(box.encrypt(der, nonce).ciphertext),
    }
    text = _base64(json.dumps(content, separators=(",", ":")).encode())
    lines = [text[at : at + 64] for at in range(0, len(text), 64)]
    return "\n".join([f"-----BEGIN {_LABEL}-----", *lines, f"-----END {_LABEL}-----", ""])


def _opened(text: str, source: str, environ: Mapping[str, str]) -> EllipticCurvePrivateKey:
    """The private key in a file of cosign's, or in an unencrypted PEM. Raises InputError."""
    from cryptography.hazmat.primitives.asymmetric.ec import (
        SECP256R1,
        EllipticCurvePrivateKey,
    )
    from cryptography.hazmat.primitives.serialization import (
        load_der_private_key,
        load_pem_private_key,
    )

    try:
        if any(f"-----BEGIN {label}-----" in text for label in _LABELS):
            found = load_der_private_key(_unsealed(text, source, environ.get(PASSWORD, "")), None)
        else:
            found = load_pem_private_key(text.encode(), None)
    except (ValueError, TypeError, KeyError):
        raise InputError(
            f"{source}: this is no private key that the factory reads",
            "make a pair: builder sign key FILE.key",
        ) from None
    if not isinstance(found, EllipticCurvePrivateKey) or not isinstance(found.curve, SECP256R1):
        raise InputError(
            f"{source}: the key is not ECDSA P-256", "make a pair: builder sign key FILE.key"
        )
    return found


def _unsealed(text: str, source: str, password: str) -> bytes:
    """The PKCS #8 in a sealed key. Raises InputError for the wrong password."""
    from nacl.exceptions import CryptoError
    from nacl.secret import SecretBox

    body = "".join(line for line in text.splitlines() if line and not line.startswith("-----"))
    content = json.loads(base64.b64decode(body))
    kdf, cipher = content["kdf"], content["cipher"]
    box = SecretBox(_stretched(password, base64.b64decode(kdf["salt"]), kdf["params"]))
    try:
        return box.decrypt(
            base64.b64decode(content["ciphertext"]), base64.b64decode(cipher["nonce"])
        )
    except CryptoError:
        said = "does not open it" if password else "is not set, and the key has a password"
        raise InputError(
            f"{source}: {PASSWORD} {said}", f"set {PASSWORD} to the password of this key"
        ) from None


def _stretched(password: str, salt: bytes, cost: Mapping[str, Any]) -> bytes:
    return hashlib.scrypt(
        password.encode(),
        salt=salt,
        n=cost["N"],
        r=cost["r"],
        p=cost["p"],
        maxmem=_MOST_MEMORY,
        dklen=32,
    )


def _public(der: bytes, source: str) -> EllipticCurvePublicKey:
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, EllipticCurvePublicKey
    from cryptography.hazmat.primitives.serialization import load_der_public_key

    try:
        found = load_der_public_key(der)
    except (ValueError, UnsupportedAlgorithm):
        raise _not_a_key(source) from None
    if not isinstance(found, EllipticCurvePublicKey) or not isinstance(found.curve, SECP256R1):
        raise InputError(
            f"{source}: the key is not ECDSA P-256", "make a pair: builder sign key FILE.key"
        )
    return found


def _text(name: str) -> str:
    """The text of a key's file. Raises InputError where there is none."""
    try:
        return Path(name).read_text(encoding="utf-8")
    except FileNotFoundError:
        raise InputError(
            f"{name}: there is no such key",
            "correct the path, or make a pair: builder sign key FILE.key",
        ) from None
    except UnicodeDecodeError:
        raise _not_a_key(name) from None


def _not_a_key(source: str) -> InputError:
    return InputError(f"{source}: this is no public key", "name a PEM file: -----BEGIN PUBLIC KEY")


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()
