"""Expanding one text: `$NAME` and `${NAME}`, and bash's expansions where they are on.

The rules are the hosted service's ("Substitute variable values", 2026-04-01, and the errors that
its users report):

* A name is upper case: `$PROJECT_ID`, `$_MINE`. Any other text after a `$` stays as it is, so that
  `$(ls)` and `$lower` reach the shell. `$$` is a literal `$`.
* A name of the user's own begins with `_`. Another name must be a built-in one. Anything else is an
  error, even under ALLOW_LOOSE.
* A built-in name without a value is empty text.
* `${NAME:0:7}` and the other expansions of bash are read only under dynamicSubstitutions. Otherwise
  they stay as they are, and do not count as a use of NAME.
* `${TF_VAR_x}` is the shell's: a lower-case letter in a name in braces makes it no substitution.
* Nothing is substituted in `script`.
"""

from __future__ import annotations

import re
from collections.abc import Callable

OF_TRIGGERS = (
    "TRIGGER_NAME",
    "COMMIT_SHA",
    "REVISION_ID",
    "SHORT_SHA",
    "REPO_NAME",
    "REPO_FULL_NAME",
    "BRANCH_NAME",
    "TAG_NAME",
    "REF_NAME",
    "TRIGGER_BUILD_CONFIG_PATH",
)
"""The built-in names that have a value only in a build that a trigger starts."""
OF_PULL_REQUESTS = ("_HEAD_BRANCH", "_BASE_BRANCH", "_HEAD_REPO_URL", "_PR_NUMBER")
"""The names that have a value only in a build that a pull request starts."""
BUILT_IN = (
    "PROJECT_ID",
    "PROJECT_NUMBER",
    "BUILD_ID",
    "LOCATION",
    *OF_TRIGGERS,
    "SERVICE_ACCOUNT_EMAIL",
    "SERVICE_ACCOUNT",
)

_NAME = r"[A-Z][A-Z0-9_]*|_[A-Z0-9_]+"
_REFERENCE = re.compile(
    rf"\$(?:(?P<escape>\$)|(?P<bare>{_NAME})|\{{(?P<length>#?)(?P<name>{_NAME})(?![A-Za-z0-9_]))"
)


class Unexpandable(Exception):  # noqa: N818 - becomes an InputError where its line is known
    """A text that cannot be expanded. `name`: the substitution that is missing, if that is why."""

    def __init__(self, what: str, fix: str, name: str = "") -> None:
        super().__init__(what)
        self.what = what
        self.fix = fix
        self.name = name


Lookup = Callable[[str], str | None]


# --- one text -------------------------------------------------------------------------------------


def references(text: str, dynamic: bool) -> tuple[str, ...]:
    """The names that a text uses, in order, also those inside expansions."""
    found: list[str] = []

    def look(name: str) -> str:
        found.append(name)
        return ""

    expand(text, look, dynamic, strict=False)
    return tuple(dict.fromkeys(found))


def expand(text: str, lookup: Lookup, dynamic: bool, strict: bool = True) -> str:
    """`text` with the value of every substitution. Raises Unexpandable.

    lookup: gives the value of a name, or None. dynamic: read bash's expansions. strict: a name of
    the user's own must have a value (MUST_MATCH); otherwise a missing one is empty text.
    """
    result, place = [], 0
    while match := _REFERENCE.search(text, place):
        result.append(text[place : match.start()])
        if match["escape"]:
            result.append("$")
            place = match.end()
        elif match["bare"]:
            result.append(_value(match["bare"], lookup, strict))
            place = match.end()
        else:
            piece, place = _braced(text, match, lookup, dynamic, strict)
            result.append(piece)
    return "".join(result) + text[place:]


