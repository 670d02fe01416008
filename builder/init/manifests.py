"""What the files that name packages say: requirements, pyproject.toml, locks, conda, pixi, cog."""

from __future__ import annotations

import configparser
import json
import re
import textwrap
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from packaging.utils import canonicalize_name

from builder.core import files, yamlfile
from builder.core.errors import InputError
from builder.init import conda as condas
from builder.init import installers
from builder.init.statements import Kind, SourceStatement, package_of

ADD: Final = "add what a job needs of it"
BUILDS: Final = "builds the package; an image has no compiler"
PYPI_URL: Final = f"https://{'.'.join(installers.PYPI[0])}/simple"
_INSTALLERS: Final = ("uv", "poetry", "pdm", "rye", "pixi")
_INDEX: Final = re.compile(
    r"(?:python-)?(index-url$|find-links|no-index|(?=extra-index|index|sources?$)).*"
)
"""The keys that name an index, in any tool's table."""
_DEPENDENCIES: Final = re.compile(
    r"(?:.*[-_])?dependencies|dependency-groups|dev-packages|requires"
)
"""The keys of tables and lists that hold dependencies, in any tool's table."""
_ELSEWHERE: Final = {"vcs", "directory", "archive", "git", "hg", "svn", "bzr", "path", "url"}
"""The keys of a lock's package that no index has."""
_TAKEN: Final = {
    *(("project", "dependencies"), ("tool", "poetry", "dependencies")),
    *(("packages",), ("pypi-dependencies",), ("dependencies",)),
}
"""Where pyproject.toml, Pipfile and pixi.toml have what an image gets."""
_VERSION: Final = {"version", "extras", "git", "path", "url", "index", "file", "hg", "svn"}


# --- lists of requirements ------------------------------------------------------------------------


def requirements(text: str, file: str) -> Iterator[SourceStatement]:
    """Yield what a requirements file says; its own options count for all of it."""
    yield from _entries([(f"{file}:{number}", line) for number, line in _logical(text)], file)


def _entries(written: Iterable[tuple[str, str]], file: str) -> Iterator[SourceStatement]:
    """Yield what the lines of a requirements file say, each with its place."""
    entries = [
        (where, entry)
        for where, line in written
        if (entry := re.sub(r"\s+--hash=\S+", "", re.sub(r"(^|\s)#.*", "", line)).strip())
    ]
    lines = [_options(entry).options for _, entry in entries if entry.startswith("-")]
    reasons = (installers.foreign(option) for options in lines for option in options)
    elsewhere = next(filter(None, reasons), "")
    for where, entry in entries:
        if entry.startswith("-"):
            for said in installers.statements(_options(entry), where, elsewhere):
                yield _beside(said, file)
        else:
            yield from requirement(entry, where, elsewhere)


def requirement(entry: str, where: str, elsewhere: str = "") -> Iterator[SourceStatement]:
    """Yield what a requirement says; options may follow it, as conda's files have them, and
    `conda list --export` writes name=version=build."""
    if re.fullmatch(r"[\w.-]+=[^=\s]+=[^=\s]+", entry):
        yield condas.package(entry, where)
        return
    name, *options = re.split(r"\s+(?=-{1,2}[a-z])", entry)
    for each in options:
        for option in _options(each).options:
            elsewhere = elsewhere or installers.foreign(option)
            yield installers.named_option(option, where)
    yield installers.argument(name, where).from_elsewhere(elsewhere)


def constraints(text: str, file: str) -> Iterator[SourceStatement]:
    for said in requirements(text, file):
        yield replace(said, kind="bound") if said.kind == "requirement" else said


def _options(entry: str) -> installers.Install:
    words = ["pip", "install", *entry.split(None, 1)]
    return installers.parse(words) or installers.Install((), ())


def _beside(said: SourceStatement, file: str) -> SourceStatement:
    """Return the same; a file that it names lies beside the one that names it."""
    if said.kind in {"requirements", "constraints"}:
        return replace(said, words=((Path(file).parent / said.words[0]).as_posix(),))
    return said


