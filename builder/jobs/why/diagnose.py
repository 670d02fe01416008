"""From what is known of a run to its ending: a pure function.

The rule where several endings have their lines:

1. What the run outlived is no ending: a line after which the same replica went on training, and of
   what comes before a program a line after which it started.
2. An ending wins over its own trace (`over` in the table).
3. What holds up a job that has not ended is its ending, unless it may come by itself.
4. A cause wins over an ending that says little (`general`), and that over a consequence.
5. Of several causes, the first in time counts.
6. A timeout of a program that fell back to the CPU has that as its cause.
7. Where no line has the words of an ending, or only of a worse one, the kind of the error counts
   (`kind` in the table).
8. Warnings are an ending only where nothing else is, not even an exception that is in no table.

What is in no table is unknown, and shown with the first and the last error that is no trace of
another, and the program's own line.
"""

from __future__ import annotations

import re
from collections import defaultdict, deque
from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import islice, takewhile
from textwrap import wrap
from typing import Any, Literal

from builder import contract
from builder.jobs.backends.protocol import ACTIVE, SERVICE
from builder.jobs.why import table
from builder.jobs.why.logs import JobLog, Line, excerpt
from builder.jobs.why.table import LEVELS, Again, Ending, Match

Certainty = Literal["certain", "likely", "unknown"]

FAILED = ("failed", "expired", "lost")
"""The states of a job that failed. Those of one that did not have an ending in the table."""
OUTLIVED = 3
"""Signs of progress after a line that show that the run outlived it."""
LAST = 4
"""Lines at the end of a log in which a program's own words for a good end count, and weak words of
a complaint."""
SAID = 1000
"""Characters of an error that tell its kind."""

