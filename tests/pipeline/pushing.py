"""For tests: the smallest images, receipts that hold for them, and a push of both."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from builder.core.events import Event
from builder.core.retry import Retry
from builder.core.settings import Settings
from builder.engine import Engine, connect, private
from builder.engine.private import daemon
from builder.pipeline.push import PushedImage, push
from builder.prove.receipts import CheckResult, Receipt
from builder.tensorflow import suite as suites

REQUIRED = suites.TRAINER.required("V100")
NEWER = replace(
    suites.TRAINER,
    checks=tuple(
        replace(check, version=check.version + (check.name == "loader"))
        for check in suites.TRAINER.checks
    ),
)
"""The suite of a factory whose check of the loader asks for more."""
QUICK = Retry(attempts=3, first=0.01)
REPOSITORY = "team/training"


@dataclass(frozen=True)
class Image:
    """What a build says about an image."""

    reference: str
    digest: str | None
    image_id: str
    labels: Mapping[str, str] = field(default_factory=dict)


Build = Callable[..., Image]
"""The fixture `build`: builds the smallest image with some random bytes in it."""


@contextmanager
def other_engine(
    folder: Path, monkeypatch: pytest.MonkeyPatch, containerd_store: bool = True
) -> Iterator[Engine]:
    """A private engine of its own, with nothing in it."""
    if not containerd_store:
        whole = daemon.configuration

        def graph_driver(*arguments: Any) -> dict[str, object]:
            result = {**whole(*arguments), "features": {"containerd-snapshotter": False}}
            return result | ({"storage-driver": "vfs"} if result.get("storage-driver") else {})

        monkeypatch.setattr(daemon, "configuration", graph_driver)
    monkeypatch.setenv(private.ENVIRONMENT, str(folder))
    try:
        yield connect(Settings(engine="private"))
    finally:
        private.stop(folder)
        shutil.rmtree(folder, ignore_errors=True)


def proof(image: Image, **changes: object) -> Receipt:
    """A receipt that holds for this image."""
    receipt = Receipt(
        target="v100",
        accelerator="V100",
        reference=image.reference,
        digest=image.digest,
        image_id=image.image_id,
        inputs="0123",
        made_by="0.1.0",
        made_at="2026-11-21T12:00:00+00:00",
        device="CPU",
        suite="trainer",
        checks=results(REQUIRED),
    )
    return receipt.model_copy(update=changes)


def results(checks: Mapping[str, int]) -> tuple[CheckResult, ...]:
    """Checks that passed: name -> version."""
    return tuple(
        CheckResult(name=name, version=version, passed=True, seconds=1.0)
        for name, version in checks.items()
    )


def settings(host: str) -> Settings:
    return Settings(registry=f"{host}/{REPOSITORY}")


def sent(
    engine: Engine,
    image: Image,
    host: str,
    *tags: str,
    receipt: Receipt | None = None,
    base: Image | None = None,
    events: list[Event] | None = None,
) -> PushedImage:
    """Push with a receipt that holds."""
    return push(
        engine,
        image,
        receipt or proof(image),
        settings(host),
        tags or ("v100-2.21.0-abc", "v100"),
        base=base,
        retry=QUICK,
        on_event=(events if events is not None else []).append,
    )
