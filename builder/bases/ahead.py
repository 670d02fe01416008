"""Loading the lower layers of a base into an engine while those above are still being made.

An engine unpacks the layers of an image one after the other, the lowest first, which keeps one
processor busy. So the layers that are there already go into it as an image of their own; when the
whole image is loaded, the engine has them. That image's tag goes at the end.
"""

from __future__ import annotations

import contextlib
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import takewhile
from typing import Final

from builder.bases.archive import Blobs
from builder.bases.assembled import AssembledImage, assemble
from builder.bases.layer import Layer
from builder.bases.loading import load, reuses_layers
from builder.bases.plan import BasePlan
from builder.core.errors import OutsideError
from builder.core.events import OnEvent, ignore
from builder.engine import Engine

LEAST: Final = 150_000_000
"""Bytes of new layers that are worth a load of their own."""


class Ahead:
    """Loads for some bases, in a thread of its own. `made` takes layers from any thread."""

    def __init__(
        self,
        engine: Engine,
        plans: Sequence[BasePlan],
        blobs: Blobs,
        repository: str,
        on_event: OnEvent = ignore,
    ) -> None:
        self._engine, self._blobs, self._on_event = engine, blobs, on_event
        self._plans = {f"{repository}:{plan.tag}.lower": plan for plan in plans}
        self._here: dict[str, Layer] = {}
        self._sent: Counter[str] = Counter()
        self._pool = ThreadPoolExecutor(1)
        self._loads: list[Future[None]] = []
        self._ended = threading.Event()
        if not reuses_layers(engine):
            self._ended.set()

    def made(self, layer: Layer) -> None:
        """Take a layer that is in the store."""
        self._here[layer.key] = layer
        if not self._ended.is_set():
            self._loads.append(self._pool.submit(self._load))

    def settle(self) -> None:
        """Begin no further load, and wait for the one that runs."""
        self._ended.set()
        self._pool.shutdown(cancel_futures=True)
        for one in self._loads:
            if not one.cancelled():
                one.result()

    def forget(self) -> None:
        """Remove the names of what was loaded."""
        for name in self._sent:
            with contextlib.suppress(Exception):  # the engine may be gone
                self._engine.client.images.remove(name, noprune=True)

    def _load(self) -> None:
        for name, plan in self._plans.items():
            if self._ended.is_set():
                return
            image = self._lower(plan)
            if image.compressed_bytes < self._sent[name] + LEAST:
                continue
            try:
                load(self._engine, image, self._blobs, name, self._on_event)
            except OutsideError:  # the load of the whole image meets it again, and says so
                self._ended.set()
            self._sent[name] = image.compressed_bytes

    def _lower(self, plan: BasePlan) -> AssembledImage:
        """The lowest layers of a base, as many as there are without a gap."""
        here = takewhile(lambda one: one.key in self._here, plan.layers)
        return assemble([(self._here[one.key], one.said) for one in here], plan.settings)


@contextlib.contextmanager
def loading(
    engine: Engine,
    plans: Sequence[BasePlan],
    blobs: Blobs,
    repository: str,
    on_event: OnEvent = ignore,
) -> Iterator[Ahead]:
    """Load what is made ahead; the whole images are to be loaded before the block ends."""
    ahead = Ahead(engine, plans, blobs, repository, on_event)
    try:
        yield ahead
    finally:
        ahead.settle()
        ahead.forget()
