"""The words between a training program and the factory, for a program of any framework.

Copy this file beside your program: it needs Python's standard library alone, and nothing of the
factory. `builder show contract` prints it; docs/your-program.md shows a program with it.

    job = Job()
    if job.checkpoint:
        model.load_weights(job.checkpoint)
    for _ in job.steps():
        job.report(loss=model.train_on_batch(*next(batches)))
        job.save(model.save_weights)
"""

from __future__ import annotations

import argparse
import atexit
import hashlib
import json
import math
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

NOT_FINITE = 4
RESTART = 143
"""Exit codes: the loss is not finite; stopped from outside, start the program again."""
_WRITTEN = ("checkpoints", "export", "model")
"""The folders in the job's folder with what is made of it."""


class Job:
    """One run of a program: its options, where it stands, and what it says.

    step: the steps that are done. checkpoint: the newest of an earlier run, its path, or "". more:
    the arguments that are not of the contract. first: whether this process is the only one, or the
    first of a cluster: no other one prints lines or writes into the job's folder. suffix: how a
    checkpoint's name ends, where the framework asks for it (".weights.h5"). report_every: steps
    between two lines.
    """

    def __init__(self, suffix: str = "", report_every: int = 10) -> None:
        parser = argparse.ArgumentParser(allow_abbrev=False)
        parser.add_argument("--records", type=_folder, help="the data")
        parser.add_argument("--job-dir", type=_folder, default=Path("job"), help="outputs")
        parser.add_argument("--steps", type=int, default=1000)
        parser.add_argument("--batch", "--batch-size", type=int, default=32)
        parser.add_argument("--checkpoint-every", type=int, default=100)
        self.options, self.more = parser.parse_known_args()
        self.step, self.checkpoint, self.first = 0, "", _first(os.environ)
        self._suffix, self._report_every = suffix, report_every
        self._asked = self._stopping = False
        self._folder = self.options.job_dir / "checkpoints"
        known = sorted(self._folder.glob(f"step-*{suffix}")) if self._folder.is_dir() else []
        if known:
            self.checkpoint = str(known[-1])
            self.step = int(known[-1].name[len("step-") :].removesuffix(suffix))
            self._say("resumed", f"goes on from step {self.step}", step=self.step)
        signal.signal(signal.SIGTERM, self._stop)

    def steps(self) -> Iterator[int]:
        """Yield each step that is still to do, from 1 on.

        Ends the program with exit code 143 where it was asked to stop, after a whole step.
        """
        while self.step < self.options.steps:
            self._stopping = self._asked
            self.step += 1
            yield self.step
            if self._stopping:
                sys.exit(RESTART)
        if self.first:
            atexit.register(self._provenance)  # after what the program writes when it is done
        self._say("done", f"finished at step {self.step}", step=self.step)

    def compile(self, function: Callable[..., Any], *examples: Any) -> Callable[..., Any]:
        """Name the function that takes a step, with arguments as it gets them, or their shapes.

        In the proof it is compiled for the accelerator, and the program ends here. Otherwise the
        function is returned.
        """
        if compiler := sys.modules.get("training_image_compile"):
            compiler.take(function, examples)
        return function

    def report(self, loss: float, **more: float) -> None:
        """Say how a step went. Ends the program where the loss is not finite."""
        loss = float(loss)
        self._stopping = self._asked  # now, so that what is saved was reported
        if self.step % self._report_every == 0 or self._last or not math.isfinite(loss):
            message = f"step {self.step} of {self.options.steps}: loss {loss:.4g}"
            values = {name: float(value) for name, value in more.items()}
            self._say("step", message, step=self.step, loss=loss, **values)
        if not math.isfinite(loss):
            sys.exit(NOT_FINITE)

    def save(self, write: Callable[[str], object], together: bool = False) -> None:
        """Keep a checkpoint, if it is time for one: a file or a folder that `write` makes.

        together: whether every process of a cluster has to call `write` (Keras with a strategy);
        what the others make is thrown away.
        """
        if self.step % self.options.checkpoint_every and not self._last:
            return
        if not self.first:
            if together:
                with tempfile.TemporaryDirectory() as folder:
                    write(str(Path(folder, f"other{self._suffix}")))
            return
        self._folder.mkdir(parents=True, exist_ok=True)
        new = self._folder / f".new{self._suffix}"
        _remove(new)
        write(str(new))
        kept = self._folder / f"step-{self.step:010d}{self._suffix}"
        _remove(kept)
        os.replace(new, kept)  # noqa: PTH105 - whole or not at all
        self._say("checkpoint", f"kept step {self.step}", step=self.step)
        for older in sorted(self._folder.glob(f"step-*{self._suffix}"))[:-2]:
            _remove(older)

    @property
    def _last(self) -> bool:
        return self._stopping or self.step >= self.options.steps

    def _stop(self, *_: object) -> None:
        self._asked = True

    def _provenance(self) -> None:
        """Write what the job was made from, and the SHA-256 of what it wrote: `builder verify`
        follows that to the image."""
        folder = self.options.job_dir
        hashes = {}
        for path in sorted(path for top in _WRITTEN for path in (folder / top).rglob("*")):
            if path.is_file():
                with path.open("rb") as file:
                    digest = hashlib.file_digest(file, "sha256").hexdigest()
                hashes[path.relative_to(folder).as_posix()] = digest
        options = {name: str(value) for name, value in vars(self.options).items()}
        image = os.environ.get("TRAINING_IMAGE", "")
        content = {"schema": 1, "image": image, "options": options, "files": hashes}
        new = folder / ".provenance.json"
        new.write_text(json.dumps(content, indent=1))
        os.replace(new, folder / "provenance.json")  # noqa: PTH105 - whole or not at all

    def _say(self, event: str, message: str, **values: Any) -> None:
        if not self.first:
            return
        for name, value in values.items():
            if isinstance(value, float) and not math.isfinite(value):
                values[name] = str(value)  # JSON has no NaN
        line = {"severity": "INFO", "message": message, "event": event, **values}
        sys.stdout.write(json.dumps(line) + "\n")
        sys.stdout.flush()


def _first(variables: Mapping[str, str]) -> bool:
    """Return whether this is the first process, by the variables of torchrun, JAX or TF_CONFIG."""
    rank = variables.get("RANK") or variables.get("JAX_PROCESS_ID")
    if rank:
        return int(rank) == 0
    cluster = json.loads(variables.get("TF_CONFIG") or "{}")
    task, roles = cluster.get("task") or {}, cluster.get("cluster") or {}
    leads = next((role for role in ("chief", "master") if role in roles), "worker")
    return not task or (task.get("type"), int(task.get("index", 0))) == (leads, 0)


def _folder(name: str) -> Path:
    """Return a folder; one of a bucket lies below /gcs, where Vertex AI and Cloud Storage FUSE
    mount it."""
    return Path("/gcs", name[len("gs://") :]) if name.startswith("gs://") else Path(name)


def _remove(path: Path) -> None:
    """Remove a file or a folder, if it is there."""
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
