"""Logs of runs that ended well: none is called by an ending, whatever they warned of."""

from __future__ import annotations

import pytest

from tests.jobs.why.measure import told

START = """\
Could not find cuda drivers on your machine, GPU will not be used.
E cuda_driver.cc:152] failed call to cuInit: CUDA_ERROR_NO_DEVICE: no CUDA-capable device
[W socket.cpp:697] The client socket has failed to connect (errno: 101 - Network is unreachable)
WARNING: Retrying (Retry(total=4)) after 'NewConnectionError: [Errno 111] Connection refused'
W bfc_allocator.cc:296] ran out of memory trying to allocate 1.17GiB. This is not a failure
W cpu_allocator_impl.cc:83] Allocation of 1207959552 exceeds 10% of free system memory.
UserWarning: The given NumPy array is not writable
"""
EXIT = """\
Exception ignored in: <function Pool.__del__ at 0x7f>
AttributeError: 'NoneType' object has no attribute 'dumps'
W local_rendezvous.cc:404] Local rendezvous is aborting with status: OUT_OF_RANGE: End of sequence
[rank0]:[W ProcessGroupNCCL.cpp:1250] Warning: process group has NOT been destroyed
NCCL WARN NET/Plugin: Failed to find ncclNetPlugin_v8 symbol.
wandb: WARNING Path /wandb/ wasn't writable, using system temp directory
"""
STEPS = "".join(f"step {step} of 40: loss {1 / step:.3f}\n" for step in (10, 20, 30, 40))


@pytest.mark.parametrize(
    "end",
    [
        "`Trainer.fit` stopped: `max_epochs=3` reached.",
        "{'train_runtime': 12.3, 'train_samples_per_second': 8.1, 'train_loss': 0.4, 'epoch': 3.0}",
        "2026-11-21 07:00:09 | INFO | fairseq_cli.train | done training in 33.6 seconds",
        "INFO:tensorflow:Loss for final step: 0.1325.",
        "INFO:tensorflow:Assets written to: /job/model/assets",
        "300 epochs completed in 1.2 hours.\nOptimizer stripped from exp/weights/best.pt",
        "Model saved to /job/model.keras",
        "wandb: Synced 5 W&B file(s), 0 media file(s)",
        "Training complete.",
        "***** train metrics *****\n  epoch = 3.0\n  train_loss = 0.41",
    ],
)
@pytest.mark.parametrize("warnings", ["before", "after"])
def test_a_run_that_ended_well_is_no_ending(end: str, warnings: str) -> None:
    text = f"{START}{STEPS}" if warnings == "before" else f"{STEPS}{EXIT}"
    diagnosis = told(f"{text}{end}\n")
    assert diagnosis.ending in ("ended-well", "unknown"), (diagnosis.ending, diagnosis.evidence)