def _braced(
    text: str, match: re.Match[str], lookup: Lookup, dynamic: bool, strict: bool
) -> tuple[str, int]:
    """The expansion of the `${...}` at the match, and the place after it."""
    end = match.end()
    if text.startswith("}", end) and not match["length"]:
        return _value(match["name"], lookup, strict), end + 1
    close = _closing(text, end) if dynamic else -1
    if close < 0:  # no substitution: left for the shell
        return text[match.start() : end], end
    operation, name = text[end:close], match["name"]
    if not name.startswith("_") and name not in BUILT_IN and lookup(name) is None:
        return text[match.start() : close + 1], close + 1  # most likely, the shell's own variable

    def inner(word: str) -> str:
        return expand(word, lookup, dynamic, strict)

    if match["length"]:
        if operation:
            raise _unknown(text[match.start() : close + 1])
        return str(len(_value(match["name"], lookup, strict))), close + 1
    if operation.startswith((":-", ":=", ":+", ":?")) or operation[:1] in ("-", "=", "+", "?"):
        return _default(match["name"], operation, lookup, inner), close + 1
    value = _value(match["name"], lookup, strict)
    return _apply(value, operation, inner, text[match.start() : close + 1]), close + 1


def _closing(text: str, place: int) -> int:
    """The place of the `}` that ends the expansion whose operation begins here; -1 for none."""
    depth = 0
    while place < len(text):
        if text[place] == "\\":
            place += 1
        elif text.startswith("${", place):
            depth += 1
            place += 1
        elif text[place] == "}":
            if not depth:
                return place
            depth -= 1
        place += 1
    return -1


def _value(name: str, lookup: Lookup, strict: bool) -> str:
    value = lookup(name)
    if value is not None:
        return value
    if not name.startswith("_"):
        if name in BUILT_IN:
            return ""
        raise Unexpandable(
            f"${name} is not a built-in substitution",
            f"write $${name} for the shell's own variable, or call it $_{name} and define it",
            name,
        )
    if strict:
        raise Unexpandable(
            f"no value for the substitution ${name}",
            f"add {name} to substitutions:, or call with --substitutions {name}=VALUE",
            name,
        )
    return ""


# --- bash's expansions ----------------------------------------------------------------------------


def _default(name: str, operation: str, lookup: Lookup, inner: Callable[[str], str]) -> str:
    """`:-` `-` `:=` `=` `:+` `+` `:?` `?`: a default for a name that is missing (or empty)."""
    value = lookup(name)
    if value is None and name in BUILT_IN:
        value = ""
    colon = operation.startswith(":")
    kind, word = operation[colon], operation[colon + 1 :]
    there = bool(value) if colon else value is not None
    if kind == "+":
        return inner(word) if there else ""
    if there:
        return value or ""
    if kind == "?":
        raise Unexpandable(
            f"${name}: {inner(word) or 'no value'}", f"call with --substitutions {name}=VALUE", name
        )
    return inner(word)


def _apply(value: str, operation: str, inner: Callable[[str], str], whole: str) -> str:
    kind = operation[:1]
    if kind == ":":
        return _slice(value, inner(operation[1:]), whole)
    if kind in ("#", "%"):
        greedy = operation.startswith(kind * 2)
        pattern = inner(operation[1 + greedy :])
        return _without(value, pattern, front=kind == "#", longest=greedy)
    if kind == "/":
        return _replace(value, operation[1:], inner)
    if kind in ("^", ","):
        everywhere = operation.startswith(kind * 2)
        which = _glob(inner(operation[1 + everywhere :]) or "?")
        change = str.upper if kind == "^" else str.lower
        count = len(value) if everywhere else 1
        head = "".join(change(c) if which.fullmatch(c) else c for c in value[:count])
        return head + value[count:]
    raise _unknown(whole)


def _unknown(whole: str) -> Unexpandable:
    return Unexpandable(
        f"{whole} is not an expansion of bash",
        "write $$ for a literal $, or one of ${V:-d} ${V:0:7} ${V#p} ${V%p} ${V/p/r} ${V^^} ${V,,}",
    )


