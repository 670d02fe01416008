"""The findings of several files, as lines and as values."""

import glob
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cloudbuild_local import rules
from cloudbuild_local.errors import InputError
from cloudbuild_local.reader import document
from cloudbuild_local.reader.finding import Finding


@dataclass(frozen=True)
class FileReport:
    """The findings of one file."""

    path: Path
    steps: int
    """How many it has."""
    findings: tuple[Finding, ...]
    bad: tuple[Finding, ...]
    """What makes the file invalid."""

    @property
    def summary(self) -> str:
        """A line for people."""
        errors = sum(finding.level == "error" for finding in self.findings)
        warnings = len(self.findings) - errors
        return f"{self.path}: {self.steps} steps, {errors} errors, {warnings} warnings"

    @property
    def row(self) -> dict[str, Any]:
        """A value for machines."""
        findings = [vars(finding) for finding in self.findings]
        return {"file": str(self.path), "valid": not self.bad, "findings": findings}


def paths(patterns: Sequence[str]) -> tuple[Path, ...]:
    """Return the files of names and globs, each once. What matches nothing stays as it is."""
    files: list[Path] = []
    for pattern in patterns:
        matches = [] if Path(pattern).exists() else glob.glob(pattern, recursive=True)  # noqa: PTH207
        files += [Path(name) for name in sorted(matches) if Path(name).is_file()] or [Path(pattern)]
    return tuple(dict.fromkeys(files))


def report(
    path: Path, overrides: Mapping[str, str], trigger: bool = False, strict: bool = False
) -> FileReport:
    """Return the findings of a file. A file that cannot be read is one finding.

    strict: warnings make the file invalid, too.
    """
    try:
        file = document.read(path, trigger)
        findings, steps = rules.check(file, overrides), len(file.build.steps)
    except InputError as error:
        message = error.message.removeprefix(str(path))  # FILE: what, or FILE:LINE: what
        line, what = re.fullmatch(r"(?::(\d+))?: (.*)", message, re.S).groups()  # type: ignore
        findings, steps = (Finding(int(line or 1), "", what, error.fix, "error", "file"),), 0
    bad = tuple(finding for finding in findings if finding.level == "error" or strict)
    return FileReport(path, steps, findings, bad)


def lines(reports: Sequence[FileReport]) -> Iterator[str]:
    """Yield FILE:LINE: LEVEL: FIELD: what; fix [source]."""
    for report in reports:
        for finding in report.findings:
            yield f"{report.path}:{finding.line}: {finding.level}: {finding}"
