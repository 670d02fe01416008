"""One run at a time on a job folder of a disk.

The kernel holds the lock (flock) and frees it when the process dies, even by kill -9, so a restart
never waits. If somebody removes the lock's file or the whole folder, the holder takes the lock
again before it writes. A bucket, and a file system without locks, has none.
"""

import contextlib
import fcntl
import json
import os
import socket
from pathlib import Path
from typing import IO

from trainer.config import UsageError
from trainer.event_lines import say
from trainer.job import storage


class Lost(Exception):  # noqa: N818 - named for what happened
    """Another run took over this run's folder."""


class Lease:
    """A lock that is held from `take` to `release`, or until the process dies."""

    def __init__(self, folder: str) -> None:
        self.path = f"{folder}/run.lock"
        self._file: IO[str] | None = None
        self._remote = storage.remote(folder)

    def take(self) -> None:
        """Take the lock. Raises UsageError if another run holds it."""
        if self._remote:
            return
        path = Path(self.path)
        path.parent.mkdir(parents=True, exist_ok=True)
        file = path.open("a+")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            who = ""
            with contextlib.suppress(ValueError, TypeError, KeyError):  # It is about to be written.
                holder = json.loads(file.read())
                who = f" (process {holder['pid']} on {holder['host']})"
            file.close()
            raise UsageError(
                f"another run{who} is at work in {path.parent}: stop it, or give another --job-dir"
            ) from None
        except OSError:  # a file system without locks
            file.close()
            return
        file.truncate(0)
        file.write(json.dumps({"host": socket.gethostname(), "pid": os.getpid()}))
        file.flush()
        self._file = file

    def check(self) -> None:
        """Raise Lost if this run no longer holds the lock: it counts while the locked file is the
        one at the path.
        """
        if self._file is None:
            return
        mine = os.fstat(self._file.fileno())
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(mine, Path(self.path).stat()):
                return
        self._file.close()
        self._file = None
        try:
            self.take()
        except UsageError as error:
            raise Lost(f"{self.path} was removed, and now {error}") from None
        say("lock", f"{self.path} was removed: taken again", "WARNING")

    def release(self) -> None:
        """Free the lock, if it is held."""
        if self._file is not None:
            self._file.truncate(0)
            self._file.close()  # This unlocks. The file stays, because removing it would be a race.
            self._file = None
