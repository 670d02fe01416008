"""How a long conversion or upload shows its progress."""

import math
import sys
import threading
import time
from collections.abc import Callable


class StatusLine:
    """Progress on stderr: on a terminal one line that is written over, else a line every 10 s.

    Several threads may use it.
    """

    def __init__(self, at_once: bool = False) -> None:
        """at_once: on a terminal, show the first text without waiting."""
        self._began = time.monotonic()
        self._last = -math.inf if at_once and sys.stderr.isatty() else self._began
        self._width = 0
        self._lock = threading.Lock()

    def show(self, text: Callable[[float], str], last: bool = False) -> None:
        """Show `text`, which is given the seconds since the beginning, if it is time to.

        last: on a terminal, show it in any case.
        """
        with self._lock:
            now, terminal = time.monotonic(), sys.stderr.isatty()
            if now - self._last < (0.1 if terminal else 10) and not (last and terminal):
                return
            self._last = now
            shown = text(max(now - self._began, 1e-9))
            self._width = max(self._width, len(shown))
            sys.stderr.write(f"\r{shown:<{self._width}}" if terminal else f"{shown}\n")
            sys.stderr.flush()

    def end(self) -> None:
        """Leave the line that is written over."""
        if self._width and sys.stderr.isatty():
            sys.stderr.write("\n")
