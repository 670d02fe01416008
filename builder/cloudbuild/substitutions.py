"""Substitutions: `$NAME` and `${NAME}` in a build, with bash's expansions where they are on.

The rules are the hosted service's ("Substitute variable values", 2026-04-01, and the errors that
its users report):

* A name is upper case: `$PROJECT_ID`, `$_MINE`. Anything else after a `$` stays as it is, so that
  `$(ls)` and `$lower` reach the shell; `$$` is a literal `$`.
* A name of the user's own begins with `_`. Another name must be one of the built-in ones: that is
  an error even under ALLOW_LOOSE.
* Built-in names without a value are empty text.
* `${NAME:0:7}` and its kin are read only under dynamicSubstitutions; else they stay as they are,
  and do not count as a use of NAME.
* Nothing is substituted in `script`.
"""

from __future__ import annotations

import dataclasses
import re
import subprocess
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from builder.cloudbuild.document import Build, Objects, Options, Step, Volume
from builder.core.errors import InputError

BUILT_IN = (
    "PROJECT_ID",
    "PROJECT_NUMBER",
    "BUILD_ID",
    "LOCATION",
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
    "SERVICE_ACCOUNT_EMAIL",
    "SERVICE_ACCOUNT",
)
FIXED = ("PROJECT_ID", "BUILD_ID")
"""The built-in names that no one can override."""

USER_KEY = re.compile(r"_[A-Z0-9_]+")
MAX_COUNT, MAX_KEY_BYTES, MAX_VALUE_BYTES = 200, 100, 4000

_NAME = r"[A-Z][A-Z0-9_]*|_[A-Z0-9_]+"
_REFERENCE = re.compile(
    rf"\$(?:(?P<escape>\$)|(?P<bare>{_NAME})|\{{(?P<length>#?)(?P<name>{_NAME}))"
)


class Unexpandable(Exception):  # noqa: N818 - becomes an InputError where the line is known
    """A text that cannot be expanded. `name`: the substitution that is missing, if that is why."""

    def __init__(self, what: str, fix: str, name: str = "") -> None:
        super().__init__(what)
        self.what = what
        self.fix = fix
        self.name = name


Lookup = Callable[[str], str | None]


# --- one text -------------------------------------------------------------------------------------


def references(text: str, dynamic: bool) -> tuple[str, ...]:
    """The names that a text uses, in its order, also those inside of expansions."""
    found: list[str] = []

    def look(name: str) -> str:
        found.append(name)
        return ""

    expand(text, look, dynamic, strict=False)
    return tuple(dict.fromkeys(found))


def expand(text: str, lookup: Lookup, dynamic: bool, strict: bool = True) -> str:
    """`text` with every substitution's value. `lookup` gives None for a name without a value.

    strict: whether a name of the user's own must have one (MUST_MATCH), else it is empty.
    Raises Unexpandable.
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
    """What `${...}` at the match becomes, and where the text goes on."""
    end = match.end()
    if text.startswith("}", end) and not match["length"]:
        return _value(match["name"], lookup, strict), end + 1
    close = _closing(text, end) if dynamic else -1
    if close < 0:  # not ours to read: a shell may
        return text[match.start() : end], end
    operation = text[end:close]

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
    """Where the `}` stands that ends the expansion whose operation begins here; -1 for nowhere."""
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
    """`:-` `-` `:=` `=` `:+` `+` `:?` `?`: what to do about a name that is missing (or empty)."""
    value = lookup(name)
    if value is None and not name.startswith("_"):
        value = _value(name, lookup, strict=True)
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
        f"{whole} is no expansion that bash knows",
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
        raise Unexpandable(f"{whole}: the end lies before the start", "use a smaller number")
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
    """Where the `]` of a character class stands; a first `]` belongs to the class."""
    first = place + (pattern[place : place + 1] in ("!", "^"))
    return pattern.find("]", first + 1)


# --- the values -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Values:
    """Every name's value, and by which rules a build reads them."""

    known: Mapping[str, str]
    dynamic: bool
    strict: bool

    def expand(self, text: str) -> str:
        """A text of the build. Raises Unexpandable."""
        return expand(text, self.known.get, self.dynamic, self.strict)


def resolve(given: Mapping[str, str], dynamic: bool, strict: bool) -> Values:
    """Values that may name each other under dynamicSubstitutions. Raises Unexpandable."""
    done: dict[str, str] = {}

    def look(name: str, above: tuple[str, ...]) -> str | None:
        if name in done or name not in given:
            return done.get(name)
        if name in above:
            circle = " -> ".join([*above[above.index(name) :], name])
            raise Unexpandable(f"substitutions in a circle: {circle}", "let one stand alone", name)
        done[name] = expand(
            given[name], lambda other: look(other, (*above, name)), dynamic=True, strict=strict
        )
        return done[name]

    if not dynamic:
        return Values(dict(given), dynamic, strict)
    for name in given:
        if name.startswith("_"):
            look(name, ())
        else:
            done[name] = given[name]
    return Values(done, dynamic, strict)


def assignments(texts: tuple[str, ...]) -> dict[str, str]:
    """`--substitutions _A=1,_B=2`, as gcloud reads it: `^:^_A=1,2:_B=3` chooses another separator.

    Raises InputError.
    """
    result: dict[str, str] = {}
    for text in texts:
        separator = ","
        if custom := re.match(r"\^([^^]+)\^", text):
            separator, text = custom[1], text[custom.end() :]
        for part in text.split(separator):
            key, equals, value = part.partition("=")
            key = key.strip()
            if not part.strip():
                continue
            if not equals:
                raise InputError(
                    f"--substitutions: {part!r} has no value",
                    "write _NAME=VALUE; where a value holds a comma: ^:^_A=1,2:_B=3",
                )
            if problem := bad_key(key):
                raise InputError(f"--substitutions: {problem[0]}", problem[1])
            result[key] = value
    return result


