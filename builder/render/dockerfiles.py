"""Two plain Dockerfiles a target, rendered from templates/ and committed beside its locks.

A pure function of image.yaml, its stack and its lock: the same bytes on every machine, checked by
`builder render --check`. What a person may see of a change is a list of instructions with the
layers that they rebuild, not a diff of text (`changes`).
"""

from __future__ import annotations

import difflib
import re
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING

from builder.core import files
from builder.core.errors import InputError
from builder.core.files import hash_of
from builder.core.templates import (
    BASE_DOCKERFILE,
    DOCKERFILE,
    EPOCH,
    PACKAGED,
    TEMPLATES,
    folder_of,
)
from builder.lock import model, pins
from builder.spec import catalogue, compatibility
from builder.spec.kernels import RUNS_ON

if TYPE_CHECKING:
    import jinja2

    from builder.lock.model import Lock
    from builder.spec.catalogue import ImageSpec
    from builder.spec.stack import Stack

VENV = "/opt/venv"
LABELS = "training-image-factory"
"""The first part of the labels that say what an image is made of."""

# Images that Google's own tools treat specially (gcloud, command_lib/ai/docker/build.py).
_VERTEX = re.compile(
    r"(us|europe|asia)-docker\.pkg\.dev/vertex-ai/training/(tf|scikit-learn|pytorch|xgboost)-.+"
)


@dataclass(frozen=True)
class Rendered:
    """The two Dockerfiles of a target. A published base has no base Dockerfile and no hash.

    base_hash: 16 hex digits over all that the base is made of; its tag is `base-<base_hash>`.
    """

    base_dockerfile: str | None
    base_hash: str | None
    dockerfile: str

    @property
    def files(self) -> dict[str, str]:
        """File name -> text, as they lie in images/<target>/."""
        base = {BASE_DOCKERFILE: self.base_dockerfile} if self.base_dockerfile else {}
        return {**base, DOCKERFILE: self.dockerfile}


@dataclass(frozen=True)
class Drift:
    """A committed file that is not what would be rendered; `diff` in unified form."""

    file: str
    diff: str


def render(spec: ImageSpec, stack: Stack, lock: Lock, templates: Path | None = None) -> Rendered:
    """The Dockerfiles of a target. `templates`: a project's own, which win over the factory's.

    Raises InputError for a template that cannot be rendered.
    """
    base_dockerfile = base_hash = None
    if lock.root:
        base_dockerfile = _template(
            BASE_DOCKERFILE,
            templates,
            root=lock.root,
            files=lock.files.keys(),
            user=spec.user,
            python=lock.python,
            tensorflow=lock.tensorflow,
            tpu="libtpu" in lock.packages,
            cuda=lock.cuda,
            cudnn=lock.cudnn,
            prune=stack.prune,
            **_places(lock),
        )
        parts = [base_dockerfile, lock.root.identity, *map(str, _items(lock.files))]
        if stack.prune:  # what runs in the step that installs
            parts += [f"{name} {text!r}" for name, text in pruning_program().items()]
        base_hash = hash_of(*parts)[:16]
    dockerfile = _template(
        DOCKERFILE,
        templates,
        base=spec.base,
        base_hash=base_hash,
        expired_family=bool(_VERTEX.match(spec.base)),
        files=lock.files.keys(),
        apt_names=sorted(spec.apt),
        environment=spec.environment,
        user=spec.user,
        module=spec.trainer.module,
        labels=_labels(spec, stack),
        **_places(lock),
    )
    return Rendered(base_dockerfile, base_hash, dockerfile)


@cache
def pruning_program() -> Mapping[str, str]:
    """File name -> text of builder/devicecode/pruning, which the build mounts as the context
    devicecode."""
    folder = resources.files("builder.devicecode.pruning")
    return {
        file.name: file.read_text(encoding="utf-8")
        for file in sorted(folder.iterdir(), key=lambda file: file.name)
        if file.name.endswith(".py")
    }


