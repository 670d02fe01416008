"""Key pairs that sign attestations: ECDSA P-256, in the files that cosign reads and writes.

The private key is PKCS #8, sealed by NaCl's secretbox under a password that scrypt stretches
(sigstore/sigstore, pkg/cryptoutils/encrypted.go). The password comes from the environment alone.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from nacl.exceptions import CryptoError
from nacl.secret import SecretBox

from builder.core import files
from builder.core.errors import CheckFailed, InputError
from builder.trust import dsse

PASSWORD: Final = "COSIGN_PASSWORD"
"""The variable that holds a private key's password; cosign reads the same one."""

_LABEL: Final = "ENCRYPTED SIGSTORE PRIVATE KEY"
_PEM: Final = re.compile(
    r"-----BEGIN ENCRYPTED (?:SIGSTORE|COSIGN) PRIVATE KEY-----([^-]+)-----END "
)
_SCRYPT: Final = {"N": 65536, "r": 8, "p": 1}
_SCRYPT_MEMORY: Final = 256 * 1024 * 1024
"""Bytes that scrypt may use. cosign's own parameters need a quarter of it."""
_MAKE_A_PAIR: Final = "make a pair: builder sign key FILE.key"


@dataclass(frozen=True)
class PublicKey:
    der: bytes
    """SubjectPublicKeyInfo."""
    source: str = ""
    """Where it was read, for messages."""

    @property
    def hint(self) -> str:
        """The name of the key in a bundle, as cosign computes it."""
        return base64.b64encode(hashlib.sha256(self.der).digest()).decode()

    def verify(self, bundle: bytes) -> bytes:
        """Return the payload of a bundle that this key signed. Raises CheckFailed."""
        payload, signatures = dsse.envelope(bundle)
        signed = dsse.signed_bytes(payload)
        if not any(self.accepts(signature, signed) for signature in signatures):
            raise CheckFailed("it is signed by none of the keys that are trusted")
        return payload

    def accepts(self, signature: bytes, data: bytes) -> bool:
        """Return whether the signature of these bytes is one of this key."""
        key = serialization.load_der_public_key(self.der)
        assert isinstance(key, ec.EllipticCurvePublicKey)
        try:
            key.verify(signature, data, ec.ECDSA(SHA256()))
        except InvalidSignature:
            return False
        return True


@dataclass(frozen=True)
class SigningKey:
    """A private key that was read from a file. It is shown nowhere, its source is."""

    private: ec.EllipticCurvePrivateKey = field(repr=False)
    source: str

    @property
    def public(self) -> PublicKey:
        return _public(self.private.public_key(), self.source)

    def sign(self, data: bytes) -> bytes:
        """Return the signature of these bytes: SHA-256, ASN.1 DER."""
        return self.private.sign(data, ec.ECDSA(SHA256()))

    def seal(self, payload: bytes) -> bytes:
        return dsse.bundle(payload, self.sign(dsse.signed_bytes(payload)), self.public.hint)


def read_public(path: str) -> PublicKey:
    """Read the public key in a PEM file. Raises InputError for anything but ECDSA P-256."""
    text = _text(path)
    if "PRIVATE KEY" in text:
        raise InputError(f"{path}: this is a private key", "name its public half, KEY.pub")
    try:
        return _public(serialization.load_pem_public_key(text.encode()), path)
    except (ValueError, UnsupportedAlgorithm):
        raise InputError(
            f"{path}: this is no public key", "name a PEM file: -----BEGIN PUBLIC KEY"
        ) from None


def read_private(path: str, environ: Mapping[str, str] = os.environ) -> SigningKey:
    """Read the private key in a file of cosign's; its password is in environ. Raises InputError."""
    try:
        der = _unsealed(_text(path), path, environ.get(PASSWORD, ""))
        key = serialization.load_der_private_key(der, None)
    except (ValueError, TypeError, KeyError, OverflowError):
        raise InputError(
            f"{path}: this is no private key that the factory reads", _MAKE_A_PAIR
        ) from None
    if not isinstance(key, ec.EllipticCurvePrivateKey) or not isinstance(key.curve, ec.SECP256R1):
        raise _other_kind(path)
    return SigningKey(key, path)


def create(path: Path, password: str) -> PublicKey:
    """Write a new private key to `path`, readable by its owner alone, and KEY.pub next to it.

    password: "" seals the key with the empty one, as cosign does. Raises InputError where either
    file exists.
    """
    public_path = path.with_name(f"{path.name.removesuffix('.key')}.pub")
    for existing in (path, public_path):
        if existing.exists():
            raise InputError(
                f"{existing}: is there already, and a key that is lost cannot be made again",
                "name another file, or move this one away",
            )
    private = ec.generate_private_key(ec.SECP256R1())
    pem = private.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    files.write(path, _sealed(private, password), mode=0o600)
    files.write(public_path, pem.decode())
    return SigningKey(private, str(public_path)).public


def _sealed(private: ec.EllipticCurvePrivateKey, password: str) -> str:
    der = private.private_bytes(
        Encoding.DER, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    salt, nonce = os.urandom(32), os.urandom(SecretBox.NONCE_SIZE)
    box = SecretBox(_stretched(password, salt, _SCRYPT))
    content = {
        "kdf": {"name": "scrypt", "params": _SCRYPT, "salt": _base64(salt)},
        "cipher": {"name": "nacl/secretbox", "nonce": _base64(nonce)},
        "ciphertext": _base64(box.encrypt(der, nonce).ciphertext),
    }
    lines = textwrap.wrap(_base64(json.dumps(content, separators=(",", ":")).encode()), 64)
    return "\n".join([f"-----BEGIN {_LABEL}-----", *lines, f"-----END {_LABEL}-----", ""])


def _unsealed(text: str, source: str, password: str) -> bytes:
    """Return the PKCS #8 in a sealed key. Raises InputError for the wrong password."""
    pem = _PEM.search(text)
    content = files.parsed(json.loads, base64.b64decode(pem[1] if pem else ""))
    kdf, cipher = content["kdf"], content["cipher"]
    box = SecretBox(_stretched(password, base64.b64decode(kdf["salt"]), kdf["params"]))
    try:
        return box.decrypt(
            base64.b64decode(content["ciphertext"]), base64.b64decode(cipher["nonce"])
        )
    except CryptoError:
        reason = "does not open it" if password else "is not set, and the key has a password"
        raise InputError(
            f"{source}: {PASSWORD} {reason}", f"set {PASSWORD} to the password of this key"
        ) from None


def _stretched(password: str, salt: bytes, cost: Mapping[str, Any]) -> bytes:
    return hashlib.scrypt(
        password.encode(),
        salt=salt,
        n=cost["N"],
        r=cost["r"],
        p=cost["p"],
        maxmem=_SCRYPT_MEMORY,
        dklen=32,
    )


def _public(key: object, source: str) -> PublicKey:
    if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, ec.SECP256R1):
        raise _other_kind(source)
    return PublicKey(key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo), source)


def _other_kind(source: str) -> InputError:
    return InputError(f"{source}: the key is not ECDSA P-256", _MAKE_A_PAIR)


def _text(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        raise InputError(
            f"{path}: there is no such key", f"correct the path, or {_MAKE_A_PAIR}"
        ) from None


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()
