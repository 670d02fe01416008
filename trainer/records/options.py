"""What a conversion is asked to make of its pictures or sounds."""

from dataclasses import dataclass

from trainer.records.pictures import PictureForm
from trainer.records.sounds import SoundForm

FORMAT = 3
"""Version of dataset.json and of the records; work of another version is made again."""
PICTURES, SOUNDS = "pictures", "sounds"
Form = PictureForm | SoundForm


@dataclass(frozen=True)
class Options:
    """What is made of the pictures or sounds."""

    form: Form | None = None
    """How they are stored; None: the usual form of what is found."""
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

    @property
    def kind(self) -> str:
        """PICTURES or SOUNDS."""
        return SOUNDS if isinstance(self.form, SoundForm) else PICTURES
