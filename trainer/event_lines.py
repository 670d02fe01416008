"""The trainer's event lines: JSON objects on stdout, as Cloud Logging reads them, or text.

A JSON line has severity, message, event, and the fields of that event (step, loss, ...). On a
terminal, the lines about steps are one line that changes, with a bar and the time left; every other
event is a line of its own.
"""

import json
import math
import os
import sys
from typing import Any, NoReturn

OK, FAULT, USAGE, OUTSIDE, NOT_FINITE = 0, 1, 2, 3, 4
"""Exit codes, beside preemption.RESTART; docs/trainer.md has what they mean."""
_worker: int | None = None
_words = False
_bar = False
"""Whether the terminal shows a line about a step, which the next text has to overwrite."""


def speak_as(worker: int | None) -> None:
    """Put `worker` into each line from now on; None: there is only one."""
    global _worker
    _worker = worker


def speak_in(style: str) -> None:
    """Write lines as "json", "text", or "auto" from now on: text on a terminal, JSON elsewhere."""
    global _words
    _words = style == "text" or (style == "auto" and sys.stdout.isatty())


def line(event: str, message: str, severity: str = "INFO", **fields: Any) -> str:
    """Return one event as JSON."""
    if _worker is not None:
        fields["worker"] = _worker
    known = {"severity": severity, "message": message, "event": event}
    return json.dumps({**known, **finite(fields)})


def finite(value: Any) -> Any:
    """Return `value` in JSON's types: numbers that JSON lacks (NaN, inf) become text."""
    if isinstance(value, dict):
        return {key: finite(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [finite(entry) for entry in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def say(event: str, message: str, severity: str = "INFO", **fields: Any) -> None:
    """Print one event and flush it, since the process may end at any time."""
    global _bar
    if not _words:
        sys.stdout.write(line(event, message, severity, **fields) + "\n")
    elif event == "step" and sys.stdout.isatty():
        sys.stdout.write("\r\033[K" + progress(message, fields))
        _bar = True
    else:
        warning = "" if severity == "INFO" else f"{severity.lower()}: "
        words = progress(message, fields) if event == "step" else message
        sys.stdout.write(("\r\033[K" if _bar else "") + f"{warning}{words}\n")
        _bar = False
    sys.stdout.flush()


def leave(code: int, event: str, message: str, severity: str = "ERROR", **fields: Any) -> NoReturn:
    """Print one event as the last line, and end the process at once, without TensorFlow's shutdown,
    which waits for its threads."""
    hush()
    say(event, message, severity, **fields)
    os._exit(code)


def hush() -> None:
    """Let nothing more reach stderr: other threads, TensorFlow's own among them, still write while
    the process ends, and its last line has to say why."""
    sys.stderr.flush()
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)


def progress(message: str, fields: dict[str, Any], width: int = 20) -> str:
    """Return an event about a step as text: a bar, loss, speed, time left."""
    text = message
    step, steps = fields.get("step", 0), fields.get("steps", 0)
    if steps:
        done = int(width * step / steps)
        text = f"[{'#' * done}{'.' * (width - done)}] {text}"
    if "accuracy" in fields:
        text += f", accuracy {fields['accuracy']:.3f}"
    if "examples_per_second" in fields:
        text += f", {fields['examples_per_second']:,.0f} examples/s"
    if fields.get("eta_seconds"):
        minutes, seconds = divmod(round(fields["eta_seconds"]), 60)
        text += f", {minutes // 60}:{minutes % 60:02d}:{seconds:02d} left"
    return text
