"""Rules for the steps: their fields, their ids, and the order that they wait in."""

from __future__ import annotations

import difflib
from collections.abc import Mapping

from builder.cloudbuild.reader.build import Place, Step
from builder.cloudbuild.reader.order import AT_ONCE, circle
from builder.cloudbuild.reader.rules.report import API, LOCAL, SCHEMA, Diagnostics
from builder.cloudbuild.reader.substitutions import Values

MAX_ARGS, MAX_ARG = 100, 10_000  # SCHEMA
MAX_NAME = 1000  # LOCAL

_STEP_OUTPUT_ONLY = ("timing", "pullTiming", "status", "exitCode")


def step(report: Diagnostics, step: Step, values: Values | None) -> None:
    """Check the fields of one step."""
    at: Place = ("steps", step.index)
    here = report.file.value["steps"][step.index]
    if not step.name:
        report.add(at, "no name", "name: the image that runs this step", API)
    elif values:
        report.image((*at, "name"), step.name, values)
    if step.script and (step.args or step.entrypoint):
        other = "args" if step.args else "entrypoint"
        report.add((*at, other), f"script and {other} exclude each other", f"drop {other}", SCHEMA)
    report.limit((*at, "args"), len(step.args), MAX_ARGS, "args", SCHEMA, "put them into a script")
    for n, arg in enumerate(step.args):
        length = len(report.expanded(arg, values))
        report.limit(
            (*at, "args", n),
            length,
            MAX_ARG,
            "characters (after substitution)",
            SCHEMA,
            "move it into a script of the source",
        )
    if step.timeout is not None and not 0 < step.timeout <= report.build.timeout:
        report.add(
            (*at, "timeout"),
            f"must be more than 0s and at most the build's timeout, {report.build.timeout:g}s",
            "shorten it, or set timeout: of the build",
            "the service: must be less than or equal to build timeout",
        )
    for code in step.allow_exit_codes:
        if not 1 <= code <= 255:
            report.add(
                (*at, "allowExitCodes"),
                f"{code} is not the exit code of a failure",
                "1 to 255",
                SCHEMA,
            )
    if step.allow_failure and step.allow_exit_codes:
        report.add(
            (*at, "allowFailure"),
            "without effect: allowExitCodes takes precedence",
            "keep one of the two",
            SCHEMA,
            "warning",
        )
    for name in _STEP_OUTPUT_ONLY:
        if name in here:
            report.add(
                (*at, name),
                "the service sets this itself",
                "remove it",
                f"{API}: output only",
                "warning",
            )
    report.environment((*at, "env"), step.env)
    _secret_and_plain(report, step)
    for name, text in (("dir", step.dir), ("name", step.name)):
        report.limit((*at, name), len(text), MAX_NAME, "characters", LOCAL, "shorten it")


def _secret_and_plain(report: Diagnostics, step: Step) -> None:
    """Check that no variable of a step, or of all steps, is a secret and plain text at once."""
    options = report.build.options
    plain = {one.partition("=")[0] for one in (*options.env, *step.env)}
    for name in sorted(plain & {*options.secret_env, *step.secret_env}):
        at: Place = ("steps", step.index) if name in step.secret_env else ("options",)
        report.add((*at, "secretEnv"), f"{name} is in env, too", "keep one of the two", LOCAL)


def ids(report: Diagnostics) -> None:
    """Check that ids are unique, and that no step waits for a later one or in a circle."""
    steps = report.build.steps
    first: dict[str, int] = {}
    for step in steps:
        if step.id == AT_ONCE:
            what = "'-' means no step: it cannot be an id"
            report.add(("steps", step.index, "id"), what, "give the step another id", LOCAL)
        if step.id in first:
            report.add(
                ("steps", step.index, "id"),
                f"{step.id!r} is the id of steps[{first[step.id]}], too",
                "give each step an id of its own",
                SCHEMA,
            )
        elif step.id:
            first[step.id] = step.index
    around = circle(steps)
    if around:
        names = " -> ".join(steps[n].id or str(n) for n in around)
        report.add(
            ("steps", around[0], "waitFor"),
            f"steps wait for each other: {names}",
            "let one of them wait for an earlier step, or for '-'",
            SCHEMA,
        )
    for step in steps:
        for n, name in enumerate(step.wait_for or ()):
            _waits(report, step, ("steps", step.index, "waitFor", n), name, first, around)


def _waits(
    report: Diagnostics,
    step: Step,
    place: Place,
    name: str,
    ids: Mapping[str, int],
    around: tuple[int, ...],
) -> None:
    if name == AT_ONCE:
        if len(step.wait_for or ()) > 1:
            report.add(place, "'-' beside other ids", "write ['-'] alone, or the ids", SCHEMA)
    elif name not in ids:
        near = difflib.get_close_matches(name, ids, n=1)
        report.add(
            place,
            f"no step has the id {name!r}",
            f"write {near[0]}" if near else f"ids: {', '.join(ids) or 'none'}",
            SCHEMA,
        )
    elif ids[name] >= step.index and step.index not in around:
        report.add(
            place,
            f"{name!r} is a later step",
            "move this step after it",
            "cloud-build-local's validator: only steps before it",
        )
