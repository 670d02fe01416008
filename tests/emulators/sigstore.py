"""Sigstore on loopback: an OIDC issuer, Fulcio with its log of certificates, and Rekor.

Each speaks its own protocol; Fulcio refuses the tokens that the real one refuses. Two files point a
client at it, which every client of Sigstore reads: a trusted root and a signing config.

Sources: sigstore/fulcio fulcio.proto and docs/certificate-specification.md; RFC 6962 for the
certificate's time stamp and for the log; sigstore/rekor openapi.yaml (v1) and
pkg/types/dsse/v0.0.1; C2SP signed-note for checkpoints; sigstore/protobuf-specs trustroot.proto.
"""

from __future__ import annotations

import base64
import hashlib
import json
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import jwt
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256, SHA384
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    load_pem_public_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from tests.emulators.web import LoopbackServer, QuietHandler, answering

AUDIENCE = "sigstore"
SINCE = {"start": "2020-01-01T00:00:00Z"}
SCT_LIST = x509.ObjectIdentifier("1.3.6.1.4.1.11129.2.4.2")
ISSUER_V1, ISSUER_V2 = (x509.ObjectIdentifier(f"1.3.6.1.4.1.57264.1.{n}") for n in (1, 8))

Key = ec.EllipticCurvePrivateKey


class Refused(Exception):
    """A service answers this with 400."""


def octets(tag: int, body: bytes) -> bytes:
    """Return a string in DER."""
    size = len(body)
    raw = size.to_bytes((size.bit_length() + 7) // 8, "big")
    return bytes([tag, size] if size < 0x80 else [tag, 0x80 | len(raw), *raw]) + body


def b64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def der_of(key: Key) -> bytes:
    """The public half: SubjectPublicKeyInfo."""
    return key.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)


def canonical(value: Any) -> bytes:
    """RFC 8785, as far as it matters for texts and whole numbers."""
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


# Certificates ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Authority:
    """A root, an intermediate that signs, and the log of certificates."""

    root: x509.Certificate
    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey
    log: ec.EllipticCurvePrivateKey

    def certify(
        self,
        public: Any,
        identity: str,
        issuer: str,
        starts: datetime,
    ) -> x509.Certificate:
        """Fulcio's certificate for an identity, with the time stamp of the log inside."""
        where: x509.GeneralName = x509.UniformResourceIdentifier(identity)
        if "://" not in identity:
            where = x509.RFC822Name(identity)
        utf8 = issuer.encode()
        builder = (
            x509.CertificateBuilder()
            .subject_name(x509.Name([]))
            .issuer_name(self.certificate.subject)
            .public_key(public)
            .serial_number(x509.random_serial_number())
            .not_valid_before(starts)
            .not_valid_after(starts + timedelta(minutes=10))
            .add_extension(_usage(digital_signature=True), critical=True)
            .add_extension(
                x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CODE_SIGNING]), critical=False
            )
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(self.key.public_key()),
                critical=False,
            )
            .add_extension(x509.SubjectAlternativeName([where]), critical=True)
            .add_extension(x509.UnrecognizedExtension(ISSUER_V1, utf8), critical=False)
            .add_extension(
                x509.UnrecognizedExtension(ISSUER_V2, octets(0x0C, utf8)), critical=False
            )
        )
        before = builder.sign(self.key, SHA384())
        logged = octets(0x04, self._logged(before.tbs_certificate_bytes))
        final = builder.add_extension(x509.UnrecognizedExtension(SCT_LIST, logged), critical=False)
        return final.sign(self.key, SHA384())

    def _logged(self, tbs: bytes) -> bytes:
        """A list of one signed certificate time stamp (RFC 6962, section 3.2)."""
        at = struct.pack("!Q", int(time.time() * 1000))
        issuer = hashlib.sha256(der_of(self.key)).digest()
        entry = issuer + len(tbs).to_bytes(3, "big") + tbs
        signature = self.log.sign(b"\0\0" + at + b"\0\1" + entry + b"\0\0", ec.ECDSA(SHA256()))
        stamp = (
            b"\0" + hashlib.sha256(der_of(self.log)).digest() + at + b"\0\0\4\3"
            + struct.pack("!H", len(signature)) + signature
        )  # fmt: skip
        entry = struct.pack("!H", len(stamp)) + stamp
        return struct.pack("!H", len(entry)) + entry