def _logical(text: str) -> Iterator[tuple[int, str]]:
    """Yield each logical line with its first number; a backslash continues it, comments go."""
    kept, first = "", 0
    for number, line in enumerate(text.splitlines(), 1):
        if line.lstrip().startswith("#"):
            continue
        first = first or number
        kept += line.rstrip()
        if kept.endswith("\\"):
            kept = kept[:-1] + " "
            continue
        if kept.strip():
            yield first, kept
        kept, first = "", 0
    if kept.strip():
        yield first, kept


# --- tables ---------------------------------------------------------------------------------------


@dataclass
class _Table:
    """A file of tables. where: `file:line` of each text in it, in the order of the file."""

    file: str
    text: str
    value: dict[str, Any]
    channels: str = ""
    """Why a package of conda may come from no public channel."""
    seen: dict[str, int] = field(default_factory=dict)

    def where(self, entry: str, *, key: bool = False) -> str:
        """Return where a text, or a key, stands: a whole one before a part of another. A text that
        stands twice is asked for twice."""
        lines = self.text.splitlines()
        start = self.seen.get(entry, 0)
        order = [*range(start, len(lines)), *range(start)]
        text = re.escape(entry)
        whole = rf"\s*[\"']?{text}[\"']?\s*=" if key else rf".*[\"']{text}[\"']|\s*{text}\s*$"
        for pattern in (whole, rf"[^#]*{text}", rf".*{text}"):
            for number in order:
                if re.match(pattern, lines[number].replace('\\"', '"')):
                    self.seen[entry] = number + 1
                    return f"{self.file}:{number + 1}"
        return self.file

    def said(self, entry: str, what: str, why: str, *, key: bool = True) -> SourceStatement:
        return SourceStatement(self.where(entry, key=key), what, why=why, beside=True)


def tables(text: str) -> dict[str, Any]:
    """Return the tables of a text; {} for one that is no TOML."""
    try:
        return files.parsed(tomllib.loads, text)
    except ValueError:
        return {}


def _table(text: str, file: str, parse: Callable[[str], Any]) -> _Table:
    """Return a file's mapping. Raises InputError for other text."""
    try:
        value = files.parsed(parse, text)
    except ValueError as error:
        raise InputError(f"{file}: {error}", "mend the file, or move it away") from None
    return _Table(file, text, value if isinstance(value, dict) else {})


def pyproject(
    text: str, file: str, groups: frozenset[str] = frozenset()
) -> Iterator[SourceStatement]:
    """Yield what pyproject.toml says: its project, poetry's dependencies, and every other list of
    dependencies, of which an image gets `groups`, "*" for all of them."""
    table = _table(text, file, tomllib.loads)
    project, tool = _mapping(table.value.get("project")), _mapping(table.value.get("tool"))
    uv = _mapping(tool.get("uv"))
    every, elsewhere = indexes({"tool": tool}), _sources(uv)
    if wanted := str(project.get("requires-python") or ""):
        yield SourceStatement(table.where("requires-python"), wanted, "python", (wanted,))

    def of_its_index(said: SourceStatement) -> SourceStatement:
        return said.from_elsewhere(elsewhere.get(package_of(said.words[0]), every))

    for name in _mapping(project.get("scripts")):
        yield table.said(name, f"the script {name}", "name its module as `program`")
    poetry = _mapping(tool.get("poetry"))
    for name in ("scripts", "extras"):
        if name in poetry:
            yield table.said(f"tool.poetry.{name}", f"tool.poetry.{name}", ADD)
    for name in uv:
        if name not in {"sources", "index"}:
            yield table.said(name, f"tool.uv.{name}", ADD)
    for entry in _strings(project.get("dynamic")):
        if entry == "dependencies":
            dynamic = _mapping(_mapping(tool.get("setuptools")).get("dynamic"))
            files = _mapping(dynamic.get("dependencies")).get("file") or ()
            for each in [files] if isinstance(files, str) else files:
                where = table.where(str(each))
                yield SourceStatement(
                    where, f"dependencies of {each}", "requirements", (str(each),)
                )
            if not files:
                yield table.said("dynamic", f"dynamic {entry}", ADD)
    groups = _included(groups, project, _mapping(table.value.get("dependency-groups")))
    for said in _listed(table, (), table.value, groups):
        yield said if said.beside or said.kind == "python" else of_its_index(said)


