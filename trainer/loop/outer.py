"""The outer loop: checkpoints, evaluation, signals and recovery between two inner calls.

All ranks run this loop and make the same decisions at the same step. What only one of them knows (a
signal, the clock, a full disk) goes through a vote after each inner call.
"""

import functools
import math
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from trainer.config import Config, UsageError, seconds
from trainer.event_lines import say
from trainer.input import splits
from trainer.job import markers, storage
from trainer.job.checkpoints import Background, Checkpoints, Position, Spoiled
from trainer.job.preemption import Preempted, Preemption
from trainer.loop import distribution
from trainer.loop.inner import Evaluation, Trainer
from trainer.loop.judge import Judge, tell
from trainer.loop.stalls import StallMonitor
from trainer.observe.observer import Observer, Run, Watch

SLOWER = 0.5
"""Factor of the learning rate at each return from a loss that is not finite."""
TRIES = len(storage.WAITS)
"""Times in a row that reading is tried again where a store gave no records."""
RETRIES = 2
"""Times to return to the last checkpoint after a loss that is not finite."""
CALL = 0.25
"""Most seconds that an inner call should take, since signals are answered after it."""


class NotFinite(Exception):  # noqa: N818 - named for what the loss is
    """The loss became NaN or infinite."""

    def __init__(self, step: int, loss: float) -> None:
        super().__init__(f"the loss of step {step} is {loss}: try a smaller --learning-rate")
        self.step = step


class Interrupted(Exception):  # noqa: N818 - the program itself is sound
    """Something outside the program ended a step: another process, a GPU, or NCCL between them."""


class Stopped(Exception):  # noqa: N818 - another rank's trouble
    """Raised on the other ranks when the chief cannot go on."""


