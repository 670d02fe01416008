"""What the hosted service would refuse in a build, or what would surprise the build's author.

Each rule names its origin. `error`: the service refuses the build, by its documentation or by the
message that its users report. `warning`: the build runs and surprises, or the rule is one of the
last published validator (cloud-build-local's), which the service may have loosened.
"""

from __future__ import annotations

from collections.abc import Mapping

from builder.cloudbuild.reader.buildfile import BuildFile
from builder.cloudbuild.reader.rules import secrets, steps, substitutions, volumes, whole
from builder.cloudbuild.reader.rules.report import API, Diagnostic, Diagnostics, Level
from builder.core.errors import InputError


def check(
    file: BuildFile,
    given: Mapping[str, str] | None = None,
    trigger: bool = False,
    account: str = "",
) -> tuple[Diagnostic, ...]:
    """Every diagnostic of a file, by line.

    given: the values that a call sets. trigger: check the build as a trigger would start it.
    Triggers are always loose and dynamic about substitutions. account: of that trigger.
    """
    report = Diagnostics(file, dict(given or {}), trigger, account)
    for one in file.problems:
        report.found.append(Diagnostic(one.line, one.field, one.what, one.fix, "error", API))
    for one in file.notes:
        found = Diagnostic(one.line, one.field, one.what, one.fix, "warning", "gcloud's apitools")
        report.found.append(found)
    for one in file.of_triggers:
        # Documented as an error for both. Google's own repositories run such files by triggers:
        # GoogleCloudPlatform/accelerated-platforms has 33 with `timeout: 90m`.
        level: Level = "warning" if trigger else "error"
        report.found.append(Diagnostic(one.line, one.field, one.what, one.fix, level, API))
    values = substitutions.values_of(report)
    whole.whole(report, values)
    for step in report.build.steps:
        steps.step(report, step, values)
    steps.ids(report)
    volumes.volumes(report)
    secrets.secrets(report, values)
    whole.outputs(report, values)
    unique = {(one.line, one.field, one.what): one for one in report.found}
    return tuple(sorted(unique.values(), key=lambda one: (one.line, one.field)))


def refuse(file: BuildFile, found: tuple[Diagnostic, ...]) -> None:
    """Raises InputError for the first error among the diagnostics."""
    errors = [one for one in found if one.level == "error"]
    if errors:
        first = errors[0]
        more = f" ({len(errors) - 1} more: builder cloud validate)" if errors[1:] else ""
        raise InputError(f"{file.path}:{first.line}: {first.field}: {first.what}{more}", first.fix)
