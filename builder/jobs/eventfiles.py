"""TensorBoard's packages for event files, used without TensorFlow."""

import os
import sys
import time
import types
from collections.abc import Mapping, Sequence
from pathlib import Path


def without_tensorflow() -> None:
    """Keep TensorBoard's packages from importing TensorFlow, which takes seconds.

    Reading and writing event files works without it. Call this before their import.
    """
    if "tensorflow" not in sys.modules:
        sys.modules.setdefault("tensorboard.compat.notf", types.ModuleType("notf"))


def write_trial(
    folder: Path,
    number: int,
    parameters: Mapping[str, float | int | str],
    metric: str,
    points: Sequence[tuple[int, float]],
) -> None:
    """Write a trial of a study for TensorBoard's HParams page: its parameters and its curve."""
    without_tensorflow()
    from tensorboard.compat.proto.event_pb2 import Event  # type: ignore[import-untyped]
    from tensorboard.compat.proto.summary_pb2 import Summary  # type: ignore[import-untyped]
    from tensorboard.plugins.hparams import summary_v2  # type: ignore[import-untyped]
    from tensorboard.summary.writer import event_file_writer  # type: ignore[import-untyped]

    begun = summary_v2.hparams_pb(dict(parameters), trial_id=str(number))
    summaries = [(0, begun)] + [
        (step, Summary(value=[Summary.Value(tag=metric, simple_value=value)]))
        for step, value in points
    ]
    folder.mkdir(parents=True, exist_ok=True)
    writer = event_file_writer.EventFileWriter(str(folder), filename_suffix=f".{os.getpid()}.study")
    for step, summary in summaries:
        writer.add_event(Event(wall_time=time.time(), step=step, summary=summary))
    writer.close()
