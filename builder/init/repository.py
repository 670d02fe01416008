"""What the files of a repository say that its program needs.

Each line of those files is taken over, or named with the reason why it is not.
"""

from __future__ import annotations

import json
import re
import shlex
import tomllib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from packaging.utils import canonicalize_name
from pydantic_core import PydanticCustomError

from builder.config import fields
from builder.config.stack import OWN_PYTHON
from builder.core import confidential, project, yamlfile
from builder.core.errors import InputError
from builder.core.files import text_of
from builder.facts import frameworks

if TYPE_CHECKING:
    from packaging.specifiers import SpecifierSet

_LOCKED: Final = (
    *("nvidia-cu", "nvidia-nccl", "nvidia-nv", "libtpu", "tensorflow-io-gcs"),
    *("jaxlib", "jax-cuda"),
)
_STARTS: Final = ("__main__", "train", "task", "main")
"""The modules that a package may be started by, the likeliest first."""
_UNREAD: Final = (
    *("setup.py", "setup.cfg", "Pipfile", "poetry.lock", "pdm.lock", "pixi.toml"),
    "requirements*.txt",
)
"""Other files that say what a program needs."""
_POETRY: Final = ("dev-dependencies", "extras", "group", "scripts", "source")
"""Poetry's other tables."""
_PACKAGES: Final = re.compile(r"(?:python[\d.]* -m |uv )?pip[\d.]* install (.*)")
_DEBIAN: Final = re.compile(r"(?:sudo )?apt(?:-get)? (?:-\S+ )*install (.*)")
_NOTHING: Final = re.compile(
    r"(sudo )?(apt(-get)? (-\S+ )*(update|clean|autoremove)|rm -rf? /var/|"
    r"(python[\d.]* -m )?pip[\d.]* (cache|install (-\S+ )*(--upgrade|-U) pip$)|set -)"
)
"""What a base that is made from locked packages has no use for."""

_LAUNCHER: Final = re.compile(r"(.*/)?(python[\d.]*|uv|run|exec|accelerate|launch|-[uBO]+)")
"""What stands before the program that a command starts."""
_LINUX: Final = {
    "sys_platform": "linux",
    "platform_system": "Linux",
    "platform_machine": "x86_64",
}
_NO_FIELD: Final = {
    "FROM": "the base is made from locked packages; `base` takes another",
    "COPY": "the image gets the program's folder, and nothing else",
    "ADD": "the image gets the program's folder, and nothing else",
}
"""Why a Dockerfile's instruction is not taken over."""


@dataclass(frozen=True)
class Wish:
    """A line that asks for a framework. specifier: the releases that it allows. requirement:
    whether pip would install it; otherwise the line only tells that the framework is used."""

    where: str
    text: str
    specifier: SpecifierSet
    requirement: bool


