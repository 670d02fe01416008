"""What the files of a repository say that its program needs.

Each line of those files is taken over, or named with the reason why it is not.
"""

from __future__ import annotations

import os
import re
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Final

from builder.config import image_yaml
from builder.config.image_yaml import REQUIREMENTS, ROOT
from builder.core import project
from builder.core.errors import InputError
from builder.core.files import text_of
from builder.init import conda as condas
from builder.init import dockerfiles, imports, manifests, setup_py
from builder.init.findings import GOT, IMPORTED, Findings, Wish, framework_of
from builder.init.statements import LISTS, SourceStatement, package_of

Reader = Callable[[str, str], Iterable[SourceStatement]]

_DEEPEST: Final = 50
"""How many requirements files may name each other in a row."""
_BESIDE: Final[dict[str, Reader]] = {
    "*[Dd]ockerfile*": dockerfiles.read,
    "Containerfile*": dockerfiles.read,
    "docker*/**/*[Dd]ockerfile*": dockerfiles.read,
    ".devcontainer/Dockerfile": dockerfiles.read,
    "*requirements*.txt": manifests.requirements,
    "*requirements*.in": manifests.requirements,
    "requirements/*.txt": manifests.requirements,
    "docker*/*requirements*.txt": manifests.requirements,
    "*env*.y*ml": manifests.conda,
    "conda*.y*ml": manifests.conda,
    "conda*/*.y*ml": manifests.conda,
    "*.sh": dockerfiles.script,
}
"""Other files that say what a program needs."""
_DEEPER: Final = re.compile(
    r".*[Dd]ockerfile.*|.*requirements.*\.txt|(conda|env).*\.ya?ml|.*[-_]env(ironment)?\.ya?ml"
    r"|pyproject\.toml|Pipfile|pixi\.toml"
)
"""Names of such files in other folders."""
_INSTALLED: Final = {"requirement", *LISTS}
_UNREAD: Final = (
    *("*.ipynb", "Makefile", ".devcontainer/*.json", ".devcontainer/*.sh"),
    *("pylock.*.toml", "pixi.lock", "conda-lock.yml"),
)
"""Files that may install packages, and are not read for it."""
_INSTALLS: Final = re.compile(
    r"\b(pip[\d.]*|conda|mamba|uv pip)\s+install\b|uv add\b|^(lock-)?version\b|_meta", re.MULTILINE
)
"""What does so in a script, or begins a lock."""
_NO_FOLDERS: Final = frozenset((project.BUILD, project.IMAGES, "node_modules", "site-packages"))
_MOST_FOLDERS: Final = 2_000
_OTHER: Final = frozenset((".dockerignore", ".lock", ".py", ".sh", ".md", ".rst", ".json", ".ps1"))
"""The endings of files that are called like those, and are something else."""
_NO_LISTS: Final = frozenset((".toml", ".py", ".cfg", ".json", ".yml", ".yaml", ".ipynb"))
"""The endings of files that are no list of requirements, a line each."""
_MAIN: Final = ("requirements", "base", "main", "common", "core", "train", "runtime")
"""What the list of requirements that others add to is called, the likeliest first."""
_STARTS: Final = ("__main__", "train", "task", "main")
"""The modules that a package may be started by, the likeliest first."""


def _readers(groups: frozenset[str]) -> dict[str, Reader]:
    """Return what reads the files at the root of a repository that say what its image gets, with
    these extras and groups of its dependencies."""
    return {
        "requirements.txt": manifests.requirements,
        "pyproject.toml": partial(manifests.pyproject, groups=groups),
        "setup.py": partial(setup_py.read, groups=groups),
        "setup.cfg": partial(manifests.setup_cfg, groups=groups),
        "Pipfile": manifests.by_name,
        "pixi.toml": manifests.by_name,
        "environment.yml": manifests.conda,
        "environment.yaml": manifests.conda,
        "cog.yaml": manifests.cog,
        "uv.lock": manifests.lock,
        "poetry.lock": manifests.lock,
        "pdm.lock": manifests.lock,
        "pylock.toml": manifests.lock,
        "Pipfile.lock": manifests.pipfile_lock,
    }