def bad_key(key: str) -> tuple[str, str] | None:
    """What is wrong with the name of a substitution that a user sets, and what to do."""
    if key in FIXED:
        return f"{key} cannot be overridden", "remove it; --project names the project"
    if key in BUILT_IN or USER_KEY.fullmatch(key):
        return None
    fixed = re.sub(r"[^A-Z0-9_]", "_", key.upper().lstrip("_"))
    return (
        f"{key!r} is not a name for a substitution",
        f"write _{fixed}: an underscore, then A-Z, 0-9 and _",
    )


def from_git(folder: Path) -> dict[str, str]:
    """The values that a trigger would take from the repository in `folder`; {} where none is."""

    def git(*words: str) -> str:
        try:
            done = subprocess.run(
                ["git", "-C", str(folder), *words], capture_output=True, text=True, timeout=30
            )
        except (OSError, subprocess.TimeoutExpired):
            return ""
        return done.stdout.strip() if done.returncode == 0 else ""

    commit = git("rev-parse", "HEAD")
    if not commit:
        return {}
    branch = git("symbolic-ref", "--short", "-q", "HEAD")
    tag = git("describe", "--tags", "--exact-match", "HEAD")
    remote = re.sub(r"\.git/?$", "", git("remote", "get-url", "origin")).rstrip("/")
    path = re.split(r"[:/]", remote.partition("://")[2] or remote)
    top = Path(git("rev-parse", "--show-toplevel") or folder)
    name = path[-1] if remote else top.name
    return {
        "COMMIT_SHA": commit,
        "REVISION_ID": commit,
        "SHORT_SHA": commit[:7],
        "BRANCH_NAME": branch,
        "TAG_NAME": tag,
        "REF_NAME": branch or tag,
        "REPO_NAME": name,
        "REPO_FULL_NAME": "/".join(path[-2:]) if len(path) > 1 else name,
    }


# --- the whole build ------------------------------------------------------------------------------


Place = tuple[str | int, ...]


def templates(build: Build) -> Iterator[tuple[Place, str]]:
    """Every text of a build in which the service substitutes, with its place in the file."""
    for step in build.steps:
        at: Place = ("steps", step.index)
        for name in ("name", "entrypoint", "dir", "id"):
            if text := getattr(step, name):
                yield (*at, name), text
        lists = {"args": step.args, "env": step.env, "secretEnv": step.secret_env}
        for name, texts in {**lists, "waitFor": step.wait_for or ()}.items():
            yield from (((*at, name, n), text) for n, text in enumerate(texts))
        yield from _in_volumes((*at, "volumes"), step.volumes)
    yield from ((("images", n), text) for n, text in enumerate(build.images))
    yield from ((("tags", n), text) for n, text in enumerate(build.tags))
    if build.objects:
        yield ("artifacts", "objects", "location"), build.objects.location
        for n, text in enumerate(build.objects.paths):
            yield ("artifacts", "objects", "paths", n), text
    options = build.options
    for name, texts in {"env": options.env, "secretEnv": options.secret_env}.items():
        yield from ((("options", name, n), text) for n, text in enumerate(texts))
    yield from _in_volumes(("options", "volumes"), options.volumes)
    yield from ((("availableSecrets", env), version) for env, version in build.secrets.items())
    if build.service_account:
        yield ("serviceAccount",), build.service_account
    if build.logs_bucket:
        yield ("logsBucket",), build.logs_bucket


def _in_volumes(at: Place, volumes: tuple[Volume, ...]) -> Iterator[tuple[Place, str]]:
    for n, volume in enumerate(volumes):
        yield (*at, n, "name"), volume.name
        yield (*at, n, "path"), volume.path


def apply(build: Build, values: Values) -> Build:
    """The build with every substitution made. Raises Unexpandable."""
    text = values.expand

    def texts(many: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(text(one) for one in many)

    def volumes(many: tuple[Volume, ...]) -> tuple[Volume, ...]:
        return tuple(Volume(text(one.name), text(one.path)) for one in many)

    def step(one: Step) -> Step:
        return dataclasses.replace(
            one,
            name=text(one.name),
            id=text(one.id),
            args=texts(one.args),
            entrypoint=text(one.entrypoint),
            env=texts(one.env),
            secret_env=texts(one.secret_env),
            dir=text(one.dir),
            wait_for=None if one.wait_for is None else texts(one.wait_for),
            volumes=volumes(one.volumes),
        )

    options: Options = dataclasses.replace(
        build.options,
        env=texts(build.options.env),
        secret_env=texts(build.options.secret_env),
        volumes=volumes(build.options.volumes),
    )
    objects = build.objects
    return dataclasses.replace(
        build,
        steps=tuple(step(one) for one in build.steps),
        images=texts(build.images),
        tags=texts(build.tags),
        objects=Objects(text(objects.location), texts(objects.paths)) if objects else None,
        options=options,
        secrets={env: text(version) for env, version in build.secrets.items()},
        service_account=text(build.service_account),
        logs_bucket=text(build.logs_bucket),
    )