def _items(files: Mapping[str, str]) -> list[tuple[str, str]]:
    return sorted(files.items())


def _places(lock: Lock) -> dict[str, object]:
    site = f"{VENV}/lib/python{lock.python}/site-packages"
    return {"venv": VENV, "site": site, "epoch": EPOCH}


def _labels(spec: ImageSpec, stack: Stack) -> dict[str, str]:
    found = {
        "org.opencontainers.image.title": spec.name,
        f"{LABELS}.accelerator": spec.accelerator,
        f"{LABELS}.compute-capability": stack.compute_capability,
        f"{LABELS}.kernels": stack.runs,
        f"{LABELS}.tensorflow": stack.tensorflow,
    }
    if stack.prune:
        whose = "TensorFlow's" if stack.prune.only == "tensorflow" else "TensorFlow's and NVIDIA's"
        found[f"{LABELS}.prune"] = stack.prune.only
        found[RUNS_ON] = stack.prune.keep
        found[f"{LABELS}.modified"] = f"{whose} libraries: hashes in RECORD no longer match"
    return {name: value for name, value in found.items() if value} | spec.labels


# --- templates -----------------------------------------------------------------------------------


def _template(name: str, templates: Path | None, **values: object) -> str:
    import jinja2

    try:
        return _environment(templates).get_template(f"{name}.j2").render(values)
    except jinja2.TemplateError as error:
        where = getattr(error, "filename", None) or f"{TEMPLATES}/{name}.j2"
        line = getattr(error, "lineno", None)
        place = f"{TEMPLATES}/{Path(where).name}" + (f":{line}" if line else "")
        raise InputError(
            f"{place}: {error.message or type(error).__name__}", "mend the template"
        ) from None


@cache
def _environment(templates: Path | None) -> jinja2.Environment:
    import jinja2

    return jinja2.Environment(
        loader=jinja2.FileSystemLoader([path for path in (templates, PACKAGED) if path]),
        undefined=jinja2.StrictUndefined,
        autoescape=False,  # Dockerfiles, no HTML; every value was checked by the catalogue
        keep_trailing_newline=True,
    )


# --- the committed files -------------------------------------------------------------------------


def render_target(root: Path, target: str) -> Rendered:
    """The Dockerfiles of a target from what lies in its folder.

    Raises InputError for an image.yaml that cannot be, and where it is not locked.
    """
    spec = catalogue.load(root, target)
    return _rendered(root, spec, compatibility.resolve(spec))


def _rendered(root: Path, spec: ImageSpec, stack: Stack) -> Rendered:
    return render(spec, stack, model.read(root, spec.name), folder_of(root))


def check(root: Path, targets: Iterable[str] | None = None) -> tuple[Drift, ...]:
    """Every committed Dockerfile that is not what would be rendered now."""
    names = targets if targets is not None else catalogue.targets(root)
    return tuple(one for name in names for one in drift(root, name, render_target(root, name)))


def drift(root: Path, target: str, rendered: Rendered) -> tuple[Drift, ...]:
    """Every committed Dockerfile of a target that is not the rendered one."""
    found = []
    for path, text in _wanted(root, target, rendered):
        committed, name = _text(path), catalogue.shown(path)
        if committed != text:
            found.append(Drift(name, _unified(committed, text, name)))
    return tuple(found)


def write(root: Path, targets: Iterable[str] | None = None) -> tuple[Path, ...]:
    """Render and write; the paths of the files that changed."""
    names = targets if targets is not None else catalogue.targets(root)
    changed = [
        (path, text)
        for name in names
        for path, text in _wanted(root, name, render_target(root, name))
        if _text(path) != text
    ]
    for path, text in changed:
        if text is None:
            path.unlink()
        else:
            files.write(path, text)
    return tuple(path for path, _ in changed)


