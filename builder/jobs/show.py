"""Jobs on the terminal: lines with their replica's name and colour, and tables of results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from builder import contract
from builder.core.display import plain
from builder.jobs.running import JobEvent, Note, Outcome, ReplicaLine

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text

    from builder.jobs.backends.local.study import StudyOutcome

COLOURS = ("cyan", "green", "magenta", "yellow", "blue", "bright_cyan", "bright_green")
_SEVERITIES = {"WARNING": "yellow", "ERROR": "bold red", "CRITICAL": "bold red", "DEBUG": "dim"}


def message(line: str) -> tuple[str, str]:
    """Severity and text of a line, read as Cloud Logging does: one JSON object, or plain text."""
    found = contract.fields(line)
    if "message" in found:
        return str(found.get("severity", "INFO")), str(found["message"])
    return "", line


def event_text(event: JobEvent, colours: Mapping[str, str], width: int) -> Text:
    """`worker-0 | step 10 of 200: loss 0.1`, in the replica's colour."""
    from rich.text import Text

    colour = colours.get(event.replica, "bold")
    text = Text(f"{event.replica or 'job':<{width}} ", style=colour)
    match event:
        case Note(_, words):
            text.append(f"* {words}", style="bold")
        case ReplicaLine(_, words):
            severity, words = message(words)
            text.append("| ", style=colour)
            text.append(plain(words), style=_SEVERITIES.get(severity, "" if severity else "dim"))
    return text


def colours(names: Sequence[str]) -> dict[str, str]:
    """A colour for each replica."""
    return {name: COLOURS[index % len(COLOURS)] for index, name in enumerate(names)}


def summary(outcome: Outcome) -> Table:
    """A row for each replica: state, exit code, restarts, seconds."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("replica", "state", "exit code", "restarts", "seconds"):
        table.add_column(name, justify="left" if name in ("replica", "state") else "right")
    for one in outcome.replicas:
        code = "" if one.exit_code is None else str(one.exit_code)
        style = {"succeeded": "green", "failed": "red"}.get(one.state, "")
        table.add_row(
            one.name,
            f"[{style}]{one.state}[/]" if style else one.state,
            code,
            str(one.restarts),
            f"{one.seconds:.1f}",
        )
    return table


def study_table(outcome: StudyOutcome) -> Table:
    """A row for each trial; the best one is marked."""
    from rich.table import Table

    from builder.jobs.backends.local.study import shown

    table = Table(box=None, pad_edge=False, header_style="bold")
    names = list(dict.fromkeys(name for one in outcome.trials for name in one.parameters))
    for name in ("trial", "state", *names, outcome.metric, "seconds"):
        table.add_column(name, justify="left" if name == "state" else "right")
    for one in outcome.trials:
        chosen = one.number == outcome.best
        values = [shown(one.parameters.get(name)) for name in names]
        table.add_row(
            f"{one.number}{' *' if chosen else ''}",
            one.state,
            *(value[:12] for value in values),
            "" if one.value is None else f"{one.value:.6g}",
            f"{one.seconds:.1f}",
            style="bold green" if chosen else "red" if one.state == "failed" else "",
        )
    return table
