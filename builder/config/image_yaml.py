"""images/<target>/image.yaml -> ImageSpec: what a person writes, checked where it is written.

Every error of a file is reported at once, each with file, line, field and what to write instead.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    PrivateAttr,
    ValidationError,
    ValidationInfo,
    WithJsonSchema,
    field_validator,
    model_validator,
)
from pydantic_core import PydanticCustomError

from builder.config import fields
from builder.config.fields import OWN
from builder.core import filemodel, outgoing, project, yamlfile
from builder.core.display import Lines
from builder.core.errors import InputError
from builder.core.filemodel import FileModel
from builder.core.yamlfile import Document, Mistake
from builder.facts import frameworks

IMAGES = project.IMAGES
FILE = "image.yaml"
REQUIREMENTS = "requirements.txt"
"""The file in a program's folder that names what it needs beside the framework."""

FOLDER, MODULE = "trainer", "trainer.task"
"""The program of an image that names none: the packaged trainer."""
ROOT = "."
"""The folder of a program that lies at the root of the project, beside builder.toml."""

_NAME = re.compile(r"[a-z0-9](?:[a-z0-9._-]{0,61}[a-z0-9])?")


@dataclass(frozen=True)
class Program:
    """A program as a person names it, FOLDER:MODULE."""

    folder: str
    """Relative to the project root; it is copied into the image."""
    module: str
    """What is started, as after `python -m`."""

    def __str__(self) -> str:
        return f"{self.folder}:{self.module}"

    def home(self, root: Path) -> Path:
        """Return the folder that all of it lies in: `root`, or for the packaged trainer, which
        stands in where a project has no such folder, the one that the factory is installed in; for
        a `--program`, whose path is whole, that path itself."""
        if Path(self.folder).is_absolute():
            return Path(self.folder)
        return project.INSTALLED if self.is_packaged(root) else root

    def is_packaged(self, root: Path) -> bool:
        named = (self.folder, self.module) == (FOLDER, MODULE)
        return named and not (root / self.folder).exists()


def _program(value: object, info: ValidationInfo) -> Program:
    if isinstance(value, Program):
        return value
    if not isinstance(value, str) or not re.fullmatch(r"[^:\s][^:]*:[^:]+", value):
        raise filemodel.invalid(
            f"{filemodel.shown(value)} is not FOLDER:MODULE", f"write program: {FOLDER}:{MODULE}"
        )
    folder, _, module = value.partition(":")
    return Program(fields.folder(folder, info), fields.module(module))


@dataclass(frozen=True)
class ProgramFolder:
    flat: bool = False
    """The module lies in the folder itself, whose content becomes /app; otherwise the folder is a
    package, and becomes a folder of /app."""
    requirements: tuple[tuple[str, str], ...] = ()
    """The lines of its requirements.txt, each with its file and line."""