def authority() -> Authority:
    """A new authority, valid for a year around now."""
    keys = [ec.generate_private_key(ec.SECP384R1()) for _ in range(2)]
    root = _ca("sigstore", keys[0], "sigstore", keys[0])
    certificate = _ca("sigstore-intermediate", keys[1], "sigstore", keys[0])
    return Authority(root, certificate, keys[1], ec.generate_private_key(ec.SECP256R1()))


def _ca(
    name: str,
    key: ec.EllipticCurvePrivateKey,
    issuer: str,
    signs: ec.EllipticCurvePrivateKey,
) -> x509.Certificate:
    half = timedelta(days=183)
    builder = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]))
        .issuer_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, issuer)]))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(datetime.now(UTC) - half)
        .not_valid_after(datetime.now(UTC) + half)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .add_extension(_usage(key_cert_sign=True, crl_sign=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(signs.public_key()), critical=False
        )
    )
    if name != issuer:
        usage = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CODE_SIGNING])
        builder = builder.add_extension(usage, critical=False)
    return builder.sign(signs, SHA384())


def _usage(**set_: bool) -> x509.KeyUsage:
    names = (
        "digital_signature", "content_commitment", "key_encipherment", "data_encipherment",
        "key_agreement", "key_cert_sign", "crl_sign", "encipher_only", "decipher_only",
    )  # fmt: skip
    return x509.KeyUsage(**{name: set_.get(name, False) for name in names})


# The log of signatures ---------------------------------------------------------------------------


@dataclass(frozen=True)
class Log:
    """A log in which each signature is the second leaf of a tree (RFC 6962, section 2.1)."""

    origin: str
    key: Key

    @property
    def name(self) -> bytes:
        """The log's id: the hash of its key."""
        return hashlib.sha256(der_of(self.key)).digest()

    def sign(self, data: bytes) -> bytes:
        return self.key.sign(data, ec.ECDSA(SHA256()))

    def proof(self, body: bytes) -> dict[str, Any]:
        """Return the proof that an entry is in the log, with a signed checkpoint."""
        other, own = (hashlib.sha256(b"\0" + leaf).digest() for leaf in (b"of others", body))
        root = hashlib.sha256(b"\1" + other + own).digest()
        note = f"{self.origin}\n2\n{b64(root)}\n"
        signature = b64(self.name[:4] + self.sign(note.encode()))
        checkpoint = f"{note}\n— {self.origin.split()[0]} {signature}\n"
        tree = {"hashes": [other.hex()], "logIndex": 1, "rootHash": root.hex(), "treeSize": 2}
        return {"checkpoint": checkpoint, **tree}


# The services ------------------------------------------------------------------------------------


