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
    "poetry add": _options("poetry"),
    "pdm add": _options("pdm"),
    "pipenv install": _options("pipenv"),
    "pip uninstall": _options("pip"),
    "uv pip uninstall": _options("uv pip", "uv"),
    "uv remove": _options("uv add", "uv"),
}
"""The commands that install or remove, each with its options that take a value, and those that take
none."""

_REQUIREMENTS: Final = {"-r", "--requirement", "--requirements"}
_FILES: Final = _REQUIREMENTS | {"-e", "--editable"}
_CONSTRAINTS: Final = {"-c", "--constraint", "--constraints", "--override", "--overrides"}
_CALLED: Final = {"--source": "--index", "--pypi-mirror": "--index-url"}
"""Options of poetry and pipenv that pip calls otherwise."""
_QUIET: Final = frozenset(
    ("--no-cache-dir", "--no-cache", "-n", "-q", "--quiet", "-v", "--verbose", "-U", "--upgrade")
) | {"--system", "--break-system-packages", "--user", "--no-input", "--no-color", "--no-progress"}
"""Flags that say nothing of what is installed."""
PYPI: Final = (("pypi", "org"), ("pypi", "python", "org"), ("files", "pythonhosted", "org"))
"""The names of PyPI's hosts, by their labels; the last one has its files."""
OWN: Final = (
    "what this repository's own files ask for is read there; of another folder make a wheel"
)
LOCAL: Final = "names a URL or a file, which cannot be locked: make a wheel of it"
_WRAPPERS: Final = re.compile(
    r"((sudo|exec|env|time|nice)( -\S+)* |\w+=\S* "
    r"|(conda|(micro)?mamba) run( (-n|--name|-p|--prefix|--cwd) \S+| -\S+)* )+"
)
_FILE: Final = re.compile(
    r"[^;\[@]*\.(whl|gz|bz2|xz|tgz|zip|txt|in|toml|cfg|py|ya?ml|lock|json)\s*([;\[]|$)"
)
"""An argument that is a file, perhaps with extras or a marker."""
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
    removes: bool = False


def parse(words: Sequence[str]) -> Install | None:
    """Return what a command installs; None for a command that is no installation."""
    rest = list(words)
    if rest and re.fullmatch(r"(?:.*/)?python[\d.]*", rest[0]):
        if len(rest) > 1 and (joined := re.fullmatch(r"-m([a-z]\w*)", rest[1])):
            rest[1:2] = ["-m", joined[1]]
        flags = next((n for n, word in enumerate(rest[1:], 1) if not word.startswith("-")), 0)
        if "-m" not in rest[1:flags] or len(rest) <= flags:
            return None
        rest = rest[flags:]
    name = re.sub(r"^.*/|[\d.]+$", "", rest[0]) if rest else ""
    for tool, table in TOOLS.items():
        program, *steps = tool.split()
        if name != program:
            continue
        install = read_options(rest[1:], table)
        if [*install.packages[: len(steps)]] != steps:
            continue
        install = replace(install, packages=install.packages[len(steps) :])
        if tool == "uv pip sync":  # its arguments are files
            files = tuple(Option("-r", name) for name in install.packages)
            return replace(install, options=(*install.options, *files), packages=())
        options = tuple(replace(o, name=_CALLED.get(o.name, o.name)) for o in install.options)
        install = replace(install, options=options)
        if program == "poetry":
            install = replace(install, packages=tuple(map(_poetry, install.packages)))
        if program == "pipenv" and not (install.packages or any(o.name in _FILES for o in options)):
            return None  # it installs what its own files say
        return replace(install, removes=steps[-1] in {"uninstall", "remove"})
    return None


def unwrapped(words: tuple[str, ...]) -> tuple[str, ...]:
    """Return the command that `sudo`, `conda run -n NAME` or assignments stand before."""
    before = _WRAPPERS.match(" ".join(words) + " ")
    return words[before[0].count(" ") :] if before else words


def _poetry(package: str) -> str:
    """Return poetry's `einops@^0.8` as a requirement."""
    match = re.fullmatch(r"([\w.-]+(?:\[.*\])?)@(latest|[\^~]?[\d*][\w.*]*)", package)
    return f"{match[1]}{bounds(match[2].removeprefix('latest'))}" if match else package