class ImageSpec(FileModel):
    """One training image, for one kind of accelerator, with the default of every field."""

    model_config = ConfigDict(title="image.yaml", validate_default=False)

    accelerator: fields.AcceleratorName = Field(examples=["V100"])
    """The accelerator that the image is made for: V100, T4, A100, L4, H100, TPU, CPU ..."""

    framework: str = frameworks.DEFAULT
    """The framework: image.yaml writes its name as the key of its release."""

    release: str = Field("2.21.0", examples=["2.21", "2.21.0"])
    """Its CUDA libraries follow from it. A minor release stands for its newest patch, `newest` for
    the newest release that works with the rest of this file; both as far as they are known."""

    python: fields.PythonVersion = Field("3.11", examples=["3.11"])
    """The version of Python, without its patch level. Left out, it is 3.11, or the first of ours
    that the framework's release runs on."""

    base: fields.BaseImage = Field(
        OWN, examples=[OWN, "docker.io/tensorflow/tensorflow:2.17.0-gpu@sha256:<digest>"]
    )
    """`own`, made from Debian and locked wheels, or any published image by digest."""

    apt: tuple[fields.DebianPackageName, ...] = Field((), examples=[["libgl1"]])
    """Debian packages to add. `builder lock` chooses and pins their versions."""

    requirements: tuple[fields.PythonRequirement, ...] = Field((), examples=[["pandas>=2,<3"]])
    """Python packages to add. They cannot move the framework or a CUDA library."""

    program: Annotated[
        Program,
        BeforeValidator(_program),
        PlainSerializer(str),
        WithJsonSchema({"type": "string", "pattern": "^[^:]+:[^:]+$"}),
    ] = Field(Program(FOLDER, MODULE), examples=[f"{FOLDER}:{MODULE}"])
    """The program that the image runs, FOLDER:MODULE: the folder, relative to the project root, is
    copied into the image, and the module started, as after `python -m`. `.` is the root itself,
    without what git ignores, build/ and images/; what it needs stands in `requirements`."""

    suite: Literal["trainer", "program"] = Field("trainer", examples=["program"])
    """The checks that the image goes through: `trainer` for a program that keeps to the contract
    (docs/proof.md), so that it is trained, killed and resumed; `program` for any other."""

    smoke: tuple[fields.Text, ...] = Field((), examples=[["--epochs=1", "--data=tiny"]])
    """The arguments of a tiny run, for the suite `program`: the image is started with them, without
    a network or a GPU, and has to end with 0. Left out, it is started with `--help`."""

    environment: dict[fields.Variable, fields.Text] = Field(
        {}, examples=[{"TF_CPP_MIN_LOG_LEVEL": "1"}]
    )
    """Environment variables set in the image. Everyone who can pull it can read them."""

    user: fields.UserNumber = Field(1000, examples=[1000])
    """The number of the user that the trainer runs as; never root."""

    labels: dict[fields.LabelKey, fields.Text] = Field({}, examples=[{"team": "vision"}])
    """Labels to add to the image."""

    size_budget: fields.Size | None = Field(
        None,
        examples=["2.6 GB"],
        json_schema_extra={"type": "string", "pattern": r"^[0-9.]+ ?[KMGT]i?B$"},
    )
    """The largest size that the image may have, compressed, as a registry sends it. Where there is
    none, the size is measured and reported."""

    compression: fields.LayerCompression = Field("zstd", examples=["gzip"])
    """How layers are packed: `zstd`, or `gzip` for engines and scanners that know nothing else. A
    level may follow: `zstd:9`."""

    allow_ptx: bool = Field(False, examples=[True])
    """Accept an accelerator that the framework has no machine code for: it is compiled from PTX at
    the first start, which takes minutes."""

    prune: fields.PruneMode | None = Field(None, examples=["off"])
    """The libraries that device code for other GPUs is taken out of: the framework's, by its name,
    which is the default; or `all`, which includes NVIDIA's; their EULA forbids to modify them. The
    image then runs on no other GPU generation."""

    cuda: dict[str, fields.Version] = Field({}, examples=[{"cudnn": "9.10.2.21"}])
    """CUDA libraries to take in another version than the one that follows from the release. PyTorch
    fixes all of them, JAX all but cuDNN."""

    advisories: tuple[fields.AcceptedAdvisory, ...] = Field(
        (),
        examples=[
            [
                {
                    "id": "CVE-2023-52425",
                    "package": "expat",
                    "reason": "the program reads no XML",
                    "until": "2027-03-31",
                }
            ]
        ],
    )
    """Advisories that `builder check --advisories` accepts. They change nothing in the image."""

    _name: str = PrivateAttr("")
    _source: Path = PrivateAttr(Path(FILE))
    _folder: ProgramFolder = PrivateAttr(default_factory=ProgramFolder)

    @model_validator(mode="before")
    @classmethod
    def _named(cls, values: Any) -> Any:
        """Take the key that names a framework, and its release."""
        named = _frameworks_in(values)
        if len(named) > 1:
            raise filemodel.invalid(
                f"names two frameworks: {' and '.join(named)}", "keep the one that it trains with"
            )
        if not named:
            return values
        (name,) = named
        rest = {key: value for key, value in values.items() if key != name}
        return {**rest, "framework": name, "release": values[name]}

    @field_validator("release")
    @classmethod
    def _released(cls, release: str, info: ValidationInfo) -> str:
        if not fields.RELEASE.fullmatch(release):
            known = frameworks.of(info.data.get("framework", frameworks.DEFAULT)).releases()[-1]
            raise filemodel.invalid(
                f"{filemodel.shown(release)} is not a release",
                f"write {frameworks.minor(known)}, {known} or {fields.NEWEST}",
            )
        return release

    @field_validator("smoke")
    @classmethod
    def _smokes(cls, smoke: tuple[str, ...], info: ValidationInfo) -> tuple[str, ...]:
        if smoke and info.data.get("suite") == "trainer":
            raise filemodel.invalid(
                "the suite `trainer` has runs of its own", "write suite: program"
            )
        return smoke

    @field_validator("prune")
    @classmethod
    def _prunes(cls, prune: str | None, info: ValidationInfo) -> str | None:
        modes = ("off", info.data.get("framework", frameworks.DEFAULT), "all")
        if prune not in (None, *modes):
            near = difflib.get_close_matches(prune, modes, n=1)
            raise filemodel.invalid(
                f"{filemodel.shown(prune)} is not one of {', '.join(modes)}",
                f"write {near[0] if near else ' | '.join(modes)}",
            )
        return prune

    def with_program(
        self, name: str, program: Program, folder: ProgramFolder, **changed: object
    ) -> ImageSpec:
        """Return an image of another name, of the same file, with another program."""
        other = self.model_copy(update={"program": program, **changed})
        other._name, other._folder = name, folder
        return other

    @classmethod
    def file_keys(cls) -> tuple[str, ...]:
        """A framework's name stands for the release."""
        first, _, _, *rest = super().file_keys()
        return (first, *frameworks.OWN, *rest)

    @classmethod
    def field_of(cls, key: str) -> str:
        return "release" if frameworks.is_known(key) else key

    @property
    def name(self) -> str:
        """The target: the name of its folder, and of its tag."""
        return self._name

    @property
    def source(self) -> Path:
        """The image.yaml that this was read from."""
        return self._source

    @property
    def has_own_base(self) -> bool:
        """Whether the factory makes its base; otherwise it is a published image."""
        return self.base == OWN

    @property
    def program_folder(self) -> ProgramFolder:
        return self._folder