@dataclass
class Findings:
    """What a repository's files say. pythons: those that it may have, the preferred one first.
    frameworks: what asks for each, by the key of image.yaml. taken, left: a line each, with file
    and line number. read: the requirements files that were read."""

    pythons: tuple[str, ...] = tuple(OWN_PYTHON)
    frameworks: dict[str, list[Wish]] = field(default_factory=dict)
    requirements: dict[str, str] = field(default_factory=dict)
    apt: list[str] = field(default_factory=list)
    environment: dict[str, str] = field(default_factory=dict)
    program: tuple[str, str] | None = None
    taken: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)
    read: list[str] = field(default_factory=list)

    def leave(self, where: str, what: str, why: str) -> None:
        """Note a line that is not taken over."""
        self.left.append(f"{where}: {what}: {why}")

    def take(self, text: str, where: str) -> None:
        """Take a Python requirement over, or note why not."""
        from packaging.requirements import Requirement

        try:
            parsed = Requirement(fields.requirement(text))
        except PydanticCustomError as error:
            self.leave(where, text, str((error.context or {}).get("what", error)))
            return
        name, here = canonicalize_name(parsed.name), self.pythons[0]
        linux = {**_LINUX, "python_version": here}
        if parsed.marker and not parsed.marker.evaluate(linux):
            self.leave(where, text, f"its marker leaves out Linux, or Python {here}")
        elif self.asks(name, str(parsed), where, str(parsed.specifier)):
            return
        elif name.startswith(_LOCKED):
            self.leave(where, text, "the factory locks what belongs to its framework")
        elif (before := self.requirements.setdefault(name, str(parsed))) != str(parsed):
            self.leave(where, text, f"{before} was taken before")
        else:
            self.taken.append(f"{where}: {parsed}")

    def asks(self, name: str, text: str, where: str, allowed: str | None = None) -> bool:
        """Note a line that names a framework, or what needs one. Return whether it names one.

        allowed: the releases, as pip writes them; None where pip does not install it.
        """
        from packaging.specifiers import SpecifierSet

        for framework in frameworks.every():
            own = name in framework.distributions
            if own or name in framework.needed_by:
                asks = own and allowed is not None
                wish = Wish(where, text, SpecifierSet(allowed or "" if asks else ""), asks)
                self.frameworks.setdefault(framework.name, []).append(wish)
                return own
        return False

    def take_python(self, wanted: str, where: str) -> None:
        """Take the versions of Python over that a text allows (`3.11`, `>=3.10`), where images
        have one of them."""
        from packaging.specifiers import InvalidSpecifier, SpecifierSet

        exact = re.fullmatch(r"=*\s*(3\.\d+)[\d.*]*", wanted)
        try:
            allowed = SpecifierSet(f"=={exact[1]}.*" if exact else wanted)
        except InvalidSpecifier:
            allowed = SpecifierSet("<0")
        if pythons := tuple(each for each in self.pythons if f"{each}.0" in allowed):
            self.pythons = pythons
            self.taken.append(f"{where}: Python {' or '.join(pythons)}")
        else:
            self.leave(where, f"Python {wanted}", f"images have {' or '.join(self.pythons)}")

    def take_apt(self, names: Iterable[str], where: str) -> None:
        """Take Debian packages over."""
        for name in names:
            if name.startswith("-") or name in {"python3", "python3-pip", "ca-certificates"}:
                continue
            if re.fullmatch(r"[a-z0-9][a-z0-9+.-]+", name):
                self.apt.append(name)
                self.taken.append(f"{where}: apt {name}")
            else:
                self.leave(where, name, "is no plain name of a Debian package")

    def take_variable(self, name: str, value: str, where: str) -> None:
        """Take a variable of the environment over, if an image may set it."""
        from pydantic import TypeAdapter, ValidationError

        try:
            TypeAdapter(dict[fields.Variable, fields.Text]).validate_python({name: value})
        except ValidationError as error:
            why = (error.errors()[0].get("ctx") or {}).get("what", "an image cannot set it")
            self.leave(where, f"{name}={value}", str(why))
            return
        if confidential.secret_in(f"{name}={value}".encode(), configuration=True, variables=True):
            self.leave(where, name, "looks like a secret: a job names it (docs/jobs.md)")
        else:
            self.environment[name] = value
            self.taken.append(f"{where}: {name}={value}")

    def take_command(self, words: Sequence[str], root: Path, where: str) -> bool:
        """Take the program over that a command starts: `python -m NAME` or `python FILE.py`."""
        while words and _LAUNCHER.fullmatch(words[0]):
            words = words[1:]
        by_name = words[:1] == ["-m"]
        start = ([*words, ""][by_name]).removeprefix("./").removeprefix("/app/")
        steps = start.split(".") if by_name else start.removesuffix(".py").split("/")
        plain = start.isascii() and all(map(str.isidentifier, steps))
        if not plain or not project.is_module(root.joinpath(*steps)):
            return False
        if not (root / steps[0]).is_dir():
            why = "an image holds one folder: move it into one, and name that as `program`"
            self.leave(where, start, why)
            return True
        package, module = (steps[0], start) if by_name else ("/".join(steps[:-1]), steps[-1])
        self.program = (package, module)
        self.taken.append(f"{where}: the program {module} in {package}/")
        return True