def _wanted(root: Path, target: str, rendered: Rendered) -> list[tuple[Path, str | None]]:
    """Each Dockerfile of a target with its text; None for one that should not be there."""
    folder = root / catalogue.IMAGES / target
    return [(folder / name, rendered.files.get(name)) for name in (BASE_DOCKERFILE, DOCKERFILE)]


def _text(path: Path) -> str | None:
    return path.read_text(encoding="utf-8", errors="replace") if path.is_file() else None


def _unified(old: str | None, new: str | None, name: str) -> str:
    before, after = ((text or "").splitlines(keepends=True) for text in (old, new))
    lines = difflib.unified_diff(before, after, f"{name} (committed)", f"{name} (rendered)")
    return "".join(lines)


# --- Google Cloud Build --------------------------------------------------------------------------

CLOUDBUILD = "cloudbuild.yaml"
BUILDER_DOCKERFILE = "builder.Dockerfile"
BUILDER_SUITE = "trixie"
"""The Debian that the builder image starts from: the first whose docker has a buildx to use."""
BUILDER_REQUIREMENTS = "requirements/build.txt"
ON_DISK = 4.5
"""What an image takes while it is built, smoke-tested and pushed, in times of its budget: packed in
the store (1), unpacked (about 2.5), BuildKit's cache of the wheels (1)."""


def has_cloud(root: Path) -> bool:
    """Whether a project brings the factory along, which the steps in the cloud run from."""
    return (root / BUILDER_REQUIREMENTS).is_file() and (root / "builder").is_dir()