def _frameworks_in(values: Iterable[Any]) -> tuple[str, ...]:
    """Return the keys that name a framework; it takes time to ask whether an unknown key does."""
    others = (key for key in values if isinstance(key, str) and key not in ImageSpec.model_fields)
    return tuple(filter(frameworks.is_known, others))


def targets(root: Path) -> tuple[str, ...]:
    return tuple(sorted(path.parent.name for path in (root / IMAGES).glob(f"*/{FILE}")))


def named(root: Path, names: Iterable[str]) -> tuple[str, ...]:
    """Return these targets, each once. Raises InputError for one that the project does not have."""
    known, chosen = targets(root), tuple(dict.fromkeys(names))
    for name in chosen:
        if name not in known:
            raise _unknown(root, name)
    return chosen


def load_all(root: Path) -> tuple[ImageSpec, ...]:
    """Return every target of a project. Raises InputError with the problems of all files."""
    specs, errors = [], []
    for target in targets(root):
        try:
            specs.append(load(root, target))
        except InputError as error:
            errors.append(error)
    if len(errors) == 1:
        raise errors[0]
    if errors:
        lines = [each for error in errors for each in _lines(error)]
        raise InputError(Lines.of(lines), f"mend these {len(errors)} files, then try again")
    return tuple(specs)


def _lines(error: InputError) -> list[str]:
    if isinstance(error.message, Lines):  # each with its fix
        return error.message.split("\n")
    return [f"{error.message} -> {error.fix}"]


def load(root: Path, target: str) -> ImageSpec:
    """Return one target of a project.

    Raises InputError: no such target, or every problem of its file.
    """
    if target not in targets(root):
        raise _unknown(root, target)
    path = root / IMAGES / target / FILE
    outgoing.inside(root, path)
    return parse(filemodel.read_text(path, shown(path)), path, root)


def _unknown(root: Path, target: str) -> InputError:
    known = targets(root)
    near = difflib.get_close_matches(target.lower(), known, n=1, cutoff=0.5)
    has = f"known: {', '.join(known)}" if known else f"create {IMAGES}/{target}/{FILE}"
    return InputError(
        f"no target is called {target!r}: there is no {IMAGES}/{target}/{FILE}",
        f"write {near[0]}; {has}" if near else has,
    )


def parse(text: str, source: Path, root: Path | None = None) -> ImageSpec:
    """Return the ImageSpec of one image.yaml's text. With `root`, what it names has to exist there.

    Raises InputError with every problem of the text.
    """
    name, where = source.parent.name, shown(source)
    document = yamlfile.parse(text, where)
    problems = [*_name_problems(name), *document.problems]
    spec = None
    if isinstance(document.value, dict):
        values = dict(document.value)
        try:
            for key in {"framework", "release"} & values.keys():
                fix = f"write {frameworks.DEFAULT}: {values.pop(key)}, or another framework's name"
                problems.append(Mistake(document.line(key), key, "unknown key", fix))
            spec = ImageSpec.model_validate(values, context={"root": root})
        except ValidationError as error:
            details, key = error.errors(), next(iter(_frameworks_in(values)), frameworks.DEFAULT)
            for detail in details:
                if detail["loc"][:1] == ("release",):  # the file has the framework's name for it
                    detail["loc"] = (key, *detail["loc"][1:])
            problems += filemodel.mistakes(document, details, ImageSpec)
    else:
        problems.append(Mistake(1, "", "is not a list of `key: value` lines", "accelerator: V100"))
    if spec is not None and root is not None:
        problems += _module_problems(document, spec.program, root)
        spec._folder = _program_folder(spec.program, root)
    if problems or spec is None:
        raise filemodel.error(where, problems)
    spec._name, spec._source = name, source
    return spec