def bounds(version: str) -> str:
    """Return poetry's or conda's version as pip writes it: `^1.2` is `>=1.2,==1.*`."""
    version = version.strip()
    if match := re.fullmatch(r"(?:\^((?:0\.)*\d+)|~(\d+(?:\.\d+)?))[\w.]*", version):
        return f">={version[1:]},=={match[1] or match[2]}.*"
    if re.fullmatch(r"=?\d[\w.*]*", version):  # conda's =1.2 is any 1.2
        any_of = version.startswith("=") and not version.endswith("*")
        return f"=={version.removeprefix('=')}{'.*' if any_of else ''}"
    return version.removeprefix("*")


def read_options(words: Sequence[str], table: tuple[frozenset[str], frozenset[str]]) -> Install:
    """Return a command's options and the other words. table: the options that take a value, and the
    flags."""
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
    at = host(url)
    of_frameworks = any(
        re.match(rf"{re.escape(index)}(/|$)", url)
        for framework in frameworks.every()
        for index in framework.indexes
    )
    if name == "--no-index":
        on = (option.value or "1").lower() not in {"0", "false", "no", "off"}
        what = "it is installed with --no-index, from a folder" if on else ""
    elif name in {"-i", "--index-url", "--pypi-url", "--default-index"}:
        what = "" if is_pypi(at) else f"it is installed from {at or url}"
    elif name in {"-f", "--find-links", "--extra-index-url", "--index"}:
        there = is_pypi(at) or of_frameworks
        what = "" if there else f"it may be installed from {at or url}"
    elif name == "--config-file":
        what = f"{url} may name another index"
    else:
        what = ""
    return f"{what}: PyPI may have another package of this name" if what else ""


def host(url: str) -> str:
    try:
        return urlsplit(url if "://" in url else "").hostname or ""
    except ValueError:
        return ""


def statements(install: Install, where: str, elsewhere: str = "") -> Iterator[SourceStatement]:
    """Yield what a command says.

    elsewhere: why its packages come from elsewhere than PyPI, "" where they do not; the command's
    own options may say so, too.
    """
    if install.removes:
        text = f"uninstall {' '.join(install.packages)}"
        yield SourceStatement(where, text, "removed", install.packages)
        return
    reasons = (foreign(option) for option in install.options)
    variable = next((each for each in install.packages if each.startswith("$")), "")
    given = f"{variable} may name another index: PyPI may have another package of this name"
    elsewhere = next(filter(None, (elsewhere, *reasons, variable and given)), "")
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
            yield named_option(option, where)
    if install.unknown:
        yield SourceStatement(where, install.unknown, why="the factory knows no such option")
    for package in install.packages:
        said = argument(package, where).from_elsewhere(elsewhere)
        if said.kind == "note":  # it may be the repository itself
            said = replace(said, words=(elsewhere,))
        yield replace(said, why=unknown, foreign=True) if install.unknown else said


def named_option(option: Option, where: str) -> SourceStatement:
    """Return what an option says that is not taken; of one that names an index, from where it
    installs."""
    why, elsewhere = _OF_OWN.get(option.name, MACHINE), foreign(option)
    return SourceStatement(where, str(option), "index" if elsewhere else "note", (elsewhere,), why)


def argument(package: str, where: str) -> SourceStatement:
    """Return what one argument says: a requirement, or a file or an address."""
    named = re.match(r"[\w.-]+(\[[^]]*\])?\s*(@\s*\S|[^@:/\\]*(;|$))", package)
    if "$" in re.split(r"[=<>~!@/]", package)[0]:
        return SourceStatement(where, package, why="what a variable says is not known here")
    if package.startswith((".", "-")) or not named or _FILE.match(package):
        return SourceStatement(where, package, why=_why_local(package))
    return SourceStatement(where, package, "requirement", (package,))


def _why_local(path: str) -> str:
    return OWN if re.fullmatch(r"\.?/?\.?(\[.*\])?", path) else LOCAL


def is_pypi(host: str) -> bool:
    return tuple(host.split(".")) in PYPI
