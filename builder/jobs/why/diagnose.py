"""From what is known of a run to its ending: a pure function.

The rule where several endings have their lines:

1. What the run outlived is no ending: a line after which the same replica went on training.
2. A cause wins over an ending that says little (`general`), and that over a consequence.
3. An ending wins over its own trace (`over` in the table).
4. In one replica the last cause counts; of several replicas, the one that had its cause first.
5. Warnings are an ending only where nothing else is, not even an exception that is in no table.

What is in no table is said to be unknown, with the program's last words.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from builder import contract
from builder.jobs.backends.protocol import SERVICE
from builder.jobs.why import table as known
from builder.jobs.why.table import Again, Ending, Match, Table
from builder.jobs.why.text import excerpt

State = Literal["unknown", "waiting", "running", "succeeded", "failed", "cancelled"]
Certainty = Literal["certain", "likely", "unknown"]

WHOLE = (SERVICE, "")
"""Names under which not a replica speaks, but what runs the job."""
OUTLIVED = 3
"""Signs of progress after a line that show that the run outlived it."""

_PROGRESS = re.compile(
    r"\bepoch[ :=\[]*\d+|\bsteps?[ :=]+\d+|global_step/sec|examples/sec|\d+/\d+ \[|\bit/s\]|s/it\]"
    r"|\bloss['\"]?[ :=]+\d",
    re.IGNORECASE,
)
_TRAINED = (contract.STEP, contract.CHECKPOINT, contract.EVALUATED)
_DONE = re.compile(r"\bjob completed successfully\b|\bjob_state_succeeded\b", re.IGNORECASE)
_TRAINED_WELL = re.compile(
    r"\btraining (?:is |has )?(?:done|finished|completed?)(?: successfully)?[.!]*\s*$"
    r"|\b(?:finished|done|completed) training[.!]*\s*$",
    re.IGNORECASE,
)
_LAST = 4
"""Lines at the end of a log in which a program's own words for a good end count."""
_EXCEPTION = re.compile(
    r"(?:^|[\s\]|:>])(?:[a-z_]\w*\.)*([A-Z_]\w*(?:Error|Exception|Interrupt|Exit))"
    r"(?: \([^)]*\))?:(?=\s|$)"
)
_COMPLAINT = re.compile(r"\b(?:error|fatal|failed|exception|abort\w*|panic)\b", re.IGNORECASE)
_SAYS_OF_SIGNAL = 128


@dataclass(frozen=True)
class Said:
    """One line. where: its file and number, or its time. event: of our trainer's lines."""

    text: str
    where: str
    replica: str = ""
    event: str = ""


@dataclass(frozen=True)
class JobLog:
    """What is known of a job. lines: in the order in which they were said.

    exit_code: the job's, None where it is not known. out_of_memory: where the engine told that a
    container was ended for its memory. ours: the program is our trainer.
    """

    name: str
    lines: tuple[Said, ...]
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
    notes: tuple[str, ...] = field(default=())


def diagnose(run: JobLog, table: Table | None = None) -> Diagnosis:
    """Why this run ended, by the rule above."""
    table = table or known.load()
    matches = table.find([one.text for one in run.lines])
    live = _live(run, matches)
    fatal = [one for one in live if not one.warning]
    found = _of_state(run, fatal) or _of_lines(run, fatal, table)
    if found is None and not run.exit_code:
        found = _done(run, fatal)
    if found is None:
        found = _of_code(run, table) or _of_warnings(run, live, table) or _unknown(run, table)
    return replace(found, seen=_seen(run, matches, found.ending), notes=run.notes)


# --- what the place says --------------------------------------------------------------------------


