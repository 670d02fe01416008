"""What a Dockerfile says of its last stage; of the other stages, what they would say."""

from __future__ import annotations

import json
import posixpath
import re
import shlex
from collections import ChainMap
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from pathlib import PurePosixPath
from typing import Any, Final

from builder.core import files
from builder.init import conda, installers, shell
from builder.init.statements import LISTS, SourceStatement

_DEBIAN: Final = re.compile(r"apt(-get)?|aptitude")
_NEEDLESS: Final = re.compile(
    r"(apt(-get)? (-\S+ )*(update|upgrade|dist-upgrade|clean|autoclean|autoremove)\b|rm -\w+ |set |"
    r"(python[\d.]* -m )?pip[\d.]* cache\b|cd |mkdir |true$|:$|exit\b|uv cache\b|"
    r"(\S*/)?(conda|(micro)?mamba) (clean|init)\b)"
)
"""What an image of locked packages has no use for."""
_NO_FIELD: Final = {
    "FROM": "the base is made from locked packages; `base` takes another",
    "COPY": "the image gets the program's folder, and nothing else",
    "ADD": "the image gets the program's folder, and nothing else",
    "ARG": "its default is put in where the file uses it",
}
"""Why an instruction is not taken over."""
_CONFIGURES: Final = re.compile(
    r"pip\.conf|uv\.toml|pypirc|netrc|/\.config/(?:pip|uv)\b|(?:^|[/ ])\.pip\b"
    rf"|\bpdm config\b|{conda.CONFIGURES}|\bpoetry source\b"
    r"|\bpoetry config (?!virtualenvs|installer|cache|keyring)"
)
"""What may name an index for all that is installed below."""
_SETS: Final = re.compile(
    r"(?:\S*python[\d.]* -m )?\S*pip[\d.]* config (?:-\S+ )*set \w+\.(\S+) (.*)"
)
"""pip's own command that sets an option for all that is installed below."""
_OF_PIP: Final = ("PIP_", "UV_", "POETRY_", "CONDA_", "DEBIAN_FRONTEND")
_SHELLS: Final = re.compile(r"(?:.*/)?(?:ba|da|z)?sh")
_NO_STEP: Final = "no step of the factory does this"
_PROJECT: Final = re.compile(
    r"RUN (?:uv sync|uv run(?= -)|poetry install|(?:pdm|pipenv) (?:install|sync))\b"
)
"""Commands that install what the repository's own files ask for."""
_GROUPS: Final = re.compile(
    r"(?:--(?:extra|extras|group|only-group|with)|-[EG])[ =]?([\w.,-]+)|--all-(?:extras|groups)\b"
)

_ROOT: Final = PurePosixPath("/")
_MOST: Final = 100
_SCRIPTS: Final = 20
"""How many scripts of a stage are read."""
_BRINGS: Final = frozenset(("git", "tar", "unzip", "curl", "wget", "cp", "mv"))
"""Commands that may make files of names that they do not say."""
_PACKAGES: Final = re.compile(
    r".*(?:(?:site|dist)-packages|venv|virtualenv|conda|/\.local)(?:/.*)?|/usr/local(?:/lib.*)?/?"
)
"""The folders that packages are installed into."""
_INTO_OWN: Final = re.compile(
    r"RUN (uv (sync|venv)|poetry install|pdm (install|sync)|\S+ -m venv)\b"
)
"""Commands that make an environment in the folder in which they run."""


@dataclass(frozen=True)
class Instruction:
    line: int
    """Its first."""
    name: str
    text: str
    """Its rest; a backslash and a line break stay."""
    heredocs: tuple[tuple[int, str], ...] = ()
    """The first line and the text of each document in it."""

    @property
    def joined(self) -> str:
        return " ".join(self.text.replace("\\\n", " ").split())

    def __str__(self) -> str:
        return f"{self.name} {self.joined}"


