"""From what is known of a run to its ending: a pure function.

The rule where several endings have their lines:

1. What the run outlived is no ending: a line after which the same replica went on training.
2. A cause wins over an ending that says little (`general`), and that over a consequence.
3. An ending wins over its own trace (`over` in the table).
4. In one replica the last cause counts; of several replicas, the one that had its cause first.
5. Warnings are an ending only where nothing else is, not even an exception that is in no table.

An ending is certain where its line ends its replica and something says that the replica did end (an
error, a signal, the job's state), or where the engine or our trainer's exit code says it. What is
in no table is unknown, and shown with the program's last words.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from builder import contract
from builder.jobs.backends.protocol import SERVICE
from builder.jobs.why import exits, table
from builder.jobs.why.table import Again, Ending, Match
from builder.jobs.why.text import excerpt

State = Literal["unknown", "waiting", "running", "succeeded", "failed", "cancelled"]
Certainty = Literal["certain", "likely", "unknown"]

WHOLE = (SERVICE, "")
"""Names under which not a replica speaks, but what runs the job."""
OUTLIVED = 3
"""Signs of progress after a line that show that the run outlived it."""
AFTER = 1
"""How many ordinary lines may follow the one that ends a process."""
LAST = 4
"""Lines at the end of a log in which a program's own words for a good end count."""
IGNORED = 30
"""The most lines of an exception that Python ignores."""

_PROGRESS = re.compile(
    r"\bepoch[ :=\[]*\d+|\bsteps?[ :=]+\d+|global_step/sec|examples/sec|\d+/\d+ \[|\bit/s\]|s/it\]"
    r"|\bloss['\"]?[ :=]+\d",
    re.IGNORECASE,
)
_TRAINED = (contract.STEP, contract.CHECKPOINT, contract.EVALUATED)
_DONE = re.compile(r"\bjob completed successfully\b|\bjob_state_succeeded\b", re.IGNORECASE)
_TRAINED_WELL = re.compile(
    r"\btraining (?:is |has )?(?:done|finished|completed?)(?: successfully)?[.!]*\s*$"
    r"|\b(?:finished|done|completed) training(?: in [\d.]+ \w+)?[.!]*\s*$"
    r"|`Trainer.fit` stopped: |'train_runtime':|\bloss for final step\b",
    re.IGNORECASE,
)
_SAVED = re.compile(
    r"\b(?:saved|wrote|written|exported)\b.{0,40}(?<!/)\b(?:model|weights)\b(?!/)"
    r"|(?<!/)\bmodel\b.{0,20}\b(?:saved|exported|written)\b|\bassets written to\b",
    re.IGNORECASE,
)
_EXCEPTION = re.compile(
    r"(?:^|[\s\]|:>])(?:[a-z_]\w*\.)*([A-Z_]\w*(?:Error|Exception|Interrupt|Exit))"
    r"(?: \([^)]*\))?:(?=\s|$)"
)
_COMPLAINT = re.compile(r"\b(?:error|fatal|failed|exception|abort\w*|panic)\b", re.IGNORECASE)
_TRACE = re.compile(
    r"^\s|^Traceback|^\S*File \"|\bStack trace\b|\b(?:frame )?#\d+|^[=\-*~^ ]+$|\bexit\w*\b"
    r"|core dumped|\bterminat|\bkill|\bsigterm\b|\bclosing\b|\bcleaning\b|^\d{4}-\S+ \S+ [EWF] ",
    re.IGNORECASE,
)
"""Lines that belong to the end of a process: its trace, what its launcher says of it."""
_END = re.compile(
    r"(?:error|exception|exhausted)\b|\b(?:fatal|failed|panic|traceback|aborted|killed|exited)\b"
    r"|exit ?code|core dumped|\bsig[a-z]{3,4}\b",
    re.IGNORECASE,
)
"""Words with which a process ends. A program goes on after a line that has none of them."""


@dataclass(frozen=True)
class Line:
    """One line. where: its file and number, or its time. event: of our trainer's lines."""

    text: str
    where: str
    replica: str = ""
    event: str = ""