_PROGRESS = re.compile(
    r"\bepoch[ :=\[]*\d+|\bsteps?[ :=]+\d+|global_step/sec|examples/sec|\d+/\d+ \[|\bit/s\]|s/it\]"
    r"|(?:\b|_)loss['\"]?[ :=]+\d",
    re.IGNORECASE,
)
_FINITE = re.compile(r"\bloss['\"]?[ :=]+\d")
"""A loss that is a number again takes back that it was none."""
_TRAINED = (contract.STEP, contract.CHECKPOINT, contract.EVALUATED)
_STARTED = re.compile(
    r"\bstarted\b.*\bcontainer\b|\btriggered\s?scale-?up\b|\bsuccessfully assigned\b"
    r"|\bsuccessfully pulled image\b|\badmitted by clusterqueue\b",
    re.IGNORECASE,
)
"""What a cluster says when what a job waited for has come."""
_HOW_LONG = r"(?: (?:in|after):? \d[\w:., ]*?)?(?: successfully)?[.!]*\s*$"
_DONE = re.compile(
    r"\bjob completed successfully\b|\bjob_state_succeeded\b|`Trainer.fit` stopped: "
    rf"|\btraining (?:is |has )?(?:done|finished|completed?)(?: successfully)?{_HOW_LONG}"
    rf"|\b(?:finished|done|completed) training{_HOW_LONG}"
    r"|^(?:total )?training (?:took|time):? \d[\w:., ]*$"
    r"|'train_runtime':|\bloss for final step\b"
    r"|\bassets written to\b|\bepochs completed in\b|\boptimizer stripped from\b",
    re.IGNORECASE,
)
"""What programs print when they are done."""
_SAVED = re.compile(r"\bmodel saved\b|\bsaved model\b", re.IGNORECASE)
"""What they print then too, and after each epoch."""
_EXCEPTION = re.compile(
    r"(?:^|[\s\]|:>])(?:[a-z_]\w*\.)*[A-Z_]\w*(?:Error|Exception)(?: \([^)]*\))?:(?=\s|$)"
    r"|^(?:[a-z_]\w*\.)+[A-Z]\w*(?::\s|$)|^[A-Z]\w*(?:Error|Exception)$|\bCheck failed: "
)
_COMPLAINT = re.compile(
    r"\b(?:error|fatal|fail(?:ed\w*|s|ing|ure)?|exception|abort\w*|panic|denied|forbidden|killed"
    r"|unexpectedly|refused|rejected|evict\w*|preempted|reclaimed|timed out|exhausted|terminated"
    r"|interrupted|nan|unhealthy|unschedulable|overflow|out of|violates|unmet|insufficient"
    r"|exceed\w*|conflict"
    r"|(?:cuda_error|invalid_argument|permission_denied|resource_exhausted|deadline_exceeded)\w*"
    r"|(?P<weak>cannot|can't|unable|could ?n[o']t|not found|unavailable|invalid|unsupported"
    r"|not (?:supported|compatible|available|match)|unrecogni[sz]ed|corrupt\w*|mismatch"
    r"|incompatible|missing|no such|illegal|died|crash\w*|lost))\b",
    re.IGNORECASE,
)
"""The weak words also tell what a program tries and does without. They count in the last lines,
where no training follows."""
_MILD = re.compile(
    r"\b(?:(?-i:WARN|INFO|DEBUG)|(?<=\[)(?:warn|info|debug)|(?<!\.)retry\w*|error caught was"
    r"|going|falling back|defaulting|re-?download\w*|continuing|proceeding|will proceed"
    r"|skipp(?:ing|ed)(?! step)|ignoring|newly initialized|can yield|in (?:a|the) (?:future|long)"
    r")\b"
    r"|level=(?:warn|info|debug)|warning:|deprecat|\.warn(?:ing)?\(|^caused by: \["
    r"|^[\d:. -]*[wi] |^[wi]\d{4} |\[[wi] |(?-i: [WI] )\d"
    r"|\bwarning\b(?!\s{2,}(?-i:Failed|BackOff|Unexpected))"
    r"|\bfrom (?:scratch|step 0)\b|^(?:mkdir|rm|tee): |\[\w+ @ 0x",
    re.IGNORECASE,
)
"""What a program writes on lines that it survives."""
_FOLLOWS = re.compile(
    r"\bCaught \w+ in (?:DataLoader|replica)|^\s*_queue\.Empty"
    r"|\b(?:ChildFailed|CalledProcess|ExecuteUserScript|Algorithm)Error\b"
    r"|\bexit(?:ed with |_?)code *[:=]? *1\b|non-zero (?:exit )?(?:status|code)",
    re.IGNORECASE,
)
"""What only tells that something failed before."""
_FRAME = re.compile(r'^\s*File "(?P<file>[^"]+)", line \d+')
_LIBRARY = re.compile(r"(?:site|dist)-packages|/lib(?:64)?/python\d|^<")
_MISTAKE = re.compile(
    r"\b(?:Value|Key|Type|Attribute|Index|Assertion|Name|Import|ModuleNotFound|ZeroDivision)Error\b"
)
"""Exceptions that the same program meets again with the same input."""


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
    ending: str
    """Its name in the table, or "unknown"."""
    certainty: Certainty
    """An answer is certain where the job is known to have failed and a line tells the cause, and
    where the engine or our trainer's exit code tells it."""
    happened: str
    do: str
    again: Again = "unknown"
    evidence: tuple[Evidence, ...] = ()
    seen: tuple[Seen, ...] = ()
    """What else is worth a look."""
    source: str = ""
    notes: tuple[str, ...] = ()


def diagnose(run: JobLog) -> Diagnosis:
    matches = table.find([line.text for line in run.lines])
    live = _live(run, matches)
    fatal = [match for match in live if not match.warning]
    diagnosis = (
        _of_state(run, fatal)
        or _of_lines(run, fatal, [match for match in matches if match.slows])
        or _of_code(run)
        or _of_kinds(run)
        or _of_warnings(run, live)
        or _unknown(run)
    )
    return replace(diagnosis, seen=_seen(run, matches, diagnosis.ending), notes=run.notes)


