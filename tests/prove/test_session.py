"""What a container of a session gets; no engine."""

from types import SimpleNamespace
from unittest.mock import MagicMock

import pytest

from builder import contract
from builder.prove.session import Session


@pytest.mark.parametrize(("gpus", "expected"), [((), contract.CPU), (("0",), None)])
def test_a_container_without_a_gpu_is_told_that_the_cpu_is_wanted(
    gpus: tuple[str, ...], expected: str | None
) -> None:
    """So an image that expects a GPU is proven where there is none."""
    client, image = MagicMock(), SimpleNamespace(id="sha256:1", attrs={})
    session = Session(client, MagicMock(target="v100"), image)
    with session.container(["train"], {"A": "b"}, gpus=gpus):
        environment = client.containers.create.call_args.kwargs["environment"]
    assert environment["A"] == "b"
    assert environment.get(contract.ACCELERATOR) == expected
