"""A process that waits long for another one says for whom, and gives up one that hangs.

TensorFlow waits for a process that is frozen or late without a word. Here a thread looks on: after
FIRST seconds of waiting, and every AGAIN seconds from then on, it names the processes that are
waited for, and since when.

A process that is alive answers at its address: TensorFlow's server there speaks HTTP/2. One that is
frozen lets itself be connected to, because the kernel does that, and says nothing.
"""

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Literal

from trainer.event_lines import leave, say
from trainer.job.preemption import RESTART

FIRST, AGAIN = 20.0, 60.0
"""Seconds until the first line about a wait, and from one line to the next."""
FROZEN = 5.0
"""Seconds of silence that make a process that is connected to a frozen one."""
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


def silent(named: Mapping[str, str]) -> dict[str, str]:
    """Return those of some processes, names by addresses, that do not answer."""
    return {host: name for host, name in named.items() if probe(host) != "answers"}


class Wait:
    """One wait for other processes, which knows when to report itself."""

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
        """Return whether it is time for a line: true once for each line."""
        if self.seconds < self._next:
            return False
        self._next = self.seconds + AGAIN
        return True

    def report(self, who: str, severity: str = "WARNING") -> None:
        """Report who is waited for."""
        text = f"{self.what} waits since {self._since} ({self.seconds:.0f} s) {who}"
        say("waiting", text, severity, seconds=round(self.seconds, 1))


class StallMonitor:
    """Looks on, in a thread, while the training thread waits for other processes."""

    def __init__(self, named: Mapping[str, str], patience: float = 0.0) -> None:
        """`named`: Cluster.others. patience: seconds after which a step hangs, so that the process
        exits to be started again; 0: never."""
        self.named = named
        self._patience = patience
        self._wait: tuple[Wait, bool] | None = None
        if named or patience:
            threading.Thread(target=self._watch, name="stalls", daemon=True).start()

    @contextlib.contextmanager
    def during(self, what: str, again: bool = False) -> Iterator[None]:
        """Look on while this process waits for the others inside. again: it has done the same
        before, so that nothing has to be compiled, and it may hang."""
        before, self._wait = self._wait, (Wait(what), again)
        try:
            yield
        finally:
            self._wait = before

    def look(self, wait: Wait, again: bool) -> None:
        """Report a wait where it is time for that; end the process where it has lasted too long.

        NCCL's kernels wait on the GPU for one that does not answer, and nothing in this process can
        end them (tensorflow#60847); a coordinator waits for its workers and servers. What may have
        to be compiled first takes as long as it takes, unless a process is frozen.
        """
        if self.named and wait.due():
            if mute := silent(self.named):
                wait.report(f"for {', '.join(mute.values())}: no answer")
            else:
                wait.report("and all other processes answer", "INFO")
        late = 0 < self._patience < wait.seconds
        if late and (again or any(probe(host, FROZEN) == "silent" for host in self.named)):
            text = f"{wait.what} has not ended in {wait.seconds:.0f} s: a process or a GPU hangs"
            seconds = round(wait.seconds, 1)
            leave(RESTART, "error", f"{text}; start all again", seconds=seconds)

    def _watch(self) -> None:
        while True:
            time.sleep(min(LOOK, FIRST / 10))
            if (current := self._wait) is not None:
                self.look(*current)
