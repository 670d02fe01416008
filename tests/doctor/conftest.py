"""Findings by their names, and the loopback service that the doctor is tried on."""

from collections.abc import Iterable

from builder.core.findings import DoctorFinding
from tests.cloudbuild.conftest import cloud  # noqa: F401 - a fixture


def by_name(findings: Iterable[DoctorFinding]) -> dict[str, DoctorFinding]:
    """Return the findings by their names; each name stands once."""
    listed = list(findings)
    named = {finding.name: finding for finding in listed}
    assert len(named) == len(listed)
    return named


def severities(findings: dict[str, DoctorFinding]) -> dict[str, str]:
    return {name: finding.severity for name, finding in findings.items()}
