"""Jobs on the terminal: lines with their replica's name and colour, and tables of results."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from builder import contract
from builder.core.display import plain
from builder.jobs.running import Outcome

if TYPE_CHECKING:
    from rich.table import Table

    from builder.jobs.backends.local.study import StudyOutcome

COLOURS = ("cyan", "green", "magenta", "yellow", "blue", "bright_cyan", "bright_green")
_STYLES = {"succeeded": "green", "failed": "red"}
_SEVERITIES = {"WARNING": "yellow", "ERROR": "bold red", "CRITICAL": "bold red", "DEBUG": "dim"}


def writer(names: Sequence[str]) -> Callable[[str, str, str], None]:
    """Return a function that writes a line of a replica to stderr: its name, a mark, its text.

    A line of JSON is its message, in the colour of its severity. The mark is `*` for a line of the
    runner itself.
    """
    from rich.console import Console
    from rich.text import Text

    console = Console(stderr=True, highlight=False)
    colour_of = {name: COLOURS[index % len(COLOURS)] for index, name in enumerate(names)}
    width = max(len(name) for name in (*names, "job"))

    def write(name: str, mark: str, line: str) -> None:
        colour = colour_of.get(name, "bold")
        severity = str(contract.fields(line).get("severity", ""))
        style = "bold" if mark == "*" else _SEVERITIES.get(severity, "")
        text = Text(f"{name or 'job':<{width}} {mark} ", style=colour)
        console.print(text.append(plain(contract.words(line)), style=style), soft_wrap=True)

    return write


def summary(outcome: Outcome) -> Table:
    """Return a table with a row for each replica: state, exit code, restarts, seconds."""
    table = _table(("replica", "state", "exit code", "restarts", "seconds"))
    for replica in outcome.replicas:
        table.add_row(
            replica.name,
            replica.state,
            "" if replica.exit_code is None else str(replica.exit_code),
            str(replica.restarts),
            f"{replica.seconds:.1f}",
            style=_STYLES.get(replica.state, ""),
        )
    return table


def study_table(outcome: StudyOutcome) -> Table:
    """Return a table with a row for each trial; the best is marked."""
    names = list(dict.fromkeys(name for trial in outcome.trials for name in trial.parameters))
    table = _table(("trial", "state", *names, outcome.metric, "seconds"))
    for trial in outcome.trials:
        best = trial.number == outcome.best
        table.add_row(
            f"{trial.number}{' *' if best else ''}",
            trial.state,
            *(trial.parameters.get(name, "")[:12] for name in names),
            "" if trial.value is None else f"{trial.value:.6g}",
            f"{trial.seconds:.1f}",
            style="bold green" if best else "red" if trial.state == "failed" else "",
        )
    return table


def _table(columns: Sequence[str]) -> Table:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in columns:
        table.add_column(name, justify="left" if name in ("replica", "state") else "right")
    return table
