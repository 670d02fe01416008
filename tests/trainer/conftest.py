"""Fixtures of the trainer's tests."""

import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.trainer.runs import Process, Task


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Ignore modules that import TensorFlow, which takes seconds, if their tests would not run."""
    if "not tensorflow" not in config.option.markexpr or collection_path.suffix != ".py":
        return None
    return True if "pytest.mark.tensorflow" in collection_path.read_text() else None


@pytest.fixture(scope="session", autouse=True)
def as_written() -> None:
    """Graphs of a few steps run as they are written: optimizing each took a third of the processor
    time here. Runs in processes of their own have the optimizer, and so has every proof."""
    if tensorflow := sys.modules.get("tensorflow"):
        tensorflow.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})


@pytest.fixture
def start() -> Iterator[type[Process]]:
    """Starts processes, and ends them after the test."""
    started: list[Process] = []

    class Tracked(Process):
        def __init__(self, job: Path, *options: object, **environment: str) -> None:
            super().__init__(job, *options, **environment)
            started.append(self)

    yield Tracked
    for one in started:
        one.close()


@pytest.fixture
def task(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Iterator[Task]:
    for variable in ("TF_CONFIG", "AIP_MODEL_DIR", "AIP_CHECKPOINT_DIR"):
        monkeypatch.delenv(variable, raising=False)
    handler = signal.getsignal(signal.SIGTERM)
    yield Task(capsys, tmp_path)
    signal.signal(signal.SIGTERM, handler)
