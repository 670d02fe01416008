"""Does the entry point reach its own code? For a program that is not our trainer.

The image is started with --help. A program may know no --help, and may need data to do anything:
only an import that fails shows that the image is wrong.
"""

from __future__ import annotations

import re
from typing import Any

from builder.prove.receipts import Defect
from builder.prove.session import Session
from builder.prove.suite import Answer, Check

SECONDS = 60.0
"""How long a program may take to answer. One that begins to train is stopped then."""

_FAILS = re.compile(r"(ModuleNotFoundError|ImportError|SyntaxError|No module named)\b.*")


def run(session: Session) -> Answer:
    """Start the image with --help, and look for an import that failed."""
    run = session.start(["--help"], SECONDS, steps=1)
    seen: dict[str, Any] = {"exit_code": run.exit_code, "seconds": round(run.seconds, 1)}
    last = next((line for line in reversed(run.tail) if _FAILS.search(line)), "")
    if run.exit_code not in (0, 2) and last and not run.timed_out:
        message = f"the program does not start: {last.strip()[:200]}"
        fix = "mend the import, or add it to requirements.txt"
        return [Defect(message=message, fix=fix)], seen
    seen["answered"] = "--help" if run.exit_code == 0 and not run.timed_out else "started"
    return [], seen


CHECK = Check("starts", 1, run)
