"""The DSSE envelope in a bundle: an in-toto statement as bytes, and the signatures over it.

Source: secure-systems-lab/dsse protocol.md.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from builder.core.errors import CheckFailed

PAYLOAD: Final = "application/vnd.in-toto+json"


@dataclass(frozen=True)
class Envelope:
    """The payload, and signatures that nobody has checked yet."""

    payload: bytes
    signatures: tuple[bytes, ...]


def signed(payload: bytes) -> bytes:
    """What a signature is over: DSSE's pre-authentication encoding."""
    kind = PAYLOAD.encode()
    return b"DSSEv1 %d %s %d %s" % (len(kind), kind, len(payload), payload)


def content(payload: bytes, signature: bytes) -> Mapping[str, Any]:
    """The envelope of one signature, as JSON has it."""
    return {
        "payload": base64.b64encode(payload).decode(),
        "payloadType": PAYLOAD,
        "signatures": [{"sig": base64.b64encode(signature).decode()}],
    }


def parse(bundle: bytes) -> Envelope:
    """The envelope in a bundle. Raises CheckFailed for other bytes."""
    try:
        found = json.loads(bundle)["dsseEnvelope"]
        if found["payloadType"] != PAYLOAD:
            raise ValueError
        payload = base64.b64decode(found["payload"], validate=True)
        signatures = [base64.b64decode(one["sig"], validate=True) for one in found["signatures"]]
    except (ValueError, KeyError, TypeError, RecursionError):
        raise not_a_bundle() from None
    return Envelope(payload, tuple(signatures))


def not_a_bundle() -> CheckFailed:
    """The error for bytes that are none."""
    return CheckFailed("it is no bundle with an in-toto statement")