def look(root: Path, findings: Findings) -> None:
    """Read every file of the repository that says what its program needs."""
    _requirements(root, "requirements.txt", findings)
    for read in (_pyproject, _conda, _cog, _dockerfile, _uv_lock):
        read(root, findings)
    for name in _UNREAD:
        for path in sorted(root.glob(name)):
            if path.is_file() and path.name not in findings.read:
                findings.leave(path.name, "the file", "is not read: add what a job needs of it")
    if findings.program is None:
        _guess_program(root, findings)
    for name, wishes in findings.frameworks.items():  # what asks for a release counts alone
        asking = [wish for wish in wishes if wish.requirement]
        findings.frameworks[name] = asking or wishes[:1]


# --- the files ------------------------------------------------------------------------------------


def _requirements(
    root: Path, name: str, findings: Findings, named: str = "", seen: tuple[str, ...] = ()
) -> None:
    """Read a requirements file, and those that it names. named: the line that names this one."""
    if named and not (root / name).resolve().is_relative_to(root.resolve()):
        findings.leave(named, f"-r {name}", "it lies outside of the repository")
        return
    text = text_of(root / name)
    if named and text is None:
        findings.leave(named, f"-r {name}", "there is no such file")
    if text is None or name in seen:
        return
    findings.read.append(name)
    for number, line in _lines(text):
        where, entry = f"{name}:{number}", re.sub(r"(^|\s)#.*", "", line).strip()
        entry = re.sub(r"\s+--hash=\S+", "", entry).strip()
        if match := re.fullmatch(r"(?:-r|--requirement)[ =]?(\S+)", entry):
            inner = (Path(name).parent / match[1]).as_posix()
            _requirements(root, inner, findings, where, (*seen, name))
        elif re.match(r"(-e|--editable)\b", entry):
            findings.leave(where, entry, "is no locked package: make a wheel of it, or copy it")
        elif re.match(r"(-c|--constraint)\b", entry):
            findings.leave(where, entry, "bounds are written as `requirements` of image.yaml")
        elif entry.startswith("-"):
            findings.leave(where, entry, "an index or an option belongs to the machine that locks")
        elif entry:
            findings.take(entry, where)


def _pyproject(root: Path, findings: Findings) -> None:
    content = _toml(root / "pyproject.toml")
    table, tool = _mapping(content.get("project")), _mapping(content.get("tool"))
    if wanted := str(table.get("requires-python") or ""):
        findings.take_python(wanted, "pyproject.toml: requires-python")
    sources = _mapping(_mapping(tool.get("uv")).get("sources"))
    elsewhere = {
        canonicalize_name(name) for name, source in sources.items() if "index" not in str(source)
    }
    for entry in _strings(table.get("dependencies")):
        if canonicalize_name(re.split(r"[^\w.-]", entry, maxsplit=1)[0]) in elsewhere:
            why = "tool.uv.sources takes it from elsewhere"
            findings.leave("pyproject.toml: dependencies", entry, why)
        else:
            findings.take(entry, "pyproject.toml: dependencies")
    poetry = _mapping(tool.get("poetry"))
    dynamic = [key for key in _strings(table.get("dynamic")) if key == "dependencies"]
    for what, names in (
        ("the extra ", _mapping(table.get("optional-dependencies"))),
        ("the group ", _mapping(content.get("dependency-groups"))),
        ("the script ", _mapping(table.get("scripts"))),
        ("tool.uv.", _mapping(tool.get("uv"))),
        ("tool.poetry.", [key for key in poetry if key in _POETRY]),
        ("dynamic ", dynamic),
    ):
        why = "name its module as `program`" if "script" in what else "add what a job needs of it"
        for name in names:
            findings.leave("pyproject.toml", f"{what}{name}", why)
    for name, value in _mapping(poetry.get("dependencies")).items():
        where = "pyproject.toml: tool.poetry.dependencies"
        options = value if isinstance(value, dict) else {"version": value}
        extras, version = _strings(options.get("extras")), options.get("version")
        if name == "python":
            findings.take_python(_bounds(str(version)), where)
        elif not isinstance(version, str) or options.keys() - {"version", "extras"}:
            text = json.dumps(value, default=str)
            findings.leave(where, f"{name} {text}", "write it as a requirement")
        else:
            extra = f"[{','.join(extras)}]" if extras else ""
            findings.take(f"{name}{extra}{_bounds(version)}", where)


