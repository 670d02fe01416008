"""Requests to stop: SIGTERM and Ctrl-C.

Spot machines, Vertex AI, Kubernetes and `docker stop` send SIGTERM before they kill. This module
needs no TensorFlow, so that it also answers a signal during TensorFlow's long import.
"""

import os
import signal
import threading
import time
from typing import Any

from trainer.event_lines import hush, line

RESTART = 143
"""Exit code 128 + SIGTERM: everything is saved, start the process again."""


class Preempted(Exception):  # noqa: N818 - nothing went wrong
    """The run was told to stop, and everything is saved."""

    def __init__(self, step: int) -> None:
        super().__init__(f"told to stop: after step {step}, which is saved")
        self.step = step


class Preemption:
    """Answers requests to stop: exits at once if everything is saved; otherwise the loop saves
    first.

    SIGTERM is such a request, and so is the first Ctrl-C (SIGINT, unless it is ignored); the second
    Ctrl-C kills. A thread receives the signals, too, because Python's handlers have to wait while
    TensorFlow traces or waits for a peer. A process that does not reach the end of a step exits
    after `grace` seconds.
    """

    def __init__(self, grace: float = 25.0) -> None:
        self.requested = False
        self.grace = grace
        self._saved = True
        self._installed = False
        self._deadline = threading.Lock()
        self._leaving = threading.RLock()  # a signal may come while it is held

    def install(self) -> None:
        """Take over the signals. Call it again after a strategy was made: TensorFlow installs its
        own handler."""
        signal.signal(signal.SIGTERM, self._handle)
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, self._handle)
        if not self._installed:
            self._installed = True
            read, write = os.pipe()
            os.set_blocking(write, False)
            signal.set_wakeup_fd(write, warn_on_full_buffer=False)
            threading.Thread(target=self._listen, args=(read,), daemon=True).start()

    def uninstall(self) -> None:
        if self._installed:
            self._installed = False
            if signal.getsignal(signal.SIGINT) == self._handle:
                signal.signal(signal.SIGINT, signal.default_int_handler)
            os.close(signal.set_wakeup_fd(-1))  # which ends the thread

    def saved(self, saved: bool) -> None:
        """Say whether everything is saved, so that an exit would lose no work."""
        self._saved = saved
        if saved and self.requested:
            self._leave("all work is saved")

    def request(self) -> None:
        """Exit as soon as everything is saved, and after `grace` seconds in any case."""
        self.requested = True
        if self._saved:
            self._leave("all work is saved")
        if self._deadline.acquire(blocking=False):
            threading.Thread(target=self._give_up, daemon=True).start()

    def _handle(self, number: int, _: Any) -> None:
        if number == signal.SIGINT:
            signal.signal(signal.SIGINT, signal.SIG_DFL)
        self.request()

    def _listen(self, pipe: int) -> None:
        while numbers := os.read(pipe, 64):
            if signal.SIGTERM in numbers or signal.SIGINT in numbers:
                self.request()
        os.close(pipe)

    def _give_up(self) -> None:
        time.sleep(self.grace)
        self._leave(f"no step ended within {self.grace:g} s; the last checkpoint counts")

    def _leave(self, why: str) -> None:
        with self._leaving:  # other threads wait here for the end
            hush()
            message = line("preempted", f"told to stop: {why}", "WARNING")
            os.write(1, f"{message}\n".encode())
            os._exit(RESTART)