def look(root: Path, findings: Findings) -> None:
    reading = _Reading(root)
    findings.read(reading.statements(), root)
    if findings.program is None:
        _guess_program(root, findings)
    if findings.program and findings.program[0] != ROOT:
        reading.own_file(findings, findings.program)
    if findings.program:
        _widen(root, findings, findings.program)
    if all(wish.rank != GOT for wishes in findings.frameworks.values() for wish in wishes):
        from packaging.specifiers import SpecifierSet

        imported = imports.of_frameworks(root, findings.program)
        rank = GOT if len(imported) == 1 else IMPORTED
        for name, (where, text) in imported.items():
            wish = Wish(where, text, SpecifierSet(), False, rank)
            findings.frameworks.setdefault(name, []).insert(0, wish)
    for folder, name in reading.deeper():
        findings.leave(folder, name, f"is not read there: {manifests.ADD}")
    for pattern in _UNREAD:
        for path in sorted(root.glob(pattern)):
            name = path.relative_to(root).as_posix()
            if name not in reading.seen and (found := _INSTALLS.search(reading.text(name) or "")):
                findings.leave(name, found[0], f"is not read: {manifests.ADD}")


def _widen(root: Path, findings: Findings, program: tuple[str, str]) -> None:
    """Let the root be the program's folder where it imports from there; name what it opens."""
    for where, what in imports.beside(root, program):
        if what.startswith("imports") and program[1].startswith(f"{program[0]}."):
            findings.program = (ROOT, program[1])
            findings.taken.append(f"{where}: the program imports it: the whole root is its folder")
            return
        why = f"lies beside the program: move it into {program[0]}/, or write `program: {ROOT}:...`"
        findings.leave(where, what, why)


