"""Checks of this machine, of Cloud Build and of a backend for jobs; each finding has its remedy.

A check is a function that yields findings about its subject. Each module of this folder has a Group
of checks for one kind of subject. No check changes anything.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Generic, Literal, TypeVar

from builder.core.errors import FactoryError, OutsideError, refusal

Severity = Literal["ok", "warning", "error"]
T = TypeVar("T")


@dataclass(frozen=True)
class Finding:
    """The result of a check. severity: an "error" prevents the work, a "warning" does not."""

    name: str
    severity: Severity
    message: str
    remedy: str = ""


class Unknown(OutsideError):  # noqa: N818 - not a fault: a question without an answer
    """A service that does not say what a check asks for; the finding is a warning."""


@dataclass(frozen=True)
class Group(Generic[T]):
    """The checks of one kind of subject, in the order in which they run.

    A check that is essential comes first; where it finds an error, nothing else can be asked.
    """

    checks: list[Check[T]] = field(default_factory=list)

    def check(
        self, name: str, essential: bool = False
    ) -> Callable[[Callable[[T], Iterator[Finding]]], Callable[[T], Iterator[Finding]]]:
        """Return a decorator that adds a check. name: of the finding where the check fails."""

        def add(run: Callable[[T], Iterator[Finding]]) -> Callable[[T], Iterator[Finding]]:
            self.checks.append(Check(name, run, essential))
            return run

        return add

    def examine(self, subject: T) -> tuple[Finding, ...]:
        """Return all findings about a subject."""
        findings: list[Finding] = []
        for check in self.checks:
            findings += check.findings(subject)
            if check.essential and any(finding.severity == "error" for finding in findings):
                break
        return tuple(findings)


@dataclass(frozen=True)
class Check(Generic[T]):
    """A check of a group."""

    name: str
    run: Callable[[T], Iterator[Finding]]
    essential: bool = False

    def findings(self, subject: T) -> Iterator[Finding]:
        """Yield the findings. What the system or a service refuses is one, too."""
        try:
            yield from self.run(subject)
        except Unknown as error:
            yield Finding(self.name, "warning", f"not known: {error.message}", error.fix)
        except FactoryError as error:
            yield Finding(self.name, "error", error.message, error.fix)
        except OSError as error:
            refused = refusal(error)
            fix = refused.fix if refused else "let this user read and write there"
            yield Finding(self.name, "error", refused.message if refused else str(error), fix)
