"""One run at a time on a job folder.

On a disk the kernel holds the lock (flock) and frees it when the process dies, even by kill -9, so
a restart never waits. If somebody removes the lock's file or the whole folder, the holder takes the
lock again before it writes.

A bucket has no locks. There the holder rewrites a small object every few seconds, and a newcomer
watches it: if the object changes, its holder is alive; if not, the newcomer takes over. No clocks
are compared. The holder reads the object before each commit, so a holder that was suspended does
not write into its successor's folder.
"""

import contextlib
import fcntl
import json
import os
import socket
import threading
import time
import uuid
from pathlib import Path
from typing import IO

from trainer.config import UsageError
from trainer.job import storage
from trainer.report import say

BEAT = 4.0
"""Seconds between two rewrites of the object in a bucket; a newcomer watches for three of them."""


class Lost(Exception):  # noqa: N818 - named for what happened
    """Another run took over this run's folder."""


class Lease:
    """A lock that is held from `take` to `release`, or until the process dies."""

    def __init__(self, folder: str, name: str = "run", beat: float = BEAT) -> None:
        self.path = f"{folder}/{name}.lock"
        self._beat = beat
        self._file: IO[str] | None = None
        self._token = uuid.uuid4().hex
        self._stop = threading.Event()
        self._remote = storage.remote(folder)
        self._taken = False

    @property
    def held(self) -> bool:
        """Was it taken and not yet released?"""
        return self._taken

    def take(self) -> None:
        """Raises UsageError if another run holds it."""
        if self._remote:
            self._take_remote()
        else:
            self._take_local()
        self._taken = True

    def check(self) -> None:
        """Raises Lost if this run no longer holds it."""
        if not self._remote:
            self._check_local()
            return
        holder = self._read().get("token")
        if holder != self._token:
            raise Lost(f"another run has taken over {self.path}: this one stops without writing")

    def release(self) -> None:
        """Does nothing if it is not held."""
        self._stop.set()
        if not self._taken:
            return
        self._taken = False
        if self._remote:
            if self._read().get("token") == self._token:
                storage.gfile.remove(self.path)
        elif self._file is not None:
            self._file.truncate(0)
            self._file.close()  # This unlocks. The file stays, because removing it would be a race.
            self._file = None

    def _content(self, beat: int = 0) -> str:
        holder = {"host": socket.gethostname(), "pid": os.getpid()}
        return json.dumps({"token": self._token, **holder, "beat": beat})

    def _take_local(self) -> None:
        path = Path(self.path)
        path.parent.mkdir(parents=True, exist_ok=True)
        file = path.open("a+")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            holder = _parse(file.read())
            file.close()
            raise self._refused(holder) from None
        except OSError:  # a file system without locks: as in a bucket
            file.close()
            self._remote = True
            self._take_remote()
            return
        file.truncate(0)
        file.write(self._content())
        file.flush()
        self._file = file

    def _check_local(self) -> None:
        """The lock is on an open file. It counts while that is the file at the path."""
        if self._file is None:
            return
        mine = os.fstat(self._file.fileno())
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(mine, Path(self.path).stat()):
                return
        self._file.close()
        self._file = None
        try:
            self._take_local()
        except UsageError as error:
            raise Lost(f"{self.path} was removed, and now {error}") from None
        say("lock", f"{self.path} was removed: taken again", "WARNING")

    def _take_remote(self) -> None:
        seen = self._read()
        if seen:
            deadline = time.monotonic() + 3 * self._beat
            while time.monotonic() < deadline:
                time.sleep(self._beat / 4)
                now = self._read()
                if now and now != seen:
                    raise self._refused(now)
                if not now:
                    break
        storage.write(self.path, self._content().encode())
        time.sleep(self._beat / 4)  # Of two newcomers at once, the last one to write holds it.
        self.check()
        threading.Thread(target=self._keep, name="lease", daemon=True).start()

    def _keep(self) -> None:
        beat = 0
        while not self._stop.wait(self._beat):
            beat += 1
            try:
                if self._read().get("token") != self._token:
                    return  # `check` will say so
                storage.write(self.path, self._content(beat).encode())
            except Exception:
                continue  # the bucket may be back at the next beat

    def _read(self) -> dict[str, object]:
        try:
            return _parse(storage.read(self.path).decode(errors="replace"))
        except storage.NOT_FOUND:
            return {}

    def _refused(self, holder: dict[str, object]) -> UsageError:
        who = f" (process {holder['pid']} on {holder['host']})" if "pid" in holder else ""
        folder = self.path.rpartition("/")[0]
        return UsageError(
            f"another run{who} is at work in {folder}: stop it, or give another --job-dir"
        )


def _parse(text: str) -> dict[str, object]:
    try:
        value = json.loads(text)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}
