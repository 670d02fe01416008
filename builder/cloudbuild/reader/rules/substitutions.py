"""Rules for substitutions: names, values, and that each one is used and known."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping

from builder.cloudbuild.reader import substitutions
from builder.cloudbuild.reader.build import Place
from builder.cloudbuild.reader.expansion import BUILT_IN, Unexpandable, references
from builder.cloudbuild.reader.rules.report import VALUES, Diagnostics
from builder.cloudbuild.reader.substitutions import Values

GCLOUD = "gcloud: config cannot specify built-in substitutions"
_EXPANSION = re.compile(r"(?<!\$)\$\{#?(_[A-Z0-9_]+|[A-Z][A-Z0-9_]*)([:#%/^,}=?+-])")
_SAMPLE = {
    "PROJECT_ID": "project",
    "PROJECT_NUMBER": "123456789012",
    "BUILD_ID": "00000000-0000-0000-0000-000000000000",
    "LOCATION": "global",
    "COMMIT_SHA": "0" * 40,
    "REVISION_ID": "0" * 40,
    "SHORT_SHA": "0" * 7,
    "REPO_NAME": "repository",
    "REPO_FULL_NAME": "owner/repository",
    "BRANCH_NAME": "main",
    "TAG_NAME": "v1",
    "REF_NAME": "main",
    "TRIGGER_NAME": "trigger",
    "TRIGGER_BUILD_CONFIG_PATH": "cloudbuild.yaml",
    "SERVICE_ACCOUNT_EMAIL": "builder@project.iam.gserviceaccount.com",
    "SERVICE_ACCOUNT": "projects/project/serviceAccounts/builder@project.iam.gserviceaccount.com",
}
"""Values like those that a trigger gives."""
_OF_PULL_REQUESTS = {
    "_HEAD_BRANCH": "feature",
    "_BASE_BRANCH": "main",
    "_HEAD_REPO_URL": "https://github.com/owner/repository",
    "_PR_NUMBER": "1",
}
"""Values like those that a pull request gives."""


def values_of(report: Diagnostics) -> Values | None:
    """Check names and values. Returns the values for the other rules; None for a circle."""
    build = report.build
    own = build.substitutions
    for key, text in own.items():
        place: Place = ("substitutions", key)
        if problem := substitutions.bad_key(key):
            report.add(place, *problem, VALUES)
        elif key in BUILT_IN:
            fix = f"remove it; --substitutions {key}=VALUE sets it for one build"
            report.add(place, f"{key} is built in: a file cannot set it", fix, GCLOUD)
        if len(key.encode()) > substitutions.MAX_KEY_BYTES:
            report.add(place, "the name is longer than 100 bytes", "shorten it", VALUES)
        if len(text.encode()) > substitutions.MAX_VALUE_BYTES:
            report.add(place, "the value is longer than 4000 bytes", "put it into a file", VALUES)
    every = {**own, **report.given}
    report.limit(
        ("substitutions",),
        len(every),
        substitutions.MAX_COUNT,
        "substitutions",
        VALUES,
        "put some into a file of the source",
    )
    dynamic = build.options.dynamic_substitutions or report.trigger
    strict = build.options.substitution_option == "MUST_MATCH" and not report.trigger
    used = _uses(report, dynamic)
    if strict:
        _unused(report, own, used)
    known = {**_SAMPLE, **({} if strict else _OF_PULL_REQUESTS), **every}
    plain = _uses(report, dynamic=False)
    for name, place in used.items():
        _missing(report, name, place, known, strict, sure=name in plain)
    if not dynamic:
        _unread(report, own)
    for at, text in () if dynamic else substitutions.templates(build):
        for match in _EXPANSION.finditer(text):
            if match[2] != "}" and match[1] in known:
                report.add(
                    at,
                    f"${{{match[1]}{match[2]}...}} stays as it is: bash's expansions are off",
                    "options: {dynamicSubstitutions: true}, or $$ if the shell is to read it",
                    VALUES,
                    "warning",
                )
    try:
        return substitutions.resolve(known, dynamic, strict=False)
    except Unexpandable as error:
        circle_at: Place = ("substitutions", error.name)
        report.add(circle_at, error.what, error.fix, VALUES)
        return None


def _uses(report: Diagnostics, dynamic: bool) -> dict[str, Place]:
    """Each name that the build uses, with the place of its first use."""
    used: dict[str, Place] = {}
    for place, text in substitutions.texts(report.build, dynamic):
        try:
            names = references(text, dynamic)
        except Unexpandable as error:
            report.add(place, error.what, error.fix, VALUES)
            continue
        for name in names:
            used.setdefault(name, place)
    return used


def _unused(report: Diagnostics, own: Mapping[str, str], used: Mapping[str, Place]) -> None:
    steps = report.build.steps
    if substitutions.maps_all(report.build):
        return
    for key in {**own, **report.given}:
        if key in used or (key in own and key in BUILT_IN):
            continue
        in_script = any(re.search(rf"\$\{{?{key}\b", step.script) for step in steps)
        why = ": nothing is substituted in script" if in_script else ""
        fix = (
            "set automapSubstitutions: true"
            if in_script
            else "remove it, or options: {substitutionOption: ALLOW_LOOSE}"
        )
        where: Place = ("substitutions", key) if key in own else ()
        report.add(where, f"{key} is not used{why}", fix, VALUES)


def _unread(report: Diagnostics, own: Mapping[str, str]) -> None:
    """Diagnostics values that name other substitutions in a build that does not expand values."""
    for key, text in own.items():
        for name in references(text, dynamic=False):
            if not name.startswith("_") and name not in BUILT_IN:
                continue
            report.add(
                ("substitutions", key),
                f"the value's ${name} is read by triggers, and not in a build by hand",
                "options: {dynamicSubstitutions: true}",
                VALUES,
                "warning",
            )


def _missing(
    report: Diagnostics, name: str, place: Place, known: Mapping[str, str], strict: bool, sure: bool
) -> None:
    """Diagnose a name without a value. sure: it stands in the file as $NAME or ${NAME}.

    Whether the service reads `${NAME,,}` of a name that is neither built in nor the user's own is
    not documented; a public build that has it is started every day.
    """
    if name in known:
        return
    if not name.startswith("_"):
        near = difflib.get_close_matches(name, BUILT_IN, n=1, cutoff=0.8)
        shell = f"$${name} for the shell's own variable"
        report.add(
            place,
            f"${name} is not a built-in substitution",
            f"write ${near[0]}, or {shell}" if near else f"write {shell}, or define $_{name}",
            "the service: not a valid built-in substitution",
            "error" if sure else "warning",
        )
        return
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.8)
    suggestion = f"write ${near[0]}, or " if near else ""
    if name in _OF_PULL_REQUESTS:
        suggestion = "check it with --as-trigger (a pull request's build has it), or "
    report.add(
        place,
        f"${name} has no value" + ("" if strict else ": it becomes empty text"),
        f"{suggestion}add {name} to substitutions:, or --substitutions {name}=VALUE",
        VALUES,
        "error" if strict else "warning",
    )
