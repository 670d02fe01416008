"""What a registry sends, as values of known types. JSON of another shape is an OutsideError.

No other module looks into a registry's JSON. Only the fields that the factory reads are looked at.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, Final

from builder.core.errors import OutsideError

LARGEST: Final = 4 * 1024 * 1024
"""Bytes of the largest manifest, configuration or receipt that is read; as skopeo has it."""

LARGEST_SAYING: Final = 1024 * 1024
"""Bytes of the largest token or error that is read; as skopeo has it."""

_DIGEST: Final = re.compile(r"[a-z0-9]+(?:[+._-][a-z0-9]+)*:[A-Za-z0-9=_-]+")
_TOKEN: Final = re.compile(r"[ -~]+")


def object_in(data: bytes) -> dict[str, Any]:
    """The JSON object that these bytes are; empty where they are none."""
    try:
        value = json.loads(data)
        json.dumps(value, ensure_ascii=False).encode()  # half a character cannot be written again
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def token(data: bytes) -> str | None:
    """The token in a token service's answer; None where there is none."""
    value = object_in(data)
    found = value.get("token") or value.get("access_token")
    return found if isinstance(found, str) and _TOKEN.fullmatch(found) else None


def digest(value: object) -> str | None:
    """A digest, which is safe in an address and in a file's name; None for anything else."""
    return value if isinstance(value, str) and _DIGEST.fullmatch(value) else None


def mapping(value: Mapping[str, Any], name: str) -> dict[str, Any]:
    """The JSON object under a name; empty where there is none."""
    return _kind(value, name, dict) or {}


def objects(value: Mapping[str, Any], name: str) -> list[dict[str, Any]]:
    """The JSON objects of the list under a name."""
    return _each(_kind(value, name, list) or [], name, dict)


def texts(value: Mapping[str, Any], name: str) -> list[str]:
    """The texts of the list under a name."""
    return _each(_kind(value, name, list) or [], name, str)


def words(value: Mapping[str, Any], name: str) -> dict[str, str]:
    """The texts by name under a name."""
    found = mapping(value, name)
    _each(list(found.values()), name, str)
    return found


def text(value: Mapping[str, Any], name: str) -> str | None:
    """The text under a name; None where there is none."""
    found: str | None = _kind(value, name, str)
    return found


def size(value: Mapping[str, Any]) -> int:
    """The number of bytes in a descriptor."""
    found = _kind(value, "size", int) or 0
    if isinstance(found, bool) or not 0 <= found < 1 << 63:
        raise odd("size", "no number of bytes")
    return found


def odd(what: str, is_: str) -> OutsideError:
    """The error for JSON of another shape."""
    return OutsideError(
        f"the registry sent {what} that is {is_}",
        "look whether the address leads to a registry, and push the image again",
    )


_NAMES: Final[Mapping[type, str]] = {dict: "object", list: "list", str: "text", int: "number"}


def _kind(value: Mapping[str, Any], name: str, kind: type) -> Any:
    found = value.get(name)
    if found is not None and not isinstance(found, kind):
        raise odd(f"`{name}`", f"no {_NAMES[kind]}")
    return found


def _each(values: list[Any], name: str, kind: type) -> list[Any]:
    if not all(isinstance(one, kind) for one in values):
        raise odd(f"`{name}` with something", f"no {_NAMES[kind]}")
    return values