def _included(
    groups: frozenset[str], project: Mapping[str, Any], tables: Mapping[str, Any]
) -> frozenset[str]:
    """Return the groups, with those that they include: `{include-group = "x"}`, `own[gpu]`."""
    extras = _mapping(project.get("optional-dependencies"))
    own = rf"{re.escape(str(project.get('name')))}\s*\[(.*)\]"
    waiting, found = list(groups), set[str]()
    while waiting:
        found.add(name := waiting.pop())
        inner = [str(each.get("include-group")) for each in _mappings(tables.get(name))]
        for entry in _strings(extras.get(name)):
            if match := re.fullmatch(own, entry, re.IGNORECASE):
                inner += map(str.strip, match[1].split(","))
        waiting += (each for each in inner if each not in found)
    return frozenset(found)


def indexes(table: Mapping[str, Any]) -> str:
    """Return why packages that name no source come from elsewhere than PyPI, as a tool's table and
    those in it say it; "" where they do not."""
    for key, value in table.items():
        if key == "tool":
            value = {name: value[name] for name in _INSTALLERS if name in _mapping(value)}
        named = _INDEX.fullmatch(key.replace("_", "-"))
        if named and not isinstance(value, dict):
            for each in value if isinstance(value, list) else [value]:
                index = _mapping(each)
                url = str(index.get("url") or index.get("path") or (PYPI_URL if index else each))
                explicit = index.get("explicit") or index.get("priority") == "explicit"
                why = installers.foreign(installers.Option(f"--{named[1] or 'index'}", url))
                if why and not explicit:
                    return why
        inner = {} if named or _DEPENDENCIES.fullmatch(key) else _mapping(value)
        if why := indexes(inner):
            return why
    return ""


def own_names(pyproject: str, setup_cfg: str, setup_py: str) -> frozenset[str]:
    """Return what a repository's own package is called, by the texts of these files."""
    table = tables(pyproject)
    poetry = _mapping(_mapping(table.get("tool")).get("poetry"))
    names = [_mapping(table.get("project")).get("name"), poetry.get("name")]
    names += re.findall(r"^name\s*=\s*([\w.-]+)", setup_cfg, re.MULTILINE)
    names += re.findall(r"\bname\s*=\s*[\"']([\w.-]+)", setup_py)
    return frozenset(str(canonicalize_name(name)) for name in names if isinstance(name, str))


def _index(index: Mapping[str, Any]) -> str:
    return installers.foreign(installers.Option("--index", str(index.get("url") or PYPI_URL)))


def _sources(uv: Mapping[str, Any]) -> dict[str, str]:
    urls = {str(index.get("name")): _index(index) for index in _mappings(uv.get("index"))}
    found = dict[str, str]()
    for name, source in _mapping(uv.get("sources")).items():
        reasons = [
            urls.get(str(each["index"]), "")
            if isinstance(each, dict) and "index" in each
            else "tool.uv.sources takes it from elsewhere"
            for each in (source if isinstance(source, list) else [source])
        ]
        found[str(canonicalize_name(name))] = next(filter(None, reasons), "")
    return found


def _listed(
    table: _Table, path: tuple[str, ...], value: Any, groups: frozenset[str] = frozenset()
) -> Iterator[SourceStatement]:
    """Yield what all tables and lists of dependencies ask for; an image gets those of _TAKEN and of
    `groups`."""
    inside = any(_DEPENDENCIES.fullmatch(key) for key in path) or path in _TAKEN
    entries = (
        [(each, None) for each in value] if isinstance(value, list) else _mapping(value).items()
    )
    for name, inner in entries:
        if not isinstance(name, str):
            continue
        if inside and inner is None:
            said = installers.argument(name, table.where(name))
        elif path in _TAKEN or (
            inside and (isinstance(inner, str) or _VERSION & {*_mapping(inner)})
        ):
            said = _poetry(table, name, inner, conda=path == ("dependencies",))
        else:
            yield from _listed(table, (*path, name), inner, groups)
            continue
        extra = path[:2] == ("project", "optional-dependencies")
        of = f"the extra {path[-1]}" if extra else ".".join(path)
        left = BUILDS if path[0] == "build-system" else f"belongs to {of}: {ADD}"
        group = path[-2:][0] if path[-1] == "dependencies" else path[-1]
        yield said if path in _TAKEN or groups & {"*", group} else said.aside(left)


