"""A Docker engine, an image for steps, and builds that are carried out.

The tests marked `engine` need a Docker engine: CLOUDBUILD_LOCAL_TEST_ENGINE, else docker's own.
CLOUDBUILD_LOCAL_TEST_IMAGE names an image with busybox, bash and docker;
CLOUDBUILD_LOCAL_TEST_REGISTRY a registry without a login.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from cloudbuild_local.reader import document
from cloudbuild_local.runner import engine as engines
from cloudbuild_local.runner import plan
from cloudbuild_local.runner.engine import Engine
from cloudbuild_local.runner.result import Result, StepResult
from cloudbuild_local.runner.run import run
from cloudbuild_local.runner.sandbox import LABEL


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "engine: needs a Docker engine")


@pytest.fixture(scope="session")
def engine() -> Engine:
    return engines.connect(os.environ.get("CLOUDBUILD_LOCAL_TEST_ENGINE"))


@pytest.fixture(scope="session")
def steps_image(engine: Engine) -> str:
    """The image that stands in for every builder."""
    image = os.environ.get("CLOUDBUILD_LOCAL_TEST_IMAGE", "docker:28-cli")
    if not engine.image(image):
        engine.pull(image, print)
    return image


@pytest.fixture(scope="session")
def registry() -> str:
    """HOST:PORT of a registry that takes pushes."""
    host = os.environ.get("CLOUDBUILD_LOCAL_TEST_REGISTRY")
    return host or pytest.skip("CLOUDBUILD_LOCAL_TEST_REGISTRY names no registry")


@dataclass
class Build:
    """A build that was carried out: how it went, and its log."""

    result: Result
    log: list[str]

    def printed(self, step: int | str, line: str) -> bool:
        """Return whether a step printed exactly this line."""
        return line in self.lines(step)

    def lines(self, step: int | str) -> list[str]:
        """Return what a step printed."""
        names = (f"Step #{step}: ", f' - "{step}": ')
        return [line.partition(n)[2] for line in self.log for n in names if n in line]

    def step(self, name: str) -> StepResult:
        return next(step for step in self.result.steps if step.id == name)


CarryOut = Callable[..., Build]


@pytest.fixture
def carry_out(engine: Engine, steps_image: str, tmp_path: Path) -> Iterator[CarryOut]:
    """Carries out a build from its text; afterwards nothing of it may be left on the engine."""
    plans: list[plan.BuildPlan] = []

    def carry(text: str, files: dict[str, str] | None = None, **options: Any) -> Build:
        folder = tmp_path / "source"
        folder.mkdir(exist_ok=True)
        for name, content in (files or {}).items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(content)
        of_run = ("push", "with_socket", "artifacts", "host")
        running = {name: options.pop(name) for name in of_run if name in options}
        file = document.parse(text, tmp_path / "cloudbuild.yaml", options.pop("trigger", False))
        defaults = {"images": {"*": steps_image}, "built_in": {"PROJECT_ID": "project"}}
        defaults["source"] = folder if files else None  # type: ignore[assignment]
        log: list[str] = []
        heard = options.pop("heard", lambda line: None)
        plans.append(plan.prepare(file, **{**defaults, **options}))

        def on_line(line: str) -> None:
            log.append(line)
            heard(line)

        return Build(run(plans[-1], engine, on_line, **running), log)

    yield carry
    for planned in plans:
        assert left_of(engine, planned.build_id) == []


def left_of(engine: Engine, build_id: str) -> list[str]:
    """Return what a build has on the engine."""
    filters = {"label": f"{LABEL}={build_id}"}
    return [
        *(
            name
            for container in engine.api.containers(all=True, filters=filters)
            for name in container["Names"]
        ),
        *(network["Name"] for network in engine.api.networks(filters=filters)),
        *(volume["Name"] for volume in engine.api.volumes(filters=filters).get("Volumes") or []),
    ]