@dataclass(frozen=True)
class JobLog:
    """What is known of a job. lines: in the order of their times.

    exit_code: the job's, None where it is not known. out_of_memory: the replica of which the engine
    says that it was ended for its memory. ours: the program is our trainer.
    """

    name: str
    lines: tuple[Line, ...]
    state: State = "unknown"
    exit_code: int | None = None
    out_of_memory: str = ""
    ours: bool = False
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Evidence:
    """A line that shows something, cut to be read, and where it stands."""

    text: str
    where: str


@dataclass(frozen=True)
class Seen:
    """Something else in the log: another ending's line, a warning."""

    ending: str
    evidence: Evidence


@dataclass(frozen=True)
class Diagnosis:
    """Why a job ended. ending: its name in the table, or one of "unknown", "ended-well",
    "cancelled", "running" and "waiting". seen: what else is worth a look."""

    ending: str
    certainty: Certainty
    happened: str
    do: str
    again: Again = "unknown"
    evidence: tuple[Evidence, ...] = ()
    seen: tuple[Seen, ...] = ()
    source: str = ""
    notes: tuple[str, ...] = ()


WELL = Diagnosis("ended-well", "certain", "The job ended well.", "Nothing.", "yes")
OF_STATE: Mapping[State, Diagnosis] = {
    "succeeded": WELL,
    "cancelled": Diagnosis(
        "cancelled",
        "certain",
        "Somebody ended the job.",
        "Run it again; a run that writes checkpoints goes on from its last one.",
        "yes",
    ),
    "running": Diagnosis(
        "running",
        "certain",
        "The job runs. It has not ended.",
        "Wait for its end. Where GPUs wait for each other, ask NCCL in the container of a replica "
        "who is missing: echo verbose status | nc localhost 28028 (NCCL 2.24 and later).",
    ),
    "waiting": Diagnosis(
        "waiting",
        "certain",
        "The job waits for machines or quota. It has not started.",
        "Wait, or look at what the lines below name.",
    ),
}
"""The answers about a job that did not fail."""


def diagnose(run: JobLog) -> Diagnosis:
    """Return why this run ended, by the rule above."""
    matches = table.load().find([line.text for line in run.lines])
    live = _live(run, matches)
    fatal = [match for match in live if not match.warning]
    diagnosis = _of_state(run, fatal)
    if diagnosis is None and not run.exit_code:
        diagnosis = _ended_well(run, fatal)
    diagnosis = diagnosis or _of_lines(run, fatal)
    if diagnosis is None:
        diagnosis = _of_code(run) or _of_warnings(run, live) or _unknown(run)
    seen = _seen(run, matches, diagnosis.ending)
    return replace(diagnosis, seen=seen, notes=run.notes)


# --- what the backend says ------------------------------------------------------------------------


def _of_state(run: JobLog, fatal: Sequence[Match]) -> Diagnosis | None:
    """Return the answer about a run that did not fail; None for one that did, or of which that is
    not known."""
    if run.state == "unknown" and run.exit_code == 0:
        return WELL
    if run.state == "waiting":
        last = tuple(_evidence(run, match) for match in fatal[-1:])
        return replace(OF_STATE["waiting"], evidence=last)
    return OF_STATE.get(run.state)


def _ended_well(run: JobLog, fatal: Sequence[Match]) -> Diagnosis | None:
    """Return the log's own word that the job is done, where no line after it speaks against it."""
    for index in range(len(run.lines) - 1, -1, -1):
        line, late = run.lines[index], index >= len(run.lines) - LAST
        sure = line.event == "done" or _DONE.search(line.text)
        if sure or (late and (_TRAINED_WELL.search(line.text) or _SAVED.search(line.text))):
            own = sure or _TRAINED_WELL.search(line.text)
            if any(match.index > index or not own for match in fatal):
                return None
            evidence = (_of_line(run, index),)
            return replace(WELL, certainty="certain" if own else "likely", evidence=evidence)
        if _EXCEPTION.search(line.text):
            return None
    return None


# --- what the lines say ---------------------------------------------------------------------------