def _of_state(run: JobLog, fatal: Sequence[Match]) -> Diagnosis | None:
    """Return the answer about a run that did not fail; None for one that did, or of which that is
    not known."""
    held = (match for match in fatal if run.lines[match.index].now)
    if run.state in ACTIVE and (first := _first(held)) and first.ending.again != "later":
        return _diagnosis(first.ending, "certain", (_evidence(run, first),))
    if ending := table.of_state(run.state):
        evidence = _waits_for(run, fatal) if ending.name == "waiting" else ()
        return _diagnosis(ending, "certain", evidence)
    if run.state in FAILED or run.exit_code:
        return None
    if run.exit_code == 0:
        return _diagnosis(table.named("ended-well"), "certain", ())
    return _done_by_its_own_word(run, fatal)


def _waits_for(run: JobLog, fatal: Sequence[Match]) -> tuple[Evidence, ...]:
    """Return the line that says what holds a job up, also in words that no ending has."""
    if fatal:
        return (_evidence(run, fatal[-1]),)
    said = [index for index, line in enumerate(run.lines) if line.now]
    return tuple(_of_line(run, index) for index in said[-1:])


def _done_by_its_own_word(run: JobLog, fatal: Sequence[Match]) -> Diagnosis | None:
    """Return that a run ended well where its last lines say so, and none after that speaks against
    it."""
    after = max((match.index for match in fatal), default=-1)
    goes_on = False
    for index in range(len(run.lines) - 1, max(after, len(run.lines) - 1 - LAST), -1):
        line = run.lines[index]
        if _EXCEPTION.search(line.text) or (goes_on and _SAVED.search(line.text)):
            return None
        if line.event == "done" or _DONE.search(line.text) or _SAVED.search(line.text):
            return _diagnosis(table.named("ended-well"), "likely", (_of_line(run, index),))
        goes_on = goes_on or _trains(line)
    return None


def _live(run: JobLog, matches: Sequence[Match]) -> list[Match]:
    """Return the matches that their replica did not outlive; of the service's lines: anyone."""
    fatal = {match.index for match in matches if not match.warning}
    trained: dict[str, deque[int]] = defaultdict(lambda: deque(maxlen=OUTLIVED))
    for index, line in enumerate(run.lines):
        if index not in fatal and line.replica != SERVICE and _trains(line):
            trained[line.replica].append(index)
            trained[SERVICE].append(index)

    started = max((n for n, line in enumerate(run.lines) if _STARTED.search(line.text)), default=-1)

    finite = {line.replica: n for n, line in enumerate(run.lines) if _FINITE.search(line.text)}

    def outlived(match: Match) -> bool:
        where = run.lines[match.index].replica
        if match.ending.name == "nan-loss" and finite.get(where, -1) > match.index:
            return True
        last = trained[where]
        if match.ending.early and max(started, last[-1] if last else -1) > match.index:
            return True
        return len(last) == OUTLIVED and last[0] > match.index

    ignored = _ignored(run)
    return [match for match in matches if match.index not in ignored and not outlived(match)]


def _ignored(run: JobLog) -> set[int]:
    """Return the lines of exceptions that Python ignores: raised while it cleans up or logs."""
    begins = ("Exception ignored in", "--- Logging error")
    ignored, inside = set[int](), False
    for index, line in enumerate(run.lines):
        inside = inside or line.text.startswith(begins)
        if inside:
            ignored.add(index)
            inside = line.text.startswith((*begins, "Traceback", " "))
    return ignored


def _trains(line: Line) -> bool:
    return line.event in _TRAINED or (not line.event and bool(_PROGRESS.search(line.text)))


def _of_lines(run: JobLog, fatal: Sequence[Match], slow: Sequence[Match]) -> Diagnosis | None:
    if run.out_of_memory:
        ending = table.named("host-memory")
        lines = [_evidence(run, match) for match in fatal if match.ending == ending]
        engine = Evidence(f"{run.out_of_memory} ran out of memory", "what the engine says")
        return _diagnosis(ending, "certain", (engine, *lines[:1]))
    chosen = _first(fatal)
    if chosen is None:
        return None
    if chosen.ending.name == "timeout":
        chosen = _first([match for match in slow if match.index < chosen.index]) or chosen
    better, known = LEVELS[: LEVELS.index(chosen.ending.level)], {match.index for match in fatal}
    if better and (cause := _of_kind(run, _EXCEPTION, known, better)):
        return cause
    if chosen.ending.level == "consequence" and (by_code := _of_code(run, chosen.ending.level)):
        return by_code
    certainty: Certainty = "certain" if run.state in FAILED else "likely"
    return _diagnosis(chosen.ending, certainty, (_evidence(run, chosen), *_code(run)))


