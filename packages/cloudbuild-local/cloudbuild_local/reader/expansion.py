"""The expansion of one text: `$NAME` and `${NAME}`, and bash's expansions where they are on.

The rules are those of Cloud Build ("Substitute variable values", 2026-04-01, and the errors that
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

import re
from collections.abc import Callable

OF_TRIGGERS = (
    "TRIGGER_NAME", "COMMIT_SHA", "REVISION_ID", "SHORT_SHA", "REPO_NAME", "REPO_FULL_NAME",
    "BRANCH_NAME", "TAG_NAME", "REF_NAME", "TRIGGER_BUILD_CONFIG_PATH",
)  # fmt: skip
"""The built-in names that have a value only in a build that a trigger starts."""
OF_PULL_REQUESTS = ("_HEAD_BRANCH", "_BASE_BRANCH", "_HEAD_REPO_URL", "_PR_NUMBER")
"""The names that have a value only in a build that a pull request starts."""
BUILT_IN = (
    "PROJECT_ID", "PROJECT_NUMBER", "BUILD_ID", "LOCATION", *OF_TRIGGERS, "SERVICE_ACCOUNT_EMAIL",
    "SERVICE_ACCOUNT",
)  # fmt: skip

_NAME = r"[A-Z][A-Z0-9_]*|_[A-Z0-9_]+"
_REFERENCE = re.compile(
    rf"\$(?:(?P<escape>\$)|(?P<bare>{_NAME})|\{{(?P<length>#?)(?P<name>{_NAME})(?![A-Za-z0-9_]))"
)
_DEFAULT = re.compile(r"(:?)([-=+?])(.*)", re.DOTALL)
_PATTERN_PART = re.compile(r"\\.|\[[!^]?\]?[^\]]*\]|.", re.DOTALL)

Lookup = Callable[[str], str | None]
"""Returns the value of a name, None for a name without one."""


class ExpansionError(Exception):
    """A text cannot be expanded. name: the substitution that is the reason, "" for another."""

    def __init__(self, what: str, fix: str, name: str = "") -> None:
        super().__init__(what)
        self.fix = fix
        self.name = name


def references(text: str, dynamic: bool) -> tuple[str, ...]:
    """Return the names that a text uses, in order, also those inside expansions."""
    names: dict[str, None] = {}

    def look(name: str) -> str:
        names[name] = None
        return ""

    expand(text, look, dynamic, strict=False)
    return tuple(names)


def expand(text: str, lookup: Lookup, dynamic: bool, strict: bool = True) -> str:
    """Return the text with the value of every substitution. Raises ExpansionError.

    dynamic: read bash's expansions. strict: a name of the user's own must have a value
    (MUST_MATCH); otherwise a missing one is empty text.
    """

    def inner(word: str) -> str:
        return expand(word, lookup, dynamic, strict)

    result, place = "", 0
    while match := _REFERENCE.search(text, place):
        result += text[place : match.start()]
        place, name = match.end(), match["bare"] or match["name"]
        if match["escape"]:
            result += "$"
        elif match["bare"]:
            result += _value(name, lookup, strict)
        elif text.startswith("}", place) and not match["length"]:
            result, place = result + _value(name, lookup, strict), place + 1
        elif (end := _find("}", text, place) if dynamic else -1) < 0:
            result += match[0]  # no substitution: left for the shell
        else:
            whole, operation = text[match.start() : end + 1], text[place:end]
            place = end + 1
            if not name.startswith("_") and name not in BUILT_IN and lookup(name) is None:
                result += whole  # most likely, the shell's own variable
            elif default := None if match["length"] else _DEFAULT.fullmatch(operation):
                result += _default(name, default, lookup, inner)
            elif not match["length"]:
                result += _apply(_value(name, lookup, strict), operation, inner, whole)
            elif operation:
                raise _unknown(whole)
            else:
                result += str(len(_value(name, lookup, strict)))
    return result + text[place:]


def _find(end: str, text: str, place: int = 0) -> int:
    """Return the place of a character that is neither escaped nor in an expansion, -1 for none."""
    depth = 0
    for part in re.finditer(rf"\\.|\$\{{|[}}{end}]", text[place:], re.DOTALL):
        if part[0] == end and not depth:
            return place + part.start()
        depth = max(0, depth + {"${": 1, "}": -1}.get(part[0], 0))
    return -1


def _value(name: str, lookup: Lookup, strict: bool) -> str:
    value = lookup(name)
    if value is not None:
        return value
    if not name.startswith("_") and name not in BUILT_IN:
        fix = f"write $${name} for the shell's own variable, or call it $_{name} and define it"
        raise ExpansionError(f"${name} is not a built-in substitution", fix, name)
    if strict and name.startswith("_"):
        fix = f"add {name} to substitutions:, or call with --substitutions {name}=VALUE"
        raise ExpansionError(f"no value for the substitution ${name}", fix, name)
    return ""


# --- bash's expansions ----------------------------------------------------------------------------


def _default(
    name: str, operation: re.Match[str], lookup: Lookup, inner: Callable[[str], str]
) -> str:
    """Apply `:-` `-` `:=` `=` `:+` `+` `:?` `?`: a default for a name that is missing or empty."""
    colon, kind, word = operation.groups()
    value = lookup(name)
    if value is None and name in BUILT_IN:
        value = ""
    is_set = bool(value) if colon else value is not None
    if kind == "+":
        return inner(word) if is_set else ""
    if not is_set and kind == "?":
        what, fix = inner(word) or "no value", f"call with --substitutions {name}=VALUE"
        raise ExpansionError(f"${name}: {what}", fix, name)
    return value or "" if is_set else inner(word)


def _apply(value: str, operation: str, inner: Callable[[str], str], whole: str) -> str:
    kind = operation[:1]
    twice = operation.startswith(kind * 2)
    if kind == ":":
        return _slice(value, inner(operation[1:]), whole)
    if kind in ("#", "%"):
        pattern = inner(operation[1 + twice :])
        return _without(value, pattern, front=kind == "#", longest=twice)
    if kind == "/":
        return _replace(value, operation[1:], inner)
    if kind in ("^", ","):
        which = _glob(inner(operation[1 + twice :]) or "?")
        change = str.upper if kind == "^" else str.lower
        count = len(value) if twice else 1
        head = "".join(change(c) if which.fullmatch(c) else c for c in value[:count])
        return head + value[count:]
    raise _unknown(whole)


def _unknown(whole: str) -> ExpansionError:
    return ExpansionError(
        f"{whole} is not an expansion of bash",
        "write $$ for a literal $, or one of ${V:-d} ${V:0:7} ${V#p} ${V%p} ${V/p/r} ${V^^} ${V,,}",
    )


def _slice(value: str, bounds: str, whole: str) -> str:
    offset, colon, length = bounds.partition(":")
    try:
        start = int(offset.strip() or 0)
        count = int(length.strip() or 0) if colon else len(value)
    except ValueError:
        what = f"{whole}: position and length are whole numbers"
        raise ExpansionError(what, "for example ${SHORT_SHA:0:4}") from None
    start += len(value) if start < 0 else 0
    if not 0 <= start <= len(value):
        return ""
    end = start + count if count >= 0 else len(value) + count
    if end < start:
        raise ExpansionError(f"{whole}: the end is before the start", "use a smaller number")
    return value[start:end]


def _without(value: str, pattern: str, front: bool, longest: bool) -> str:
    """Return the value without the shortest or longest match at one of its ends."""
    match = _glob(pattern).fullmatch
    lengths = range(len(value) + 1)
    for length in reversed(lengths) if longest else lengths:
        cut = length if front else len(value) - length
        if match(value[:cut] if front else value[cut:]):
            return value[cut:] if front else value[:cut]
    return value


def _replace(value: str, operation: str, inner: Callable[[str], str]) -> str:
    mode = operation[:1] if operation[:1] in ("/", "#", "%") else ""
    words = operation[len(mode) :]
    slash = _find("/", words)
    pattern = inner(words[:slash] if slash >= 0 else words)
    replacement = inner(words[slash + 1 :]) if slash >= 0 else ""
    replacement = re.sub(r"\\(.)", r"\1", replacement, flags=re.DOTALL)
    if not pattern and mode in ("", "/"):
        return value
    shape, anchored = _glob(pattern).pattern, mode in ("#", "%")
    shape = {"#": rf"\A(?:{shape})", "%": rf"(?:{shape})\Z"}.get(mode, shape)

    def replaced(match: re.Match[str]) -> str:
        return replacement if match[0] or anchored or not value else ""

    return re.sub(shape, replaced, value, count=0 if mode == "/" else 1, flags=re.DOTALL)


def _glob(pattern: str) -> re.Pattern[str]:
    """Return a shell pattern (`*`, `?`, `[...]`, `\\x`) as a regular expression."""
    shape = ""
    for part in _PATTERN_PART.findall(pattern):
        if part in ("*", "?"):
            shape += ".*" if part == "*" else "."
        elif len(part) > 1 and part[0] == "[":
            negated = part[1] in "!^"
            body = re.sub(r"([\\\[&~|])", r"\\\1", part[1 + negated : -1])
            body = re.sub("^]", r"\\]", body)
            shape += f"[{'^' * negated}{body}]"
        else:
            shape += re.escape(part[-1])
    try:
        return re.compile(shape, re.DOTALL)
    except re.error:
        return re.compile(re.escape(pattern), re.DOTALL)