class Sigstore(LoopbackServer):
    """All services behind one address. paths: those of the requests, in order.

    status: of every answer, where it is not 200.
    """

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.oidc = ec.generate_private_key(ec.SECP256R1())
        self.authority = authority()
        key = ec.generate_private_key(ec.SECP256R1())
        self.log = Log("rekor.example.com - 1193050959916656506", key)
        self.status = 200
        self.paths: list[str] = []

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    @property
    def issuer(self) -> str:
        return f"{self.address}/oidc"

    def token(self, identity: str, **changes: Any) -> str:
        """What an OIDC provider gives to a job for the audience `sigstore`."""
        now = int(time.time())
        claims = {"iss": self.issuer, "sub": identity, "aud": AUDIENCE, "iat": now}
        claims["exp"] = now + 600
        return jwt.encode({**claims, **changes}, self.oidc, algorithm="ES256")

    def files(self, folder: Path) -> tuple[Path, Path]:
        """Write its trusted root and its signing config into a folder."""
        root, config = folder / "trusted_root.json", folder / "signing_config.json"
        root.write_text(json.dumps(self._trusted_root()))
        config.write_text(json.dumps(self._signing_config()))
        return root, config

    def _trusted_root(self) -> dict[str, Any]:
        def log(key: Key) -> dict[str, Any]:
            public = {"rawBytes": b64(der_of(key)), "keyDetails": "PKIX_ECDSA_P256_SHA_256"}
            known = {"baseUrl": self.address, "hashAlgorithm": "SHA2_256"}
            known["logId"] = {"keyId": b64(hashlib.sha256(der_of(key)).digest())}
            return {**known, "publicKey": {**public, "validFor": SINCE}}

        chain = (self.authority.certificate, self.authority.root)
        raw = [{"rawBytes": b64(each.public_bytes(Encoding.DER))} for each in chain]
        subject = {"organization": "example.com", "commonName": "sigstore"}
        authority = {"subject": subject, "uri": self.address, "validFor": SINCE}
        return {
            "mediaType": "application/vnd.dev.sigstore.trustedroot+json;version=0.1",
            "tlogs": [log(self.log.key)],
            "certificateAuthorities": [{**authority, "certChain": {"certificates": raw}}],
            "ctlogs": [log(self.authority.log)],
        }

    def _signing_config(self) -> dict[str, Any]:
        def service(path: str) -> list[dict[str, Any]]:
            where = {"url": f"{self.address}{path}", "operator": "example.com"}
            return [{**where, "majorApiVersion": 1, "validFor": SINCE}]

        return {
            "mediaType": "application/vnd.dev.sigstore.signingconfig.v0.2+json",
            "caUrls": service(""),
            "oidcUrls": service("/oidc"),
            "rekorTlogUrls": service(""),
            "rekorTlogConfig": {"selector": "ANY"},
            "tsaConfig": {"selector": "ANY"},
        }

    def certificate(self, body: dict[str, Any], bearer: str) -> dict[str, Any]:
        """Fulcio: a certificate for the identity in the token, and for the key that asks."""
        raw = bearer or body.get("credentials", {}).get("oidcIdentityToken", "")
        try:
            claims = jwt.decode(raw, self.oidc.public_key(), ["ES256"], audience=AUDIENCE)
        except jwt.InvalidTokenError as error:
            raise Refused(f"There was an error processing the identity token: {error}") from None
        identity = claims.get("email") or claims["sub"]
        public: Any
        if request := body.get("certificateSigningRequest"):
            csr = x509.load_pem_x509_csr(base64.b64decode(request))
            public = csr.public_key()
        else:
            request = body["publicKeyRequest"]
            public = load_pem_public_key(request["publicKey"]["content"].encode())
        made = self.authority.certify(
            public, identity, claims["iss"], datetime.now(UTC) - timedelta(seconds=1)
        )
        chain = (made, self.authority.certificate, self.authority.root)
        texts = [each.public_bytes(Encoding.PEM).decode() for each in chain]
        return {"signedCertificateEmbeddedSct": {"chain": {"certificates": texts}}}

    def entry(self, body: dict[str, Any]) -> dict[str, Any]:
        """Rekor: an entry for a DSSE envelope, with the promise that it will be in the log."""
        content = body["spec"]["proposedContent"]
        envelope, (verifier,) = json.loads(content["envelope"]), content["verifiers"]
        signatures = [
            {"signature": each["sig"], "verifier": verifier} for each in envelope["signatures"]
        ]
        spec = {
            "envelopeHash": _hash(content["envelope"].encode()),
            "payloadHash": _hash(base64.b64decode(envelope["payload"])),
            "signatures": signatures,
        }
        logged, log = canonical({"apiVersion": "0.0.1", "kind": "dsse", "spec": spec}), self.log
        entry = {"body": b64(logged), "integratedTime": int(time.time())}
        entry |= {"logID": log.name.hex(), "logIndex": 1}
        promise = b64(log.sign(canonical(entry)))
        verification = {"inclusionProof": log.proof(logged), "signedEntryTimestamp": promise}
        uuid = "108e9186e8c5677a" + hashlib.sha256(b"\0" + logged).hexdigest()
        return {uuid: {**entry, "verification": verification}}


def _hash(data: bytes) -> dict[str, str]:
    return {"algorithm": "sha256", "value": hashlib.sha256(data).hexdigest()}


class _Handler(QuietHandler):
    server: Sigstore

    def do_POST(self) -> None:  # noqa: N802
        there, body = self.server, self.content()
        there.paths.append(self.path)
        if there.status != 200:
            self.json({"code": 3, "message": "not now"}, there.status)
            return
        bearer = (self.headers["Authorization"] or "").removeprefix("Bearer ")
        try:
            if self.path == "/api/v2/signingCert":
                self.json(there.certificate(json.loads(body), bearer))
            elif self.path == "/api/v1/log/entries":
                made = there.entry(json.loads(body))
                headers = {"Content-Type": "application/json", "ETag": next(iter(made))}
                self.reply(201, json.dumps(made).encode(), headers)
            else:
                raise Refused(f"no such path: {self.path}")
        except Refused as error:
            self.json({"code": 3, "message": str(error)}, 400)


@contextmanager
def serving() -> Iterator[Sigstore]:
    """A running Sigstore of its own."""
    with answering(Sigstore()) as server:
        yield server
