"""The scalars that a trainer writes for TensorBoard, read while the job runs."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from builder.jobs.eventfiles import without_tensorflow
from builder.jobs.watch.view import TAGS


@dataclass(frozen=True)
class ChartPoint:
    """One value of a chart. run: the folder of its event file, such as train."""

    chart: str
    run: str
    step: int
    value: float


@dataclass
class Scalars:
    """The event files below a folder; those that can be drawn, TAGS says which."""

    folder: Path
    _loaders: dict[Path, Any] = field(default_factory=dict)

    def new(self) -> Iterator[ChartPoint]:
        """The scalars since the last call; none where TensorBoard is not installed."""
        try:
            without_tensorflow()
            from tensorboard.backend.event_processing import (  # type: ignore[import-untyped]
                event_file_loader,
            )
            from tensorboard.util import tensor_util  # type: ignore[import-untyped]
        except ImportError:
            return
        for path in sorted(self.folder.rglob("events.out.tfevents.*")):
            if path not in self._loaders:
                self._loaders[path] = event_file_loader.EventFileLoader(str(path))
            with contextlib.suppress(Exception):  # a torn record: the next call reads it
                for event in self._loaders[path].Load():
                    for value in event.summary.value:
                        if value.tag not in TAGS or not value.HasField("tensor"):
                            continue
                        array = tensor_util.make_ndarray(value.tensor)
                        if array.size == 1:
                            number = float(array.reshape(()))
                            yield ChartPoint(TAGS[value.tag], path.parent.name, event.step, number)
