"""A time stamp authority (RFC 3161): it signs that it saw a hash at a time. Its answer is CMS.

Source: RFC 3161, sections 2.4.1 and 2.4.2; RFC 5652, section 5; RFC 5816 (the certificate's hash).
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

SEQUENCE, SET, INTEGER, OID, OCTETS = 0x30, 0x31, 0x02, 0x06, 0x04
GENERAL_TIME, TRUE = 0x18, b"\x01\x01\xff"

# object identifiers, encoded
SIGNED_DATA = bytes.fromhex("2a864886f70d010702")
TST_INFO = bytes.fromhex("2a864886f70d0109100104")
CONTENT_TYPE = bytes.fromhex("2a864886f70d010903")
MESSAGE_DIGEST = bytes.fromhex("2a864886f70d010904")
SIGNING_CERTIFICATE = bytes.fromhex("2a864886f70d010910022f")
SHA_256 = bytes.fromhex("608648016503040201")
ECDSA_SHA_256 = bytes.fromhex("2a8648ce3d040302")
POLICY = bytes.fromhex("2b0601040183bf300f")


def der(tag: int, *parts: bytes) -> bytes:
    """One value in DER."""
    body = b"".join(parts)
    size = len(body)
    if size < 0x80:
        return bytes([tag, size]) + body
    raw = size.to_bytes((size.bit_length() + 7) // 8, "big")
    return bytes([tag, 0x80 | len(raw)]) + raw + body


def number(value: int) -> bytes:
    """A whole number in DER."""
    return der(INTEGER, value.to_bytes(value.bit_length() // 8 + 1, "big"))


def parts(data: bytes) -> list[tuple[int, bytes, bytes]]:
    """The values inside a body: tag, body, and the whole."""
    found, at = [], 0
    while at < len(data):
        tag, size, begin = data[at], data[at + 1], at + 2
        if size & 0x80:
            count = size & 0x7F
            size = int.from_bytes(data[begin : begin + count], "big")
            begin += count
        found.append((tag, data[begin : begin + size], data[at : begin + size]))
        at = begin + size
    return found


@dataclass
class StampAuthority:
    """Signs times. ago: how long ago it believes it is."""

    root: x509.Certificate
    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey
    ago: timedelta = field(default=timedelta())

    def stamp(self, request: bytes) -> bytes:
        """The answer to a time stamp request: granted, for the hash in it, with its nonce."""
        ((_, asked, _),) = parts(request)
        fields = parts(asked)
        imprint, rest = fields[1][2], fields[2:]
        nonce = next((whole for tag, _, whole in rest if tag == INTEGER), b"")
        now = (datetime.now(UTC) - self.ago).strftime("%Y%m%d%H%M%SZ").encode()
        serial = x509.random_serial_number()
        info = der(
            SEQUENCE, number(1), der(OID, POLICY), imprint, number(serial),
            der(GENERAL_TIME, now), nonce,
        )  # fmt: skip
        return der(SEQUENCE, der(SEQUENCE, number(0)), self._signed(info))

    def _signed(self, info: bytes) -> bytes:
        """The time as signed data of CMS, with the certificate inside."""
        sha256 = der(SEQUENCE, der(OID, SHA_256))
        raw = self.certificate.public_bytes(Encoding.DER)
        attributes = b"".join(
            sorted(
                der(SEQUENCE, der(OID, name), der(SET, value))
                for name, value in (
                    (CONTENT_TYPE, der(OID, TST_INFO)),
                    (MESSAGE_DIGEST, der(OCTETS, hashlib.sha256(info).digest())),
                    (
                        SIGNING_CERTIFICATE,
                        der(
                            SEQUENCE,
                            der(
                                SEQUENCE,
                                der(SEQUENCE, der(OCTETS, hashlib.sha256(raw).digest())),
                            ),
                        ),
                    ),
                )
            )
        )
        signature = self.key.sign(der(SET, attributes), ec.ECDSA(SHA256()))
        who = der(
            SEQUENCE,
            self.certificate.issuer.public_bytes(),
            number(self.certificate.serial_number),
        )
        signer = der(
            SEQUENCE, number(1), who, sha256, der(0xA0, attributes),
            der(SEQUENCE, der(OID, ECDSA_SHA_256)), der(OCTETS, signature),
        )  # fmt: skip
        content = der(SEQUENCE, der(OID, TST_INFO), der(0xA0, der(OCTETS, info)))
        data = der(SEQUENCE, number(3), der(SET, sha256), content, der(0xA0, raw), der(SET, signer))
        return der(SEQUENCE, der(OID, SIGNED_DATA), der(0xA0, data))


def authority() -> StampAuthority:
    """A new authority, valid for a year around now."""
    keys = [ec.generate_private_key(ec.SECP256R1()) for _ in range(2)]
    root = _certificate("tsa-root", keys[0], keys[0], ca=True)
    return StampAuthority(root, _certificate("tsa", keys[1], keys[0], ca=False), keys[1])


def _certificate(
    name: str, key: ec.EllipticCurvePrivateKey, signs: ec.EllipticCurvePrivateKey, ca: bool
) -> x509.Certificate:
    half = timedelta(days=183)
    usage = dict.fromkeys(
        ("content_commitment", "key_encipherment", "data_encipherment", "key_agreement",
         "encipher_only", "decipher_only"),
        False,
    )  # fmt: skip
    builder = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]))
        .issuer_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "tsa-root")]))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(datetime.now(UTC) - half)
        .not_valid_after(datetime.now(UTC) + half)
        .add_extension(x509.BasicConstraints(ca=ca, path_length=None), critical=True)
        .add_extension(
            x509.KeyUsage(digital_signature=not ca, key_cert_sign=ca, crl_sign=ca, **usage),
            critical=True,
        )
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(signs.public_key()), critical=False
        )
    )
    if not ca:
        stamps = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.TIME_STAMPING])
        builder = builder.add_extension(stamps, critical=True)
    return builder.sign(signs, SHA256())