def _first(found: Iterable[Match]) -> Match | None:
    """Return the first match of the best level that is no other ending's trace."""
    matches = tuple(found)
    traces = {name for match in matches for name in match.ending.over}
    own = [match for match in matches if match.ending.name not in traces] or matches
    return min(own, key=lambda match: (LEVELS.index(match.ending.level), match.index), default=None)


def _of_code(run: JobLog, unless: str = "") -> Diagnosis | None:
    """Return what the exit code suggests, unless that is of this level."""
    ending = None if run.exit_code is None else table.of_code(run.exit_code, run.ours)
    if ending is None or ending.level == unless:
        return None
    certainty: Certainty = "certain" if run.exit_code in ending.trainer_codes else "likely"
    return _diagnosis(ending, certainty, (*_code(run), *_last_words(run)))


def _of_kinds(run: JobLog) -> Diagnosis | None:
    """Return what the errors say whose words no ending has: exceptions, then complaints."""
    return _of_kind(run, _EXCEPTION) or _of_kind(run, _COMPLAINT)


def _of_kind(
    run: JobLog,
    error: re.Pattern[str],
    known: Container[int] = (),
    levels: Sequence[str] = LEVELS,
) -> Diagnosis | None:
    """Return what the errors say, those of known words left out; None where no ending of these
    levels is told."""
    matches = [
        Match(ending, index, column)
        for index, column in _errors(run, error)
        if index not in known
        for ending in table.of_kind(_said(run, index, column if error is _EXCEPTION else 0))
        if ending.level in levels
    ]
    first = _first(_live(run, matches))
    if first is None:
        return None
    return _diagnosis(first.ending, "likely", (_evidence(run, first), *_code(run)))


def _errors(run: JobLog, error: re.Pattern[str]) -> list[tuple[int, int]]:
    """Return line and column of each error that is no trace of another and that is not survived; of
    those that differ only in numbers, the first and the last."""
    shapes = defaultdict[str, list[tuple[int, int]]](list)
    trained = [n for n, line in enumerate(run.lines) if _trains(line)][-1:]
    end = max(len(run.lines) - LAST, *trained, 0)
    for index, line in enumerate(run.lines):
        words = error.search(line.text)
        if words and words.groupdict().get("weak") and index < end:
            continue
        if words and not _MILD.search(line.text) and not _FOLLOWS.search(line.text):
            shapes[re.sub(r"\d+", "0", line.text)][1:] = [(index, words.start())]
    return sorted(found for every in shapes.values() for found in every)


def _said(run: JobLog, index: int, start: int) -> str:
    """Return the words of an error from a column on. Some exceptions go on in the next line; those
    that say little stand with the line that raised them: `KeyError: 'a' <- cfg['a']`."""
    words = run.lines[index].text[start:].strip()[:SAID]
    if words.endswith(("Error:", "Exception:")):
        return " ".join((words, *(line.text for line in run.lines[index + 1 : index + 2])))
    if index and re.match(r"KeyError: |AssertionError:?$", words):
        return f"{words} <- {run.lines[index - 1].text.strip()}"
    return words


def _of_warnings(run: JobLog, live: Sequence[Match]) -> Diagnosis | None:
    first = _first([match for match in live if match.warning and not match.slows])
    if first is None or any(_EXCEPTION.search(line.text) for line in run.lines):
        return None
    return _diagnosis(first.ending, "likely", (_evidence(run, first), *_code(run)))


def _unknown(run: JobLog) -> Diagnosis:
    do = "Read the lines before this one. Add a common cause to builder/jobs/why/endings.yaml."
    happened = "Why it ended is not known: no line is in the table of known endings."
    if not run.lines:
        happened = "Why it ended is not known: its log holds no lines."
        do = "Find out whether the program was started: look at its image and its command."
    elif run.exit_code:
        happened = "The job failed. Why is not known: no line is in the table of known endings."
    words = _last_words(run)
    again: Again = "no" if any(_MISTAKE.search(line.text) for line in words) else "unknown"
    return Diagnosis("unknown", "unknown", happened, do, again, (*_code(run), *words))


