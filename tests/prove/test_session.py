"""What a container of a session gets; no engine."""

from types import SimpleNamespace
from unittest.mock import MagicMock

from builder import contract
from builder.prove.session import Sandbox


def test_a_container_is_told_that_the_cpu_is_wanted() -> None:
    """So an image that expects a GPU is proven where there is none."""
    client, image = MagicMock(), SimpleNamespace(id="sha256:1", attrs={})
    with Sandbox(client, image).container(["train"], {"A": "b"}):
        environment = client.containers.create.call_args.kwargs["environment"]
    assert (environment["A"], environment[contract.ACCELERATOR]) == ("b", contract.CPU)