def _live(run: JobLog, matches: Sequence[Match]) -> list[Match]:
    """Return the matches that their replica did not outlive; of the service's lines: anyone."""
    fatal = {match.index for match in matches if not match.warning}
    signs: dict[str, list[int]] = {}
    saved = []
    for index, line in enumerate(run.lines):
        if _trains(line) and index not in fatal and line.replica != SERVICE:
            signs.setdefault(line.replica, []).append(index)
        if index not in fatal and _SAVED.search(line.text):
            saved.append(index)
    anyone = sorted(index for indices in signs.values() for index in indices)

    def outlived(match: Match) -> bool:
        if match.warning and saved and saved[-1] > match.index:
            return True
        speaker = run.lines[match.index].replica
        after = anyone if speaker in WHOLE else signs.get(speaker, [])
        return len(after) - bisect_right(after, match.index) >= OUTLIVED

    ignored = _ignored(run)
    return [match for match in matches if match.index not in ignored and not outlived(match)]


def _trains(line: Line) -> bool:
    return line.event in _TRAINED or (not line.event and bool(_PROGRESS.search(line.text)))


def _ignored(run: JobLog) -> set[int]:
    """Return the lines of exceptions that Python itself ignores: raised while it cleans up."""
    ignored: set[int] = set()
    for index, line in enumerate(run.lines):
        if line.text.startswith("Exception ignored in"):
            for later in range(index, min(index + IGNORED, len(run.lines))):
                ignored.add(later)
                if _EXCEPTION.search(run.lines[later].text):
                    break
    return ignored


def _of_lines(run: JobLog, fatal: Sequence[Match]) -> Diagnosis | None:
    if run.out_of_memory:
        ending = table.load().named("host-memory")
        lines = [_evidence(run, match) for match in fatal if match.ending.name == ending.name]
        engine = Evidence(f"{run.out_of_memory} ran out of memory", "what the engine says")
        return _diagnosis(ending, "certain", (engine, *lines[:1]))
    for level in ("cause", "general", "consequence"):
        chosen = _chosen(run, [match for match in fatal if match.ending.level == level], fatal)
        if chosen is None:
            continue
        if level == "consequence":
            if (signalled := _of_code(run, signals_only=True)) is not None:
                return signalled
            if (own := _own_exception(run, chosen, fatal)) is not None:
                return _unknown(run, own)
        certainty: Certainty = "certain" if _ends(run, chosen, fatal) else "likely"
        return _diagnosis(chosen.ending, certainty, _lines_of(run, chosen, fatal))
    return None


def _chosen(run: JobLog, level: Sequence[Match], fatal: Sequence[Match]) -> Match | None:
    """Return of one level the last match of a replica, and of several replicas the first."""
    beaten = {name for match in fatal for name in match.ending.over}
    left = [match for match in level if match.ending.name not in beaten] or list(level)
    last = {run.lines[match.index].replica: match for match in left}
    replicas = [match for name, match in last.items() if name not in WHOLE]
    return min(replicas or last.values(), key=lambda match: match.index, default=None)


def _ends(run: JobLog, chosen: Match, fatal: Sequence[Match]) -> bool:
    """Tell whether its line ends its replica: that one did end, and only its trace, other endings'
    lines and a few words follow in it."""
    replica = run.lines[chosen.index].replica
    others = {match.index for match in fatal}
    later = [n for n in range(chosen.index, len(run.lines)) if run.lines[n].replica == replica]
    if not (run.state == "failed" or any(_END.search(run.lines[n].text) for n in later)):
        return False
    ordinary = 0
    for index in later:
        line = run.lines[index]
        if index in others:
            continue
        if _trains(line):
            return False
        complaint = _TRACE.search(line.text) or _COMPLAINT.search(line.text)
        ordinary += not (complaint or line.event == "error")
    return ordinary <= AFTER


def _lines_of(run: JobLog, chosen: Match, fatal: Sequence[Match]) -> tuple[Evidence, ...]:
    """Return the first line of that ending in its replica, and the exit code."""
    replica = run.lines[chosen.index].replica
    first = next(
        match
        for match in fatal
        if match.ending == chosen.ending and run.lines[match.index].replica == replica
    )
    return (_evidence(run, first), *_code(run))