@dataclass(eq=False)
class _Stage:
    name: str
    parent: _Stage | None
    text_of: Callable[[str], str | None] = lambda _: None
    """The text of a file of the repository."""
    variables: dict[str, str] = field(default_factory=dict)
    """The values of ARG and ENV."""
    elsewhere: str = ""
    """Why its packages come from another index, "" where they do not."""
    folder: PurePosixPath = _ROOT
    """The one in which its commands run."""
    copied: tuple[tuple[PurePosixPath, str], ...] = ()
    """Where it copies files to, and from where in the repository, the last first: _MOST of them."""
    brings: frozenset[tuple[str, str]] = frozenset()
    """What it copies of other stages: the stage, by name or number, and a path there or here."""
    ran: set[str] = field(default_factory=set)
    """The words of commands, its own and beside it, that may have made files."""
    scripts: frozenset[str] = frozenset()
    """Those that it has run."""
    said: list[SourceStatement] = field(default_factory=list)

    def options(self) -> tuple[installers.Option, ...]:
        return installers.of_environment(self.variables)

    def channels(self) -> str:
        """Return why a package of conda may come from another channel."""
        named = [name for name in self.variables if conda.VARIABLE.fullmatch(name)]
        named += [name for name in (".condarc", ".mambarc") if self.text_of(name) is not None]
        return self.elsewhere or (f"{named[0]} may name another channel" if named else "")

    def chain(self) -> list[_Stage]:
        """Return the stage and those that it builds on."""
        found = [self]
        while parent := found[-1].parent:
            found.append(parent)
        return found

    def brings_packages_of(self, other: _Stage, number: int) -> bool:
        own = any(_INTO_OWN.match(said.text) for said in other.said)
        folders = (other.folder, *other.folder.parents) if own else ()
        paths = [path for of, path in self.brings if of in {other.name.lower(), str(number)}]
        return any(_PACKAGES.fullmatch(each) or PurePosixPath(each) in folders for each in paths)

    def within(self, path: str) -> PurePosixPath:
        return PurePosixPath(posixpath.normpath(self.folder / path))

    def sources(self, name: str) -> list[str]:
        """Return where in the repository a file of the image may come from, the likeliest first."""
        path, places = self.within(name), list[str]()
        for there, source in self.copied:
            if path == there:
                places.append(source)
            elif path.is_relative_to(there):  # into a folder: what it is called, or what is in it
                rest, known = path.relative_to(there), PurePosixPath(source)
                called = fnmatchcase(rest.parts[0], known.name)
                places += [str(known.parent / rest)] if called else []
                places.append(str(known / rest))
        return places

    def has(self, name: str) -> bool | None:
        """Return whether a file is in the image: it was copied, or its folder without it. None
        where it may be left out, or made there."""
        places = self.sources(name)
        if copied := [each for each in places if self.text_of(each) is not None]:
            left = (self.text_of(".dockerignore") or "").split()
            out = (fnmatchcase(copied[0], each.strip("/")) for each in left)
            return None if any(out) else True
        path = self.within(name)
        made = any(path.is_relative_to(self.within(there)) for _, there in self.brings)
        made = made or bool({path.name, *_BRINGS} & self.ran)
        return None if made or not places else False


def read(
    text: str, file: str, text_of: Callable[[str], str | None] = lambda _: None
) -> Iterator[SourceStatement]:
    """Yield what a Dockerfile says. file: its name, for a person. text_of: gives the text of a
    file of the repository, None for none."""
    shared, stages, before = dict[str, str](), list[_Stage](), list[SourceStatement]()
    for instruction in instructions(text):
        where = f"{file}:{instruction.line}"
        if instruction.name == "FROM":
            stages.append(_stage(instruction, where, stages, shared, text_of))
        elif instruction.name == "ARG" and not stages:
            shared |= _argument(instruction, shared, {})
            before.append(_unread(instruction, where))
        else:
            stages = stages or [_Stage("", None, text_of)]
            stages[-1].said += _said(instruction, file, stages[-1], shared)
    yield from before
    chain = {each for stage in stages[-1:] for each in stage.chain()}
    brought, waiting = set(chain), list(chain)
    while waiting:
        stage = waiting.pop()
        for number, other in enumerate(stages if stage.brings else ()):
            if other not in brought and stage.brings_packages_of(other, number):
                waiting += {*other.chain()} - brought
                brought |= {*other.chain()}
    for stage in stages:
        beside = f"the last stage does not build on {stage.name or 'this stage'}"
        for said in stage.said:
            installs = said.kind in {"requirement", "conda", "removed", *LISTS}
            inside = stage in chain or (installs and stage in brought)
            yield said if inside else said.aside(beside)


def script(text: str, file: str) -> Iterator[SourceStatement]:
    """Yield what a script installs."""
    stage = _Stage("", None)
    for number, command, _ in shell.script(text, 1, stage.variables):
        for said in _command(command, f"{file}:{number}", stage):
            if said.kind in {"requirement", "conda", "apt", *LISTS}:
                yield said