def _version(value: Any) -> str:
    return str(value.get("version") or "") if isinstance(value, dict) else str(value)


def _poetry(table: _Table, name: str, value: Any, conda: bool = False) -> SourceStatement:
    options = value if isinstance(value, dict) else {"version": value}
    extras, version = _strings(options.get("extras")), options.get("version")
    where = table.where(name, key=True)
    if conda:
        named = f"{options['channel']}::{name}" if "channel" in options else name
        more = "[...]" if options.keys() - {"version", "channel"} else ""
        return condas.package(
            f"{named}{installers.bounds(_version(value))}{more}", where, channels=table.channels
        )
    if name == "python":
        return SourceStatement(where, str(version), "python", (installers.bounds(str(version)),))
    if not isinstance(version, str) or options.keys() - {"version", "extras"}:
        text = f"{name} {json.dumps(value, default=str)}"
        entry = f"{name}{installers.bounds(version)}" if isinstance(version, str) else name
        why = "write it as a requirement"
        return SourceStatement(where, text, "requirement", (entry,), why)
    extra = f"[{','.join(extras)}]" if extras else ""
    entry = f"{name}{extra}{installers.bounds(version)}"
    return SourceStatement(where, entry, "requirement", (entry,))


def by_name(text: str, file: str) -> Iterator[SourceStatement]:
    """Yield what Pipfile or pixi.toml says: PyPI's packages and conda's of the default
    environment."""
    table = _table(text, file, tomllib.loads)
    if version := _mapping(table.value.pop("requires", None)).get("python_version"):
        where = table.where("python_version")
        yield SourceStatement(where, str(version), "python", (str(version),))
    workspace = _mapping(table.value.get("workspace") or table.value.get("project"))
    elsewhere, table.channels = indexes(table.value), condas.elsewhere(workspace.get("channels"))
    for said in _listed(table, (), table.value):
        yield said.from_elsewhere(elsewhere if said.kind == "requirement" else "")


def lock(text: str, file: str, kind: Kind = "locked") -> Iterator[SourceStatement]:
    """Yield the versions of a lock, also of a pylock.toml, which count for what other files ask
    for; a version behind markers with them. kind: "requirement" for a lock that is installed."""
    value = _table(text, file, tomllib.loads).value
    for package in _mappings(value.get("package")) + _mappings(value.get("packages")):
        version = str(package.get("version", "")).partition("+")[0]
        pin = f"{package.get('name')}{version and '=='}{version}"
        source = _mapping(package.get("source"))
        url = source.get("registry") or (source.get("url") if "reference" in source else "")
        url = package.get("index") or url
        if url and "type" not in source:
            why = _index({"url": url})
        else:
            made = _mappings(package.get("wheels")) + _mappings([package.get("sdist")])
            urls = (str(each.get("url", "")) for each in made)
            there = all(installers.is_pypi(installers.host(url)) for url in urls)
            own = not source and not _ELSEWHERE & {*package}
            why = "" if there and own else f"{file} has it from elsewhere"
        forks = package.get("resolution-markers") or [package.get("markers", package.get("marker"))]
        words = (pin, *_strings(forks))
        if kind == "requirement":
            words = ("; ".join(filter(None, (pin, package.get("marker")))),)
        yield SourceStatement(file, pin, kind, words).from_elsewhere(why)


def pipfile_lock(text: str, file: str) -> Iterator[SourceStatement]:
    """Yield the versions of pipenv's lock, which count for what other files ask for."""
    value = _table(text, file, json.loads).value
    sources = _mappings(_mapping(value.get("_meta")).get("sources"))
    urls = {str(each.get("name")): _index(each) for each in sources}
    for name, package in _mapping(value.get("default")).items():
        locked = _mapping(package)
        version = str(locked.get("version") or "").partition("+")[0]
        asked = [str(locked["index"])] if "index" in locked else [*urls]
        why = next(filter(None, (urls.get(each, f"{file} names no {each}") for each in asked)), "")
        why = why if version else f"{file} has it from elsewhere"
        marker = (str(locked["markers"]),) if "markers" in locked else ()
        yield SourceStatement(
            file, f"{name}{version}", "locked", (f"{name}{version}", *marker)
        ).from_elsewhere(why)


