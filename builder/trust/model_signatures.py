"""The signature of a job's folder, as OpenSSF Model Signing has it: a Sigstore bundle with the
SHA-256 of every file. Its library makes and checks it (`model_signing verify key` does, too).
"""

from __future__ import annotations

import hashlib
import json
import secrets
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.serialization import Encoding, PrivateFormat, PublicFormat

from builder.core import files
from builder.core.errors import CheckFailed
from builder.trust.keys import PublicKey, SigningKey

FILE: Final = "model.sig"
"""In a job's folder: the one file that is not signed."""
_AGAIN: Final = "take the folder as it was signed; or, if it is yours: builder sign model"


def sign(folder: Path, key: SigningKey) -> None:
    """Sign every file of a folder. Raises CheckFailed for what cannot be signed, such as a link,
    and ImportError without the library."""
    from model_signing import signing

    password = secrets.token_hex().encode()  # The library reads keys from files alone.
    sealed = serialization.BestAvailableEncryption(password)
    with tempfile.TemporaryDirectory() as own:
        private, made = Path(own, "key"), Path(own, FILE)
        private.write_bytes(key.private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, sealed))
        config = signing.Config().set_hashing_config(_hashing())
        config.use_elliptic_key_signer(private_key=private, password=password)
        try:
            config.sign(folder, made)
        except (ValueError, OSError) as error:
            raise CheckFailed(f"{folder}: cannot be signed: {error}") from None
        files.write(folder / FILE, made.read_bytes())


def verify(folder: Path, trusted: Sequence[PublicKey]) -> PublicKey:
    """Return who signed the folder as it is. Raises CheckFailed, and ImportError as `sign`."""
    from model_signing import verifying

    path = folder / FILE
    if path.is_symlink() or not path.is_file():
        raise CheckFailed(f"{folder}: is not signed: there is no {FILE}", _AGAIN)
    pems = {key: _pem(key) for key in trusted}
    hint = _hint(path)
    signer = next((k for k, pem in pems.items() if hashlib.sha256(pem).hexdigest() == hint), None)
    if signer is None:
        raise CheckFailed(f"{path}: is signed by none of the keys that are trusted", _AGAIN)
    with tempfile.TemporaryDirectory() as own:
        public = Path(own, "key.pub")
        public.write_bytes(pems[signer])
        config = verifying.Config().set_hashing_config(_hashing())
        config.use_elliptic_key_verifier(public_key=public)
        try:
            config.verify(folder, path)
        except Exception as error:  # of the library, and of what it reads a stranger's bundle with
            text = (str(error) or type(error).__name__).replace("\\'", "'")
            reason = " ".join(text.partition(": Expected 'Digest")[0].split())[:300]
            raise CheckFailed(f"{path}: does not hold: {reason}", _AGAIN) from None
    return signer


def _hashing() -> Any:
    """Return how a folder is hashed: each file but the signature; links are refused."""
    from model_signing import hashing

    return hashing.Config().set_ignored_paths(paths=[FILE], ignore_git_paths=False)


def _hint(path: Path) -> str:
    """Return the name of the key in a bundle, "" where there is none."""
    try:
        bundle = files.parsed(json.loads, path.read_text(encoding="utf-8"))
        return str(bundle["verificationMaterial"]["publicKey"]["hint"])
    except (ValueError, KeyError, TypeError):
        return ""


def _pem(key: PublicKey) -> bytes:
    public = serialization.load_der_public_key(key.der)
    return public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