def groups(said: Iterable[SourceStatement]) -> frozenset[str]:
    """Return the extras and groups of the repository's own dependencies that statements install:
    `pip install .[gpu]`, `uv sync --extra gpu`; "*" for all of them."""
    found = set[str]()
    for each in said:
        if _PROJECT.match(each.text):  # a later stage may copy what it made
            installs = re.split(r" (?:--|python[\d.]*) ", each.text)[0]  # uv run starts one, too
            found |= {match[1] or "*" for match in _GROUPS.finditer(installs)}
        elif not each.beside and (
            own := re.fullmatch(r"(?:-e |--editable )?\.\[(.*)\]", each.text)
        ):
            found.add(own[1])
        elif not each.beside and (asked := _GROUPS.fullmatch(each.text)):  # -r pyproject.toml
            found.add(asked[1] or "*")
    return frozenset(filter(None, (part.strip() for each in found for part in each.split(","))))


def instructions(text: str) -> Iterator[Instruction]:
    lines = text.splitlines()
    number = 0
    while number < len(lines):
        first, kept = number + 1, list[str]()
        while number < len(lines):
            line = lines[number].rstrip()
            number += 1
            if line.lstrip().startswith("#") or not line.strip():
                if not kept:
                    first = number + 1
                    continue
                kept.append("")  # what is continued goes on behind it
                continue
            kept.append(line.removesuffix("\\"))
            if not line.endswith("\\"):
                break
        if not kept:
            continue
        name, _, rest = "\\\n".join(kept).lstrip().partition(" ")
        heredocs = []
        for match in re.finditer(r"<<-?\s*([\"']?)(\w+)\1", rest):
            begins, document = number + 1, list[str]()
            while number < len(lines) and lines[number].strip() != match[2]:
                document.append(lines[number])
                number += 1
            number += 1
            heredocs.append((begins, "\n".join(document)))
        yield Instruction(first, name.upper(), rest.strip(), tuple(heredocs))


def _stage(
    instruction: Instruction,
    where: str,
    stages: Sequence[_Stage],
    shared: dict[str, str],
    text_of: Callable[[str], str | None],
) -> _Stage:
    words = [word for word in instruction.joined.split() if not word.startswith("--")]
    base = shell.expanded(words[0] if words else "", shared)
    name = words[2] if len(words) > 2 else ""
    parent = next((each for each in stages if each.name.lower() == base.lower() and base), None)
    why = f"builds on the stage {base}" if parent else _NO_FIELD["FROM"]
    said = SourceStatement(where, str(instruction), "note" if parent else "image", (base,), why)
    if parent is None:
        return _Stage(name, None, text_of, said=[said])
    return replace(parent, name=name, parent=parent, variables={**parent.variables}, said=[said])


def _said(
    instruction: Instruction, file: str, stage: _Stage, shared: dict[str, str]
) -> Iterator[SourceStatement]:
    """Yield what an instruction of a stage says, and note what it decides for those below it."""
    where, name = f"{file}:{instruction.line}", instruction.name
    if name == "RUN":
        yield from _run(instruction, file, stage)
    elif name == "ENV":
        text = instruction.joined
        pairs = _words(text) if "=" in text.partition(" ")[0] else [text.replace(" ", "=", 1)]
        for pair in pairs:
            variable, _, value = pair.partition("=")
            value = shell.expanded(value, stage.variables)
            stage.variables[variable] = value
            said = SourceStatement(where, f"{variable}={value}", "variable", (variable, value))
            yield replace(said, why=installers.MACHINE) if variable.startswith(_OF_PIP) else said
    elif name == "ARG":
        stage.variables |= _argument(instruction, stage.variables, shared)
        yield _unread(instruction, where)
    elif name in {"CMD", "ENTRYPOINT"}:
        words = _strings(instruction.joined) or tuple(_words(instruction.joined))
        yield SourceStatement(where, str(instruction), "program", words)
    else:
        if name in {"COPY", "ADD"}:
            _copies(instruction, stage)
        elif name == "WORKDIR":
            stage.folder = stage.within(shell.expanded(instruction.joined, stage.variables))
        yield _unread(instruction, where)
        for line, text in instruction.heredocs:
            yield from _each_line(text, file, line, _NO_FIELD["COPY"])