# --- Python ---------------------------------------------------------------------------------------


def setup_cfg(
    text: str, file: str, groups: frozenset[str] = frozenset()
) -> Iterator[SourceStatement]:
    parser = configparser.RawConfigParser()
    try:
        parser.read_string(text)
    except configparser.Error:
        yield SourceStatement(file, "the file", why=f"cannot be read: {ADD}")
        return
    table = _Table(file, text, {})
    if wanted := parser.get("options", "python_requires", fallback=""):
        yield SourceStatement(table.where("python_requires"), wanted, "python", (wanted,))
    for name in ("setup_requires", "dependency_links"):
        if parser.has_option("options", name):
            yield table.said(name, name, BUILDS)
    listed = parser.get("options", "install_requires", fallback="")
    if listed.strip().startswith("file:"):
        for name in map(str.strip, listed.strip().removeprefix("file:").split(",")):
            where = table.where("install_requires")
            yield SourceStatement(where, f"install_requires of {name}", "requirements", (name,))
        listed = ""
    extras = dict(parser["options.extras_require"]) if "options.extras_require" in parser else {}
    lists = {
        name: [*filter(None, map(str.strip, each.split("\n")))] for name, each in extras.items()
    }
    own = [*filter(None, map(str.strip, listed.split("\n")))]
    project = {"dependencies": own, "optional-dependencies": lists}
    yield from _listed(table, (), {"project": project}, groups)


# --- conda and cog --------------------------------------------------------------------------------


def conda(text: str, file: str) -> Iterator[SourceStatement]:
    document = _document(text, file)
    content = _mapping(document.value)
    for key in content:
        if key != "dependencies":
            what = textwrap.shorten(f"{key}: {json.dumps(content[key])}", 200, placeholder=" ...")
            yield SourceStatement(f"{file}:{document.line(key)}", what, why="belongs to conda")
    entries, other = content.get("dependencies"), condas.elsewhere(content.get("channels"))
    for number, entry in enumerate(entries if isinstance(entries, list) else ()):
        where = f"{file}:{document.line('dependencies', number)}"
        if isinstance(entry, dict):
            yield from _entries(
                [
                    (f"{file}:{document.line('dependencies', number, 'pip', inner)}", line)
                    for inner, line in enumerate(_strings(entry.get("pip")))
                ],
                file,
            )
        else:
            yield condas.package(str(entry), where, channels=other)


def cog(text: str, file: str) -> Iterator[SourceStatement]:
    document = _document(text, file)
    content = _mapping(document.value)
    build = _mapping(content.get("build"))
    elsewhere = indexes(build)
    for key, value in build.items():
        where = f"{file}:{document.line('build', key)}"
        if key == "python_version":
            yield SourceStatement(where, f"Python {value}", "python", (str(value),))
        elif key == "python_packages":
            lines = enumerate(_strings(value))
            written = [(f"{file}:{document.line('build', key, n)}", line) for n, line in lines]
            for said in _entries(written, file):
                yield said.from_elsewhere(elsewhere) if said.kind == "requirement" else said
        elif key == "python_requirements":
            yield SourceStatement(where, str(value), "requirements", (str(value),))
        elif key == "system_packages":
            names = tuple(_strings(value))
            yield SourceStatement(where, f"apt {' '.join(names)}", "apt", names)
        else:
            why = "every image for a GPU has it" if key == "gpu" else "the factory has no such step"
            yield SourceStatement(where, f"build.{key}: {json.dumps(value)}", why=why, beside=True)
    for key in content.keys() - {"build"}:
        what = f"{key}: {json.dumps(content[key])}"
        yield SourceStatement(f"{file}:{document.line(key)}", what, why="belongs to cog")


def _document(text: str, file: str) -> yamlfile.Document:
    """Return a YAML file's content. Raises InputError, also for a key that stands twice."""
    document = yamlfile.parse(text, file)
    for problem in document.problems:
        raise InputError(f"{file}:{problem.line}: {problem}", problem.fix)
    return document


def _mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _mappings(value: Any) -> list[dict[str, Any]]:
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []


def _strings(value: Any) -> list[str]:
    return [str(entry) for entry in value] if isinstance(value, list) else []