def _of_state(run: JobLog, fatal: Sequence[Match]) -> Diagnosis | None:
    """Of a run that did not fail; None for one that did, or of which that is not known."""
    if run.state == "succeeded" or (run.state == "unknown" and run.exit_code == 0):
        return Diagnosis("ended-well", "certain", "The job ended well.", "Nothing.", "yes")
    if run.state == "cancelled":
        return Diagnosis(
            "cancelled",
            "certain",
            "Somebody ended the job.",
            "Run it again; a run that writes checkpoints goes on from its last one.",
            "yes",
        )
    if run.state == "running":
        return Diagnosis(
            "running", "certain", "The job runs. It has not ended.", "Wait for its end.", "unknown"
        )
    if run.state == "waiting":
        return Diagnosis(
            "waiting",
            "certain",
            "The job waits for machines or quota. It has not started.",
            "Wait, or look at what the lines below name.",
            "unknown",
            tuple(_evidence(run, one) for one in fatal[-1:]),
        )
    return None


def _done(run: JobLog, fatal: Sequence[Match]) -> Diagnosis | None:
    """The log's own word that the job is done, where no line after it speaks against that."""
    for index in range(len(run.lines) - 1, -1, -1):
        line = run.lines[index]
        own = index >= len(run.lines) - _LAST and _TRAINED_WELL.search(line.text)
        if line.event == "done" or _DONE.search(line.text) or own:
            if any(one.index > index for one in fatal):
                return None
            where = Evidence(excerpt(line.text, 0), line.where)
            return Diagnosis(
                "ended-well", "certain", "The job ended well.", "Nothing.", "yes", (where,)
            )
        if _EXCEPTION.search(line.text):
            return None
    return None


# --- what the lines say ---------------------------------------------------------------------------


def _live(run: JobLog, matches: Sequence[Match]) -> list[Match]:
    """Without those after which their replica went on training; of the service's lines: any."""
    fatal = {one.index for one in matches if not one.warning}
    signs: dict[str, list[int]] = {}
    for index, line in enumerate(run.lines):
        trained = line.event in _TRAINED or (not line.event and _PROGRESS.search(line.text))
        if trained and index not in fatal and line.replica != SERVICE:
            signs.setdefault(line.replica, []).append(index)
    anyone = sorted(index for indices in signs.values() for index in indices)

    def outlived(one: Match) -> bool:
        speaker = run.lines[one.index].replica
        after = anyone if speaker in WHOLE else signs.get(speaker, [])
        return len(after) - bisect_right(after, one.index) >= OUTLIVED

    return [one for one in matches if not outlived(one)]


def _of_lines(run: JobLog, fatal: Sequence[Match], table: Table) -> Diagnosis | None:
    if run.out_of_memory:
        ending = table.named("host-memory")
        found = [one for one in fatal if one.ending.name == ending.name]
        told = Evidence(f"{run.out_of_memory} ran out of memory", "what the engine told")
        return _diagnosis(ending, "certain", (told, *(_evidence(run, one) for one in found[:1])))
    for level in ("cause", "general", "consequence"):
        chosen = _chosen(run, [one for one in fatal if one.ending.level == level], fatal)
        if chosen is None:
            continue
        if level == "consequence":
            hard = _of_code(run, table, hard=True)
            if hard is not None:
                return hard
            if (own := _own_exception(run, chosen, fatal, table)) is not None:
                return _unknown(run, table, own)
        return _diagnosis(chosen.ending, "certain", _lines_of(run, chosen, fatal))
    return None


def _chosen(run: JobLog, level: Sequence[Match], fatal: Sequence[Match]) -> Match | None:
    """Of one level: the last of a replica, and of several replicas the first."""
    beaten = {name for one in fatal for name in one.ending.over}
    left = [one for one in level if one.ending.name not in beaten] or list(level)
    last: dict[str, Match] = {}
    for one in left:
        last[run.lines[one.index].replica] = one
    replicas = [one for name, one in last.items() if name not in WHOLE]
    return min(replicas or last.values(), key=lambda one: one.index, default=None)


def _lines_of(run: JobLog, chosen: Match, fatal: Sequence[Match]) -> tuple[Evidence, ...]:
    """The first line of that ending in its replica, and the exit code."""
    replica = run.lines[chosen.index].replica
    first = next(
        one
        for one in fatal
        if one.ending == chosen.ending and run.lines[one.index].replica == replica
    )
    return (_evidence(run, first), *_code(run))


