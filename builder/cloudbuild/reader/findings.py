"""The findings of files, and the forms that others read them in: SARIF, GitHub's commands."""

from __future__ import annotations

import glob
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from builder.cloudbuild.reader import buildfile, validation
from builder.cloudbuild.reader.rules.report import Diagnostic
from builder.core.errors import InputError

_SARIF = "https://json.schemastore.org/sarif-2.1.0.json"


@dataclass(frozen=True)
class FileFindings:
    """What was found in a file. steps: how many it has. bad: what makes the file invalid."""

    path: Path
    steps: int
    findings: tuple[Diagnostic, ...]
    bad: tuple[Diagnostic, ...]

    @property
    def summary(self) -> dict[str, Any]:
        """For machines."""
        findings = [vars(one) for one in self.findings]
        return {"file": str(self.path), "valid": not self.bad, "findings": findings}


def files_of(patterns: Sequence[str]) -> tuple[Path, ...]:
    """The files of names and globs, each once. Raises InputError for what names no file."""
    found: list[Path] = []
    for pattern in patterns:
        if Path(pattern).exists():
            found.append(Path(pattern))
            continue
        matched = glob.glob(pattern, recursive=True)  # noqa: PTH207 - Path.glob: no absolute ones
        matches = [Path(one) for one in sorted(matched) if Path(one).is_file()]
        if not matches:
            raise InputError(f"{pattern}: no such file", "name a cloudbuild.yaml or .json")
        found += matches
    return tuple(dict.fromkeys(found))


def of_file(
    path: Path,
    given: Mapping[str, str],
    trigger: bool = False,
    strict: bool = False,
    account: str = "",
) -> FileFindings:
    """The findings of a file. One that cannot be read is invalid. strict: warnings are errors.

    account: of the trigger that starts the build.
    """
    try:
        file = buildfile.read(path)
        findings, steps = validation.check(file, given, trigger, account), len(file.build.steps)
    except InputError as error:
        findings, steps = (_unreadable(path, error),), 0
    bad = tuple(one for one in findings if one.level == "error" or strict)
    return FileFindings(path, steps, findings, bad)


def _unreadable(path: Path, error: InputError) -> Diagnostic:
    """The error of a file as a finding. Its message begins with FILE:LINE, or with FILE."""
    what = error.message.removeprefix(str(path))
    line, what = match.groups() if (match := re.match(r":(\d+): (.*)", what, re.S)) else (1, what)
    return Diagnostic(int(line), "", what.removeprefix(": "), error.fix, "error", "the file")


def github(files: Sequence[FileFindings]) -> Iterator[str]:
    """Workflow commands of GitHub Actions, which show each finding beside its line."""
    for one, finding in _each(files):
        level = "error" if finding in one.bad else "warning"
        place = f"file={_property(str(one.path))},line={finding.line}"
        title = f"title={_property(finding.field or one.path.name)}"
        yield f"::{level} {place},{title}::{_data(_said(finding))}"


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")


def sarif(files: Sequence[FileFindings]) -> dict[str, Any]:
    """A SARIF 2.1.0 log, as code scanning takes it. A rule is a field, without indices."""
    results = [
        {
            "ruleId": _rule(finding),
            "level": "error" if finding in one.bad else "warning",
            "message": {"text": _said(finding)},
            "locations": [
                {
                    "physicalLocation": {
                        "artifactLocation": {"uri": quote(one.path.as_posix())},
                        "region": {"startLine": finding.line},
                    }
                }
            ],
        }
        for one, finding in _each(files)
    ]
    rules = [
        {"id": name, "shortDescription": {"text": f"Cloud Build: {name}"}}
        for name in sorted({_rule(finding) for _, finding in _each(files)})
    ]
    tool = {"driver": {"name": "builder cloud validate", "rules": rules}}
    return {
        "$schema": _SARIF,
        "version": "2.1.0",
        "runs": [{"tool": tool, "results": results}],
    }


def _each(files: Sequence[FileFindings]) -> Iterator[tuple[FileFindings, Diagnostic]]:
    return ((one, finding) for one in files for finding in one.findings)


def _rule(finding: Diagnostic) -> str:
    return re.sub(r"\[\d+\]", "", finding.field) or "build"


def _said(finding: Diagnostic) -> str:
    field = f"{finding.field}: " if finding.field else ""
    return f"{field}{finding.what}; {finding.fix} [{finding.source}]"


def plain(files: Sequence[FileFindings]) -> Iterator[str]:
    """FILE:LINE: LEVEL: FIELD: what; fix [source]."""
    for one, finding in _each(files):
        yield f"{one.path}:{finding.line}: {finding.level}: {_said(finding)}"
