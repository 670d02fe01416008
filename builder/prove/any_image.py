"""What `builder prove` says of an image that anybody made: for people, for programs, for GitHub.

What most images of others have, and many of them with reason, is a finding: it refuses an image of
the factory alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from builder import __version__
from builder.audit.audited import Gpu
from builder.audit.report import annotation
from builder.prove.receipts import CheckResult, Defect, Spent
from builder.prove.waste import Waste


def lines(results: Sequence[CheckResult]) -> Iterator[str]:
    for result in results:
        yield f"{result.name:<13} {result.status:<12} {result.note}".rstrip()
        for problem in result.problems:
            yield f"    {problem.message}"
            yield f"    fix: {problem.fix}"
        for finding in result.findings:
            yield f"    finding: {finding.message}"
            yield f"    instead: {finding.fix}"


def as_dict(
    image: str,
    gpu: Gpu | None,
    results: Sequence[CheckResult],
    wasted: Sequence[Waste],
    spent: Sequence[Spent],
) -> dict[str, Any]:
    checks = [
        {
            "check": result.name,
            "status": result.status,
            "problems": list(map(asdict, result.problems)),
            "note": result.note,
            "findings": list(map(asdict, result.findings)),
        }
        for result in results
    ]
    return {
        "image": image,
        "gpu": gpu and gpu.name,
        "checks": checks,
        "could_be_saved": list(map(asdict, wasted)),
        "ledger": [each.model_dump() for each in spent],
    }


def github_lines(results: Sequence[CheckResult]) -> Iterator[str]:
    """Yield the results as GitHub's annotations: an error for each problem, a warning for each
    finding."""
    for result, level, defect in _levels(results):
        yield annotation(level, f"{defect.message}; {defect.fix}", title=result.name)


def sarif(image: str, results: Sequence[CheckResult]) -> dict[str, Any]:
    """Return the results as SARIF 2.1.0, which code scanning reads."""
    place = {"physicalLocation": {"artifactLocation": {"uri": image}}}
    rows = [
        {
            "ruleId": result.name,
            "level": level,
            "message": {"text": f"{defect.message}; {defect.fix}"},
            "locations": [place],
        }
        for result, level, defect in _levels(results)
    ]
    rules = [{"id": result.name} for result in results]
    driver = {"name": "builder prove", "version": __version__, "rules": rules}
    return {"version": "2.1.0", "runs": [{"tool": {"driver": driver}, "results": rows}]}


def _levels(results: Sequence[CheckResult]) -> Iterator[tuple[CheckResult, str, Defect]]:
    for result in results:
        for level, defects in (("error", result.problems), ("warning", result.findings)):
            yield from ((result, level, defect) for defect in defects)