def _bounds(version: str) -> str:
    """Return poetry's version as pip writes it: `^1.2` is `>=1.2,==1.*`."""
    if match := re.fullmatch(r"(?:\^((?:0\.)*\d+)|~(\d+(?:\.\d+)?))[\d.]*", version):
        return f">={version[1:]},=={match[1] or match[2]}.*"
    return f"=={version}" if version[:1].isdigit() else version.removeprefix("*")


def _uv_lock(root: Path, findings: Findings) -> None:
    """Take the versions of uv.lock for what the other files name."""
    packages = _toml(root / "uv.lock").get("package")
    named = (frameworks.of(name).distributions for name in findings.frameworks)
    distributions = frozenset[str]().union(*named)
    for package in map(_mapping, packages if isinstance(packages, list) else ()):
        name, version = str(package.get("name")), str(package.get("version"))
        if name in distributions:
            findings.take(f"{name}=={version.partition('+')[0]}", "uv.lock")
        elif re.fullmatch(r"[\w.-]+ *([<>~!][^;]*)?", findings.requirements.get(name, "")):
            findings.requirements[name] = f"{name}=={version}"
            findings.taken.append(f"uv.lock: {name}=={version}")


def _conda(root: Path, findings: Findings) -> None:
    for name in ("environment.yml", "environment.yaml"):
        document = _yaml(root / name)
        for key in sorted(document.keys() - {"name", "dependencies"}):
            findings.leave(name, f"{key}: {json.dumps(document[key])}", "belongs to conda")
        for number, entry in enumerate(document.get("dependencies") or ()):
            where = f"{name}: dependencies[{number}]"
            if isinstance(entry, dict):
                for requirement in _strings(entry.get("pip")):
                    findings.take(requirement, f"{name}: pip")
            elif match := re.fullmatch(r"python\s*([=<>!~].*)", str(entry)):
                findings.take_python(match[1], where)
            elif str(entry) not in {"pip", "python"}:
                findings.asks(re.split(r"[\s=<>!~]", str(entry))[0], str(entry), where)
                why = "a conda package: name it as a Python or Debian one"
                findings.leave(where, str(entry), why)


def _cog(root: Path, findings: Findings) -> None:
    content = _yaml(root / "cog.yaml")
    build = content.get("build")
    for key, value in (build if isinstance(build, dict) else {}).items():
        where = f"cog.yaml: build.{key}"
        if key == "python_version":
            findings.take_python(str(value), where)
        elif key == "python_packages":
            for entry in _strings(value):
                findings.take(entry, where)
        elif key == "python_requirements":
            _requirements(root, str(value), findings, where)
        elif key == "system_packages":
            findings.take_apt(_strings(value), where)
        elif key != "gpu":
            findings.leave(where, json.dumps(value), "the factory has no such step")
    for key in sorted(content.keys() - {"build"}):
        findings.leave("cog.yaml", f"{key}: {json.dumps(content[key])}", "belongs to cog")


