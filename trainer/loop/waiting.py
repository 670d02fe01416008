"""Who is waited for: a process that waits long for another one says so.

TensorFlow waits for a process that is frozen or late without a word. Here a thread looks on: after
FIRST seconds of waiting, and every AGAIN seconds from then on, it names the processes that are
waited for, and since when.

A process that is alive answers at its address: TensorFlow's server there speaks HTTP/2. One that is
frozen lets itself be connected to, because the kernel does that, and says nothing.
"""

import contextlib
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Literal

from trainer.job.preemption import RESTART
from trainer.report import say

FIRST, AGAIN = 20.0, 60.0
"""Seconds until the first line about a wait, and from one line to the next."""
LOOK = 1.0
"""Seconds between two looks of the thread."""
_GREETING = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
"""A client's first words in HTTP/2: the preface and an empty frame of settings (RFC 9113, 3.4)."""

Presence = Literal["answers", "silent", "gone"]


def probe(address: str, seconds: float = 1.0) -> Presence:
    """Return what the process at host:port does: it answers; it is silent, as a frozen one is; or
    nobody listens there.
    """
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout=seconds) as line:
            try:
                line.sendall(_GREETING)
                return "answers" if line.recv(1) else "silent"
            except ConnectionError:
                return "answers"  # Only a process that runs can refuse what it was told.
            except TimeoutError:
                return "silent"
    except OSError:
        return "gone"


def others(tasks: Mapping[str, tuple[str, ...]], role: str, task: int) -> dict[str, str]:
    """Return the other processes that a run waits for, evaluators left out: address and name."""
    return {
        host: f"{kind} {number} at {host}"
        for kind, hosts in tasks.items()
        for number, host in enumerate(hosts)
        if kind != "evaluator" and (kind, number) != (role, task)
    }


class Wait:
    """One wait, and when to tell about it."""

    def __init__(self, what: str, clock: Callable[[], float] = time.monotonic) -> None:
        self.what = what
        self._clock = clock
        self._began = clock()
        self._since = time.strftime("%H:%M:%S UTC", time.gmtime())
        self._next = FIRST

    @property
    def seconds(self) -> float:
        return self._clock() - self._began

    def due(self) -> bool:
        """Is it time for a line? True once for each line."""
        if self.seconds < self._next:
            return False
        self._next = self.seconds + AGAIN
        return True

    def tell(self, who: str, severity: str = "WARNING") -> None:
        """Say who is waited for."""
        text = f"{self.what} waits since {self._since} ({self.seconds:.0f} s) {who}"
        say("waiting", text, severity, seconds=round(self.seconds, 1))


class Waits:
    """Looks on while the training thread waits for other processes."""

    def __init__(self, named: Mapping[str, str], patience: float = 0.0) -> None:
        """`named`: the others, as `others` gives them. patience: seconds after which a step hangs,
        and the process exits to be started again; 0: never.
        """
        self.named = named
        self._patience = patience
        self._wait: tuple[Wait, bool] | None = None
        if named or patience:
            threading.Thread(target=self._watch, name="waits", daemon=True).start()

    @contextlib.contextmanager
    def on(self, what: str, again: bool = False) -> Iterator[None]:
        """Inside, this process waits for the others. again: it has done the same before, so that
        nothing has to be compiled."""
        self._wait = Wait(what), again
        try:
            yield
        finally:
            self._wait = None

    def _watch(self) -> None:
        while True:
            time.sleep(min(LOOK, FIRST / 10))
            if (waited := self._wait) is not None:
                wait, again = waited
                if self.named:
                    self.look(wait)
                if again and self.hangs(wait):
                    give_up(wait)

    def hangs(self, wait: Wait) -> bool:
        """Has a wait lasted too long for one whose work was done before?"""
        return 0 < self._patience < wait.seconds

    def look(self, wait: Wait) -> None:
        """Tell about a wait, where it is time for that."""
        if not wait.due():
            return
        silent = [name for host, name in self.named.items() if probe(host) != "answers"]
        if silent:
            wait.tell(f"for {', '.join(silent)}: no answer")
        else:
            wait.tell("and all other processes answer", "INFO")


def give_up(wait: Wait) -> None:
    """Exit to be started again. NCCL's kernels wait on the GPU for one that does not answer, and
    nothing in this process can end them (tensorflow#60847)."""
    text = f"{wait.what} has not ended in {wait.seconds:.0f} s: a GPU hangs, or NCCL waits for one"
    say("error", f"{text}; start all again", "ERROR", seconds=round(wait.seconds, 1))
    os._exit(RESTART)
