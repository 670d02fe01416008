"""What the input costs: the share of a step that waits for it, and what helps.

It is reported once, when a run has settled.
"""

import math
import os
from typing import Any

import numpy as np

from trainer.config import Config
from trainer.input import cache
from trainer.input.parts import Shard
from trainer.job import memory
from trainer.observe.observer import Observer, Run
from trainer.report import say

SETTLED_STEPS, SETTLED_SECONDS = 50, 10.0
"""The report comes after this many steps or seconds, without the first call, which compiles."""
WAITS = 0.1
"""A larger share of waiting is a warning, and says what helps."""
LARGE = 1.5
"""Pictures whose shorter side is so many times --image-size are decoded in vain."""


def remedy(
    shards: tuple[Shard, ...], config: Config, share: float, left: int, free: int, workers: int = 1
) -> str:
    """Return what lets steps wait less: smaller records, else --cache, else more cores.

    share: what a step waits of its time. left: examples that the run has still to see. free: bytes
    of memory that this process could take.
    """
    known = all(shard.jpeg[0] for shard in shards if shard.records)
    most = max(shard.jpeg[1] for shard in shards)
    if known and most >= LARGE * config.image_size:
        whole = config.crop >= 1 and not config.cut
        size = config.image_size if whole else round(config.image_size * 8 / 7)
        return f"make smaller records: trainer.records --resize {size}"
    records = -(-sum(shard.records for shard in shards) // workers)
    bound = records * most * max(shard.jpeg[2] for shard in shards) * 3
    again = left / workers > 2 * records
    if known and again and config.cache == cache.NONE and bound <= cache.SHARE * free:
        return f"--cache memory decodes each picture once, and takes at most {bound / 1e6:,.0f} MB"
    cores = len(os.sched_getaffinity(0))
    needed = math.ceil(cores / max(1 - share, 1e-3))  # those here make input all the time
    text = f"about {needed} cores would feed these steps, {cores} are here"
    return f"{text}; where these are not busy, copy the records to a disk of this machine"


class InputReport(Observer):
    """Reports once what the input costs."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._calls = self._steps = 0
        self._seconds = self._waited = 0.0
        self._told = config.deterministic  # A step's wait is not measured then.

    def steps(self, run: Run, first_step: int, metrics: dict[str, Any]) -> None:
        self._calls += 1
        if self._told or self._calls == 1:
            return
        if not run.place.chief or run.place.parameter_servers:
            return  # The chief reports it; with parameter servers, it is not the chief that waits.
        self._steps += len(metrics["seconds"])
        self._seconds += float(np.sum(metrics["seconds"]))
        self._waited += float(np.sum(metrics["input_wait"]))
        if self._steps >= SETTLED_STEPS or self._seconds >= SETTLED_SECONDS:
            self._told = True
            self._say(run, self._waited / max(self._seconds, 1e-9))

    def _say(self, run: Run, share: float) -> None:
        text, severity = f"input: {share:.1%} of a step waited for", "INFO"
        if share > WAITS:
            severity = "WARNING"
            left = (run.steps - run.position.step) * self._config.batch_size
            workers = max(1, run.place.workers)
            text += f": {remedy(run.train, self._config, share, left, memory.free(), workers)}"
        say("input", text, severity, step=run.position.step, wait_share=round(share, 4))
