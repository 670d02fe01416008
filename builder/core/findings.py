"""What `builder doctor` finds: checks, each a function that yields findings with their remedies.

A check is about its subject: this machine, a build, a cluster, a project of Vertex AI. A module
registers those of one kind (builder/doctor/, doctor.py of a backend). None changes anything.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeVar

from builder.core.errors import FactoryError, OutsideError, refusal

Severity = Literal["ok", "warning", "error"]
T = TypeVar("T")


@dataclass(frozen=True)
class DoctorFinding:
    name: str
    severity: Severity
    """An "error" prevents the work, a "warning" does not."""
    message: str
    remedy: str = ""


class Unknown(OutsideError):
    """A service that does not say what a check asks for; the finding is a warning."""


CHECKS: Final[list[tuple[type[Any], str, Callable[[Any], Iterator[DoctorFinding]], bool]]] = []
"""Every check of the modules that are imported, in the order in which they run: its subject, its
name, itself, and whether it is essential."""


def check(
    subject: type[T], name: str, essential: bool = False
) -> Callable[[Callable[[T], Iterator[DoctorFinding]]], Callable[[T], Iterator[DoctorFinding]]]:
    """Return a decorator that registers a check. name: of the finding where the check fails. After
    an essential one that fails, no other can be asked."""

    def register(
        run: Callable[[T], Iterator[DoctorFinding]],
    ) -> Callable[[T], Iterator[DoctorFinding]]:
        CHECKS.append((subject, name, run, essential))
        return run

    return register


def examine(subject: object) -> tuple[DoctorFinding, ...]:
    """Return all findings about a subject. What the system or a service refuses is one, too."""
    findings: list[DoctorFinding] = []
    for _, name, run, essential in (each for each in CHECKS if isinstance(subject, each[0])):
        try:
            findings += run(subject)
        except Unknown as error:
            findings.append(
                DoctorFinding(name, "warning", f"not known: {error.message}", error.fix)
            )
        except FactoryError as error:
            findings.append(DoctorFinding(name, "error", error.message, error.fix))
        except OSError as error:
            refused = refusal(error)
            fix = refused.fix if refused else "let this user read and write there"
            why = refused.message if refused else str(error)
            findings.append(DoctorFinding(name, "error", why, fix))
        if essential and any(finding.severity == "error" for finding in findings):
            break
    return tuple(findings)
