"""images/<target>/image.yaml -> ImageSpec: what a person writes, checked where it is written.

Everything accepted here can stand in a Dockerfile as it is: no value holds a quote, a line break, a
backslash or a dollar sign, so none can become an instruction of its own. Every error of a file is
reported at once, each with file, line, field and what to write instead.
"""

from __future__ import annotations

import ast
import difflib
import inspect
import json
import re
import unicodedata
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Literal

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ByteSize,
    ConfigDict,
    Field,
    PrivateAttr,
    ValidationError,
    ValidationInfo,
)
from pydantic_core import PydanticCustomError

from builder.core import findings, project, yamlfile
from builder.core.errors import InputError
from builder.core.findings import matches, refuse
from builder.core.yamlfile import Document, Problem
from builder.facts import accelerators
from builder.tensorflow import releases

IMAGES = project.IMAGES
FILE = "image.yaml"
REQUIREMENTS = "requirements.txt"
"""In the trainer's folder: what the trainer needs beside TensorFlow."""
OWN = "own"

# What a value must not hold to stay one word of one instruction, and what it would do there.
_UNSAFE = {
    '"': "a quote would end the value",
    "'": "a quote would end the value",
    "`": "a backtick runs a command in a shell",
    "\\": "a backslash continues or escapes in a Dockerfile",
    "$": "Docker would expand it",
}
# Variables that an image cannot set without breaking what is in it, or what runs it.
_REFUSED_VARIABLES = {
    "PATH": "it leads to the image's Python",
    "LD_LIBRARY_PATH": "it decides which CUDA libraries are loaded; a wrong one hides the GPU",
    "LD_PRELOAD": "it puts a library before every other one, in every process",
    "LD_AUDIT": "it puts a library before every other one, in every process",
    "PYTHONHOME": "it replaces the image's Python",
    "PYTHONPATH": "it puts packages before the locked ones",
    "VIRTUAL_ENV": "it names the image's Python environment",
    "TF_CONFIG": "the training service sets it, differently on each replica",
    "CLUSTER_SPEC": "the training service sets it, differently on each replica",
}
_NAME = re.compile(r"[a-z0-9](?:[a-z0-9._-]{0,61}[a-z0-9])?")
_REFERENCE = re.compile(
    r"(?:[a-z0-9.-]+(?::[0-9]+)?/)?[a-z0-9]+(?:[._-]+[a-z0-9]+)*(?:/[a-z0-9]+(?:[._-]+[a-z0-9]+)*)*"
    r"(?::[A-Za-z0-9_][A-Za-z0-9._-]{0,127})?(?P<digest>@sha256:[0-9a-f]{64})?"
)
_SIZE = re.compile(r"[0-9]+(?:\.[0-9]+)?\s*[KMGT]i?B", re.IGNORECASE)


def unsafe(text: str) -> str:
    """Why `text` cannot stand between double quotes in a Dockerfile; "" where it can."""
    for character in text:
        if character in _UNSAFE:
            return f"{character} is not allowed: {_UNSAFE[character]}"
        if unicodedata.category(character) in {"Cc", "Cf", "Cs", "Zl", "Zp"}:
            kind = "line break" if character in "\n\r\u2028\u2029\x85" else "control character"
            return f"a {kind} (U+{ord(character):04X}) is not allowed"
    return ""


def _safe(value: str) -> str:
    if problem := unsafe(value):
        raise refuse(problem, "write one line of plain text, without quotes around parts of it")
    return value


def _accelerator(value: str) -> str:
    try:
        return accelerators.find(value).name
    except InputError as error:
        raise refuse(error.message, error.fix) from None


def _base(value: str) -> str:
    if value == OWN:
        return value
    match = _REFERENCE.fullmatch(value)
    if match is None:
        raise refuse(f"{value!r} is not an image", f"write {OWN}, or HOST/PATH@sha256:<digest>")
    if not match["digest"]:
        raise refuse(
            f"{value} has no digest, so it can change under the same name",
            f"write {value}@sha256:<digest>; `docker buildx imagetools inspect {value}` shows it",
        )
    return value


