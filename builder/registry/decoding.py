"""A registry's JSON as values of known types. JSON of another shape is an OutsideError.

No other module decodes it. Only the fields that the factory reads are looked at.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, Final

from builder.core.errors import OutsideError

LARGEST: Final = 4 * 1024 * 1024
"""Bytes of the largest manifest, configuration or receipt that is read; as skopeo has it."""

LARGEST_MESSAGE: Final = 1024 * 1024
"""Bytes of the largest token or error that is read; as skopeo has it."""


class MalformedError(OutsideError):
    """JSON of another shape than its place asks for."""


_DIGEST: Final = re.compile(r"[a-z0-9]+(?:[+._-][a-z0-9]+)*:[A-Za-z0-9=_-]+")
_TOKEN: Final = re.compile(r"[ -~]+")


def object_in(data: bytes) -> dict[str, Any]:
    """Return the JSON object in these bytes; an empty one for anything else."""
    try:
        value = json.loads(data)
        json.dumps(value, ensure_ascii=False).encode()  # half a character cannot be written again
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def token(data: bytes) -> str | None:
    """Return the token in a token service's answer; None where there is none."""
    value = object_in(data)
    word = value.get("token") or value.get("access_token")
    return word if isinstance(word, str) and _TOKEN.fullmatch(word) else None


def digest(value: object) -> str | None:
    """Return a digest, which is safe in an address and a file name; None for anything else."""
    return value if isinstance(value, str) and _DIGEST.fullmatch(value) else None


def mapping(value: Mapping[str, Any], name: str) -> dict[str, Any]:
    return _kind(value, name, dict) or {}


def objects(value: Mapping[str, Any], name: str) -> list[dict[str, Any]]:
    return _each(_kind(value, name, list) or [], name, dict)


def texts(value: Mapping[str, Any], name: str) -> list[str]:
    return _each(_kind(value, name, list) or [], name, str)


def words(value: Mapping[str, Any], name: str) -> dict[str, str]:
    content = mapping(value, name)
    _each(list(content.values()), name, str)
    return content


def text(value: Mapping[str, Any], name: str) -> str | None:
    """Return the text under a name; None where there is none."""
    content: str | None = _kind(value, name, str)
    return content


def size(value: Mapping[str, Any]) -> int:
    count = _kind(value, "size", int) or 0
    if isinstance(count, bool) or not 0 <= count < 1 << 63:
        raise malformed("size", "no number of bytes")
    return count


def malformed(what: str, is_: str) -> MalformedError:
    return MalformedError(
        f"the registry sent {what} that is {is_}",
        "look whether the address leads to a registry, and push the image again",
    )


_NAMES: Final[Mapping[type, str]] = {dict: "object", list: "list", str: "text", int: "number"}


def _kind(value: Mapping[str, Any], name: str, kind: type) -> Any:
    content = value.get(name)
    if content is not None and not isinstance(content, kind):
        raise malformed(f"`{name}`", f"no {_NAMES[kind]}")
    return content


def _each(values: list[Any], name: str, kind: type) -> list[Any]:
    if not all(isinstance(value, kind) for value in values):
        raise malformed(f"`{name}` with something", f"no {_NAMES[kind]}")
    return values
