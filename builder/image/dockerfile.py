"""The Dockerfile of a target, rendered from a template and committed beside its lockfile.

It is a pure function of image.yaml, its stack and its lock, and so the same bytes on every machine.
The factory's own template only copies the program onto a base of ours. Such a Dockerfile is a
description: the factory assembles the image itself (builder/image/program.py). A project's own
template, or a published base, has further instructions, which BuildKit runs.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from builder.config import image_yaml, targets
from builder.config.stack import RUNS_ON
from builder.core import files
from builder.core.errors import InputError
from builder.core.project import DOCKERFILE, TEMPLATES, factory, templates_of
from builder.facts import frameworks
from builder.image import plan, start
from builder.image.plan import LABELS, BasePlan
from builder.image.program import ImageConfig

if TYPE_CHECKING:
    import jinja2

    from builder.config.image_yaml import ImageSpec
    from builder.config.lockfile import Lock
    from builder.config.stack import Stack
    from builder.facts.cuda import OldestDriver

PACKAGED = factory() / TEMPLATES
"""The factory's own templates."""

# Images that gcloud treats specially (command_lib/ai/docker/build.py).
_VERTEX = re.compile(
    r"(us|europe|asia)-docker\.pkg\.dev/vertex-ai/training/(tf|scikit-learn|pytorch|xgboost)-.+"
)


@dataclass(frozen=True)
class Rendered:
    spec: ImageSpec
    stack: Stack
    base: BasePlan | None
    """The base that the Dockerfile names; None for a published one."""
    dockerfile: str
    config: ImageConfig
    """What the factory's own Dockerfile sets beside the copy of the program."""
    copies_only: bool
    """Whether the Dockerfile does nothing else, on a base of our own."""


def render(
    spec: ImageSpec,
    stack: Stack,
    lock: Lock,
    templates: Path | None = None,
    driver: OldestDriver | None = None,
) -> Rendered:
    """Return a target with its Dockerfile.

    templates: the folder of a project's own templates, which win over the factory's. driver: the
    oldest for the libraries of the lock; None: the oldest for their CUDA. Raises
    InputError for a template that cannot be rendered.
    """
    base = plan.plan(spec, stack, lock) if lock.rootfs else None
    environment = {**start.environment(spec, stack, driver), **spec.environment}
    config = ImageConfig(
        environment=dict(sorted(environment.items())),
        labels=_labels(spec, stack),
        user=f"{spec.user}:{spec.user}",
        entrypoint=("python" if base else "python3", "-m", spec.program.module),
    )
    values = {
        "base": spec.base,
        "base_tag": base.tag if base else None,
        "expired_family": bool(_VERTEX.match(spec.base)),
        "files": (*lock.apt, *lock.wheels),
        "apt_names": sorted(spec.apt),
        "environment": config.environment,
        "user": spec.user,
        "module": spec.program.module,
        "labels": config.labels,
    }
    dockerfile = fill(DOCKERFILE, templates, **values)
    # A template of the project's own is one that says something else than the factory's.
    own = templates not in (None, PACKAGED) and dockerfile != fill(DOCKERFILE, None, **values)
    return Rendered(spec, stack, base, dockerfile, config, base is not None and not own)


def load(root: Path, name: str) -> Rendered:
    """Return a target from the files in its folder.

    Raises InputError for mistakes in image.yaml, and for a target that is not locked.
    """
    target = targets.of(root, name)
    return render(target.spec, target.stack, target.lock, templates_of(root), target.driver)


def load_all(root: Path, names: Iterable[str] | None = None) -> tuple[Rendered, ...]:
    """Return these targets, or all of a project. Raises what `load` raises."""
    names = names if names is not None else image_yaml.targets(root)
    return tuple(load(root, name) for name in names)


def texts(root: Path, rendered: Iterable[Rendered]) -> dict[Path, str]:
    """Return the Dockerfiles of these targets by the paths under which they are committed."""
    return {
        root / image_yaml.IMAGES / target.spec.name / DOCKERFILE: target.dockerfile
        for target in rendered
    }


def differences(root: Path, texts: Mapping[Path, str]) -> tuple[str, ...]:
    """Return the names of the committed files that are not as rendered. texts: by path."""
    return tuple(
        path.relative_to(root).as_posix()
        for path, text in texts.items()
        if not path.is_file() or path.read_text("utf-8", "replace") != text
    )


def write(root: Path, texts: Mapping[Path, str]) -> tuple[str, ...]:
    """Write the rendered files that differ from the committed ones; return their names."""
    changed = differences(root, texts)
    for name in changed:
        files.write(root / name, texts[root / name])
    return changed


def fill(name: str, templates: Path | None, **values: object) -> str:
    """Return the text of `name`, from its template `name`.j2.

    templates: the folder of the project's own templates. Raises InputError with the template's line
    where it cannot be rendered.
    """
    import jinja2

    try:
        return _environment(templates).get_template(f"{name}.j2").render(values)
    except jinja2.TemplateError as error:
        template = getattr(error, "filename", None) or f"{TEMPLATES}/{name}.j2"
        line = getattr(error, "lineno", None)
        place = f"{TEMPLATES}/{Path(template).name}" + (f":{line}" if line else "")
        raise InputError(
            f"{place}: {error.message or type(error).__name__}", "mend the template"
        ) from None


@cache
def _environment(templates: Path | None) -> jinja2.Environment:
    import jinja2

    return jinja2.Environment(
        loader=jinja2.FileSystemLoader([path for path in (templates, PACKAGED) if path]),
        undefined=jinja2.StrictUndefined,
        autoescape=False,  # Dockerfiles, no HTML; every value was checked in image.yaml
        keep_trailing_newline=True,
    )


def _labels(spec: ImageSpec, stack: Stack) -> dict[str, str]:
    labels = {
        "org.opencontainers.image.title": spec.name,
        f"{LABELS}.accelerator": spec.accelerator,
        f"{LABELS}.compute-capability": stack.compute_capability,
        f"{LABELS}.kernels": stack.runs,
        f"{LABELS}.{spec.framework}": stack.release,
    }
    if spec.framework != frameworks.DEFAULT:
        labels[frameworks.LABEL] = spec.framework
    if spec.suite != "trainer":
        labels[f"{LABELS}.suite"] = spec.suite
    if spec.smoke:  # so that the digest, and the receipt with it, is of an image that is asked this
        labels[f"{LABELS}.smoke-arguments"] = " ".join(spec.smoke)
    if stack.prune:
        owner = f"{frameworks.of(spec.framework).title}'s"
        whose = f"{owner} and NVIDIA's" if stack.prune.only == "all" else owner
        labels[f"{LABELS}.prune"] = stack.prune.only
        labels[RUNS_ON] = stack.prune.keep
        labels[f"{LABELS}.modified"] = f"{whose} libraries: hashes in RECORD no longer match"
    return {name: value for name, value in labels.items() if value} | spec.labels
