"""SIGTERM: what Spot machines, Vertex AI and `docker stop` send before they kill.

Needs no TensorFlow, so that a signal during its long import is answered too.
"""

import os
import signal
from typing import Any

from trainer.report import line

RESTART = 143
"""Exit code: 128 + SIGTERM, saved, start me again."""


class Preempted(Exception):  # noqa: N818 - nothing went wrong
    """Told to stop; everything is saved."""

    def __init__(self, step: int) -> None:
        super().__init__(f"stopped by SIGTERM after step {step}, which is saved")
        self.step = step


class Preemption:
    """SIGTERM: leave at once while everything is saved, else ask the loop to save first."""

    def __init__(self) -> None:
        self.requested = False
        self._saved = True

    def install(self) -> None:
        """To be called again after a strategy was made: TensorFlow installs its own handler."""
        signal.signal(signal.SIGTERM, self._handle)

    def saved(self, saved: bool) -> None:
        """Tell whether leaving now would lose work."""
        self._saved = saved
        if saved and self.requested:
            self._leave()

    def _handle(self, *_: Any) -> None:
        self.requested = True
        if self._saved:
            self._leave()

    def _leave(self) -> None:
        message = line("preempted", "stopped by SIGTERM; all work is saved", "WARNING")
        os.write(1, f"{message}\n".encode())
        os._exit(RESTART)
