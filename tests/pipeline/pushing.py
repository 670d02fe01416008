"""For tests: receipts that hold for the smallest images, and another engine."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from builder.core.settings import Settings
from builder.engine import Engine, private
from builder.engine.discovery import connect
from builder.engine.private import daemon
from builder.pipeline.push import LocalImage
from builder.prove.receipts import CheckResult, Receipt
from tests.prove.reading import TRAINER

REQUIRED = TRAINER.required("V100")
NEWER = replace(
    TRAINER,
    checks=tuple(
        replace(check, version=check.version + (check.name == "loader")) for check in TRAINER.checks
    ),
)
"""The suite of a factory whose check of the loader asks for more."""


Build = Callable[..., LocalImage]
"""The fixture `build`: builds the smallest image with some random bytes in it."""


@contextmanager
def other_engine(
    folder: Path, monkeypatch: pytest.MonkeyPatch, containerd_store: bool = True
) -> Iterator[Engine]:
    """A private engine of its own, with nothing in it, which a test may kill."""
    if not containerd_store:
        whole = daemon.configuration

        def graph_driver(*arguments: Any, **options: Any) -> dict[str, object]:
            result = {**whole(*arguments, **options), "features": {"containerd-snapshotter": False}}
            return result | ({"storage-driver": "vfs"} if result.get("storage-driver") else {})

        monkeypatch.setattr(daemon, "configuration", graph_driver)
    monkeypatch.setenv(private.ENVIRONMENT, str(folder))
    try:
        yield connect(Settings(engine="private"))
    finally:
        private.stop(folder)
        # what a killed engine had mounted stays mounted, and its folder cannot be removed
        mounts = [line.split()[1] for line in Path("/proc/self/mounts").read_text().splitlines()]
        for mount in reversed([m for m in mounts if m.startswith(f"{folder}/")]):
            subprocess.run(["umount", "--lazy", mount], check=True)
        shutil.rmtree(folder, ignore_errors=True)


def proof(image: LocalImage, **changes: object) -> Receipt:
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
