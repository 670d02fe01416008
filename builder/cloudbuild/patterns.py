"""RE2's rules for the patterns of triggers: Cloud Build takes these, and not Python's.

Source: github.com/google/re2/wiki/Syntax.
"""

from __future__ import annotations

import re

_TOKEN = re.compile(
    r"\\Q.*?(?:\\E|$)|\\[pP]\{\^?\w+\}|\\[pP]\w|\\x\{[0-9a-fA-F]+\}|\\.|\[\^?\]?(?:\\.|\[:\^?\w+:\]|[^\]\\])*\]"
    r"|\(\?|(?:[*+?]|\{\d*,?\d*\})[+]|\{\d*,?\d*\}|.",
    re.S,
)
_GROUP = re.compile(r"\(\?(?:P?<\w+>|[imsU]*(?:-[imsU]+)?[:)])")
_ESCAPES = "abBdDfnrsStvwWzAC0x"
_REPEATED = 1000
"""The most that RE2 repeats a part."""


def problem(pattern: str) -> str:
    """Why RE2 refuses a pattern; empty if it does not."""
    python = []
    at = 0
    while match := _TOKEN.match(pattern, at):
        token, begin, at = match[0], at, match.end()
        if token == "(?":
            group = _GROUP.match(pattern, begin)
            if not group:
                return f"RE2 has no {pattern[begin : begin + 4]}... (no lookaround)"
            at = group.end()
            python.append("" if group[0].endswith(")") else "(")
            continue
        if why := _refused(token):
            return why
        python.append(_as_python(token))
    try:
        re.compile("".join(python))
    except (re.error, OverflowError) as error:
        return str(error)
    return ""


def _refused(token: str) -> str:
    if token[0] == "\\" and token[1:2].isalnum() and token[1] not in _ESCAPES + "pPQ":
        what = "backreference" if token[1].isdigit() else "escape"
        return f"RE2 has no {what} {token}"
    if len(token) > 1 and token[0] in "*+?{" and token[-1] == "+":
        return f"RE2 has no possessive {token}"
    if token[0] == "{" and any(int(n) > _REPEATED for n in re.findall(r"\d+", token)):
        return f"{token} repeats more than {_REPEATED} times"
    return ""


def _as_python(token: str) -> str:
    """Something of the same shape that Python's `re` reads."""
    if token.startswith("\\Q"):
        return re.escape(token[2:].removesuffix("\\E"))
    if token[0] == "\\" and token[1:2] in ("z", "C", "p", "P", "x"):
        return "." if token[1] != "z" else r"\Z"
    if token[0] == "[":
        return re.sub(r"\[:\^?\w+:\]|\\[pP](\{\^?\w+\}|\w)|\\x\{\w+\}", "a", token)
    return token
