"""What a repository's statements come to: each one is taken over, or named with the reason."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Final

from packaging.utils import canonicalize_name
from pydantic_core import PydanticCustomError

from builder.config import fields
from builder.config.image_yaml import ROOT
from builder.config.network import LINUX
from builder.config.stack import OWN_PYTHON
from builder.core import confidential, project
from builder.facts import frameworks
from builder.facts.frameworks import Framework
from builder.init import bases, shell
from builder.init.statements import SourceStatement, package_of

if TYPE_CHECKING:
    from packaging.requirements import Requirement
    from packaging.specifiers import SpecifierSet

_LOCKED: Final = (
    *("nvidia-cu", "nvidia-nccl", "nvidia-nv", "libtpu", "tensorflow-io-gcs"),
    *("jaxlib", "jax-cuda"),
)
_NOT_DEBIAN: Final = {
    re.compile(r"(python3?([.]\d+)?(-(pip|dev|venv|distutils|setuptools|wheel|full))?|"
               r"python-is-python3|ca-certificates)$"): "every image has it",
    re.compile(r"cuda|nvidia|nsight|tensorrt|datacenter-gpu|lib(nccl|npp|nv(?!me|pair|tt))"
               r"|libcu(da|dnn|blas|dss|file|fft|pti|rand|solver|sparse|tensor)"):
        "of NVIDIA's archive: an image has CUDA from locked wheels",
}  # fmt: skip
"""Packages that are not taken of an archive, by how their names begin or what they are, and why."""
_CONDA: Final = frozenset(("cudatoolkit", "cudnn", "pytorch-cuda", "pytorch-mutex", "cpuonly"))
"""Packages of conda that stand in lists for pip, too."""
_INSTALLERS: Final = frozenset(("pip", "wheel", "uv", "pdm", "pipenv", "poetry"))
_LAUNCHER: Final = re.compile(
    r"(.*/)?(python[\d.]*|uv|run|exec|poetry|accelerate|launch|torchrun|deepspeed|-[uBO]+"
    r"|--[\w-]+=\S*)"
)
_WITH_VALUES: Final = re.compile(r"(.*/)?(launch|torchrun|deepspeed)")
"""Launchers whose options may have a value behind them."""
"""What stands before the program that a command starts."""
GOT, BESIDE, IMPORTED = range(3)
"""What a wish for a framework was read from: what the image gets, or the only one that the program
imports; what lies beside it (an extra, another stage); one of several that the program imports."""
_SHOWN: Final = 12
"""How many lines of a file from which the image is not made a person is shown."""


@dataclass(frozen=True)
class Wish:
    """A line that asks for a framework."""

    where: str
    text: str
    specifier: SpecifierSet
    """The releases that it allows."""
    requirement: bool
    """Whether pip would install it; otherwise the line only tells that the framework is used."""
    rank: int = GOT
    """GOT, BESIDE or IMPORTED."""


@dataclass
class Findings:
    pythons: tuple[str, ...] = tuple(OWN_PYTHON)
    """Those that it may have, the preferred one first."""
    frameworks: dict[str, list[Wish]] = field(default_factory=dict)
    """What asks for each, by the key of image.yaml."""
    requirements: dict[str, str] = field(default_factory=dict)
    companions: dict[str, list[tuple[str, Requirement]]] = field(default_factory=dict)
    """What is released together with some framework, by its name, each with its place."""
    apt: list[str] = field(default_factory=list)
    environment: dict[str, str] = field(default_factory=dict)
    program: tuple[str, str] | None = None
    taken: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)
    """`taken` and `left`: a line each, with file and line number."""

    def leave(self, where: str, what: str, why: str) -> None:
        """Note a line that is not taken over; one that looks like a secret by its first word."""
        if confidential.secret_in(what.encode(), configuration=True, variables=True):
            what = f"{' '.join(re.split('[ =]', what)[:2])} ***"
        begins, ends = f"{where}: ", f": {why}"
        if self.left and self.left[-1].startswith(begins) and self.left[-1].endswith(ends):
            begins = f"{self.left.pop().removesuffix(ends)}, "  # more of the same line
        self.left.append(f"{begins}{what}{ends}")

    def read(self, statements: Iterable[SourceStatement], root: Path) -> None:
        """Take over what statements say; bounds and locks count for what all of them ask for."""
        later = list[SourceStatement]()
        for said in statements:
            if said.kind in {"bound", "locked"}:
                later.append(said)
            elif said.kind in {"requirement", "conda"}:
                self._package(said)
            elif said.kind == "image":
                self._image(said)
            elif said.why:
                self._leave(said)
            elif said.kind == "note":
                self.taken.append(f"{said.where}: {said.text}")
            elif said.kind == "python":
                self._python(said)
            elif said.kind == "apt":
                self._apt(said)
            elif said.kind == "variable":
                self._variable(said)
            elif said.kind == "program" and self.start(said.words, root, said.where):
                continue
            else:
                self._leave(said, "starts no module of this repository by itself")
        for said in later:
            if said.kind == "locked":
                self._locked(said)
            else:
                self._bound(said)

    # --- packages ---------------------------------------------------------------------------------

    def _package(self, said: SourceStatement) -> None:
        text = said.words[0]
        match = re.match(r"\s*([A-Za-z0-9](?:[\w.-]*[A-Za-z0-9])?)", text)
        name = canonicalize_name(match[1]) if match else ""
        parsed, problem = parsed_of(text)
        if parsed and parsed.marker and not said.beside:
            linux = {**LINUX, "python_version": self.pythons[0]}
            if not parsed.marker.evaluate(linux):
                what = f"its marker leaves out Linux, or Python {self.pythons[0]}"
                self.leave(said.where, text, what)
                return
        if said.kind == "requirement" and name == "python" and parsed:
            wanted = str(parsed.specifier) or ">=3"
            self._python(SourceStatement(said.where, text, "python", (wanted,), said.why))
            return
        own = self._asks(name, said, text)
        if own and not said.beside and said.kind == "requirement":
            return  # the choice of its release says what came of the line
        if name in _every_companion() and parsed and not said.beside:
            self.companions.setdefault(name, []).append((said.where, parsed))
        elif said.why or problem or parsed is None:
            self.leave(said.where, said.text, said.why or problem)
        elif name.startswith(_LOCKED):
            self.leave(said.where, text, "the factory locks what belongs to its framework")
        elif name in _CONDA or any(name in each.aliases for each in frameworks.every()):
            self.leave(said.where, text, "is conda's name: PyPI may have another package of it")
        elif name == "install":
            self.leave(said.where, text, "is a word of the command, written twice")
        elif name in _INSTALLERS or text == "setuptools":
            self.leave(said.where, text, "installs packages, and an image's are there")
        else:
            self.require(parsed, said.where)

    def require(self, parsed: Requirement, where: str) -> None:
        """Take a requirement over, together with an earlier one of the same name."""
        name = canonicalize_name(parsed.name)
        before = parsed_of(self.requirements.get(name, ""))[0]
        if before and str(before) != str(parsed):
            exact = [
                {bound.version for bound in each.specifier if bound.operator == "=="}
                for each in (before, parsed)
            ]
            if all(exact) and exact[0] != exact[1]:
                self.leave(where, str(parsed), f"{before} was taken before")
                return
            parsed.specifier &= before.specifier
            parsed.extras |= before.extras
            parsed.marker = None
        self.requirements[name] = str(parsed)
        self.taken.append(f"{where}: {parsed}")

    def _bound(self, said: SourceStatement) -> None:
        """Let a bound hold for what is asked for by name; note one of anything else."""
        parsed, problem = parsed_of(said.words[0])
        name = canonicalize_name(parsed.name) if parsed else ""
        if parsed is None or said.why:
            self.leave(said.where, said.text, said.why or problem)
        elif name in self.companions:
            self.companions[name].append((said.where, parsed))
        elif self._asks(name, said, said.text) and self.frameworks:
            return
        elif name in self.requirements:
            parsed.marker = None
            self.require(parsed, said.where)
        else:
            why = "bounds what nothing here asks for: write it as `requirements` where it is needed"
            self.leave(said.where, said.text, why)

    def _locked(self, said: SourceStatement) -> None:
        """Take the version of a lock for what other files ask for."""
        parsed, _ = parsed_of(said.words[0])
        if len(said.words) > 1 and not any(map(self._holds, said.words[1:])):
            return  # of a fork for another Python or system
        name = canonicalize_name(parsed.name) if parsed else ""
        framework = framework_of(name)
        asked = [wish.rank for wish in self.frameworks.get(framework, [])]
        if parsed is None:
            return
        if asked and parsed.specifier:
            wish = Wish(said.where, said.text, parsed.specifier, min(asked) == GOT, min(asked))
            self.frameworks[framework].append(wish)
        elif said.foreign and name in self.requirements:
            del self.requirements[name]
            self.leave(said.where, said.text, f"{said.why}; it is not taken")
        elif name in self.requirements and parsed.specifier:
            wanted = parsed_of(self.requirements[name])[0]
            assert wanted
            exact = (each.operator == "==" and "*" not in each.version for each in wanted.specifier)
            if not any(exact):
                wanted.specifier = parsed.specifier
                self.requirements[name] = str(wanted)
                self.taken.append(f"{said.where}: {wanted}")

    def _holds(self, marker: str) -> bool:
        from packaging.markers import InvalidMarker, Marker

        here = {"python_version": self.pythons[0], "python_full_version": f"{self.pythons[0]}.0"}
        try:
            return Marker(marker).evaluate({**LINUX, **here, "extra": ""})
        except InvalidMarker:
            return True

    # --- frameworks -------------------------------------------------------------------------------

    def _asks(self, name: str, said: SourceStatement, text: str) -> bool:
        """Note a package that is a framework, also by its name in conda, or that needs one. Return
        whether it is one."""
        for framework in frameworks.every():
            own, alias = name in framework.distributions, name in framework.aliases
            if own or alias or name in framework.needed_by:
                specifier = _specifier(text, name) if own or alias else ""
                self.wish(framework, said, specifier, own and said.kind != "conda")
                return own
        return False

    def _image(self, said: SourceStatement) -> None:
        """Note the base of a stage, and the framework that its name tells."""
        found = bases.of(said.words[0])
        if found and found[1]:
            minor = found[1].count(".") == 1
            self.wish(found[0], said, f"=={found[1]}{'.*' if minor else ''}", False)
        elif found:
            self.wish(found[0], said, "", False)
        python = re.fullmatch(r"(?:.*/)?python:(3\.\d+)[\w.-]*", said.words[0])
        if python and python[1] in self.pythons and not said.beside:
            self.pythons = tuple(dict.fromkeys((python[1], *self.pythons)))
            self.taken.append(f"{said.where}: Python {python[1]}, where the framework runs on it")
        self.leave(said.where, said.text, said.why)

    def wish(
        self, framework: Framework, said: SourceStatement, specifier: str, requirement: bool
    ) -> None:
        from packaging.specifiers import InvalidSpecifier, SpecifierSet

        try:
            allowed = SpecifierSet(re.sub(r"\+[\w.]+|(?<===)=", "", specifier))
        except InvalidSpecifier:  # it says nothing of a release
            allowed = SpecifierSet()
        rank = BESIDE if said.beside or said.kind == "bound" else GOT
        made = Wish(said.where, said.text, allowed, requirement and rank == GOT, rank)
        self.frameworks.setdefault(framework.name, []).append(made)

    def _leave(self, said: SourceStatement, why: str = "") -> None:
        """Note a statement that no field takes, and the frameworks that it mentions."""
        self.leave(said.where, said.text, said.why or why)
        for framework in frameworks.every():
            found = list(_mentions(framework.name).finditer(said.text))
            for match in sorted(found, key=lambda each: not (each[2] or each[4]))[:1]:
                name, bound = (match[1] or match[3]).lower(), match[2] or match[4] or ""
                own = name in framework.distributions | framework.aliases
                version = f"=={bound.lstrip('= ')}" if re.match(r"[=\d]", bound) else bound
                self.wish(framework, said.aside(why or said.why), version if own else "", False)

    # --- the other fields -------------------------------------------------------------------------

    def _python(self, said: SourceStatement) -> None:
        """Take over the versions that a text allows (`3.11`, `>=3.10`), where images have them."""
        from packaging.specifiers import InvalidSpecifier, SpecifierSet

        wanted = said.words[0]
        exact = re.fullmatch(r"=*\s*(3\.\d+)[\d.*]*", wanted)
        try:
            allowed = SpecifierSet(f"=={exact[1]}.*" if exact else wanted)
        except InvalidSpecifier:
            allowed = SpecifierSet("<0")
        if pythons := tuple(each for each in self.pythons if f"{each}.0" in allowed):
            self.pythons = pythons
            self.taken.append(f"{said.where}: Python {' or '.join(pythons)}")
        else:
            self.leave(said.where, f"Python {wanted}", f"images have {' or '.join(self.pythons)}")

    def _apt(self, said: SourceStatement) -> None:
        for name in said.words:
            whys = (why for pattern, why in _NOT_DEBIAN.items() if pattern.match(name))
            if why := next(whys, ""):
                self.leave(said.where, f"apt {name}", why)
            elif re.fullmatch(r"[a-z0-9][a-z0-9+.-]+", name):
                self.apt.append(name)
                self.taken.append(f"{said.where}: apt {name}")
            else:
                self.leave(said.where, name, "is no plain name of a Debian package")

    def _variable(self, said: SourceStatement) -> None:
        """Take a variable of the environment over, if an image may set it."""
        from pydantic import TypeAdapter, ValidationError

        name, value = said.words
        try:
            TypeAdapter(dict[fields.Variable, fields.Text]).validate_python({name: value})
        except ValidationError as error:
            why = (error.errors()[0].get("ctx") or {}).get("what", "an image cannot set it")
            self.leave(said.where, said.text, str(why))
            return
        if confidential.secret_in(said.text.encode(), configuration=True, variables=True):
            self.leave(said.where, name, "looks like a secret: a job names it (docs/jobs.md)")
        else:
            self.environment[name] = value
            self.taken.append(f"{said.where}: {name}={value}")

    def start(self, words: tuple[str, ...], root: Path, where: str) -> bool:
        """Take the program over that a command starts: `python -m NAME` or `python FILE.py`."""
        words = _started(words)
        by_name = words[:1] == ("-m",)
        start = re.sub(r"^(\./|/(app|workspace|src|code)/)", "", ([*words, ""][by_name]))
        steps = start.split(".") if by_name else start.removesuffix(".py").split("/")
        plain = start.isascii() and all(map(str.isidentifier, steps))
        if not plain or not project.is_module(root.joinpath(*steps)):
            return False
        package, module = (steps[0], start) if by_name else ("/".join(steps[:-1]), steps[-1])
        if not (root / steps[0]).is_dir():
            package = ROOT
        self.program = (package, module)
        self.taken.append(f"{where}: {self._program()}")
        return True

    def forget_program(self) -> None:
        self.taken = [line for line in self.taken if not line.endswith(f": {self._program()}")]
        self.program = None

    def _program(self) -> str:
        package, module = self.program or ("", "")
        return f"the program {module} in {package or ROOT}/"


def folded(lines: Sequence[str]) -> Iterator[str]:
    """Yield the lines, of a file from which the image is not made the first ones."""
    of = {line: line.partition(":")[0] for line in lines}
    every, seen = Counter(of[line] for line in lines), Counter[str]()
    beside = {of[line] for line in lines if f"not made from {of[line]}" in line}
    for line in lines:
        file = of[line]
        seen[file] += 1
        if file not in beside or seen[file] <= _SHOWN:
            yield line
        elif seen[file] == _SHOWN + 1:
            yield f"{file}: {every[file] - _SHOWN} more lines of it, which --json has"


def _started(words: tuple[str, ...]) -> tuple[str, ...]:
    """Return a command without the shell and the launchers before the program."""
    if len(words) == 3 and words[1] == "-c" and re.fullmatch(r"(.*/)?\w*sh", words[0]):
        words = ([()] + [inner for _, inner, _ in shell.script(words[2], 1, {})])[-1]
    launched = False
    while words and (_LAUNCHER.fullmatch(words[0]) or (launched and words[0].startswith("--"))):
        launched = launched or bool(_WITH_VALUES.fullmatch(words[0]))
        value = words[1:2] if words[0].startswith("--") and "=" not in words[0] else ()
        words = words[2 if value and not re.match(r"-|.*\.py$", value[0]) else 1 :]
    return words


def parsed_of(text: str) -> tuple[Requirement | None, str]:
    """Return a requirement; None and the reason for what cannot be locked."""
    from packaging.requirements import Requirement

    try:
        return (Requirement(fields.requirement(text)), "") if text else (None, "")
    except PydanticCustomError as error:
        return None, str((error.context or {}).get("what", error))


def _specifier(text: str, name: str) -> str:
    """Return the versions that a text allows, which may be no requirement: a wheel, a variable."""
    parsed = parsed_of(re.sub(r"(\d)\+[\w.]+", r"\1", text))[0]
    if parsed:
        return str(parsed.specifier)
    wheel = re.search(rf"{re.escape(name)}-(\d[\d.]*\d)", text)
    return f"=={wheel[1]}" if wheel else ""


def framework_of(requirement: str) -> str:
    """Return the framework that a requirement names; "" for another package."""
    name = package_of(requirement)
    return next((each.name for each in frameworks.every() if name in each.distributions), "")


@cache
def _mentions(name: str) -> re.Pattern[str]:
    """Return a pattern of a framework's name with perhaps a version, or of a wheel's file."""
    framework = frameworks.of(name)
    names = framework.distributions | framework.aliases | framework.needed_by
    longest = "|".join(map(re.escape, sorted(names, key=len, reverse=True)))
    return re.compile(
        rf"(?<![\w./@:=-])({longest})(?![\w-])(?:\[[^\]]*\])?\s*([=<>~!]=?=?\s*\d[\w.*]*)?"
        rf"|(?:^|/)({'|'.join(framework.distributions)})-(\d[\d.]*\d)",
        re.IGNORECASE,
    )


@cache
def _every_companion() -> frozenset[str]:
    return frozenset[str]().union(*(framework.companions for framework in frameworks.every()))
