"""What Cloud Build would refuse in a build file, or what would surprise its author.

Each finding names its source. An error is what the service refuses, by its documentation or by the
message that its users report. A warning is a build that runs and surprises, or a rule of the last
published validator (cloud-build-local's), which the service may have loosened.
"""

from collections.abc import Mapping

from cloudbuild_local.errors import InputError
from cloudbuild_local.reader.document import BuildFile
from cloudbuild_local.reader.finding import Finding
from cloudbuild_local.rules import secrets, steps, substitutions, whole
from cloudbuild_local.rules.report import Report


def check(file: BuildFile, overrides: Mapping[str, str] | None = None) -> tuple[Finding, ...]:
    """Return every finding of a file, by line. overrides: the substitutions that the call sets.

    The file says whether a trigger starts the build: then its substitutions are loose and dynamic.
    """
    report = Report(file, dict(overrides or {}))
    report.values = substitutions.values_of(report)
    whole.whole(report)
    steps.steps(report)
    secrets.secrets(report)
    whole.outputs(report)
    findings = {(f.line, f.field, f.what): f for f in (*file.findings, *report.findings)}
    return tuple(sorted(findings.values(), key=lambda finding: (finding.line, finding.field)))


def refuse(file: BuildFile, findings: tuple[Finding, ...]) -> None:
    """Raise InputError for the first error among the findings: of names and types, then others."""
    errors = [finding for finding in findings if finding.level == "error"]
    errors.sort(key=lambda finding: finding not in file.findings)
    if errors:
        first, *others = errors
        field = f"{first.field}: " if first.field else ""
        more = f" ({len(others)} more: cloudbuild-local validate {file.path})" if others else ""
        raise InputError(f"{file.path}:{first.line}: {field}{first.what}{more}", first.fix)
