"""Text from elsewhere, as a person may see it: without credentials, without escape sequences."""

from __future__ import annotations

import re
from typing import Final

_QUOTED: Final = re.compile(r"//[^\s/<>@]*['\",][^\s/<>]*@")
_WORD: Final = re.compile(r"[^\s'\"<>,]+@[^\s'\"<>,]*")
_ADDRESS: Final = re.compile(
    r"(?P<head>.*?(?:[A-Za-z][A-Za-z0-9+.-]*:)?//)?(?P<rest>.*)", re.DOTALL
)
_PORT: Final = re.compile(r"[^:/@]*:[0-9]+(/|$)")
_SEQUENCE: Final = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\))")


def masked(text: str) -> str:
    """Return the text with the user and the password of each address in it as `***`.

    An address may lack its scheme, and a password may hold a slash or an @.
    """
    return _WORD.sub(lambda word: address(word[0]), _QUOTED.sub("//***@", text))


def address(text: str) -> str:
    """Return one address with its user and password as `***`, whatever the password holds."""
    parts = _ADDRESS.fullmatch(text)
    assert parts  # it matches any text
    head, rest = parts["head"] or "", parts["rest"]
    authority = rest.partition("/")[0]
    if "@" in authority and (head or ":" in authority.partition("@")[0]):
        user, _, host = authority.rpartition("@")
        if head or not host.startswith("sha256:"):
            return f"{head}***{rest[len(user) :]}"
    elif "@" in rest and ":" in authority and not _PORT.match(rest):  # a slash in the password
        return f"{head}***@{rest.rpartition('@')[2]}"
    return text


def plain(text: str) -> str:
    """Return the text without what moves a terminal's cursor or colours it; its lines stay."""
    text = _SEQUENCE.sub("", text)
    return "".join(char if char.isprintable() or char in "\n\t" else "?" for char in text)