def _own_exception(run: JobLog, chosen: Match, fatal: Sequence[Match], table: Table) -> int | None:
    """The line of an exception that no ending explains and that may have caused this consequence:
    another replica's, or this replica's own after it."""
    explained = {one.index for one in fatal}
    replica = run.lines[chosen.index].replica
    for index in _exceptions(run, table):
        if index not in explained and (run.lines[index].replica != replica or index > chosen.index):
            return index
    return None


def _exceptions(run: JobLog, table: Table) -> list[int]:
    """The lines with an exception, without those that only pass on that a process ended."""
    return [
        index
        for index, line in enumerate(run.lines)
        if (found := _EXCEPTION.search(line.text)) and found[1] not in table.wrappers
    ]


# --- where no line is fatal -----------------------------------------------------------------------


def _of_code(run: JobLog, table: Table, hard: bool = False) -> Diagnosis | None:
    """What the exit code suggests. hard: only where it tells of a signal other than a stop."""
    code = run.exit_code
    if code is None or (ending := table.of_code(code, run.ours)) is None:
        return None
    if hard and (code <= _SAYS_OF_SIGNAL or ending.name == "stopped"):
        return None
    by_contract = run.ours and code in ending.trainer_codes
    return _diagnosis(
        ending, "certain" if by_contract else "likely", (*_code(run), *_last_words(run, table))
    )


def _of_warnings(run: JobLog, live: Sequence[Match], table: Table) -> Diagnosis | None:
    warnings = [one for one in live if one.warning]
    if not warnings or _exceptions(run, table):
        return None
    beaten = {name for one in warnings for name in one.ending.over}
    first = next(one for one in warnings if one.ending.name not in beaten)
    return _diagnosis(first.ending, "likely", (_evidence(run, first), *_code(run)))


def _unknown(run: JobLog, table: Table, index: int | None = None) -> Diagnosis:
    words = _last_words(run, table) if index is None else (_of_line(run, index),)
    do = "Read the lines before this one. Add a common cause to builder/jobs/why/endings.yaml."
    if not run.lines:
        happened = "Why it ended is not known: its log holds no lines."
        do = "Find out whether the program was started: look at its image and its command."
    elif run.exit_code:
        happened = "The job failed. Why is not known: no line is in the table of known endings."
    else:
        happened = "Why it ended is not known: no line is in the table of known endings."
    return Diagnosis("unknown", "unknown", happened, do, "unknown", (*_code(run), *words))


def _last_words(run: JobLog, table: Table) -> tuple[Evidence, ...]:
    """The line that says most about the end: our trainer's error, the last exception, the last
    complaint, the last line."""
    errors = [index for index, line in enumerate(run.lines) if line.event == "error"]
    choices = (
        errors,
        _exceptions(run, table),
        [i for i, line in enumerate(run.lines) if not line.event and _COMPLAINT.search(line.text)],
        range(len(run.lines)),
    )
    return next(((_of_line(run, indices[-1]),) for indices in choices if indices), ())


# --- pieces ---------------------------------------------------------------------------------------


def _diagnosis(ending: Ending, certainty: Certainty, evidence: tuple[Evidence, ...]) -> Diagnosis:
    return Diagnosis(
        ending.name,
        certainty,
        ending.happened,
        ending.do,
        ending.again,
        evidence,
        source=ending.source,
    )


def _evidence(run: JobLog, match: Match) -> Evidence:
    line = run.lines[match.index]
    return Evidence(excerpt(line.text, match.column), line.where)


def _of_line(run: JobLog, index: int) -> Evidence:
    return Evidence(excerpt(run.lines[index].text, 0), run.lines[index].where)


def _code(run: JobLog) -> tuple[Evidence, ...]:
    return (Evidence(f"exit code {run.exit_code}", "what the job left"),) if run.exit_code else ()


def _seen(run: JobLog, matches: Sequence[Match], ending: str) -> tuple[Seen, ...]:
    """One line of each other ending that the log speaks of, outlived or not."""
    others: Mapping[str, Match] = {
        one.ending.name: one for one in reversed(matches) if one.ending.name != ending
    }
    return tuple(
        Seen(name, _evidence(run, one))
        for name, one in sorted(others.items(), key=lambda item: item[1].index)
    )
