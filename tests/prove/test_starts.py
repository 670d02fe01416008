"""What an image of any other program has to show at its start, and what its container gets."""

from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest

from builder import contract
from builder.prove.checks import starts
from builder.prove.judge import Run
from builder.prove.session import Sandbox

OWN = ("Traceback (most recent call last):", '  File "/app/train.py", line 3, in main', "KeyError")


@pytest.mark.parametrize(
    ("run", "message"),
    [
        (Run(0, 1.0, tail=("usage: train.py DATA",)), ""),
        (Run(2, 1.0, tail=("usage: train.py DATA",)), ""),
        (Run(1, 1.0, tail=OWN), ""),  # it lacks its data, and has reached its own code
        (Run(137, 1.0, timed_out=True), ""),  # it began to train
        (Run(3, 1.0), "ends before it says why: exit code 3; it said last: nothing"),
        (
            Run(127, 1.0, tail=('exec: "train": executable file not found in $PATH',)),
            "cannot be executed: exit code 127; it said last: exec:",
        ),
        (
            Run(1, 1.0, tail=("ModuleNotFoundError: No module named 'pandas'",)),
            "does not start: ModuleNotFoundError: No module named 'pandas'",
        ),
        (
            Run(1, 1.0, tail=("OSError: /x/_torchtext.so: undefined symbol: _ZN3c104ivalue",)),
            "does not start: OSError: /x/_torchtext.so: undefined symbol",
        ),
        (
            Run(1, 1.0, tail=("OSError: Could not load this library: /x/libtorchaudio.so",)),
            "does not start: OSError: Could not load this library",
        ),
        (
            Run(1, 1.0, tail=("OSError: libcudart.so.12: cannot open shared object file: No",)),
            "does not start: OSError: libcudart.so.12: cannot open",
        ),
        (
            Run(2, 1.0, tail=("python: can't open file '/app/x.py': [Errno 2] No such file",)),
            "does not start: python: can't open file '/app/x.py'",
        ),
        (Run(1, 1.0, tail=("WARNING: undefined symbol: x", *OWN)), ""),
    ],
)
def test_a_program_has_to_reach_its_own_code(run: Run, message: str) -> None:
    session: Any = SimpleNamespace(start=lambda *_, **__: run)
    defects, _ = starts.run(session)
    assert [defect.message.startswith(f"the program {message}") for defect in defects] == (
        [True] if message else []
    )


def test_a_container_is_told_that_the_cpu_is_wanted() -> None:
    """So an image that expects a GPU is proven where there is none."""
    client, image = MagicMock(), SimpleNamespace(id="sha256:1", attrs={})
    with Sandbox(client, image).container(["train"], {"A": "b"}):
        environment = client.containers.create.call_args.kwargs["environment"]
    assert (environment["A"], environment[contract.ACCELERATOR]) == ("b", contract.CPU)
