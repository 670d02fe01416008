"""The command lines of pip and uv that install packages: what is a package in them, and from where.

An option's value is never taken for a package. The options are those of pip 26 and uv 0.13; a
command with one that neither has says nothing for certain, so that all it installs is named.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from builder.facts import frameworks, read_table
from builder.init.statements import SourceStatement

_WORDS: Final = {
    name: frozenset(words.split())
    for name, words in read_table(Path(__file__).with_suffix(".yaml")).items()
}


def _options(*names: str) -> tuple[frozenset[str], frozenset[str]]:
    """Return the options of a tool that take a value, and its flags, by the names in the table."""
    flags = frozenset[str]().union(*(_WORDS[f"{name} flags"] for name in names))
    return _WORDS["both"].union(*(_WORDS[name] for name in names)) - flags, flags


TOOLS: Final = {
    "pip install": _options("pip"),
    "uv pip install": _options("uv pip", "uv"),
    "uv pip sync": _options("uv pip", "uv"),
    "uv add": _options("uv add", "uv"),
}
"""The commands that install, each with its options that take a value, and those that take none."""

_REQUIREMENTS: Final = {"-r", "--requirement", "--requirements"}
_CONSTRAINTS: Final = {"-c", "--constraint", "--constraints", "--override", "--overrides"}
_QUIET: Final = frozenset(
    ("--no-cache-dir", "--no-cache", "-n", "-q", "--quiet", "-v", "--verbose", "-U", "--upgrade")
) | {"--system", "--break-system-packages", "--user", "--no-input", "--no-color", "--no-progress"}
"""Flags that say nothing of what is installed."""
PYPI: Final = (("pypi", "org"), ("pypi", "python", "org"))
"""The names of PyPI's hosts, by their labels."""
OWN: Final = (
    "what this repository's own files ask for is read there; of another folder make a wheel"
)
LOCAL: Final = "names a URL or a file, which cannot be locked: make a wheel of it"
_OF_OWN: Final = dict.fromkeys(("--extra", "--all-extras", "--group", "--all-groups"), OWN)
MACHINE: Final = "an index or an option belongs to the machine that locks"


@dataclass(frozen=True)
class Option:
    name: str
    value: str | None = None
    """None for one that takes none."""

    def __str__(self) -> str:
        return self.name if self.value is None else f"{self.name} {self.value}"


@dataclass(frozen=True)
class Install:
    options: tuple[Option, ...]
    packages: tuple[str, ...]
    """Its arguments that are no option."""
    unknown: str = ""
    """An option that the tool does not have, "" for none."""


def parse(words: Sequence[str]) -> Install | None:
    """Return what a command installs; None for a command that is no installation of pip or uv."""
    rest = list(words)
    while rest and (re.fullmatch(r"\w+=.*", rest[0]) or rest[0] in {"sudo", "exec", "env", "time"}):
        rest.pop(0)
    if rest and re.fullmatch(r"(?:.*/)?python[\d.]*", rest[0]):
        flags = next((n for n, word in enumerate(rest[1:], 1) if not word.startswith("-")), 0)
        if "-m" not in rest[1:flags] or len(rest) <= flags:
            return None
        rest = rest[flags:]
    tool, before = _tool(rest)
    if tool is None:
        return None
    install = _install(before, TOOLS[tool])
    if tool == "uv pip sync":  # its arguments are files
        files = tuple(Option("-r", name) for name in install.packages)
        return replace(install, options=(*install.options, *files), packages=())
    return install


def _tool(words: Sequence[str]) -> tuple[str | None, list[str]]:
    """Return which of TOOLS a command is, and its other words."""
    if not words:
        return None, []
    name = re.sub(r"^.*/|[\d.]+$", "", words[0])
    for tool in TOOLS if name in {"pip", "uv"} else ():
        steps, others = tool.split()[1:], list[str]()
        if not tool.startswith(f"{name} "):
            continue
        valued, waits = TOOLS[tool][0], False
        for word in words[1:]:
            if steps and word == steps[0] and not waits:
                steps.pop(0)
            elif steps and not word.startswith("-") and not waits:
                break  # another command
            else:
                others.append(word)
            waits = not waits and word in valued
        if not steps:
            return tool, others
    return None, []


def _install(words: Sequence[str], table: tuple[frozenset[str], frozenset[str]]) -> Install:
    valued, flags = table
    options, packages, unknown = list[Option](), list[str](), ""
    rest = iter(words)
    for word in rest:
        name, equals, value = word.partition("=")
        if word == "--":
            packages += rest
        elif not word.startswith("-") or word == "-":
            packages.append(word)
        elif word.startswith("--"):
            name = _meant(name, valued | flags)
            if name in valued:
                options.append(Option(name, value if equals else next(rest, "")))
            elif name in flags and not equals:
                options.append(Option(name))
            else:
                unknown = unknown or word
        else:
            cluster = word[1:]
            while cluster:
                short, cluster = f"-{cluster[0]}", cluster[1:]
                if short in valued:
                    options.append(Option(short, cluster.removeprefix("=") or next(rest, "")))
                    cluster = ""
                elif short in flags:
                    options.append(Option(short))
                else:
                    unknown, cluster = unknown or word, ""
    return Install(tuple(options), tuple(packages), unknown)


