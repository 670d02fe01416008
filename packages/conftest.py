"""What the tests of packages find in this tree: an engine, an image for steps, and a registry."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from builder.core.settings import Settings
from builder.engine import discovery
from tests.cloudbuild import steps
from tests.conftest import (  # noqa: F401 - a fixture, and that no test is skipped
    busybox,
    pytest_make_collect_report,
    pytest_runtest_makereport,
)
from tests.registry.server import registry


@pytest.fixture(scope="session", autouse=True)
def machine(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[None]:
    """Name them in the variables that the tests of cloudbuild-local read."""
    with ExitStack() as stack, pytest.MonkeyPatch.context() as patch:
        if any(item.get_closest_marker("engine") for item in request.session.items):
            engine = discovery.connect(Settings())
            program: Path = request.getfixturevalue("busybox")
            image = stack.enter_context(steps.imported(engine, program))
            server = stack.enter_context(registry(tmp_path_factory.mktemp("registry")))
            patch.setenv("CLOUDBUILD_LOCAL_TEST_ENGINE", engine.host)
            patch.setenv("CLOUDBUILD_LOCAL_TEST_IMAGE", image)
            patch.setenv("CLOUDBUILD_LOCAL_TEST_REGISTRY", server.host)
        yield