def _copies(instruction: Instruction, stage: _Stage) -> None:
    """Note where the files that a COPY names come from."""
    words = _strings(instruction.joined) or tuple(instruction.joined.split())
    words = tuple(shell.expanded(each, stage.variables) for each in words)
    *sources, to = [each for each in words if not each.startswith("--")] or [""]
    if origin := next((each[7:] for each in words if each.startswith("--from=")), ""):
        stage.brings |= {(origin.lower(), path) for path in (*sources, to)}
        return
    for source in (posixpath.normpath(f"/{each}")[1:] or "." for each in sources):
        stage.copied = ((stage.within(to), source), *stage.copied[:_MOST])
        if _CONFIGURES.search(f"{source} {to}"):
            stage.elsewhere = f"{source} may name another index: PyPI may have another package"


def _run(instruction: Instruction, file: str, stage: _Stage) -> Iterator[SourceStatement]:
    text, line = instruction.text, instruction.line
    mounts = re.findall(r"--(?:mount|network|security)=\S+", text.partition("&&")[0])
    for mount in mounts:  # lines stay, so that each command has its own
        text = text.replace(mount, "", 1)
        given = dict(part.split("=", 1) for part in mount.split(",") if "=" in part)
        if "target" in given and "from" not in given and "type=bind" in mount:
            there = stage.within(given["target"])
            stage.copied = ((there, given.get("source", ".")), *stage.copied)
    hidden = any(re.search(r"type=secret.*(PIP_|UV_)", mount) for mount in mounts)
    documents = instruction.heredocs
    if hidden or any(map(_CONFIGURES.search, (instruction.text, *dict(documents).values()))):
        why = "the build may name another index: PyPI may have another package of this name"
        stage.elsewhere = stage.elsewhere or why
    if words := _strings(instruction.joined):
        yield from _command(words, f"{file}:{line}", stage)
        return
    if documents:
        text = re.sub(r"<<-?\s*([\"']?)\w+\1", "", text)
    scripts = [(line, text)]
    if documents and all(_SHELLS.fullmatch(word) for word in text.split()):
        scripts = list(documents)  # the document is the script
    elif documents:
        for begins, document in documents:
            for said in _each_line(document, file, begins, _NO_STEP):
                yield replace(said, beside=True)
    folder = stage.folder
    for begins, script in scripts:
        lines = shell.expanded(script, stage.variables).split("\n")
        for number, command, never in shell.script(script, begins, stage.variables, stage.has):
            for said in _command(command, f"{file}:{number}", stage):
                if said.where.startswith(f"{file}:"):  # and not of a script that it runs
                    said = _at_its_line(said, file, number, lines[number - begins :])
                yield said.aside(never) if never else said
    stage.folder = folder


def _each_line(text: str, file: str, first: int, why: str) -> Iterator[SourceStatement]:
    for number, line in enumerate(text.splitlines(), first):
        if line.strip():
            yield SourceStatement(f"{file}:{number}", line.strip(), why=why)


def _at_its_line(
    said: SourceStatement, file: str, number: int, lines: Sequence[str]
) -> SourceStatement:
    """Return the same with the line that it stands in, where its command has several."""
    if said.kind in {"note", "program"} and not said.text.startswith("-"):
        return said
    word = next(iter(said.text.removeprefix("apt ").split()), "")
    there = (line for line, text in enumerate(lines, number) if word in text)
    return replace(said, where=f"{file}:{next(there, number)}")


def _command(words: tuple[str, ...], where: str, stage: _Stage) -> Iterator[SourceStatement]:
    assigned = dict(word.split("=", 1) for word in words if re.match(r"\w+=", word))
    if words[:1] == ("export",) or len(assigned) == len(words):
        stage.variables |= assigned
    words = installers.unwrapped(words)
    if words[:1] == ("cd",) and len(words) == 2:
        stage.folder = stage.within(words[1])
    if len(words) > 2 and _SHELLS.fullmatch(words[0]) and re.fullmatch(r"-\w*c", words[1]):
        for _, inner, never in shell.script(words[2], 1, stage.variables, stage.has):
            for said in _command(inner, where, stage):
                yield said.aside(never) if never else said
        return
    if found := _script(words, stage):
        yield from _of_script(*found, words, where, stage)
        return
    text = " ".join(words)
    if setting := _SETS.fullmatch(text):
        stage.variables[f"PIP_{setting[1].upper().replace('-', '_')}"] = setting[2]
    install = installers.parse(words)
    if install is not None:
        options = (*stage.options(), *installers.of_environment(assigned))
        reasons = (installers.foreign(option) for option in options)
        elsewhere = stage.elsewhere or next(filter(None, reasons), "")
        for option in options:
            if option.name in {"--constraint", "--constraints"} and option.value:
                install = replace(install, options=(*install.options, option))
        for said in installers.statements(install, where, elsewhere):
            yield _placed(said, stage)
    elif (packages := conda.statements(words, where, stage.channels())) is not None:
        yield from (_placed(said, stage) for said in packages)
    elif words and _DEBIAN.fullmatch(words[0]) and "install" in words:
        yield from _debian(words, where)
    elif words and words[0] in {"[", "[[", "test"}:
        yield SourceStatement(where, text, why="decides which commands are run")
    elif _NEEDLESS.match(text):
        yield SourceStatement(where, text, why="an image of locked packages has no use for it")
    elif text:  # it may install what pyproject.toml asks for
        stage.ran.update(word.rpartition("/")[2] for word in words)
        why = next(filter(None, map(installers.foreign, stage.options())), stage.elsewhere)
        said = SourceStatement(where, f"RUN {text}", why=_NO_STEP, beside=True)
        if _PROJECT.match(said.text):
            said = replace(said, why=installers.OWN)
        yield replace(said, foreign=bool(why), words=(why,))


