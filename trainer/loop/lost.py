"""What ended a step: a GPU that went away, GPUs that no longer talk, or too little memory.

TensorFlow raises the same types for all of them, so the words decide. A process that restarts finds
another machine, or is refused by the guard (trainer/guard/) where the GPU is still broken. A
batch that does not fit will not fit after a restart either.

Sources of the words: tensorflow#8949, #45238 and models#5527 (memory), DeepLearningExamples#405
(XLA), tensorflow#28693 and DeepFaceLab_Linux#89 (a broken GPU), tensorflow#51760 and #59890 (NCCL),
all on github.com; the codes of CUDA: NVIDIA, CUDA Driver API, cudaError_enum.
"""

import re
from dataclasses import dataclass
from typing import Any, Literal

Cause = Literal["device memory", "host memory", "device", "nccl"]

_HOST = re.compile(r"device:CPU:\d+ by allocator|MemoryError|by allocator cpu", re.IGNORECASE)
_MEMORY = re.compile(
    r"OOM when allocating tensor|out of memory|ran out of memory|CUDA_ERROR_OUT_OF_MEMORY"
    r"|failed to allocate (?:request for|memory)|MemoryError: Unable to allocate",
    re.IGNORECASE,
)
_DEVICE = re.compile(
    r"CUDA_ERROR_(?:ECC_UNCORRECTABLE|LAUNCH_FAILED|LAUNCH_TIMEOUT|HARDWARE_STACK_ERROR"
    r"|DEVICE_UNAVAILABLE|NVLINK_UNCORRECTABLE|EXTERNAL_DEVICE|CONTAINED|UNKNOWN\b)"
    r"|fallen off the bus|GPU is lost|unspecified launch failure|uncorrectable (?:ECC|NVLink) error"
    r"|SLICE_FAILURE_CHIP_DRIVER_ERROR",
    re.IGNORECASE,
)
_NCCL = re.compile(r"\bnccl|unhandled (?:cuda|system) error|remote process exited", re.IGNORECASE)


@dataclass(frozen=True)
class Loss:
    """What ended a step. restart: whether the same run may end well when it starts again."""

    cause: Cause
    restart: bool
    text: str


_LOSSES = (
    (
        _DEVICE,
        Loss(
            "device",
            True,
            "the GPU failed while this run used it: start it again, best on another machine",
        ),
    ),
    (
        _NCCL,
        Loss(
            "nccl",
            True,
            "the GPUs no longer talk to each other (NCCL): one failed or hangs; start all again",
        ),
    ),
)


def of(error: Any) -> Loss | None:
    """Return what an error of TensorFlow (tf.errors.OpError) says was lost; None for any other
    error.
    """
    kind, message = type(error).__name__, str(error.message or "")
    if _MEMORY.search(message) and kind in ("ResourceExhaustedError", "InternalError"):
        if _HOST.search(message):
            return Loss(
                "host memory",
                False,
                "the machine's memory is used up: give a smaller --batch-size, or take a machine "
                "with more memory",
            )
        return Loss(
            "device memory",
            False,
            "the GPU's memory is used up: give a smaller --batch-size (or --accumulate more), "
            "--precision mixed_float16, or take a GPU with more memory",
        )
    if kind not in ("InternalError", "UnknownError", "UnavailableError", "AbortedError"):
        return None
    return next((loss for words, loss in _LOSSES if words.search(message)), None)