def _slice(value: str, bounds: str, whole: str) -> str:
    offset, colon, length = bounds.partition(":")
    try:
        start = int(offset.strip() or 0)
        count = int(length.strip() or 0) if colon else None
    except ValueError:
        raise Unexpandable(
            f"{whole}: position and length are whole numbers", "for example ${SHORT_SHA:0:4}"
        ) from None
    if start < 0:
        start += len(value)
    if not 0 <= start <= len(value):
        return ""
    if count is None:
        return value[start:]
    end = start + count if count >= 0 else len(value) + count
    if end < start:
        raise Unexpandable(f"{whole}: the end is before the start", "use a smaller number")
    return value[start:end]


def _without(value: str, pattern: str, front: bool, longest: bool) -> str:
    """The value without the shortest or longest match at one of its ends."""
    match = _glob(pattern).fullmatch
    lengths = range(len(value) + 1)
    for length in reversed(lengths) if longest else lengths:
        cut = length if front else len(value) - length
        if match(value[:cut] if front else value[cut:]):
            return value[cut:] if front else value[:cut]
    return value


def _replace(value: str, operation: str, inner: Callable[[str], str]) -> str:
    mode = operation[:1] if operation[:1] in ("/", "#", "%") else ""
    pattern, replacement = _split(operation[len(mode) :])
    pattern, replacement = inner(pattern), _unquoted(inner(replacement))
    if not pattern and mode in ("", "/"):
        return value
    found = _glob(pattern)
    if mode == "#":
        match = found.match(value)
        return replacement + value[match.end() :] if match else value
    if mode == "%":
        rest = _without(value, pattern, front=False, longest=True)
        matched = rest != value or found.fullmatch("")
        return rest + replacement if matched else value
    if not value:
        return replacement if found.fullmatch("") else value
    result, place = [], 0
    while place < len(value):
        match = found.match(value, place)
        if match is None or match.end() == place:
            result.append(value[place])
            place += 1
            continue
        result.append(replacement)
        place = match.end()
        if not mode:
            break
    return "".join(result) + value[place:]


def _split(text: str) -> tuple[str, str]:
    """Pattern and replacement at the first `/` that is neither escaped nor in an expansion."""
    depth = place = 0
    while place < len(text):
        if text[place] == "\\":
            place += 1
        elif text.startswith("${", place):
            depth += 1
        elif text[place] == "}" and depth:
            depth -= 1
        elif text[place] == "/" and not depth:
            return text[:place], text[place + 1 :]
        place += 1
    return text, ""


def _unquoted(text: str) -> str:
    return re.sub(r"\\(.)", r"\1", text, flags=re.DOTALL)


def _glob(pattern: str) -> re.Pattern[str]:
    """A shell pattern (`*`, `?`, `[...]`, `\\x`) as a regular expression."""
    result, place = "", 0
    while place < len(pattern):
        char = pattern[place]
        place += 1
        if char == "*":
            result += ".*"
        elif char == "?":
            result += "."
        elif char == "\\" and place < len(pattern):
            result += re.escape(pattern[place])
            place += 1
        elif char == "[" and (end := _class_end(pattern, place)) > 0:
            body = pattern[place:end]
            negated = body[:1] in ("!", "^")
            body = re.sub(r"([\\\[&~|])", r"\\\1", body[negated:])
            if body.startswith("]"):
                body = "\\" + body
            result += f"[{'^' if negated else ''}{body}]"
            place = end + 1
        else:
            result += re.escape(char)
    try:
        return re.compile(result, re.DOTALL)
    except re.error:
        return re.compile(re.escape(pattern), re.DOTALL)


def _class_end(pattern: str, place: int) -> int:
    """The place of the `]` that ends a character class. A first `]` belongs to the class."""
    first = place + (pattern[place : place + 1] in ("!", "^"))
    return pattern.find("]", first + 1)
