"""Rules for the steps: their fields, their ids, and the order that they wait in."""

import re
from collections import Counter

from cloudbuild_local.reader.build import AT_ONCE, Step, Volume, cycle
from cloudbuild_local.reader.finding import LOCAL, SCHEMA, Place, suggestion
from cloudbuild_local.rules.report import Report

MAX_ARGS, MAX_ARG = 100, 10_000
_VOLUME = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9_.-]+")
_RESERVED = ("/workspace", "/builder/home", "/builder/outputs", "/var/run/docker.sock")


def steps(report: Report) -> None:
    """Check each step, then their ids, their order and their volumes."""
    for step in report.build.steps:
        _fields(report, step)
        _environment(report, step)
    _ids(report)
    _order(report)
    _volumes(report)


def _fields(report: Report, step: Step) -> None:
    at: Place = ("steps", step.index)
    if step.name:
        report.image((*at, "name"), step.name)
    else:
        report.error(at, "no name", "name: the image that runs this step")
    if step.script and (step.args or step.entrypoint):
        other = "args" if step.args else "entrypoint"
        what = f"script and {other} exclude each other"
        report.error((*at, other), what, f"drop {other}", SCHEMA)
    report.limit((*at, "args"), len(step.args), MAX_ARGS, "args", "put them into a script")
    for n, arg in enumerate(step.args):
        what, fix = "characters (after substitution)", "move it into a script of the source"
        report.limit((*at, "args", n), len(report.expanded(arg)), MAX_ARG, what, fix)
    whole = report.build.timeout
    if step.timeout is not None and not 0 < step.timeout <= whole:
        what = f"must be more than 0s and at most the build's timeout, {whole:g}s"
        report.error((*at, "timeout"), what, "shorten it, or set timeout: of the build", SCHEMA)
    for code in step.allow_exit_codes:
        if not 1 <= code <= 255:
            what = f"{code} is not the exit code of a failure"
            report.error((*at, "allowExitCodes"), what, "write 1 to 255", SCHEMA)
    if step.allow_failure and step.allow_exit_codes:
        what = "without effect: allowExitCodes takes precedence"
        report.warning((*at, "allowFailure"), what, "keep one of the two", SCHEMA)


def _environment(report: Report, step: Step) -> None:
    """Check the variables of a step; none may be a secret and plain text at once."""
    at: Place = ("steps", step.index)
    report.environment((*at, "env"), step.env)
    options = report.build.options
    plain = {text.partition("=")[0] for text in (*options.env, *step.env)}
    for name in sorted(plain & {*options.secret_env, *step.secret_env}):
        owner: Place = at if name in step.secret_env else ("options",)
        report.error((*owner, "secretEnv"), f"{name} is in env, too", "keep one of the two", LOCAL)


def _ids(report: Report) -> None:
    first: dict[str, int] = {}
    for step in report.build.steps:
        place: Place = ("steps", step.index, "id")
        if step.id == AT_ONCE:
            report.error(place, "'-' means no step: it cannot be an id", "write another", LOCAL)
        if step.id and first.setdefault(step.id, step.index) != step.index:
            what = f"{step.id!r} is the id of steps[{first[step.id]}], too"
            report.error(place, what, "give each step an id of its own", SCHEMA)


def _order(report: Report) -> None:
    """Check that no step waits for an unknown or a later one, or in a cycle."""
    every = report.build.steps
    index_of = {step.id: step.index for step in reversed(every) if step.id}
    indices = cycle(every)
    if indices:
        names = " -> ".join(every[n].id or str(n) for n in indices)
        fix = "let one of them wait for an earlier step, or for '-'"
        place: Place = ("steps", indices[0], "waitFor")
        report.error(place, f"steps wait for each other: {names}", fix, SCHEMA)
    for step in every:
        for n, name in enumerate(step.wait_for or ()):
            place = ("steps", step.index, "waitFor", n)
            if name == AT_ONCE:
                if len(step.wait_for or ()) > 1:
                    what, fix = "'-' beside other ids", "write ['-'] alone, or the ids"
                    report.error(place, what, fix, SCHEMA)
            elif name not in index_of:
                fix = suggestion(name, index_of, f"ids: {', '.join(index_of) or 'none'}")
                report.error(place, f"no step has the id {name!r}", fix, SCHEMA)
            elif index_of[name] >= step.index and step.index not in indices:
                report.error(place, f"{name!r} is a later step", "move this step after it", LOCAL)


# --- volumes: names and paths of their own, and two steps that share each -------------------------


def _volumes(report: Report) -> None:
    """Check the volumes of the build and of its steps."""
    steps, common = report.build.steps, report.build.options.volumes
    names, paths = {volume.name for volume in common}, {_normal(volume.path) for volume in common}
    _mounts(report, ("options", "volumes"), common)
    if common and len(steps) < 2:
        report.error(("options", "volumes"), "volumes for a single step", "remove them")
    uses = Counter(name for step in steps for name in {volume.name for volume in step.volumes})
    for step in steps:
        at: Place = ("steps", step.index, "volumes")
        _mounts(report, at, step.volumes)
        for n, volume in enumerate(step.volumes):
            if volume.name in names or _normal(volume.path) in paths:
                report.error((*at, n), f"{volume.name} is in options.volumes, too", "keep one")
            if uses[volume.name] == 1:
                what = f"{volume.name} is used by this step only"
                report.error((*at, n), what, "mount it in a second step, or remove it")


def _mounts(report: Report, at: Place, mounts: tuple[Volume, ...]) -> None:
    names = Counter(volume.name for volume in mounts)
    paths = Counter(_normal(volume.path) for volume in mounts)
    for n, volume in enumerate(mounts):
        name, path, place = volume.name, _normal(volume.path), (*at, n)
        if not _VOLUME.fullmatch(name) and "$" not in name:
            what = f"{name!r} is not a name for a volume"
            report.error(place, what, "use letters, digits, _ . -")
        if not path.startswith(("/", "$")):
            report.error(place, f"{volume.path!r} is not absolute", f"write /{path}")
        if path in _RESERVED or f"{path}/".startswith("/cloudbuild/"):
            report.error(place, f"{path} is the service's own", "choose another path")
        if names[name] > 1 or paths[path] > 1:
            report.error(place, f"{name} or {path} appears twice", "keep one")


def _normal(path: str) -> str:
    return "/" + path.strip("/") if path.startswith("/") else path