def _requirement(value: str) -> str:
    if value.lstrip().startswith("-"):
        raise refuse(
            f"{value!r} is an option, not a requirement",
            "write package names only; an index is configured on the machine that locks",
        )
    try:
        requirement = Requirement(value)
    except InvalidRequirement as error:
        first = str(error).splitlines()[0]
        raise refuse(f"{value!r} is not a requirement: {first}", "write name==version") from None
    if requirement.url:
        raise refuse(f"{value!r} names a URL, which cannot be locked", "write name==version")
    if "\n" in value or "\r" in value:
        raise refuse("a line break in a requirement", "write one requirement an entry")
    return str(requirement)


def _different(values: tuple[str, ...]) -> tuple[str, ...]:
    seen: dict[str, str] = {}
    for value in values:
        key = canonicalize_name(re.split(r"[\s\[<>=!~;(]", value, maxsplit=1)[0])
        if key in seen:
            raise refuse(f"{value!r} stands twice (also as {seen[key]!r})", "keep one")
        seen[key] = value
    return values


def _variable(name: str) -> str:
    if name in _REFUSED_VARIABLES:
        raise refuse(f"{name} cannot be set: {_REFUSED_VARIABLES[name]}", "remove it")
    if name.startswith(("AIP_", "CLOUD_ML_")):
        raise refuse(f"{name} cannot be set: the training service sets it", "remove it")
    return name


def _user(value: object) -> object:
    if value in ("root", "0", 0):
        raise refuse(
            f"{value} is root, and the image runs without it", "write 1000, or leave user out"
        )
    if isinstance(value, str) and re.fullmatch(r"[a-z_][a-z0-9_-]*", value):
        raise refuse(f"{value!r} is a name", "write the number of the user, for example 1000")
    return value


def _size(value: object) -> object:
    if isinstance(value, str) and not _SIZE.fullmatch(value.strip()):
        raise refuse(f"{value!r} is not a size", "write a number and its unit, such as 2.6 GB")
    return value


def _folder(value: str, info: ValidationInfo) -> str:
    """A folder relative to the project root; whether it exists is asked where the root is known."""
    path = Path(value)
    if not re.fullmatch(r"[A-Za-z0-9_./-]+", value):
        raise refuse(f"{value!r} is not a folder's plain name", "use letters, digits, _ - . /")
    if path.is_absolute() or ".." in path.parts or not path.parts:
        raise refuse(
            f"{value!r} lies outside the project",
            "write a folder inside the project, relative to its root",
        )
    root: Path | None = (info.context or {}).get("root")
    if root is not None:
        folder = root / path
        if not folder.is_dir():
            fix = f"create {value}/, or name the folder that holds the trainer"
            raise refuse(f"there is no folder {value} in the project", fix)
        if not folder.resolve().is_relative_to(root.resolve()):
            raise refuse(
                f"{value!r} leads outside the project", "copy the trainer into the project"
            )
    return path.as_posix()


Text = Annotated[str, AfterValidator(_safe)]
Version = Annotated[
    str, matches(r"[0-9]+(\.[0-9]+)+", "a version", "write numbers with dots, such as 9.3.0.75")
]
Variable = Annotated[
    str,
    matches(r"[A-Za-z_][A-Za-z0-9_]*", "a variable's name", "use A-Z, 0-9 and _"),
    AfterValidator(_variable),
]
LabelKey = Annotated[
    str,
    matches(
        r"[a-z0-9]+([._/-][a-z0-9]+)*",
        "a label's name",
        "use a-z and 0-9, with single . - _ / between them",
    ),
]
DebianPackage = Annotated[
    str,
    matches(
        r"[a-z0-9][a-z0-9+.-]+",
        "a Debian package's name",
        "write the name alone; `builder lock` chooses and pins its version",
    ),
]
PythonRequirement = Annotated[str, AfterValidator(_requirement)]


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Trainer(_Model):
    """Where the program is, and how it is started."""

    package: Annotated[str, AfterValidator(_folder)] = Field("trainer", examples=["trainer"])
    """The folder, relative to the project root, that is copied into the image."""

    module: Annotated[
        str,
        matches(
            r"[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*",
            "a module",
            "write it as after `python -m`, such as trainer.task",
        ),
    ] = Field("trainer.task", examples=["trainer.task"])
    """The module that is started, as after `python -m`."""