def _meant(name: str, known: Iterable[str]) -> str:
    """Return the option that a name stands for: pip takes any beginning that only one has."""
    begins = {each for each in known if each.startswith(name)}
    return next(iter(begins)) if name not in begins and len(begins) == 1 else name


def of_environment(variables: Mapping[str, str]) -> tuple[Option, ...]:
    """Return the options that variables set: `PIP_INDEX_URL` is pip's `--index-url`."""
    return tuple(
        Option(f"--{match[1].lower().replace('_', '-')}", part)
        for name, value in variables.items()
        if (match := re.fullmatch(r"(?:PIP|UV)_(\w+)", name))
        for part in value.split() or [""]
    )


def foreign(option: Option) -> str:
    """Return why an option means that packages come from elsewhere than PyPI; "" where it does
    not. An index that has the builds of a framework, and else nothing of its own, may stand beside
    PyPI."""
    name, value = option.name, (option.value or "").partition("=")
    url = value[2] if value[1] and "//" not in value[0] else option.value or ""
    host = _host(url)
    of_frameworks = any(
        re.match(rf"{re.escape(index)}(/|$)", url)
        for framework in frameworks.every()
        for index in framework.indexes
    )
    if name == "--no-index":
        on = (option.value or "1").lower() not in {"0", "false", "no", "off"}
        what = "it is installed with --no-index, from a folder" if on else ""
    elif name in {"-i", "--index-url", "--pypi-url", "--default-index"}:
        what = "" if is_pypi(host) else f"it is installed from {host or url}"
    elif name in {"-f", "--find-links", "--extra-index-url", "--index"}:
        there = is_pypi(host) or of_frameworks
        what = "" if there else f"it may be installed from {host or url}"
    elif name == "--config-file":
        what = f"{url} may name another index"
    else:
        what = ""
    return f"{what}: PyPI may have another package of this name" if what else ""


def _host(url: str) -> str:
    try:
        return urlsplit(url if "://" in url else "").hostname or ""
    except ValueError:
        return ""


def statements(install: Install, where: str, elsewhere: str = "") -> Iterator[SourceStatement]:
    """Yield what a command says.

    elsewhere: why its packages come from elsewhere than PyPI, "" where they do not; the command's
    own options may say so, too.
    """
    for option in install.options:
        elsewhere = elsewhere or foreign(option)
    unknown = f"{install.unknown} is no known option, and may take it as its value"
    for option in install.options:
        if option.name in _REQUIREMENTS | _CONSTRAINTS:
            named = SourceStatement(where, str(option), "constraints", (option.value or "",))
            if option.name in _REQUIREMENTS:
                named = replace(named, kind="requirements")
            yield named.from_elsewhere(elsewhere)
        elif option.name in {"-e", "--editable"}:
            why = _why_local(option.value or "")
            said = SourceStatement(where, str(option), "note", (elsewhere,), why)
            yield replace(said, foreign=bool(elsewhere))
        elif option.name not in _QUIET:
            yield SourceStatement(where, str(option), why=_OF_OWN.get(option.name, MACHINE))
    if install.unknown:
        yield SourceStatement(where, install.unknown, why="the factory knows no such option")
    for package in install.packages:
        said = argument(package, where).from_elsewhere(elsewhere)
        if said.kind == "note":  # it may be the repository itself
            said = replace(said, words=(elsewhere,))
        yield replace(said, why=unknown, foreign=True) if install.unknown else said


def argument(package: str, where: str) -> SourceStatement:
    """Return what one argument says: a requirement, or a file or an address."""
    named = re.match(r"[\w.-]+(\[[^]]*\])?\s*(@\s*\S|[^@:/\\]*(;|$))", package)
    file = re.search(r"\.(whl|gz|zip|txt|in|toml|cfg|py|ya?ml|lock|json)$", package)
    if package.startswith((".", "-")) or not named or (file and "@" not in package):
        return SourceStatement(where, package, why=_why_local(package))
    return SourceStatement(where, package, "requirement", (package,))


def _why_local(path: str) -> str:
    return OWN if re.fullmatch(r"\.?/?\.?(\[.*\])?", path) else LOCAL


def is_pypi(host: str) -> bool:
    return tuple(host.split(".")) in PYPI