def _script(words: Sequence[str], stage: _Stage) -> tuple[str, str] | None:
    """Return the name and the text of a script of the repository that a command runs."""
    runs = len(words) > 1 and _SHELLS.fullmatch(words[0]) and not words[1].startswith("-")
    name = words[1] if runs else words[0] if words and words[0].endswith(".sh") else ""
    for place in stage.sources(name) if name else ():
        text = stage.text_of(place)
        if text is not None and place not in stage.scripts and len(stage.scripts) < _SCRIPTS:
            return place, text
    return None


def _of_script(
    place: str, text: str, command: Sequence[str], where: str, stage: _Stage
) -> Iterator[SourceStatement]:
    """Yield what a script says that a command runs; it changes no folder of what follows."""
    yield SourceStatement(where, " ".join(command))
    words = command[1 + bool(_SHELLS.fullmatch(command[0])) :]
    if _CONFIGURES.search(text):
        stage.elsewhere = stage.elsewhere or f"{place} may name another index"
    folder = stage.folder
    stage.scripts |= {place}
    given = dict.fromkeys("123456789", "") | {str(n): each for n, each in enumerate(words, 1)}
    variables = ChainMap(given, stage.variables)
    for number, inner, never in shell.script(text, 1, variables, stage.has):
        for said in _command(inner, f"{place}:{number}", stage):
            yield said.aside(never) if never else said
    stage.folder = folder


def _placed(said: SourceStatement, stage: _Stage) -> SourceStatement:
    """Return the same, with the places where a file that it names may lie in the repository."""
    if said.kind not in LISTS:
        return said
    path, places = stage.within(said.words[0]), stage.sources(said.words[0])
    own = () if said.words[0].startswith("/") else (said.words[0].removeprefix("./"),)
    named = [f"{source.rstrip('/')}/{path.name}" for _, source in stage.copied]
    return replace(said, words=tuple(dict.fromkeys((*places, *own, path.name, *named))))


def _debian(words: tuple[str, ...], where: str) -> Iterator[SourceStatement]:
    """Yield the Debian packages of a command of apt; its options take no name of a package."""
    names, rest = list[str](), iter(words[1:])
    for word in rest:
        if word in {"-t", "--target-release", "-o", "--option", "-c", "--config-file"}:
            next(rest, None)
        elif not word.startswith("-") and word != "install":
            names.append(word)
    for name in names:
        yield SourceStatement(where, f"apt {name}", "apt", (name,))


def _unread(instruction: Instruction, where: str) -> SourceStatement:
    why = _NO_FIELD.get(instruction.name, "image.yaml has no field for it")
    return SourceStatement(where, str(instruction), why=why, beside=True)


def _argument(
    instruction: Instruction, variables: dict[str, str], shared: dict[str, str]
) -> dict[str, str]:
    found = dict[str, str]()
    for word in _words(instruction.joined):
        name, equals, value = word.partition("=")
        if equals:
            found[name] = shell.expanded(value, {**variables, **found})
        elif name in shared:
            found[name] = shared[name]
        elif installers.of_environment({name: ""}):  # whoever builds it gives it
            found[name] = f"${name}"
    return found


def _strings(text: str) -> tuple[str, ...]:
    """Return the words of a JSON list; () for another text."""
    try:
        value: Any = files.parsed(json.loads, text)
    except ValueError:
        return ()
    return tuple(map(str, value)) if isinstance(value, list) else ()


def _words(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError:
        return text.split()
