"""Runs of the trainer in processes that are forked from one that has imported TensorFlow and not
used it, as tests/campaign.py does: the import takes most of a short run's time."""

import multiprocessing
import os
import sys
from collections.abc import Mapping, Sequence
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import TextIO

from tests import ROOT

FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(["tensorflow", "keras"])


def start(
    arguments: Sequence[str], environment: Mapping[str, str], errors: str
) -> tuple[BaseProcess, TextIO]:
    """Start `trainer.task` with its stderr in a file; return the process, and its lines. The
    variable BEFORE has Python that the process runs first."""
    reader, writer = FORKS.Pipe(duplex=False)
    process = FORKS.Process(target=_run, args=(arguments, environment, writer, errors))
    process.start()
    writer.close()
    return process, os.fdopen(os.dup(reader.fileno()), encoding="utf-8")


def _run(
    arguments: Sequence[str], environment: Mapping[str, str], lines: Connection, errors: str
) -> None:
    os.chdir(ROOT)
    os.environ.clear()
    os.environ.update(environment)
    os.dup2(lines.fileno(), 1)
    os.dup2(os.open(errors, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), 2)
    lines.close()
    sys.stdout, sys.stderr = os.fdopen(1, "w"), os.fdopen(2, "w")
    exec(environment.get("BEFORE", ""), {})
    from trainer import task

    sys.exit(task.main(arguments))
