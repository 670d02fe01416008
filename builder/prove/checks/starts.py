"""Does the program run? For a program that is not our trainer.

With `smoke` of image.yaml the image is started with these arguments, and has to end with 0. Else it
is started with --help. A program may know no --help, and may need data to do anything. So another
exit code is no defect where a function of the program's own failed by what it lacks; `ended` then
says how. What fails while its modules load, or by an error of the code itself, is a defect.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from builder.image.plan import APP
from builder.prove.judge import Run, explain
from builder.prove.receipts import Defect
from builder.prove.session import Session
from builder.prove.suite import Answer, Check

SECONDS: Final = 60.0
"""How long a program may take to answer. One that begins to train is stopped then."""

NOT_EXECUTED: Final = frozenset({126, 127})
"""Exit codes of a shell, and of an engine, for a command that cannot be executed."""

_OF_CODE: Final = re.compile(
    r"(Name|UnboundLocal|Attribute|Type|Indentation|Tab|NotImplemented|Recursion)Error\b"
)
"""The exceptions that tell of the code, and not of what it was given."""
FAILS: Final = re.compile(
    r"(ModuleNotFoundError|ImportError|SyntaxError|No module named)\b.*"
    r"|\b(OSError|RuntimeError): .*(cannot open shared object file|undefined symbol|invalid ELF"
    r"|Could not load this library|version `\w+_[\d.]+' not found).*"
    r"|error while loading shared libraries: .*|symbol lookup error: .*"
    r"|^\S*(python|pypy)[\d.]*: can't open file .*"
    r"|^\S*\bsh: (\d+: )?(can't|[Cc]annot) open .*"
)
"""What Python, the loader (ctypes raises OSError) and a shell say of what is missing."""
_USAGE: Final = re.compile(r"usage:|--help", re.IGNORECASE)
_BEGINS: Final = "Traceback (most recent call last)"
_FRAME: Final = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+)(?:, in (?P<function>.+))?')
_RANK: Final = re.compile(r"^\[\w+\]: ?")
"""What torchrun puts before each line of a process."""


@dataclass(frozen=True)
class Traceback:
    """How a Python program failed: the exception's line, and the program's own code that it went
    through last ("" for none), as file:line, and whether that is at the level of a module."""

    raised: str = ""
    own: str = ""
    loading: bool = False


def run(session: Session) -> Answer:
    """Start the image with `smoke` or --help, and tell an error of the code from lacking data."""
    if arguments := session.subject.spec.smoke:
        run = session.start(arguments, session.limits.training_seconds)
        failed = run.exit_code != 0 or run.timed_out
        seen = {**_seen(run), "answered": " ".join(arguments)}
        return ([explain(run, f"the run with {seen['answered']}")] if failed else []), seen
    run = session.start(["--help"], SECONDS, steps=1)
    if run.exit_code == 0 or run.timed_out:
        return [], {**_seen(run), "answered": "started" if run.timed_out else "--help"}
    traceback = last_traceback(run.tail)
    defect = _defect(run, traceback)
    ended = f"ended with {run.exit_code}: {(traceback.raised or run.last)[:200]}"
    return [defect] if defect else [], {**_seen(run), "answered": "started", "ended": ended}


def _seen(run: Run) -> dict[str, Any]:
    return {"exit_code": run.exit_code, "seconds": round(run.seconds, 1)}


def _defect(run: Run, traceback: Traceback) -> Defect | None:
    where = f" ({traceback.own})" if traceback.own else ""
    if FAILS.search(traceback.raised):
        message = f"the program does not start: {traceback.raised[:200]}{where}"
        return Defect(message, "mend it, or add what it imports to requirements.txt")
    if traceback.loading or _OF_CODE.search(traceback.raised.partition(":")[0]):
        when = " while its modules load" if traceback.loading else ""
        return Defect(
            f"the program fails{when}: {traceback.raised[:200]}{where}",
            "mend it: what needs data, a GPU or the network belongs into a function; or name a run "
            "that needs none of them in image.yaml, `smoke: [arguments]`",
        )
    if traceback.own or (run.exit_code not in NOT_EXECUTED and any(map(_USAGE.search, run.tail))):
        return None
    what = "cannot be executed" if run.exit_code in NOT_EXECUTED else "ends before it says why"
    return Defect(
        f"the program {what}: exit code {run.exit_code}; it said last: {run.last}",
        "let it start with --help, or print a traceback of what it lacks",
    )


def last_traceback(tail: Sequence[str]) -> Traceback:
    """Return what the last traceback of a program's lines says, also where its begin is cut off."""
    lines = [_RANK.sub("", line) for line in tail]
    begin = max((at for at, line in enumerate(lines) if _BEGINS in line), default=0)
    frames = [(at, match) for at in range(begin, len(lines)) if (match := _FRAME.search(lines[at]))]
    if not frames:  # python: No module named train
        return Traceback(next((line for line in reversed(lines) if FAILS.search(line)), ""))
    after = (line for line in lines[frames[-1][0] + 1 :] if line.strip() and line[0] not in " |+")
    own = [match for _, match in frames if match["file"].startswith(f"{APP}/")]
    if not own:
        return Traceback(next(after, ""))
    file = own[-1]["file"].removeprefix(f"{APP}/")
    loading = own[-1]["function"] in (None, "<module>")
    return Traceback(next(after, ""), f"{file}:{own[-1]['line']}", loading)


CHECK = Check("starts", 3, run)
