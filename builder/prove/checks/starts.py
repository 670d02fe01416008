"""Does the entry point reach its own code? For a program that is not our trainer.

The image is started with --help. A program may know no --help, and may need data to do anything.
So an exit code other than 0 is accepted where a file of the program's own was reached: its usage,
or a traceback that goes through its code after the imports.
"""

from __future__ import annotations

import re
from typing import Any

from builder.image.plan import APP
from builder.prove.judge import Run
from builder.prove.receipts import Defect
from builder.prove.session import Session
from builder.prove.suite import Answer, Check

SECONDS = 60.0
"""How long a program may take to answer. One that begins to train is stopped then."""

FAILS = re.compile(
    r"(ModuleNotFoundError|ImportError|SyntaxError|No module named)\b.*"
    r"|\b(OSError|RuntimeError): .*(cannot open shared object file|undefined symbol|invalid ELF"
    r"|Could not load this library|version `\w+_[\d.]+' not found).*"
    r"|error while loading shared libraries: .*|symbol lookup error: .*|can't open file .*"
    r"|[Cc]annot open \S+: No such file.*"
)
"""What Python, the loader (ctypes raises OSError) and a shell say of what is missing."""
_NO_FILE = re.compile("can't open file|annot open")
NOT_EXECUTED = frozenset({126, 127})
"""Exit codes of a shell, and of an engine, for a command that cannot be executed."""
_USAGE = 2
_TRACEBACK = re.compile(rf'File "{APP}/[^"]+", line \d+, in ')


def run(session: Session) -> Answer:
    """Start the image with --help, and look for an import that failed."""
    run = session.start(["--help"], SECONDS, steps=1)
    seen: dict[str, Any] = {"exit_code": run.exit_code, "seconds": round(run.seconds, 1)}
    last = next((line for line in reversed(run.tail) if FAILS.search(line)), "")
    said = run.exit_code not in (0, _USAGE) or _NO_FILE.search(last)
    if run.exit_code and said and last and not run.timed_out:
        message = f"the program does not start: {last.strip()[:200]}"
        fix = "mend the import, or add it to requirements.txt"
        return [Defect(message, fix)], seen
    if run.exit_code not in (0, _USAGE) and not run.timed_out and not _reached(run):
        what = "cannot be executed" if run.exit_code in NOT_EXECUTED else "ends before it says why"
        message = f"the program {what}: exit code {run.exit_code}; it said last: {run.last}"
        fix = "let it start with --help, or print a traceback of what it lacks"
        return [Defect(message, fix)], seen
    seen["answered"] = "--help" if run.exit_code == 0 and not run.timed_out else "started"
    return [], seen


def _reached(run: Run) -> bool:
    """Tell whether a function or a module of the program's own ran into what ended it."""
    return any(_TRACEBACK.search(line) for line in run.tail)


CHECK = Check("starts", 3, run)