def cloud_files(root: Path) -> dict[str, str]:
    """File name -> text: cloudbuild.yaml, and the Dockerfile of the image that its steps run in.

    Raises InputError for a target or a setting that cannot be.
    """
    from builder.core.settings import load, load_cloud

    templates = folder_of(root)
    dockerfile = _template(f"cloud/{BUILDER_DOCKERFILE}", templates, suite=BUILDER_SUITE)
    specs = [catalogue.load(root, name) for name in catalogue.targets(root)]
    stacks = {spec.name: compatibility.resolve(spec) for spec in specs}
    bases: dict[str, list[str]] = {}
    for spec in specs:
        hash_ = _rendered(root, spec, stacks[spec.name]).base_hash
        bases.setdefault(hash_ or "", []).append(spec.name)
    published = bases.pop("", [])
    largest = {
        h: max(s.size_budget for s in specs if s.name in names) for h, names in bases.items()
    }
    disk = (
        30
        + ON_DISK
        * sum([*largest.values(), *(s.size_budget for s in specs if s.name in published)])
        / 1e9
    )
    cloud, settings = load_cloud(root, environ={}), load(root, environ={})
    account = cloud.service_account
    text = _template(
        f"cloud/{CLOUDBUILD}",
        templates,
        builder="${_REGISTRY}:" + builder_tag(root, dockerfile),
        bases=[{"targets": names} for names in bases.values()],
        targets=[
            {
                "name": spec.name,
                "accelerator": spec.accelerator,
                "audited": stacks[spec.name].accelerator.kind == "gpu",
                "waits_for": next(
                    (f"base-{'-'.join(names)}" for names in bases.values() if spec.name in names),
                    "changed",
                ),
            }
            for spec in specs
        ],
        region=cloud.region if cloud.region != "global" else "us-central1",
        registry=settings.registry or "${_REGION}-docker.pkg.dev/${PROJECT_ID}/training/images",
        root_image=f"debian:{BUILDER_SUITE}-slim",
        timeout=1800 + 900 * (len(bases) + len(published)),
        machine_type=cloud.machine_type or "E2_HIGHCPU_8",
        disk_gb=min(4000, max(100, int(-(-disk // 50) * 50))),
        logging=cloud.logging or "CLOUD_LOGGING_ONLY",
        logs_bucket=cloud.logs_bucket,
        service_account=account
        and f"projects/{account.split('@')[1].split('.')[0]}/serviceAccounts/{account}",
    )
    return {BUILDER_DOCKERFILE: dockerfile, CLOUDBUILD: text}


def builder_tag(root: Path, dockerfile: str) -> str:
    """The tag of the builder image: a hash of all that it is made from."""
    requirements = (root / BUILDER_REQUIREMENTS).read_text(encoding="utf-8")
    return f"builder-{hash_of(dockerfile, requirements)[:16]}"


def check_cloud(root: Path) -> tuple[Drift, ...]:
    """Each of Cloud Build's files that is not what would be rendered now."""
    if not has_cloud(root):
        return ()
    return tuple(
        Drift(name, _unified(_text(root / name), text, name))
        for name, text in cloud_files(root).items()
        if _text(root / name) != text
    )


def write_cloud(root: Path) -> tuple[Path, ...]:
    """Render and write Cloud Build's files; the paths of those that changed."""
    drifted = {drift.file for drift in check_cloud(root)}
    for name, text in cloud_files(root).items() if drifted else ():
        if name in drifted:
            files.write(root / name, text)
    return tuple(root / name for name in sorted(drifted))


# --- a change, in instructions -------------------------------------------------------------------


@dataclass(frozen=True)
class Instruction:
    """One instruction; `reads` are the lock files that it installs, file name -> text."""

    keyword: str
    text: str
    line: int
    reads: Mapping[str, str]

    @property
    def summary(self) -> str:
        """A few words for a person."""
        if self.reads:
            return f"{self.keyword} install {', '.join(self.reads)}"
        first = self.text.split("\n", 1)[0]
        return first if len(first) <= 72 else first[:69] + "..."

    @property
    def key(self) -> tuple[str, tuple[tuple[str, str], ...]]:
        """What BuildKit's cache goes by: the instruction, and the files that it reads."""
        return self.text, tuple(sorted(self.reads.items()))


@dataclass(frozen=True)
class Layer:
    """A layer that is made anew. bytes: about, as downloaded; None where it is not known."""

    instruction: str
    bytes: int | None


@dataclass(frozen=True)
class InstructionChange:
    """One instruction that came, went or changed, and the layers that this makes anew.

    detail: what changed in the files that it installs, a line each.
    """

    file: str
    line: int
    change: str
    instruction: str
    detail: tuple[str, ...]
    rebuilds: tuple[Layer, ...]


def changes(root: Path, target: str, since: str = "HEAD") -> tuple[InstructionChange, ...]:
    """What is different in a target's images from the commit `since`, as it would be rendered now.

    Outside of git, the comparison is with the Dockerfiles that lie there. A layer that two changes
    make anew is told at the first of them.
    """
    folder = root / catalogue.IMAGES / target
    held = model.read(root, target)
    new = render_target(root, target).files
    names = (*model.WHEELS, model.APT, model.APT_EXTRA)
    before = {name: _committed(folder / name, since) for name in (*new, BASE_DOCKERFILE, *names)}
    found: list[InstructionChange] = []
    for name in (BASE_DOCKERFILE, DOCKERFILE):
        old_reads = {n: text for n in names if (text := before[n]) is not None}
        old = tuple(instructions(before.get(name) or "", old_reads))
        now = tuple(instructions(new.get(name, ""), held.files))
        found += _changes(catalogue.shown(folder / name), old, now)
    return tuple(found)


def _committed(path: Path, since: str) -> str | None:
    """The text of a file at a commit; as it lies there outside of git."""
    done = subprocess.run(
        ["git", "show", f"{since}:./{path.name}"], cwd=path.parent, capture_output=True, text=True
    )
    if done.returncode == 0:
        return done.stdout
    if "not a git repository" in done.stderr:
        return _text(path)
    if "invalid object name" in done.stderr or "unknown revision" in done.stderr:
        raise InputError(f"{since!r} is no commit of this repository", "name one: HEAD, a tag")
    return None


def instructions(text: str, reads: Mapping[str, str]) -> Iterator[Instruction]:
    """The instructions of a Dockerfile: comments left out, continued lines and heredocs joined."""
    lines = iter(enumerate(text.splitlines(), 1))
    for number, line in lines:
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        parts = [line]
        while parts[-1].endswith("\\"):
            parts.append(next(lines, (0, ""))[1])
        if heredoc := re.search(r"<<-?['\"]?(\w+)['\"]?$", parts[-1]):
            for _, inside in lines:
                parts.append(inside)
                if inside == heredoc[1]:
                    break
        whole = "\n".join(parts)
        names = re.findall(r"type=bind,source=([\w.-]+)", whole)
        yield Instruction(
            whole.split(None, 1)[0].upper(),
            whole,
            number,
            {name: reads[name] for name in names if name in reads},
        )


def _changes(
    file: str, old: tuple[Instruction, ...], new: tuple[Instruction, ...]
) -> Iterator[InstructionChange]:
    matcher = difflib.SequenceMatcher(None, [i.key for i in old], [i.key for i in new], False)
    told: set[int] = set()
    for kind, a1, a2, b1, b2 in matcher.get_opcodes():
        if kind == "equal":
            continue
        pairs = list(_pairs(old[a1:a2], new[b1:b2]))
        for before, after in pairs:
            at = new.index(after) if after else b1
            anew = (
                [
                    index
                    for index, one in enumerate(new)
                    if index not in told and index >= at and _rebuilt(one, one is after)
                ]
                if _invalidates(after or before)
                else []
            )
            told.update(anew)
            one = after or before
            assert one is not None
            yield InstructionChange(
                file,
                one.line,
                "changed" if before and after else "added" if after else "removed",
                one.summary,
                tuple(_detail(before, after)),
                tuple(Layer(new[index].summary, _bytes(new[index])) for index in anew),
            )


def _pairs(
    old: tuple[Instruction, ...], new: tuple[Instruction, ...]
) -> Iterator[tuple[Instruction | None, Instruction | None]]:
    """Which old instruction became which new one: same keyword, same files, in order."""
    left = list(old)
    for after in new:
        before = next(
            (
                o
                for o in left
                if o.keyword == after.keyword and o.reads.keys() == after.reads.keys()
            ),
            None,
        )
        if before:
            left.remove(before)
        yield before, after
    for before in left:
        yield before, None


def _invalidates(one: Instruction | None) -> bool:
    """Whether what follows is made anew: BuildKit runs no step again for a label or a command."""
    return one is not None and one.keyword not in ("LABEL", "ENTRYPOINT", "CMD")


def _rebuilt(one: Instruction, itself: bool) -> bool:
    """A linked copy does not depend on what is below it."""
    return one.keyword == "RUN" or (
        one.keyword in ("COPY", "ADD") and (itself or "--link" not in one.text)
    )


def _bytes(one: Instruction) -> int | None:
    sizes = [pin.bytes for text in one.reads.values() for pin in pins.parse(text)]
    if not sizes or None in sizes:
        return None
    return sum(size for size in sizes if size is not None)


def _detail(before: Instruction | None, after: Instruction | None) -> Iterator[str]:
    """`nvidia-cudnn-cu12 9.3.0.75 -> 9.10.2.21`: what differs in the files that are installed."""
    if not before or not after:
        return
    old, new = (_versions_of(one) for one in (before, after))
    for name in sorted(old.keys() | new.keys()):
        if old.get(name) != new.get(name):
            yield f"{name} {old.get(name, '(new)')} -> {new.get(name, '(gone)')}"


def _versions_of(one: Instruction) -> dict[str, str]:
    text = "".join(one.reads.values())
    apt = re.findall(r"^([a-z0-9][a-z0-9+.-]+)=([^=\s]\S*)$", text, re.M)
    return {pin.name: pin.version for pin in pins.parse(text)} | dict(apt)
