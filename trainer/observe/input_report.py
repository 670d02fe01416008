"""The cost of the input: the share of a step that waits for it, and the cores that it needs.

It is reported once, when a run has settled. The pipeline's speed on one core is measured for a
moment; a step's own time is its wall time less its wait.
"""

import math
import os
import time
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from trainer.config import Config
from trainer.input import augment, cache, data, mixing
from trainer.input.parts import Shard
from trainer.job import memory
from trainer.observe.observer import Observer, Run
from trainer.report import say

SETTLED_STEPS, SETTLED_SECONDS = 50, 10.0
"""The report comes after this many steps or seconds, without the first call, which compiles."""
PROBE_SECONDS = 0.3
WAITS = 0.1
"""A larger share of waiting is a warning, and says what helps."""
LARGE = 1.5
"""Pictures whose shorter side is so many times --image-size are decoded in vain."""


@dataclass(frozen=True)
class Cost:
    """The cost of the input of this process."""

    wait_share: float
    """Share of a step's time that waits for input: an upper bound if the device still works while
    the host waits."""
    step_seconds: float
    """Seconds of a step that never waits."""
    batch: int
    """Examples of a step that this process feeds."""
    images_a_second_and_core: float
    cores: int

    @property
    def cores_needed(self) -> float:
        """Cores that feed these devices so that no step waits."""
        return self.batch / self.step_seconds / self.images_a_second_and_core


def cost(
    seconds: float, waited: float, steps: int, batch: int, per_core: float, cores: int
) -> Cost:
    """Return the cost from the seconds of `steps` steps, of which `waited` seconds were waits."""
    compute = max(seconds - waited, 1e-9)
    return Cost(waited / max(seconds, 1e-9), compute / steps, batch, per_core, cores)


def remedy(
    shards: tuple[Shard, ...], config: Config, cost: Cost, left: int, free: int, workers: int = 1
) -> str:
    """Return what lets steps wait less: smaller records, else --cache, else more cores, else faster
    reads.

    left: examples that the run has still to see. free: bytes of memory that this process could
    take.
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
    if cost.cores_needed > cost.cores:
        return f"a machine with {math.ceil(cost.cores_needed)} cores would feed these steps"
    return "the cores are enough: copy the records to a disk of this machine, or free its cores"


def per_core(
    shards: tuple[Shard, ...], config: Config, classes: int, seconds: float, workers: int = 1
) -> float:
    """Return images a second that one core makes batches of, from the first worker's part of these
    records: it reads, decodes and augments them."""
    dataset = data.training(
        shards,
        tf.distribute.InputContext(workers, 0, workers),
        batch_size=8,
        image_size=config.image_size,
        classes=classes,
        seed=config.seed,
        consumed=0,
        augmentation=augment.of(config),
        mix=mixing.of(config),
        keep=config.cache,
        whole=config.augment_on == "device",
    )
    options = tf.data.Options()
    options.threading.private_threadpool_size = 1
    options.threading.max_intra_op_parallelism = 1
    iterator = iter(dataset.with_options(options))
    for _ in range(4):  # Start up and fill the buffers.
        next(iterator)
    before, began, count = time.process_time(), time.perf_counter(), 0
    while time.perf_counter() - began < seconds or count < 16:
        count += int(next(iterator)[1].shape[0])
    # Processor time, not the clock's: others may be using the core, too.
    return count / max(time.process_time() - before, 1e-9)


class InputReport(Observer):
    """Reports the cost of the input once."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._calls = self._steps = 0
        self._seconds = self._waited = 0.0
        self.cost: Cost | None = None

    def steps(self, run: Run, first_step: int, metrics: dict[str, Any]) -> None:
        self._calls += 1
        if self.cost is not None or self._calls == 1 or self._config.deterministic:
            return
        if not run.place.chief or run.place.parameter_servers:
            return  # The chief reports it; with parameter servers, it is not the chief that waits.
        self._steps += len(metrics["seconds"])
        self._seconds += float(np.sum(metrics["seconds"]))
        self._waited += float(np.sum(metrics["input_wait"]))
        if self._steps >= SETTLED_STEPS or self._seconds >= SETTLED_SECONDS:
            self._say(run)

    def _say(self, run: Run) -> None:
        workers = max(1, run.place.workers)
        speed = per_core(run.train, self._config, len(run.names), PROBE_SECONDS, workers)
        batch = self._config.batch_size // workers
        cores = len(os.sched_getaffinity(0))
        self.cost = estimate = cost(self._seconds, self._waited, self._steps, batch, speed, cores)
        text = (
            f"input: {estimate.wait_share:.1%} of a step waited for; one core makes "
            f"{speed:,.0f} images a second, a step without waiting takes "
            f"{1000 * estimate.step_seconds:,.1f} ms for {batch}: "
            f"{estimate.cores_needed:.1f} cores needed, {cores} here"
        )
        if estimate.wait_share > WAITS:
            left = (run.steps - run.position.step) * self._config.batch_size
            text += "; "
            text += remedy(run.train, self._config, estimate, left, memory.free(), workers)
        say(
            "input",
            text,
            "WARNING" if estimate.wait_share > WAITS else "INFO",
            step=run.position.step,
            wait_share=round(estimate.wait_share, 4),
            images_per_second_core=round(speed, 1),
            cores_needed=round(estimate.cores_needed, 2),
            cores=cores,
        )
