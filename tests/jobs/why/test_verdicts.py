"""Verdicts that were wrong, each by the lines of a log."""

from __future__ import annotations

import pytest

from tests.jobs.why.measure import told


@pytest.mark.parametrize(
    "line",
    [
        "[rank{n}]: {text}",
        "[default{n}]:{text}",
        "[1,{n}]<stderr>:{text}",
        "[pod/trainer-{n}/main] {text}",
        "worker-{n} | {text}",
        "worker-{n}  {text}",
        "{n}: {text}",
    ],
)
def test_replicas_in_one_file_are_told_apart(line: str) -> None:
    """Rank 1 was first; what rank 0 says later is no cause, and its steps outlive nothing."""
    words = [
        (0, "No space left on device"),
        *((1, f"step {n} of 9: loss 0.1") for n in range(4)),
        (1, "OOM when allocating tensor with shape[64] by allocator GPU_0_bfc"),
    ]
    text = "\n".join(line.format(n=n, text=words_) for n, words_ in words)
    assert told(text).ending == "disk-full"
    alone = "\n".join(words_ for _, words_ in words)
    assert told(alone).ending == "device-memory"
