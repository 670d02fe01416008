"""What a process of a run knows before it builds its model."""

from dataclasses import dataclass
from typing import Any

from trainer.config import Config
from trainer.input.parts import Shard
from trainer.job.checkpoints import Position
from trainer.loop.distribution import Cluster
from trainer.observe.ledger import Ledger, process_age
from trainer.observe.observer import Run


@dataclass(frozen=True)
class Setup:
    """The options, the devices and the data of one process."""

    config: Config
    """With steps and batch size as they are once records and replicas are counted."""
    place: Cluster
    strategy: Any
    """tf.distribute.Strategy."""
    names: tuple[str, ...]
    """Of the classes; label n is names[n]."""
    train: tuple[Shard, ...]
    validation: tuple[Shard, ...]
    policy: str
    """Keras dtype policy."""
    facts: dict[str, Any]
    """Software and devices, as in the first log line."""

    def run(self, model: Any, optimizer: Any, write: bool) -> Run:
        """Return what observers may look at, at step 0. `write`: this process writes for
        TensorBoard.
        """
        return Run(
            config=self.config,
            place=self.place,
            strategy=self.strategy,
            model=model,
            optimizer=optimizer,
            names=self.names,
            train=self.train,
            validation=self.validation,
            ledger=Ledger(age=process_age()),
            writes=write,
            position=Position(),
            steps=self.config.steps,
            policy=self.policy,
            facts=self.facts,
        )
