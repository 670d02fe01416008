"""A check and a suite of checks: the values that a proof is made of.

A check is one question about an image. It stands in a module of its own, in checks/, as the
constant CHECK. A suite is the list of checks that an image goes through.
builder/prove/suites.py makes the suites, adds the questions that each framework answers by
itself, and says which suite an image needs.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from builder.facts import accelerators
from builder.facts.accelerators import Kind
from builder.prove import receipts
from builder.prove.image import Image, NotThereError
from builder.prove.judge import Run, explain
from builder.prove.receipts import CheckResult, Defect, Finding, Receipt, Validity
from builder.prove.session import Session

EVERY_KIND: Final[frozenset[Kind]] = frozenset({"gpu", "tpu", "cpu"})

Answer = tuple[Sequence[Defect], Mapping[str, Any]]
"""What is wrong with an image, and what was seen in it (data for JSON). `note` is for people,
`not_followed` says what could not be looked into: then the check has not passed."""

Rule = Callable[[Image], Answer]
"""Judges an image as it was read. Raises NotThereError where there is nothing to look at."""


@dataclass(frozen=True)
class Check:
    """One question about an image. `rule` is asked of any image, `run` of those of the project."""

    name: str
    version: int
    """Raise it when the check begins to ask for more: older receipts are then no longer valid."""
    run: Callable[[Session], Answer] | None = None
    """Asks what containers alone answer. Raises NotThereError where an earlier check has left it
    nothing to look at."""
    kinds: frozenset[Kind] = EVERY_KIND
    """The kinds of accelerator whose images the question is asked of."""
    rule: Rule | None = None
    may_be_unanswered: bool = False
    """Whether a receipt holds an answer "not there", which no earlier check is to blame for."""

    @classmethod
    def of(cls, name: str, version: int, rule: Rule, kinds: frozenset[Kind] = EVERY_KIND) -> Check:
        """Return the check that judges the image as it was read, and runs nothing of it."""
        return cls(name, version, None, kinds, rule)

    def ask(self, session: Session) -> CheckResult:
        """Ask an image of the project. Any defect refuses it."""

        def answer() -> Answer:
            defects, seen = self.rule(session.read) if self.rule else ((), {})
            more, ran = self.run(session) if self.run else ((), {})
            return (*defects, *more), {**seen, **ran}

        return self._result(answer, is_ours=True)

    def judge(self, image: Image) -> CheckResult:
        """Judge an image that anybody made; nothing of it runs."""
        assert self.rule
        return self._result(partial(self.rule, image), image.is_ours)

    def _result(self, answer: Callable[[], Answer], is_ours: bool) -> CheckResult:
        began, reason = time.monotonic(), ""
        try:
            defects, seen = answer()
        except NotThereError as nothing:
            defects, seen, reason = (), {}, str(nothing)
        findings = tuple(d for d in defects if isinstance(d, Finding) and not is_ours)
        problems = tuple(defect for defect in defects if defect not in findings)
        return CheckResult(
            name=self.name,
            version=self.version,
            passed=not problems,
            seconds=round(time.monotonic() - began, 2),
            problems=problems,
            findings=findings,
            not_there=reason,
            seen=dict(seen),
        )


@dataclass(frozen=True)
class Suite:
    """The checks that an image goes through, in this order."""

    name: str
    checks: tuple[Check, ...]

    def of(self, kind: Kind) -> tuple[Check, ...]:
        return tuple(check for check in self.checks if kind in check.kinds)

    def required(self, accelerator: str) -> dict[str, int]:
        """Return the checks that a receipt for this accelerator, or for a GPU of this compute
        capability, must hold, each with its version.

        Raises InputError for an accelerator that does not exist.
        """
        kind = accelerators.kind_of(accelerator)
        return {check.name: check.version for check in self.of(kind)}

    def judge(self, image: Image) -> tuple[CheckResult, ...]:
        return tuple(check.judge(image) for check in self.checks)

    def holds(self, receipt: Receipt | None, image: str | Iterable[str]) -> Validity:
        """Tell whether `receipt` proves an image, given by digest, id or both, by this suite.

        A receipt of another suite is no proof, whatever checks it holds.
        """
        validity = receipts.valid_for(receipt, image, {})
        if receipt is None or not validity:
            return validity
        if receipt.suite != self.name:
            return Validity(
                f"the receipt is of the suite {receipt.suite}, the image needs {self.name}"
            )
        return receipts.valid_for(receipt, image, self.required(receipt.accelerator))


def probed(run: Run) -> tuple[list[Defect], dict[str, Any]]:
    """Return what a probe answered. A probe without an answer is a defect itself."""
    if run.answer is not None and run.exit_code == 0 and "problems" in run.answer:
        defects = [Defect(**defect) for defect in run.answer["problems"]]
        return defects, dict(run.answer["seen"])
    return [explain(run, "the probe")], {"tail": list(run.tail[-5:])}
