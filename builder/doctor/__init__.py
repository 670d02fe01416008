"""Checks of this machine, of Cloud Build and of a backend for jobs; each finding has its remedy.

A check is a function that yields findings about its subject: this machine, a build, a cluster, a
project of Vertex AI. Each module of this folder registers those of one kind. None changes anything.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final, Generic, Literal, TypeVar

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
class Check(Generic[T]):
    """A check of one kind of subject. After an essential one that fails, no other can be asked."""

    subject: type[T]
    name: str
    run: Callable[[T], Iterator[Finding]]
    essential: bool

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


CHECKS: Final[list[Check[Any]]] = []
"""Every check of the modules that are imported, in the order in which they run."""


def check(
    subject: type[T], name: str, essential: bool = False
) -> Callable[[Callable[[T], Iterator[Finding]]], Callable[[T], Iterator[Finding]]]:
    """Return a decorator that registers a check. name: of the finding where the check fails."""

    def register(run: Callable[[T], Iterator[Finding]]) -> Callable[[T], Iterator[Finding]]:
        CHECKS.append(Check(subject, name, run, essential))
        return run

    return register


def examine(subject: object) -> tuple[Finding, ...]:
    """Return all findings about a subject."""
    findings: list[Finding] = []
    for each in CHECKS:
        if isinstance(subject, each.subject):
            findings += each.findings(subject)
            if each.essential and any(finding.severity == "error" for finding in findings):
                break
    return tuple(findings)
