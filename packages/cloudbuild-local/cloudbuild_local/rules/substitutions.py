"""Rules for substitutions: names, values, and that each one is used and has a value."""

import re
from collections.abc import Mapping

from cloudbuild_local.reader import substitutions
from cloudbuild_local.reader.expansion import BUILT_IN, OF_PULL_REQUESTS, ExpansionError, references
from cloudbuild_local.reader.finding import VALUES, Level, Place, suggestion
from cloudbuild_local.reader.substitutions import Values
from cloudbuild_local.rules.report import Report

MAX_COUNT, MAX_NAME, MAX_VALUE = 200, 100, 4000
_EXPANSION = re.compile(r"(?<!\$)\$\{#?(_[A-Z0-9_]+|[A-Z][A-Z0-9_]*)([:#%/^,=?+-])")
_ACCOUNT = "projects/project/serviceAccounts/builder@project.iam.gserviceaccount.com"
_OF_A_TRIGGER = {name: name.lower() for name in BUILT_IN} | {"SERVICE_ACCOUNT": _ACCOUNT}
_OF_A_PULL_REQUEST = {name: name.lower().strip("_") for name in OF_PULL_REQUESTS}
"""Values for the other rules, which look at names with these filled in."""


def values_of(report: Report) -> Values | None:
    """Check names and values. Return the values for the other rules, None for a cycle."""
    build = report.build
    _definitions(report)
    dynamic = build.options.dynamic_substitutions or report.file.trigger
    strict = build.options.substitution_option == "MUST_MATCH" and not report.file.trigger
    own = {**build.substitutions, **report.overrides}
    known = {**_OF_A_TRIGGER, **({} if strict else _OF_A_PULL_REQUEST), **own}
    used, plain = _uses(report, dynamic), _uses(report, dynamic=False)
    if strict and not substitutions.maps_all(build):
        _unused(report, used)
    for name, place in used.items():
        if name not in known:
            _missing(report, name, place, known, strict, certain=name in plain)
    if not dynamic:
        _unread(report, known)
    try:
        return substitutions.resolve(known, dynamic, strict=False)
    except ExpansionError as error:
        report.error(("substitutions", error.name), str(error), error.fix, VALUES)
        return None


def _definitions(report: Report) -> None:
    own = report.build.substitutions
    for name, text in own.items():
        place: Place = ("substitutions", name)
        if problem := substitutions.bad_name(name):
            report.error(place, *problem, VALUES)
        elif name in BUILT_IN:
            fix = f"remove it; --substitutions {name}=VALUE sets it for one build"
            report.error(place, f"{name} is built in: a file cannot set it", fix, "gcloud")
        report.limit(place, len(name.encode()), MAX_NAME, "bytes in the name", "shorten it")
        report.limit(place, len(text.encode()), MAX_VALUE, "bytes", "put the value into a file")
    count = len({**own, **report.overrides})
    fix = "put some into a file of the source"
    report.limit(("substitutions",), count, MAX_COUNT, "substitutions", fix)


def _uses(report: Report, dynamic: bool) -> dict[str, Place]:
    """Return each name that the build uses, with the place of its first use."""
    used: dict[str, Place] = {}
    texts = list(substitutions.texts(report.file.value))
    if dynamic:  # then values are expanded, too
        own = report.build.substitutions
        texts += [(("substitutions", name), text) for name, text in own.items()]
    for place, text in texts:
        try:
            for name in references(text, dynamic):
                used.setdefault(name, place)
        except ExpansionError as error:
            report.error(place, str(error), error.fix, VALUES)
    return used


def _unused(report: Report, used: Mapping[str, Place]) -> None:
    own = report.build.substitutions
    for name in {**own, **report.overrides}:
        if name in used or (name in own and name in BUILT_IN):
            continue
        why, fix = "", "remove it, or options: {substitutionOption: ALLOW_LOOSE}"
        if any(re.search(rf"\$\{{?{name}\b", step.script) for step in report.build.steps):
            why = ": nothing is substituted in script"
            fix = "set automapSubstitutions: true"
        place: Place = ("substitutions", name) if name in own else ()
        report.error(place, f"{name} is not used{why}", fix, VALUES)


def _unread(report: Report, known: Mapping[str, str]) -> None:
    """Report what a build without dynamicSubstitutions leaves as it is."""
    fix = "options: {dynamicSubstitutions: true}"
    for key, text in report.build.substitutions.items():
        for name in references(text, dynamic=False):
            if name.startswith("_") or name in BUILT_IN:
                what = f"the value's ${name} is read by triggers, and not in a build by hand"
                report.warning(("substitutions", key), what, fix, VALUES)
    for place, text in substitutions.texts(report.file.value):
        for match in _EXPANSION.finditer(text):
            if match[1] in known:
                begin = f"${{{match[1]}{match[2]}...}}"
                what = f"{begin} stays as it is: bash's expansions are off"
                report.warning(place, what, f"{fix}, or $$ if the shell is to read it", VALUES)


def _missing(
    report: Report, name: str, place: Place, known: Mapping[str, str], strict: bool, certain: bool
) -> None:
    """Report a name without a value. certain: it stands in the file as $NAME or ${NAME}.

    Whether the service reads `${NAME,,}` of a name that is neither built in nor the user's own is
    not documented; a public build that has it is started every day.
    """
    if not name.startswith("_"):
        fix = f"$${name} is the shell's own variable; {suggestion(name, BUILT_IN, f'or _{name}')}"
        level: Level = "error" if certain else "warning"
        what = f"${name} is not a built-in substitution"
        report.error(place, what, fix, "the service", level)
        return
    fix = suggestion(name, known, f"add {name} to substitutions:, or call with it")
    if name in _OF_A_PULL_REQUEST:
        fix = "check it with --as-trigger: a pull request's build has it"
    if strict:
        report.error(place, f"${name} has no value", fix, VALUES)
    else:
        report.warning(place, f"${name} has no value: it becomes empty text", fix, VALUES)
