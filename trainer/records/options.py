"""What a conversion is asked to make of its pictures."""

from dataclasses import dataclass, field

from trainer.records.pictures import PictureForm

FORMAT = 3
"""Version of dataset.json and of the records; work of another version is made again."""


@dataclass(frozen=True)
class Options:
    """What is made of the pictures."""

    form: PictureForm = field(default_factory=PictureForm)
    """How they are stored."""
    validation: float = 0.1
    """Share of each class that is held out, where the source has no splits of its own."""
    split_by: str = "name"
    """name, or content: then files with the same bytes are on the same side."""
    shard_size: int | None = None
    """Most examples in a file; None: plan.SHARD_SIZE, or fewer so that there are
    plan.MANY_SHARDS files."""
    skip: bool = False
    """Name and leave out pictures that cannot be read; otherwise the first one ends the run."""
    labels: tuple[str, ...] = ()
    """Class names in the order of their numbers; (): those found, sorted."""
    target: str = "class"
    """What a label is: see sources.Found."""
    workers: int = 0
    """Processes; 0: one for each core that this process may use."""
