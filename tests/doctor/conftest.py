"""Findings by their names, and the loopback services that the doctor is tried on."""

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest

from builder.core.findings import DoctorFinding
from tests.emulators.cloud_build import LoopbackCloud, loopback_cloud

Run = Callable[..., tuple[int, str, str]]


def by_name(findings: Iterable[DoctorFinding]) -> dict[str, DoctorFinding]:
    """Return the findings by their names; each name stands once."""
    listed = list(findings)
    named = {finding.name: finding for finding in listed}
    assert len(named) == len(listed)
    return named


def severities(findings: dict[str, DoctorFinding]) -> dict[str, str]:
    return {name: finding.severity for name, finding in findings.items()}


@pytest.fixture
def cloud(monkeypatch: pytest.MonkeyPatch) -> Iterator[LoopbackCloud]:
    with loopback_cloud() as running:
        for name, value in running.environment.items():
            monkeypatch.setenv(name, value)
        yield running


@pytest.fixture
def run(project: Path, monkeypatch: pytest.MonkeyPatch, builder: Run) -> Run:
    """Runs `builder` in a project."""
    monkeypatch.chdir(project)
    return builder