def _own_exception(run: JobLog, chosen: Match, fatal: Sequence[Match]) -> int | None:
    """Return the line of an exception that no ending explains and that may have caused this
    consequence: another replica's, or this replica's own after it."""
    explained = {match.index for match in fatal}
    replica = run.lines[chosen.index].replica
    for index in _exceptions(run):
        if index not in explained and (run.lines[index].replica != replica or index > chosen.index):
            return index
    return None


def _exceptions(run: JobLog) -> list[int]:
    """Return the lines with an exception, without those that only pass on that a process ended."""
    ignored = _ignored(run)
    return [
        index
        for index, line in enumerate(run.lines)
        if index not in ignored
        and (name := _EXCEPTION.search(line.text))
        and name[1] not in table.load().wrappers
    ]


# --- where no line is fatal -----------------------------------------------------------------------


def _of_code(run: JobLog, signals_only: bool = False) -> Diagnosis | None:
    """Return what the exit code suggests. signals_only: of a signal other than a stop."""
    code = run.exit_code
    if code is None or (ending := table.load().of_code(code, run.ours)) is None:
        return None
    if signals_only and (code <= exits.SIGNALLED or ending.name == "stopped"):
        return None
    by_contract = run.ours and code in ending.trainer_codes
    return _diagnosis(
        ending, "certain" if by_contract else "likely", (*_code(run), *_last_words(run))
    )


def _of_warnings(run: JobLog, live: Sequence[Match]) -> Diagnosis | None:
    warnings = [match for match in live if match.warning]
    if not warnings or _exceptions(run):
        return None
    beaten = {name for match in warnings for name in match.ending.over}
    first = next(match for match in warnings if match.ending.name not in beaten)
    return _diagnosis(first.ending, "likely", (_evidence(run, first), *_code(run)))


def _unknown(run: JobLog, index: int | None = None) -> Diagnosis:
    words = _last_words(run) if index is None else (_of_line(run, index),)
    do = "Read the lines before this one. Add a common cause to builder/jobs/why/endings.yaml."
    happened = "Why it ended is not known: no line is in the table of known endings."
    if not run.lines:
        happened = "Why it ended is not known: its log holds no lines."
        do = "Find out whether the program was started: look at its image and its command."
    elif run.exit_code:
        happened = "The job failed. Why is not known: no line is in the table of known endings."
    return Diagnosis("unknown", "unknown", happened, do, "unknown", (*_code(run), *words))


def _last_words(run: JobLog) -> tuple[Evidence, ...]:
    """Return the line that says most about the end: our trainer's error, the last exception, the
    last complaint, the last line."""
    lines = list(enumerate(run.lines))
    choices = (
        [index for index, line in lines if line.event == "error"],
        _exceptions(run),
        [index for index, line in lines if not line.event and _COMPLAINT.search(line.text)],
        range(len(run.lines)),
    )
    return next(((_of_line(run, indices[-1]),) for indices in choices if indices), ())


# --- pieces ---------------------------------------------------------------------------------------


def _diagnosis(ending: Ending, certainty: Certainty, evidence: tuple[Evidence, ...]) -> Diagnosis:
    what = (ending.happened, ending.do, ending.again)
    return Diagnosis(ending.name, certainty, *what, evidence, source=ending.source)


def _evidence(run: JobLog, match: Match) -> Evidence:
    return _of_line(run, match.index, match.column)


def _of_line(run: JobLog, index: int, column: int = 0) -> Evidence:
    return Evidence(excerpt(run.lines[index].text, column), run.lines[index].where)


def _code(run: JobLog) -> tuple[Evidence, ...]:
    return (Evidence(f"exit code {run.exit_code}", "what the job left"),) if run.exit_code else ()


def _seen(run: JobLog, matches: Sequence[Match], ending: str) -> tuple[Seen, ...]:
    """Return one line of each other ending that the log speaks of, outlived or not."""
    others = {
        match.ending.name: match for match in reversed(matches) if match.ending.name != ending
    }
    ordered = sorted(others.items(), key=lambda item: item[1].index)
    return tuple(Seen(name, _evidence(run, match)) for name, match in ordered)