def _last_words(run: JobLog) -> tuple[Evidence, ...]:
    """Return the lines that say most about the end: our trainer's error; the first and the last
    exception that the run did not outlive, each with the line of the program; a complaint; the last
    line."""
    chosen = next(filter(None, _choices(run)), ())
    return tuple(line for index in chosen for line in _with_frame(run, index))


def _choices(run: JobLog) -> Iterator[Sequence[int]]:
    """Yield the lines that may say most, the best first; each choice reads the whole log."""
    lines = list(enumerate(run.lines))
    yield [index for index, line in lines if line.event == "error"][-1:]
    exceptions = [index for index, _ in _errors(run, _EXCEPTION)]
    yield _ends(_outliving(run, exceptions) or exceptions)
    yield _ends(_outliving(run, [index for index, _ in _errors(run, _COMPLAINT)]))
    yield [index for index, line in lines if not line.event and _COMPLAINT.search(line.text)][-1:]
    yield range(len(run.lines))[-1:]


def _ends(indices: Sequence[int]) -> list[int]:
    """Return the first and the last of these lines."""
    return sorted({*indices[:1], *indices[-1:]})


def _outliving(run: JobLog, indices: Iterable[int]) -> list[int]:
    """Return the lines of errors after which no training went on."""
    any_error = Ending("", "")
    return [match.index for match in _live(run, [Match(any_error, index, 0) for index in indices])]


# --- pieces ---------------------------------------------------------------------------------------


def _diagnosis(ending: Ending, certainty: Certainty, evidence: tuple[Evidence, ...]) -> Diagnosis:
    answer = (ending.happened, ending.do, ending.again)
    return Diagnosis(ending.name, certainty, *answer, evidence, source=ending.source)


def _with_frame(run: JobLog, index: int) -> Iterator[Evidence]:
    """Yield the line of an error, and before it the deepest line of the program's own code in the
    traceback that it ends."""
    traceback = takewhile(
        lambda line: line.text.startswith((" ", "\t")), reversed(run.lines[:index])
    )
    frames = ((_FRAME.match(line.text), line) for line in traceback)
    own = (line for frame, line in frames if frame and not _LIBRARY.search(frame["file"]))
    yield from (Evidence(excerpt(line.text, 0), line.where) for line in islice(own, 1))
    yield _of_line(run, index)


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


# --- the answer -----------------------------------------------------------------------------------

WIDTH = 96
MOST_SEEN = 5
_AGAIN = {
    "yes": "The same job may end well when it runs again.",
    "later": "The same job may end well later.",
    "no": "The same job ends the same way again.",
}


def as_text(name: str, diagnosis: Diagnosis) -> Iterator[str]:
    """Yield what happened, the lines that show it, what to do, and what else is in the log."""
    likely = "Probably: " if diagnosis.certainty == "likely" else ""
    yield f"{name}: {diagnosis.ending}"
    yield from wrap(likely + " ".join(diagnosis.happened.split()), WIDTH)
    for line in diagnosis.evidence:
        yield f"  {line.where}: {line.text}"
    if diagnosis.do:
        yield from wrap("To do: " + " ".join(diagnosis.do.split()), WIDTH)
    if diagnosis.again in _AGAIN and (diagnosis.source or diagnosis.ending == "unknown"):
        yield _AGAIN[diagnosis.again]
    if diagnosis.source:
        yield f"More: {diagnosis.source}"
    if diagnosis.seen:
        yield "Also in the log:"
        for other in diagnosis.seen[:MOST_SEEN]:
            yield f"  {other.ending}, {other.evidence.where}: {other.evidence.text}"
    for note in diagnosis.notes:
        yield f"note: {note}"


def as_json(name: str, diagnosis: Diagnosis) -> dict[str, Any]:
    """Return the same for machines. known: whether its ending is in the table."""
    return {"job": name, "known": diagnosis.ending != "unknown", **asdict(diagnosis)}