def _dockerfile(root: Path, findings: Findings) -> None:
    for number, line in _lines(text_of(root / project.DOCKERFILE) or ""):
        where, (name, _, rest) = f"{project.DOCKERFILE}:{number}", line.strip().partition(" ")
        rest, name = rest.strip(), name.upper()
        if name == "RUN":
            for command in re.split(r"\s*(?:&&|;)\s*", re.sub(r"--mount=\S+\s*", "", rest)):
                _run(command, root, where, findings)
        elif name == "ENV":
            pairs = _words(rest) if "=" in rest.partition(" ")[0] else [rest.replace(" ", "=", 1)]
            for pair in pairs:
                variable, _, value = pair.partition("=")
                findings.take_variable(variable, value, where)
        elif name in {"CMD", "ENTRYPOINT"}:
            words = _strings(_json(rest)) or _words(rest)
            if not findings.take_command(words, root, where):
                findings.leave(where, line, "starts no module of this repository by itself")
        elif name:
            if name == "FROM":
                image = re.split("[:@ ]", rest.rpartition("/")[2])[0]
                findings.asks(image, line, where)
            findings.leave(where, line, _NO_FIELD.get(name, "image.yaml has no field for it"))


def _run(command: str, root: Path, where: str, findings: Findings) -> None:
    """Take a command of a RUN over: what it installs."""
    command = " ".join(command.split())
    if not command or _NOTHING.match(command):
        return
    if match := _DEBIAN.fullmatch(command):
        findings.take_apt(_words(match[1]), where)
    elif match := _PACKAGES.fullmatch(command):
        words = iter(_words(match[1]))
        for word in words:
            if word in {"-r", "--requirement"}:
                file = next(words, "").removeprefix("/app/").removeprefix("./")
                if file.startswith("/"):  # a folder of the image
                    file = Path(file).name
                if file not in findings.read:
                    _requirements(root, file, findings, where)
            elif word.startswith(("-", ".", "/")):
                if word not in {"--no-cache-dir", "--upgrade", "-U", "-q", "--quiet", "--system"}:
                    findings.leave(where, word, "an option or a folder, not a requirement")
            else:
                findings.take(word, where)
    else:
        findings.leave(where, f"RUN {command}", "no step of the factory does this")


def _guess_program(root: Path, findings: Findings) -> None:
    """Take the one package over that can be started."""
    starts = [
        (folder, name)
        for folder in sorted(root.iterdir())
        if folder.is_dir() and (folder / "__init__.py").is_file() and folder.name != "tests"
        for name in _STARTS
        if (folder / f"{name}.py").is_file()
    ]
    if len({folder for folder, _ in starts}) == 1:
        folder, name = starts[0]
        module = folder.name if name == "__main__" else f"{folder.name}.{name}"
        findings.take_command(["-m", module], root, folder.name)
    elif starts:
        names = ", ".join(f"{folder.name}.{name}" for folder, name in starts)
        findings.leave("program", names, "name one of them as `program` of image.yaml")
    else:
        for path in sorted(root.glob("*.py")):
            if path.stem in _STARTS:
                findings.take_command([path.name], root, path.name)


# --- reading --------------------------------------------------------------------------------------


def _lines(text: str) -> Iterator[tuple[int, str]]:
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


def _parsed(path: Path, parse: Callable[[str], Any]) -> dict[str, Any]:
    """Return a file's mapping; {} where there is none. Raises InputError for other text."""
    try:
        value = parse(text_of(path) or "")
    except ValueError as error:
        raise InputError(f"{path.name}: {error}", "mend the file, or move it away") from None
    return value if isinstance(value, dict) else {}


def _toml(path: Path) -> dict[str, Any]:
    return _parsed(path, tomllib.loads)


def _yaml(path: Path) -> dict[str, Any]:
    return _parsed(path, lambda text: yamlfile.parse(text, path.name).value)


def _mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return None


def _strings(value: Any) -> list[str]:
    return [str(entry) for entry in value] if isinstance(value, list) else []


def _words(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError:
        return text.split()
