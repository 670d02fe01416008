"""A check and a suite of checks: the values that a proof is made of.

A check is one question about an image. It stands in a module of its own, in checks/, as the
constant CHECK. A suite is the list of checks that an image goes through.
builder/prove/suites.py makes the suites, adds the questions that each framework answers by
itself, and says which suite an image needs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from builder.facts import accelerators
from builder.facts.accelerators import Kind
from builder.prove import receipts
from builder.prove.image import Image
from builder.prove.judge import Run, explain
from builder.prove.receipts import Defect, Receipt, Validity
from builder.prove.session import Session

EVERY_KIND: Final[frozenset[Kind]] = frozenset({"gpu", "tpu", "cpu"})

Answer = tuple[Sequence[Defect], Mapping[str, Any]]
"""What is wrong with an image, and what was seen in it (data for JSON); `note` is for people."""

Rule = Callable[[Image], Answer]
"""Judges an image as it was read. Raises NotThereError where there is nothing to look at."""


@dataclass(frozen=True)
class Check:
    """One question about an image.

    version: raise it when the check begins to ask for more; receipts that hold an older version
    are no longer valid. run: answers the question, or returns None where an earlier check has left
    it nothing to look at. kinds: the kinds of accelerator whose images the question is asked of.
    """

    name: str
    version: int
    run: Callable[[Session], Answer | None]
    kinds: frozenset[Kind] = EVERY_KIND

    @classmethod
    def of(cls, name: str, version: int, rule: Rule, kinds: frozenset[Kind] = EVERY_KIND) -> Check:
        """Return the check that judges the image as it was read, and runs nothing of it."""
        return cls(name, version, lambda session: rule(session.read), kinds)


@dataclass(frozen=True)
class Suite:
    """The checks that an image goes through, in this order."""

    name: str
    checks: tuple[Check, ...]

    def of(self, kind: Kind) -> tuple[Check, ...]:
        """Return the checks of an image for this kind of accelerator."""
        return tuple(check for check in self.checks if kind in check.kinds)

    def required(self, accelerator: str) -> dict[str, int]:
        """Return the checks that a receipt for this accelerator must hold, each with its version.

        Raises InputError for an accelerator that does not exist.
        """
        kind = accelerators.find(accelerator).kind
        return {check.name: check.version for check in self.of(kind)}

    def holds(self, receipt: Receipt | None, image: str | Iterable[str]) -> Validity:
        """Tell whether `receipt` proves an image, given by digest, id or both, by this suite.

        A receipt of another suite is no proof, whatever checks it holds.
        """
        validity = receipts.valid_for(receipt, image, {})
        if receipt is None or not validity:
            return validity
        if receipt.suite != self.name:
            return Validity(
                False, f"the receipt is of the suite {receipt.suite}, the image needs {self.name}"
            )
        return receipts.valid_for(receipt, image, self.required(receipt.accelerator))


def probed(run: Run) -> tuple[list[Defect], dict[str, Any]]:
    """Return what a probe answered. A probe without an answer is a defect itself."""
    if run.answer is not None and run.exit_code == 0 and "problems" in run.answer:
        defects = [Defect(**defect) for defect in run.answer["problems"]]
        return defects, dict(run.answer["seen"])
    return [explain(run, "the probe")], {"tail": list(run.tail[-5:])}