@dataclass(frozen=True)
class Program:
    """What the trainer's folder says by itself.

    flat: the module lies in the folder (its content becomes /app), not in a package of the
    folder's name. requirements: those of its requirements.txt, each with its file and line.
    """

    flat: bool = False
    requirements: tuple[tuple[str, str], ...] = ()


class ImageSpec(_Model):
    """One training image, for one kind of accelerator. This is where every default stands."""

    model_config = ConfigDict(title="image.yaml", validate_default=False)

    accelerator: Annotated[str, AfterValidator(_accelerator)] = Field(examples=["V100"])
    """What the image is proven for: V100, T4, A100, L4, H100, TPU, CPU ..."""

    tensorflow: Annotated[
        str, matches(r"[0-9]+\.[0-9]+\.[0-9]+", "a release", "write all of it, such as 2.21.0")
    ] = Field("2.21.0", examples=["2.21.0"])
    """The release of TensorFlow. Its CUDA libraries follow from it."""

    python: Annotated[str, matches(r"3\.[0-9]+", "a Python version", "write 3.11 or 3.13")] = Field(
        "3.11", examples=["3.11"]
    )
    """The version of Python, without its patch level."""

    base: Annotated[str, AfterValidator(_base)] = Field(
        OWN, examples=[OWN, "docker.io/tensorflow/tensorflow:2.17.0-gpu@sha256:<digest>"]
    )
    """`own`: made from Debian and locked wheels. Or any published image, by digest."""

    apt: Annotated[tuple[DebianPackage, ...], AfterValidator(_different)] = Field(
        (), examples=[["libgl1"]]
    )
    """Debian packages to add. `builder lock` chooses and pins their versions."""

    requirements: Annotated[tuple[PythonRequirement, ...], AfterValidator(_different)] = Field(
        (), examples=[["pandas>=2,<3"]]
    )
    """Python packages to add. They cannot move TensorFlow or a CUDA library."""

    trainer: Trainer = Field(
        Trainer(package="trainer", module="trainer.task"),
        examples=[{"package": "trainer", "module": "trainer.task"}],
    )
    """The program that the image runs."""

    environment: dict[Variable, Text] = Field({}, examples=[{"TF_CPP_MIN_LOG_LEVEL": "1"}])
    """Environment variables set in the image. Everyone who can pull it can read them."""

    user: Annotated[int, BeforeValidator(_user), Field(ge=1, le=65533)] = Field(
        1000, examples=[1000]
    )
    """The number of the user that the trainer runs as; never root."""

    labels: dict[LabelKey, Text] = Field({}, examples=[{"team": "vision"}])
    """Labels to add to the image."""

    size_budget: Annotated[ByteSize, BeforeValidator(_size), Field(gt=0)] = Field(
        examples=["2.6 GB"],
        json_schema_extra={"type": "string", "pattern": r"^[0-9.]+ ?[KMGT]i?B$"},
    )
    """How large the image may be, compressed, as a registry sends it."""

    allow_ptx: bool = Field(False, examples=[True])
    """Accept an accelerator that TensorFlow has no machine code for: it is compiled from PTX at
    the first start, which takes minutes."""

    prune: Literal["off", "tensorflow", "all"] = Field("tensorflow", examples=["off"])
    """Device code for other GPUs to take out: of TensorFlow's libraries, or `all`: of NVIDIA's
    too, whose EULA forbids to modify them. The image then runs on no other GPU generation."""

    cuda: dict[str, Version] = Field({}, examples=[{"cudnn": "9.10.2.21"}])
    """CUDA libraries to take in another version than the one TensorFlow was tested with."""

    _name: str = PrivateAttr("")
    _source: Path = PrivateAttr(Path(FILE))
    _program: Program = PrivateAttr(default_factory=lambda: Program())

    @property
    def name(self) -> str:
        """The target: the name of its folder, and of its tag."""
        return self._name

    @property
    def source(self) -> Path:
        """The image.yaml that this was read from."""
        return self._source

    @property
    def program(self) -> Program:
        """What the trainer's folder says by itself."""
        return self._program


