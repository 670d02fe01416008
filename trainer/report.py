"""What the trainer says: one JSON object a line on stdout, as Cloud Logging reads it."""

import json
import math
import sys
from typing import Any

_worker: int | None = None


def speak_as(worker: int | None) -> None:
    """From now on put `worker` into each line; None where there is only one."""
    global _worker
    _worker = worker


def line(event: str, message: str, severity: str = "INFO", **fields: Any) -> str:
    """One log line. Numbers that JSON does not know (NaN, inf) become strings."""
    if _worker is not None:
        fields["worker"] = _worker
    fields = {
        key: str(value) if isinstance(value, float) and not math.isfinite(value) else value
        for key, value in fields.items()
    }
    return json.dumps({"severity": severity, "message": message, "event": event, **fields})


def say(event: str, message: str, severity: str = "INFO", **fields: Any) -> None:
    """Write one log line and flush it: the next thing to happen may be the end."""
    sys.stdout.write(line(event, message, severity, **fields) + "\n")
    sys.stdout.flush()