def where(spec: ImageSpec, *field: str) -> str:
    """Return where a field is written, or would be: `images/v100/image.yaml:3: tensorflow`."""
    return filemodel.location(spec.source, shown(spec.source), *field)


def shown(path: Path) -> str:
    """Return the path of a target's file for a person: from images/ on."""
    return "/".join(path.parts[-3:])


def _name_problems(name: str) -> list[Mistake]:
    problem = ""
    if not _NAME.fullmatch(name):
        problem = "cannot be a tag: 1 to 63 of a-z, 0-9 and . _ - between them"
    elif name == "all":
        problem = "is taken: it stands for every target"
    elif name.startswith("base-"):
        problem = "is taken: tags that begin with base- are the base images'"
    slug = re.sub(r"[^a-z0-9]+", "-", name.lower().removeprefix("base-")).strip("-")[:63]
    fix = f"rename the folder, for example to {slug if slug not in ('', 'all') else 'v100'}"
    return [Mistake(1, "", f"the folder's name {name!r} {problem}", fix)] if problem else []


def _module_problems(document: Document, program: Program, root: Path) -> list[Mistake]:
    """Return a mistake where the module is not in the package's folder: nothing else is copied."""
    root = program.home(root)
    package = root / program.folder
    steps = program.module.split(".")
    path = package.parent.joinpath(*steps)
    if project.is_module(package.joinpath(*steps)):
        return []
    if program.folder == ROOT:
        names = [file.stem for file in package.glob("*.py")]
        near = difflib.get_close_matches(steps[-1], names, n=1)
        what = f"there is no module {program.module} at the root of the project"
        fix = f"did you mean {ROOT}:{near[0]}?" if near else f"create {'/'.join(steps)}.py"
    elif steps[0] != package.name:
        what = f"{program.module} is not in the folder {program.folder}"
        fix = f"write program: {program.folder}:{package.name}.MODULE"
    elif not project.is_module(path):
        expected = (path.with_suffix(".py")).relative_to(root)
        what = f"there is no module {program.module}: no file {expected}"
        names = [".".join([package.name, file.stem]) for file in package.glob("*.py")]
        near = difflib.get_close_matches(program.module, names, n=1)
        fix = f"did you mean {program.folder}:{near[0]}?" if near else f"create {expected}"
    else:
        return []
    return [Mistake(document.line("program"), "program", what, fix)]


def _program_folder(program: Program, root: Path) -> ProgramFolder:
    """Return what the folder holds.

    Raises InputError with every line of requirements.txt that cannot be installed.
    """
    if program.folder == ROOT:
        return ProgramFolder(flat=True)
    root = program.home(root)
    package = root / program.folder
    steps = program.module.split(".")
    inside = steps[0] == package.name and project.is_module(package.parent.joinpath(*steps))
    path = package / REQUIREMENTS
    outgoing.inside(root, path)
    if not path.is_file():
        return ProgramFolder(flat=not inside)
    text = path.read_text(encoding="utf-8", errors="replace")
    return ProgramFolder(not inside, requirements_in(text, f"{program.folder}/{REQUIREMENTS}"))


def requirements_in(text: str, name: str) -> tuple[tuple[str, str], ...]:
    """Return the lines of a requirements.txt, each with its file, `name`, and line.

    Raises InputError with every line that cannot be installed.
    """
    requirements, problems = [], []
    for number, line in enumerate(text.split("\n"), 1):
        text = re.sub(r"(^|\s)#.*", "", line).strip()
        if not text:
            continue
        try:
            requirements.append((f"{name}:{number}", fields.requirement(text)))
        except PydanticCustomError as error:
            context = error.context or {}
            problems.append(Mistake(number, "", str(context["what"]), str(context["fix"])))
    if problems:
        raise filemodel.error(name, problems)
    return tuple(requirements)
