"""Preloading: the lower layers of a base go into an engine while those above are being made.

An engine unpacks the layers of an image one after the other, the lowest first, which keeps one
processor busy. So the layers that are there already go into it as an image of their own; when the
whole image is loaded, the engine has them. That image's tag is removed at the end.
"""

from __future__ import annotations

import contextlib
import threading
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import takewhile
from typing import TYPE_CHECKING, Final, Self

from builder.core.errors import OutsideError
from builder.core.events import OnEvent, ignore
from builder.image.assembled import assemble
from builder.image.content_store import ContentStore
from builder.image.layer import Layer
from builder.image.loading import load, reuses_layers
from builder.image.plan import BasePlan

if TYPE_CHECKING:
    from builder.engine import Engine

LEAST: Final = 150_000_000
"""Bytes of new layers that are worth a load of their own."""


class Preload:
    """Loads for some bases, in a thread of its own; a context manager.

    Call `add` for each layer that is made, then `settle`, then load the whole images. The end of
    the block removes the names of what was preloaded.
    """

    def __init__(
        self,
        engine: Engine,
        plans: Sequence[BasePlan],
        store: ContentStore,
        repository: str,
        on_event: OnEvent = ignore,
    ) -> None:
        self._engine, self._store, self._on_event = engine, store, on_event
        self._plans = {f"{repository}:{plan.tag}.lower": plan for plan in plans}
        self._made: dict[str, Layer] = {}
        self._sent: Counter[str] = Counter()
        self._pool = ThreadPoolExecutor(1)
        self._loads: list[Future[None]] = []
        self._ended = threading.Event()
        if not reuses_layers(engine):
            self._ended.set()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.settle()
        for name in self._sent:
            with contextlib.suppress(Exception):  # the engine may be gone
                self._engine.client.images.remove(name, noprune=True)

    def add(self, layer: Layer) -> None:
        """Take a layer that is in the store, from any thread."""
        self._made[layer.key] = layer
        if not self._ended.is_set():
            self._loads.append(self._pool.submit(self._load))

    def settle(self) -> None:
        """Begin no further load, and wait for the one that runs."""
        self._ended.set()
        self._pool.shutdown(cancel_futures=True)
        for preloaded in self._loads:
            if not preloaded.cancelled():
                preloaded.result()

    def _load(self) -> None:
        """Load the lowest layers of each base, as many as there are without a gap."""
        for name, plan in self._plans.items():
            if self._ended.is_set():
                return
            lowest = takewhile(lambda layer: layer.key in self._made, plan.layers)
            image = assemble(
                [(self._made[layer.key], layer.history) for layer in lowest], plan.config
            )
            if image.compressed_bytes < self._sent[name] + LEAST:
                continue
            try:
                load(self._engine, image, self._store, name, self._on_event)
            except OutsideError:  # the load of the whole image meets it again, and reports it
                self._ended.set()
            self._sent[name] = image.compressed_bytes
