"""Verdicts that were wrong or missing, each by the lines of a log."""

from __future__ import annotations

import pytest

from tests.jobs.why.measure import told


@pytest.mark.parametrize(
    ("text", "ending"),
    [
        (
            "ValueError: Layer #1097 (named conv5_3), weight <x> has shape (3, 3), but the saved "
            "weight has shape (2, 3).",
            "checkpoint-mismatch",
        ),
        ("FATAL: Loss became infinite or NaN at step 12", "nan-loss"),
        ("RuntimeError: Training has diverged.", "nan-loss"),
        ("InvalidArgumentError: Key: image. Can't parse serialized Example.", "data-corrupt"),
        (
            "InvalidArgumentError: Feature: image/encoded (data type: string) is required but "
            "could not be found.",
            "data-corrupt",
        ),
        ("step 1\nKilled", "killed"),
        (
            "cp: cannot create regular file: [Errno 13] Permission denied: '/data/x'",
            "file-forbidden",
        ),
        (
            "Warning FailedScheduling 0/5 nodes are available: 5 Insufficient memory.",
            "stockout",
        ),
        ("0/5 nodes are available: 3 Insufficient cpu, 2 Insufficient memory.", "stockout"),
        (
            "UnimplementedError: Graph execution error: UNIMPLEMENTED: DNN library is not found.",
            "gpu-library",
        ),
    ],
)
def test_plain_words_are_known(text: str, ending: str) -> None:
    assert told(text).ending == ending


def test_a_cpu_run_that_saved_its_model_is_no_missing_gpu() -> None:
    diagnosis = told(
        "Could not find cuda drivers on your machine, GPU will not be used.\n"
        "Epoch 1/1\nSaved model to /job/model\n"
    )
    assert diagnosis.ending == "ended-well" and diagnosis.certainty == "likely"
    alone = told("Could not find cuda drivers on your machine, GPU will not be used.\n")
    assert (alone.ending, alone.certainty) == ("no-gpu", "likely")


@pytest.mark.parametrize(
    "text",
    [
        "failed (exitcode: 1) local_rank: 0 (pid: 10) of binary: python\n"
        "Process 11 of rank 1 exited with exitcode: -9",
        "Failures:\n[1]:\n  rank      : 1 (local_rank: 1)\n  exitcode  : -9 (pid: 11)\n"
        "Root Cause (first observed failure):\n[0]:\n  rank      : 0 (local_rank: 0)\n"
        "  exitcode  : 1 (pid: 10)",
    ],
)
def test_the_first_rank_that_ended_counts_and_not_who_was_killed_for_it(text: str) -> None:
    assert told(text).ending == "unknown"
    killed = text.replace("exitcode: 1)", "exitcode: -9)").replace(": 1 (pid", ": -9 (pid")
    assert told(killed).ending == "killed"


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


@pytest.mark.parametrize(
    ("text", "certainty"),
    [
        ("RuntimeError: CUDA out of memory. Tried to allocate 2 GiB", "certain"),
        (
            "OSError: [Errno 28] No space left on device\nTraceback (most recent call last):",
            "certain",
        ),
        ("size mismatch for fc.bias: copying a param with shape [5] from checkpoint", "likely"),
        ("note: no space left on device\n" + "reading the next file\n" * 30, "likely"),
        ("CUDA out of memory\nretried with a smaller batch\nall good so far\n" * 2, "likely"),
        ("OOM when allocating tensor\nstep 5 of 9: loss 0.1\nstep 6 of 9: loss 0.1", "likely"),
    ],
)
def test_only_a_line_that_ends_the_process_is_certain(text: str, certainty: str) -> None:
    assert told(text).certainty == certainty