class _Reading:
    """The files of a repository, each read once. elsewhere: why a file, or "" for all of them, is
    installed from another index than PyPI. own: the names of its own package. removed: where the
    Dockerfile uninstalls what, by name. plain: the lists that name no index."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.seen = set[str]()
        self.readers = _readers(frozenset())
        self.elsewhere = dict[str, str]()
        self.removed = dict[str, str]()
        self.plain = {""}
        names = ("pyproject.toml", "setup.cfg", "setup.py")
        self.own = manifests.own_names(*(self.text(name) or "" for name in names))

    def statements(self) -> Iterator[SourceStatement]:
        """Yield what all files say; the Dockerfile first, as it says how others are installed."""
        beside = self._beside()
        if why := manifests.indexes(manifests.tables(self.text("uv.toml") or "")):
            self.elsewhere[""] = why
        made = [name for name, reader in beside.items() if reader is dockerfiles.read]
        made = [name for name in made if not name.startswith(".")]
        only = made[0] if len(made) == 1 else ""
        main = project.DOCKERFILE if project.DOCKERFILE in made else only
        first, asks = list[SourceStatement](), False
        if main:
            said = self._of_commands(list(self._said(main, dockerfiles.read)), main)
            self.readers = _readers(dockerfiles.groups(said))
            for each in said:
                if each.foreign and each.kind == "note":
                    self.elsewhere.setdefault("", each.words[0])
                elif each.foreign and each.kind == "requirements":
                    self.elsewhere |= dict.fromkeys(each.words, each.why)
            first = self._kept(list(self._followed(said)))
        own = (self._followed(self._said(name, read)) for name, read in self.readers.items())
        for each in chain(first, *own):
            asks |= each.kind in {"requirement", "conda"} and not each.beside
            yield each
        lists = [name for name, read in beside.items() if read is manifests.requirements]
        lists = [name for name in lists if name not in self.seen and not asks]
        called = [name for stem in _MAIN for name in lists if Path(name).stem == stem]
        for name in called[:1] or (lists if len(lists) == 1 else ()):
            yield from self._followed(self._said(name, manifests.requirements))
        for name, reader in beside.items():
            try:
                said = list(self._said(name, reader))
            except InputError as error:
                said = [SourceStatement(name, "the file", why=f"cannot be read: {error.message}")]
            for each in said:
                yield each.aside(f"the image is not made from {name}: {manifests.ADD}")

    def own_file(self, findings: Findings, program: tuple[str, str]) -> None:
        """Take the framework of the program's own file of requirements, of which a lock takes each
        line; where it cannot, take what can be taken of it, and not the program."""
        file = f"{program[0]}/{REQUIREMENTS}"
        why = self.elsewhere.get(file) or self.elsewhere.get("")
        lines = list(self._said(file, manifests.requirements))  # unless the Dockerfile names it
        fix = f"and write program: {':'.join(program)}"
        if why and (self.root / file).is_file():
            fix = f"move it away, {fix}"
        else:
            try:
                image_yaml.requirements_in(self.text(file) or "", file)
                findings.read((each for each in lines if framework_of(each.words[0])), self.root)
                return
            except InputError:
                why, fix = "a lock takes each line of it", f"mend it, {fix}"
                findings.read(lines, self.root)
        findings.leave(file, "the program's own file", f"{why}; {fix}")
        findings.forget_program()

    def deeper(self) -> Iterator[tuple[str, str]]:
        """Yield the folder and the name of each file that says what a program needs, and that was
        not read."""
        for count, (folder, folders, files) in enumerate(os.walk(self.root)):
            path = Path(folder)
            kept = {*folders} - _NO_FOLDERS if count < _MOST_FOLDERS else set[str]()
            folders[:] = sorted(
                name
                for name in kept
                if not name.startswith(".") and not (path / name / "pyvenv.cfg").is_file()
            )
            where = path.relative_to(self.root).as_posix()
            for name in sorted(files):
                known = f"{where}/{name}" in self.seen or where == "."
                if not known and _DEEPER.fullmatch(name) and Path(name).suffix not in _OTHER:
                    yield where, name

    def _beside(self) -> dict[str, Reader]:
        found = dict[str, Reader]()
        for pattern, reader in _BESIDE.items():
            for path in sorted(self.root.glob(pattern)):
                name = path.relative_to(self.root).as_posix()
                read = reader is dockerfiles.script or path.suffix not in _OTHER
                if path.is_file() and read:
                    found.setdefault(name, reader)
        return found

    def _kept(self, said: Sequence[SourceStatement]) -> list[SourceStatement]:
        """Return statements; what a later one of them uninstalls is not taken."""
        again, kept = set[str](), list[SourceStatement]()
        for each in reversed(said):
            if each.kind == "removed" and not each.beside:
                self.removed |= dict.fromkeys({*map(package_of, each.words)} - again, each.where)
                each = replace(each, kind="note", why="what it names is not taken")
            elif each.kind == "requirement" and not each.beside:
                again.add(package_of(each.words[0]))
            kept.append(self._unless_removed(each))
        return kept[::-1]

    def _unless_removed(self, said: SourceStatement) -> SourceStatement:
        name = package_of(said.words[0]) if said.kind == "requirement" else ""
        where = self.removed.get(name)
        return said.aside(f"{where} uninstalls it") if where else said

    def _said(self, name: str, reader: Reader) -> Iterator[SourceStatement]:
        """Yield what a file says, unless it was read before."""
        if name in self.seen:
            return
        text = self.text(name)
        if text is None:
            if not self._inside(name):
                self.seen.add(name)
                yield SourceStatement(name, "the file", why="it lies outside of the repository")
            return
        self.seen.add(name)
        if "\0" in text:
            yield SourceStatement(name, "the file", why="is no text: save it as UTF-8")
            return
        why = self.elsewhere.get(name) or self.elsewhere.get("", "")
        if reader in {manifests.requirements, manifests.constraints}:
            why = why or self._elsewhere(name)
        made = reader is dockerfiles.read
        for said in dockerfiles.read(text, name, self.text) if made else reader(text, name):
            self.seen.add(said.where.rpartition(":")[0])  # a script, perhaps
            each = self._unless_removed(said)
            if each.kind == "requirement" and package_of(each.words[0]) in self.own:
                yield each.from_elsewhere("is this repository's own package, and no requirement")
            else:
                yield each.from_elsewhere(why if each.kind in _INSTALLED else "")

    def _elsewhere(self, name: str) -> str:
        """Return why a list of requirements installs from elsewhere than PyPI: the options of each
        list that it names count for all of them."""
        waiting, seen = [name], set[str]()
        while waiting:
            if (name := waiting.pop()) in seen | self.plain:
                continue
            seen.add(name)
            for each in manifests.requirements(self.text(name) or "", name):
                if each.kind == "index":
                    return each.words[0]
                waiting.append(self._there(each))
        self.plain |= seen
        return ""

    def _of_commands(self, said: list[SourceStatement], file: str) -> list[SourceStatement]:
        """Return a Dockerfile's statements; an index in a list counts for its whole instruction."""
        begins = [each.line for each in dockerfiles.instructions(self.text(file) or "")]
        lines = (re.sub(r"^.*:|^\D.*$", "", each.where) for each in said)
        of = [
            (bisect_right(begins, int(n or 0)), each) for n, each in zip(lines, said, strict=True)
        ]
        whys = {number: why for number, each in of if (why := self._elsewhere(self._there(each)))}
        return [
            each.from_elsewhere(whys.get(number, "") if each.kind in _INSTALLED else "")
            for number, each in of
        ]

    def _there(self, said: SourceStatement) -> str:
        """Return where the file lies that a statement names; "" for none."""
        listed = said.words if said.kind in LISTS else ()
        for name in (each for each in listed if "\0" not in each):
            if (self.root / name).is_file():
                return name
            folder, pattern = (self.root / name).parent, Path(name).name
            if "*" in pattern and folder.is_dir():  # COPY takes one
                found = [path for path in folder.iterdir() if fnmatchcase(path.name, pattern)]
                if files := sorted(path.name for path in found if path.is_file()):
                    return (Path(name).parent / files[0]).as_posix()
        return ""

    def _followed(
        self, said: Iterable[SourceStatement], depth: int = 0
    ) -> Iterator[SourceStatement]:
        """Yield statements; one that names a file gives way to what that file says."""
        for each in said:
            if each.kind not in LISTS or each.beside:
                yield each
                continue
            there, why, reader = self._there(each), "", None
            if not self._inside(there or each.words[0].replace("\0", "")):
                why = "it lies outside of the repository"
            elif not there:
                why = "there is no such file"
            elif depth > _DEEPEST:
                why = f"{_DEEPEST} files name each other"
            elif (reader := self._reader(there, each.kind)) is None:
                why = f"is no list of requirements: {manifests.ADD}"
            yield SourceStatement(each.where, each.text, why=why)
            if not why and reader:
                name = Path(there).as_posix()
                if each.foreign:
                    self.elsewhere.setdefault(name, each.why)
                yield from self._followed(self._said(name, reader), depth + 1)

    def _reader(self, name: str, kind: str) -> Reader | None:
        """Return what reads a file that an installation names: uv takes a pyproject.toml, too; None
        for one whose words would be taken for packages."""
        listed, path = kind != "constraints", Path(name)
        known = self.readers.get(path.name)
        if listed and re.fullmatch(r"pylock(\.[^.]+)?\.toml", path.name):
            return partial(manifests.lock, kind="requirement")
        if listed and path.suffix in {".yml", ".yaml"}:
            return manifests.conda
        if known is manifests.lock or (path.suffix in _NO_LISTS and not (listed and known)):
            return None
        if listed and known:
            return known
        if kind == "packages":
            return condas.listed
        return manifests.requirements if listed else manifests.constraints

    def text(self, name: str) -> str | None:
        """Return the text of a file of the repository; None for none, or a link out of it."""
        return text_of(self.root / name) if self._inside(name) else None

    def _inside(self, name: str) -> bool:
        return (self.root / name).resolve().is_relative_to(self.root.resolve())


def _guess_program(root: Path, findings: Findings) -> None:
    """Take over the one package that can be started, else a script at the root or in a folder."""
    folders = [
        (folder, name)
        for folder in sorted(root.iterdir())
        if folder.is_dir() and not folder.name.startswith((".", "test"))
        for name in _STARTS
        if (folder / f"{name}.py").is_file()
    ]
    packages = [start for start in folders if (start[0] / "__init__.py").is_file()]
    scripts = [name for name in _STARTS if (root / f"{name}.py").is_file()]
    found = packages or ([] if scripts else folders)
    if len({folder for folder, _ in found}) == 1:
        folder, name = found[0]
        module = folder.name if name == "__main__" else f"{folder.name}.{name}"
        plain = (f"{folder.name}/{name}.py",)
        findings.start(("-m", module) if packages else plain, root, folder.name)
    elif found:
        names = ", ".join(f"{folder.name}.{name}" for folder, name in found)
        findings.leave("program", names, "name one of them as `program` of image.yaml")
    elif scripts:
        findings.start((f"{scripts[0]}.py",), root, f"{scripts[0]}.py")
