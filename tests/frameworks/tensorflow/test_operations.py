"""What the hook of the check `compile` counts and writes where TensorFlow has no call for it."""

from __future__ import annotations

from types import SimpleNamespace as Value

import pytest

from builder.frameworks.pjrt import compile_options
from builder.frameworks.tensorflow.probes import compile as probe


@pytest.mark.parametrize(
    ("size", "window", "made", "times"),
    [
        (5, {"size": 3}, 3, 9),
        (5, {"size": 3, "padding_low": 1}, 5, 13),  # nothing is multiplied with the padding
        (5, {"size": 3, "stride": 2, "padding_low": 1}, 3, 7),
        (3, {"size": 3, "base_dilation": 2, "padding_low": 1}, 5, 7),  # a gradient: two holes
        (5, {"size": 2, "window_dilation": 2}, 3, 6),
    ],
)
def test_only_numbers_that_are_multiplied_count(
    size: int, window: dict[str, int], made: int, times: int
) -> None:
    whole = {"stride": 1, "padding_low": 0, "window_dilation": 1, "base_dilation": 1, **window}
    assert probe.taken(Value(**whole), size, made) == times


def test_the_options_of_a_compilation_are_those_of_its_protocol_buffer() -> None:
    """Written by xla.CompileOptionsProto itself, of TensorFlow 2.21's headers."""
    assert compile_options({"a": "b"}) == bytes.fromhex(
        "1a1a08ffffffffffffffffff01200128014a09080110011a030a01003a080a016112030a0162"
    )  # fmt: skip