class Controller:
    """Runs the outer loop of one rank."""

    def __init__(
        self,
        trainer: Trainer,
        evaluation: Evaluation,
        run: Run,
        preemption: Preemption,
        observers: Sequence[Observer] = (),
        allowed: Callable[[], None] = lambda: None,
        export: Callable[[str, Position], None] = lambda *_: None,
        stalls: StallMonitor | None = None,
    ) -> None:
        """`allowed` raises if this run lost its folder (lease.py). On the chief, `export` writes
        the SavedModel of that name from the present weights. `stalls` tells who is waited for."""
        self.stalls = stalls or StallMonitor({})
        self.trainer = trainer
        self.evaluation = evaluation
        self.run_ = run
        self.config: Config = run.config
        self.place = run.place
        self.preemption = preemption
        self.watch = Watch(observers, self.place.chief)
        self.export = export
        self.allowed = allowed
        self.steps = run.config.steps
        self.records = sum(shard.records for shard in run.train)
        self.judge = run.judge = Judge(self.config.metric, self.config.early_stopping)
        self.checkpoints = Checkpoints(self.config.checkpoint_dir, self.config.keep_checkpoints)
        self.background = Background(self.checkpoints, allowed) if self.place.chief else None
        self.tries, self.factor = 0, 1.0
        self._unread = 0
        self._initial: dict[str, np.ndarray] | None = None
        self._saves: list[int] = []
        self._saved = time.monotonic()
        every = self.config.checkpoint_every
        self._steps_to_save = every if isinstance(every, int) else 0
        self._seconds_to_save = math.inf if isinstance(every, int) else seconds(every)
        self._evaluated = -1
        self._readers = trainer.readers
        self._pace = 0.0
        self._calls = 0
        self._trouble: Exception | None = None

    @property
    def position(self) -> Position:
        return self.run_.position

    def run(self) -> tuple[dict[str, Any], bool]:
        """Train to the last step. Return the last evaluation, and whether the run stopped early,
        because the metric no longer improved.

        Raises NotFinite, Preempted, Interrupted, UsageError, and other errors.
        """
        try:
            return self._run()
        except tf.errors.OpError as error:
            named = storage.unwritable(error) or splits.unread(self.config.records, error)
            if distribution.outside(error, stepped=self._calls > 0) and not named:
                raise Interrupted(error) from error
            raise

    def _run(self) -> tuple[dict[str, Any], bool]:
        early = False
        with self.stalls.during("the start"):
            self._restore()
            self.watch.each(self.run_, lambda observer: observer.begin(self.run_))
            batches = self._batches()
        if self._due(self.config.evaluate_every) and self._evaluated != self.position.step:
            early = self._inline()  # The last attempt stopped before its evaluation.
        while True:
            over = early or self.position.step >= self.steps
            try:
                if over:
                    self._collect(wait=True)  # The loss does not always show spoiled weights.
                else:
                    self._train(batches, self._count())
                preempted, spoiled, failed, late = self._vote()
                if spoiled:
                    raise NotFinite(self.position.step, float("nan"))
            except (NotFinite, tf.errors.OpError) as error:
                if isinstance(error, NotFinite):
                    self._recover(error)
                else:
                    self._wait_for_the_store(error)
                    self._go_back(error)
                with self.run_.stopwatch.measure("input"):
                    batches, early = self._batches(), False
                continue
            if failed:
                raise self._cannot_go_on()
            if over:
                with self.run_.stopwatch.measure("input"):
                    del batches  # Its threads finish their work first, which can take seconds.
                return self._finish(early)
            last = self.position.step == self.steps
            evaluating = self._due(self.config.evaluate_every)
            saving = late or self._due(self._steps_to_save) or last or evaluating
            if saving or preempted:
                self._save()
            if preempted:
                self._leave()
            if evaluating and not last:
                early = self._inline()

    # The parts of a run

    def _restore(self) -> None:
        """Restore the newest whole checkpoint; skip and remove torn ones."""
        if self.place.chief:
            self.checkpoints.sweep()
        if not self._load_newest():
            self._initial = {k: v.numpy() for k, v in self.trainer.snapshot().items()}
        else:
            position = self.position
            text = f"resumed after step {position.step}, epoch {position.epoch:.2f}"
            say("resumed", text, step=position.step, epoch=position.epoch)
            before, now = self._readers, self.trainer.readers
            if self.place.chief and before != now and position.epoch % 1:
                text = f"{before} workers read before, {now} do now: of this epoch, some records"
                say("order", f"{text} are seen twice, and some not at all", "WARNING")
        total = self._together([float(self.position.step)])[0]
        if total != self.position.step * self.place.workers:
            error = UsageError(
                f"this worker resumes after step {self.position.step}, others do not: "
                f"{self.config.checkpoint_dir} has to be the same folder for all"
            )
            raise self._parted(error)

    def _load_newest(self) -> bool:
        """Restore the newest whole checkpoint. Returns whether there is one."""
        checkpoint = self.checkpoints.newest(remove=self.place.chief)
        if checkpoint is None:
            return False
        state = checkpoint.state
        splits.check_fingerprint(self.config, state.get("records"), self.run_.records)
        if state.get("factor", 1.0) != self.factor and not self.tries:
            self.factor, self.tries = state["factor"], state.get("tries", 0)
            self.trainer.use_learning_rate(self.factor)
        self.trainer.restore(checkpoint.variables)
        self.run_.position = checkpoint.position
        self.judge.restore(state.get("judge", {}))
        self._evaluated = state.get("evaluated", -1)
        self._readers = state.get("readers", self.trainer.readers)
        if markers.more(self.config, state):
            # The run is now longer: the patience starts anew, and the evaluation at the end of
            # the shorter run is not repeated, which might stop this one.
            self.judge.waited = 0
            self._evaluated = self.position.step
        if not self._calls:  # A recovery keeps this attempt's account and observers.
            if "stopwatch" in state:
                self.run_.stopwatch.restore(state["stopwatch"])
            self.watch.restore(self.run_, state.get("observers", {}))
        return True

    def _batches(self) -> Any:
        return self.trainer.batches(self.run_.train, self.position.examples)

    def _count(self) -> int:
        """Return steps of the next inner call: up to the next occasion, and no longer than CALL
        seconds."""
        step = self.position.step
        cadences = (self._steps_to_save, self.config.evaluate_every)
        most = [self.config.steps_per_loop, self.steps - step]
        most += [period - step % period for period in cadences if period]
        if (wanted := self.watch.until(step)) is not None:
            most.append(wanted - step)
        if self._pace:
            most.append(max(1, int(CALL / self._pace)))
        return min(most)

    def _train(self, batches: Any, count: int) -> None:
        """Make `count` steps and pass their metrics to the observers."""
        with self.run_.stopwatch.measure("compute"):
            began = time.perf_counter()
            with self.stalls.during(f"step {self.position.step + 1}", again=self._calls > 0):
                metrics = self.trainer.train(batches, count)
            seconds = time.perf_counter() - began
        waited = float(np.sum(metrics["input_wait"]))
        if self._calls:
            self.run_.stopwatch.move(waited, "compute", "input")
            self._pace = seconds / count
        self._calls += 1
        # From here on, an exit would lose work.
        self.preemption.saved(False)
        first = self.position.step + 1
        finite = np.isfinite(metrics["loss"])
        made = count if finite.all() else int(np.argmin(finite))
        if made:
            metrics["seconds"] = np.full(count, seconds / count, np.float32)
            examples = self.position.examples + made * self.config.batch_size
            self.run_.position = Position(first + made - 1, examples, examples / self.records)
            with self.run_.stopwatch.measure("summaries"):
                seen = {name: values[:made] for name, values in metrics.items()}
                self.watch.each(self.run_, lambda o: o.steps(self.run_, first, seen))
        if made < count:
            raise NotFinite(first + made, float(metrics["loss"][made]))

    def _vote(self) -> tuple[bool, bool, bool, bool]:
        """Return whether any rank was told to stop, whether a snapshot holds values that are not
        finite, whether the chief cannot go on, and whether a checkpoint is due by its clock."""
        self._collect()
        late = time.monotonic() - self._saved >= self._seconds_to_save
        mine = [
            self.preemption.requested,
            isinstance(self._trouble, Spoiled),
            self._trouble is not None and not isinstance(self._trouble, Spoiled),
            late and self.place.chief,
        ]
        # The wait for the slowest rank is part of a step.
        with self.run_.stopwatch.measure("compute"):
            values = self._together([*map(float, mine), self._pace if self.place.chief else 0.0])
        self._pace, self._unread = values[-1], 0
        preempted, spoiled, failed, late = (value > 0.5 for value in values[:-1])
        return preempted, spoiled, failed, late

    def _together(self, values: list[float]) -> list[float]:
        """Return the sum of each value over all ranks, which wait for each other here. Raises
        Interrupted: a sum does not fail by itself."""
        with self.stalls.during(f"step {self.position.step}"):
            try:
                return self.trainer.vote(values)
            except tf.errors.OpError as error:
                if distribution.outside(error, stepped=True):
                    raise Interrupted(error) from error
                raise

    def _collect(self, wait: bool = False) -> None:
        """Report the checkpoints that are safely written by now."""
        if self.background is None:
            return
        try:
            with self.run_.stopwatch.measure("checkpoint"):
                done = self.background.done(wait)
            for step, path in done:
                say("checkpoint", f"saved {path}", step=step)
        except Exception as error:  # The next vote tells all ranks, at the same step.
            self._trouble = error

    def end(self, outcome: str) -> None:
        """Tell the observers how the run ends."""
        self.watch.each(self.run_, lambda observer: observer.end(self.run_, outcome))

    def rescue(self, seconds: float) -> None:
        """Wait at most `seconds` for the checkpoint that is being written, before an error ends the
        process. The variables themselves may be in the middle of a step."""
        if self.background is not None:
            self.background.wait(seconds)
            self._collect()

    def _save(self) -> None:
        """Take a snapshot; it is written in the background."""
        step = self.position.step
        if self._saves[-1:] == [step]:
            return
        waiting = self.stalls.during(f"the checkpoint of step {step}", again=bool(self._saves))
        with self.run_.stopwatch.measure("checkpoint"), waiting:
            self.trainer.synchronise()
            if self.background is not None:
                try:
                    self.background.save(self.position, self.trainer.snapshot(), self._state())
                except Exception as error:
                    self._trouble = error
        self._saves.append(step)
        self._saved = time.monotonic()
        if len(self._saves) > 1:
            self._initial = None  # The checkpoint before is safely written.

    def _state(self) -> dict[str, Any]:
        return {
            **markers.requested(self.config),
            "stopwatch": self.run_.stopwatch.state(),
            "judge": self.judge.state(),
            "evaluated": self._evaluated,
            "readers": self.trainer.readers,
            "averages": {v.path: average.path for v, average in self.trainer.averages},
            "records": self.run_.records,
            "factor": self.factor,
            "tries": self.tries,
            "observers": self.watch.states(self.run_),
        }

    def _leave(self) -> None:
        """Save and exit; all ranks are at the same step."""
        self._collect(wait=True)
        trouble = self._trouble
        self.end("preempted")
        self._together([0.0])  # No rank may exit while the chief still writes.
        if trouble is None or isinstance(trouble, Spoiled):
            trouble = Preempted(self.position.step)  # The next run skips a spoiled snapshot.
        raise self._parted(trouble)

    def _cannot_go_on(self) -> Exception:
        """Return what ends this rank where the chief is in trouble, and all ranks know it."""
        return self._parted(self._trouble or Stopped("the chief cannot go on; its log says why"))

    def _parted(self, error: Exception) -> Exception:
        with self.stalls.during("the end"):
            return distribution.parted(lambda: self.trainer.vote([0.0]), error)

    def _inline(self) -> bool:
        """Evaluate between two steps. Returns whether to stop early."""
        step = self.position.step
        better = self.judge.better(step, self._evaluate())
        self._evaluated = step
        if self.place.chief:
            self.attempt(lambda: self._keep(better))
        if self.judge.stop:
            text = f"{self.judge.metric} has not got better since step {self.judge.best_step}"
            say("early", f"{text}: stopping", step=step)
        return self.judge.stop

    def _evaluate(self) -> dict[str, Any]:
        """Evaluate the present model, on all ranks together, and report it."""
        step = self.position.step
        wait = functools.partial(self.stalls.during, f"the evaluation of step {step}")
        with self.run_.stopwatch.measure("evaluation"):
            self.trainer.synchronise()
            with self.trainer.averaged():
                while True:
                    try:
                        result = self.evaluation.run(self._between, wait)
                        break
                    except tf.errors.OpError as error:
                        self._wait_for_the_store(error)
                tell(step, result)
                self.run_.scores = self.evaluation.scores
                with self.run_.stopwatch.measure("summaries"):
                    self.watch.each(self.run_, lambda o: o.evaluated(self.run_, step, result))
                return result

    def _between(self) -> None:
        """Exit, all ranks together, if one was told to stop. A checkpoint was taken before the
        evaluation, so nothing is lost."""
        if self._together([float(self.preemption.requested)])[0] > 0:
            self._leave()

    def attempt(self, work: Callable[[], None]) -> None:
        """Do work of the chief alone, if this run still holds its folder. An error is raised on all
        ranks at the next vote, or by `settle`."""
        if self._trouble is None:
            try:
                self.allowed()
                work()
            except Exception as error:
                self._trouble = error

    def settle(self) -> None:
        """Wait for the chief. Raises the chief's error there, and Stopped on the other ranks."""
        if self._together([float(self._trouble is not None)])[0]:
            raise self._cannot_go_on()

    def _keep(self, better: bool) -> None:
        """Keep the best checkpoint, and write the SavedModels that follow an evaluation."""
        with self.run_.stopwatch.measure("checkpoint"):
            if better and self.config.evaluate_every:
                self._collect(wait=True)
                if self._trouble is None:
                    self.checkpoints.copy(self.position.step, f"{self.checkpoints.folder}/best")
        with self.run_.stopwatch.measure("evaluation"):
            if better and "best" in self.config.export:
                self.export("best", self.position)
            if "latest" in self.config.export:
                self.export("latest", self.position)

    def _recover(self, error: NotFinite) -> None:
        """Return to the last good checkpoint with a smaller learning rate, on all ranks.

        Raises `error` after RETRIES tries.
        """
        self._collect(wait=True)
        if isinstance(self._trouble, Spoiled):
            self._trouble = None
        if self.tries >= RETRIES:
            raise self._parted(error)
        self.tries += 1
        self.factor *= SLOWER
        self._together([0.0])  # for the chief's last checkpoint
        self.trainer.use_learning_rate(self.factor)
        self._go_back(error)
        where = f"{str(error).partition(':')[0]}: back to step {self.position.step}"
        text = f"with {self.factor:g} times the learning rate, try {self.tries} of {RETRIES}"
        say("diverged", f"{where} {text}", "WARNING", step=self.position.step)

    def _wait_for_the_store(self, error: tf.errors.OpError) -> None:
        """Wait before reading is tried again. Raises `error` if it is another one, if it came TRIES
        times in a row, and where other processes wait, so that all have to start again."""
        named = splits.unread(self.config.records, error)
        if not named or self.place.tasks or self._unread >= TRIES:
            raise error
        seconds = storage.WAITS[self._unread]
        self._unread += 1
        say("store", f"{named}: tried again in {seconds:g} s", "WARNING", step=self.position.step)
        time.sleep(seconds)

    def _go_back(self, error: Exception) -> None:
        """Return to the last checkpoint, or to the start. Raises `error` where neither is there."""
        self._collect(wait=True)
        if not self._load_newest():
            before = self._initial
            if before is None:
                raise self._parted(error)
            # No checkpoint is written yet: start again.
            fresh = {k: v.numpy() for k, v in self.trainer.snapshot().items()}
            shared = len(self.trainer.model.variables)
            optimizer = {key: fresh[key] for key in list(fresh)[shared:]}
            self.trainer.restore({**before, **optimizer})
            self.run_.position = Position()
        self._saves.clear()
        self._calls, self._pace = max(self._calls, 1), 0.0

    def _finish(self, early: bool) -> tuple[dict[str, Any], bool]:
        """Make the last evaluation, after everything is safely written."""
        if self.place.workers == 1:
            self.preemption.saved(True)
        result = self._evaluate()
        self.preemption.saved(True)
        better = self.judge.better(self.position.step, result)
        if self.place.chief:
            self.attempt(lambda: self._keep(better))
        self.settle()
        with self.run_.stopwatch.measure("summaries"):
            self.end("stopped" if early else "done")
        return result, early

    def _due(self, period: int) -> bool:
        return bool(period) and self.position.step % period == 0 and self.position.step > 0
