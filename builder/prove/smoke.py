"""The proof of an image: it goes through the checks of a suite, and a receipt says what they saw.

It shows that an image works on its accelerator, on a machine without that accelerator. Every check
that can run does run, also after one that failed.
"""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import Final

from builder.core import files
from builder.core.docker_sdk import refusals
from builder.core.events import OnEvent, ignore, step
from builder.engine import containers
from builder.engine.containers import ContainerEngine
from builder.prove import receipts
from builder.prove.image import Subject
from builder.prove.ledger import Ledger
from builder.prove.receipts import CheckResult, Receipt
from builder.prove.session import LABEL, Limits, Sandbox, Session, Workload
from builder.prove.suite import Check, Suite

LOG: Final = "smoke.log"
RECORDS: Final = Path(__file__).parent / "records"
"""The digits that a smoke run trains on: TFRecords."""


def smoke(
    engine: ContainerEngine,
    subject: Subject,
    suite: Suite,
    folder: Path,
    on_event: OnEvent = ignore,
    limits: Limits | None = None,
    workload: Workload | None = None,
) -> Receipt:
    """Prove an image by a suite, and write its receipt into `folder` (build/<target>).

    The receipt is written in any case, and beside it a log of everything the containers printed.
    Raises CheckFailed where a check did not pass, OutsideError where the engine refused.
    """
    with refusals(subject.image), interruptible():
        client = engine.client
        containers.sweep(client, LABEL)
        image = client.images.get(subject.image)
        with Session(
            client,
            image,
            subject.target,
            limits or Limits(),
            on_event,
            subject=subject,
            workload=workload or Workload(),
        ) as session:
            session.fill(subject.records)
            try:
                results = _results(session, suite.of(subject.stack.accelerator.kind))
            finally:
                files.write(folder / LOG, "\n".join(session.log) + "\n")
    receipt = receipts.of(
        suite.name,
        results,
        target=subject.target,
        accelerator=subject.spec.accelerator,
        reference=subject.image,
        digest=subject.digest,
        image_id=str(image.id),
        inputs=subject.inputs,
        ledger=session.ledger.rows,
    )
    receipts.write(receipt, folder / receipts.FILE)
    if not receipt.passed:
        raise receipts.failure(receipt.target, receipt.problems)
    return receipt


@contextlib.contextmanager
def sandbox(
    engine: ContainerEngine,
    image_id: str,
    name: str,
    what: str,
    on_event: OnEvent = ignore,
    ledger: Ledger | None = None,
) -> Iterator[Sandbox]:
    """Yield the containers of an image, with the records. what: is done with it, for the progress
    that is shown. ledger: one that goes on. Raises OutsideError."""
    with refusals(name), interruptible(), step(f"{what} {name}", on_event):
        containers.sweep(engine.client, LABEL)
        image = engine.client.images.get(image_id)
        ledger = ledger or Ledger()
        with Sandbox(engine.client, image, on_event=on_event, ledger=ledger) as made:
            made.fill(RECORDS)
            yield made


def _results(session: Session, checks: Sequence[Check]) -> list[CheckResult]:
    """Run the checks, and return the results of those that could run or may remain unanswered, in
    their order."""
    results = []
    for check in checks:
        with step(f"{session.subject.target}: {check.name}", session.on_event) as running:
            session.step = running
            result = check.ask(session)
            running.error = result.problems[0].message if result.problems else None
            running.detail = "nothing to look at" if result.not_there else result.note
        if not result.not_there or check.may_be_unanswered:
            results.append(result)
    return results


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """Let SIGTERM end the proof as Ctrl-C does: every `finally` runs, so nothing stays behind."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(number: int, _frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