def targets(root: Path) -> tuple[str, ...]:
    """The names of all targets of a project, sorted."""
    return tuple(sorted(path.parent.name for path in (root / IMAGES).glob(f"*/{FILE}")))


def load_all(root: Path) -> tuple[ImageSpec, ...]:
    """Every target of a project. Raises InputError with the problems of all files."""
    specs, errors = [], []
    for target in targets(root):
        try:
            specs.append(load(root, target))
        except InputError as error:
            errors.append(error)
    if len(errors) == 1:
        raise errors[0]
    if errors:
        lines = [f"{e.message} -> {e.fix}" if "\n" not in e.message else e.message for e in errors]
        raise InputError("\n".join(lines), f"mend these {len(errors)} files, then try again")
    return tuple(specs)


def load(root: Path, target: str) -> ImageSpec:
    """One target of a project.

    Raises InputError: no such target, or every problem of its file.
    """
    path = root / IMAGES / target / FILE
    known = targets(root)
    if target not in known:
        near = difflib.get_close_matches(target.lower(), known, n=1, cutoff=0.5)
        has = f"known: {', '.join(known)}" if known else f"create {IMAGES}/{target}/{FILE}"
        raise InputError(
            f"no target is called {target!r}: there is no {IMAGES}/{target}/{FILE}",
            f"write {near[0]}; {has}" if near else has,
        )
    text = findings.read_text(path, shown(path))
    return parse(text, path, root)


def parse(text: str, source: Path, root: Path | None = None) -> ImageSpec:
    """The text of one image.yaml. With `root`, what it names has to exist in the project.

    Raises InputError with every problem of the text.
    """
    name, where = source.parent.name, shown(source)
    document = yamlfile.parse(text, where)
    problems = [*_name_problems(name), *document.problems]
    spec = None
    if isinstance(document.value, dict):
        try:
            spec = ImageSpec.model_validate(document.value, context={"root": root})
        except ValidationError as error:
            problems += findings.problems(document, error.errors(), ImageSpec)
    else:
        problems.append(Problem(1, "", "is not a list of `key: value` lines", "accelerator: V100"))
    if spec is not None and root is not None:
        problems += _module_problems(document, spec.trainer, root)
        spec._program = _program(spec.trainer, root)
    if problems or spec is None:
        raise findings.error(where, problems)
    spec._name, spec._source = name, source
    return spec


def where(spec: ImageSpec, *field: str) -> str:
    """`images/v100/image.yaml:3: tensorflow`: where a field is written, or would be."""
    return findings.place(spec.source, shown(spec.source), *field)


