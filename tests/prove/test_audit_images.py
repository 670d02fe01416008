"""The audit of images on an engine: one without any Python is streamed out of it."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from builder.core.errors import InputError, OutsideError
from builder.core.settings import Settings
from builder.engine import BuildRequest, Engine
from builder.prove import audit
from tests.devicecode.writer import container, library, sass

pytestmark = pytest.mark.engine

TAG = "audit-test:latest"


@pytest.fixture
def image(engine: Engine, context: Callable[..., Path]) -> Iterator[str]:
    """Two layers: the upper one removes one library of the lower one and replaces another."""
    folder = context(
        "COPY lower /opt/\nRUN rm /opt/removed.so\nCOPY upper /opt/\n"
        'ENTRYPOINT ["python3", "-m", "trainer.task"]\n'
    )
    for name, data in {
        "lower/removed.so": library(container(sass(90))),
        "lower/replaced.so": library(container(sass(90))),
        "upper/replaced.so": library(container(sass(70))),
    }.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(data)
    engine.build(BuildRequest(folder / "Dockerfile", folder, (TAG,)))
    yield TAG
    engine.client.images.remove(TAG, force=True)


def test_only_what_a_container_sees_is_judged(engine: Engine, image: str) -> None:
    (found,) = audit.audit(None, Settings(), lambda start: engine, [image], gpus=["V100", "H100"])
    assert [one.path for one in found.found.libraries] == ["/opt/replaced.so"]
    assert [device.name for device, _ in found.refused] == ["H100"]
    assert not engine.client.containers.list(all=True, filters={"ancestor": TAG})


def test_an_image_that_is_not_there(engine: Engine) -> None:
    with pytest.raises(OutsideError, match="the engine holds no image"):
        audit.of_image(engine.client, "no-such-image:ever")


def test_all_says_which_targets_are_not_built(
    engine: Engine, image: str, project: Path, write_target: Callable[..., Path]
) -> None:
    """They are named below the table of those that are; where none is, nothing was audited."""
    write_target("accelerator: V100\nsize_budget: 3 GB\n", "never-built")
    write_target("accelerator: CPU\nsize_budget: 1 GB\n", "without-gpu")
    found = audit.audit(
        project, Settings(), lambda start: engine, [image], everything=True, gpus=["V100"]
    )
    assert audit.table(found)[-1] == "never-built: not read (run builder build never-built)"
    audit.require(found)
    with pytest.raises(InputError, match=r"no image of a GPU target \(never-built\)") as caught:
        audit.audit(project, Settings(), lambda start: engine, [], everything=True)
    assert caught.value.fix.startswith("run builder build never-built")
    with pytest.raises(InputError, match="never-built: the engine holds no image"):
        audit.audit(project, Settings(), lambda start: engine, ["never-built"])