def schema() -> dict[str, Any]:
    """JSON Schema of image.yaml, for an editor: what `builder schema` writes."""
    result = ImageSpec.model_json_schema()
    _describe(ImageSpec, result)
    _describe(Trainer, result["$defs"]["Trainer"])
    result["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    known, tables = accelerators.accelerators().values(), releases.tables()
    fields = result["properties"]
    fields["accelerator"]["enum"] = [one.name for one in known if not one.refused]
    fields["tensorflow"]["enum"] = [one for row in tables.releases for one in row.versions]
    fields["python"]["type"] = ["string", "number"]  # 3.11 without quotes is the text 3.11 to us
    fields["cuda"]["propertyNames"] = {"enum": list(tables.packages)}
    for name in ("environment", "labels"):
        fields[name]["additionalProperties"] = {"type": ["string", "number", "boolean"]}
    return result


def _describe(model: type[BaseModel], schema: dict[str, Any]) -> None:
    """Put the text below each field of a model into its schema. Pydantic would do that itself, and
    look into this file whenever it is loaded."""
    (body,) = ast.parse(inspect.getsource(model)).body
    assert isinstance(body, ast.ClassDef)
    for field, text in pairwise(body.body):
        match field, text:
            case ast.AnnAssign(target=ast.Name(name)), ast.Expr(ast.Constant(str(words))):
                found = schema["properties"][name] | {"description": inspect.cleandoc(words)}
                schema["properties"][name] = dict(sorted(found.items()))


def schema_text() -> str:
    """The bytes of images/schema.json."""
    return json.dumps(schema(), indent=2, ensure_ascii=False) + "\n"


def shown(path: Path) -> str:
    """A target's file as a person names it: from images/ on."""
    return "/".join(path.parts[-3:])


def _name_problems(name: str) -> list[Problem]:
    problem = ""
    if not _NAME.fullmatch(name):
        problem = "cannot be a tag: 1 to 63 of a-z, 0-9 and . _ - between them"
    elif name.startswith("base-"):
        problem = "is taken: tags that begin with base- are the base images'"
    fix = f"rename the folder, for example to {_slug(name)}"
    return [Problem(1, "", f"the folder's name {name!r} {problem}", fix)] if problem else []


def _slug(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", name.lower().removeprefix("base-")).strip("-")[:63] or "v100"


def _module_problems(document: Document, trainer: Trainer, root: Path) -> list[Problem]:
    """The module has to be in the package's folder, because nothing else is copied."""
    package = root / trainer.package
    steps = trainer.module.split(".")
    path = package.parent.joinpath(*steps)
    if project.is_module(package.joinpath(*steps)):
        return []
    if steps[0] != package.name:
        what = f"{trainer.module} is not in the folder {trainer.package}"
        fix = f"write {package.name}.<module>, such as {package.name}.task"
    elif not project.is_module(path):
        found = (path.with_suffix(".py")).relative_to(root)
        what = f"there is no module {trainer.module}: no file {found}"
        names = [".".join([package.name, file.stem]) for file in package.glob("*.py")]
        near = difflib.get_close_matches(trainer.module, names, n=1)
        fix = f"did you mean {near[0]}?" if near else f"create {found}"
    else:
        return []
    return [Problem(document.line("trainer", "module"), "trainer.module", what, fix)]


def _program(trainer: Trainer, root: Path) -> Program:
    """Raises InputError with every line of requirements.txt that cannot be."""
    package = root / trainer.package
    steps = trainer.module.split(".")
    inside = steps[0] == package.name and project.is_module(package.parent.joinpath(*steps))
    path = package / REQUIREMENTS
    if not path.is_file():
        return Program(flat=not inside)
    name = f"{trainer.package}/{REQUIREMENTS}"
    found, problems = [], []
    for number, line in enumerate(
        path.read_text(encoding="utf-8", errors="replace").split("\n"), 1
    ):
        text = re.sub(r"(^|\s)#.*", "", line).strip()
        if not text:
            continue
        try:
            found.append((f"{name}:{number}", _requirement(_safe_requirement(text))))
        except PydanticCustomError as error:
            context = error.context or {}
            problems.append(Problem(number, "", str(context["what"]), str(context["fix"])))
    if problems:
        raise findings.error(name, problems)
    return Program(not inside, tuple(found))


def _safe_requirement(text: str) -> str:
    if text.endswith("\\") or "--hash" in text:
        raise refuse(
            "a line with hashes", "write name==version alone: `builder lock` adds the hashes"
        )
    return text
