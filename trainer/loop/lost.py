"""What ended a step: a GPU that went away, GPUs that no longer talk, or too little memory.

Too little memory has a type of its own in TensorFlow, tf.errors.ResourceExhaustedError. A GPU that
failed has none: TensorFlow raises it as an internal error, with CUDA's or NCCL's name of it
(NVIDIA, CUDA Driver API, cudaError_enum; tensorflow#51760 and #59890). A process that restarts gets
another machine, or is refused by the guard (trainer/guard/) where the GPU is still broken. A batch
that does not fit will not fit after a restart either.
"""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Loss:
    """What ended a step. restart: whether the same run may end well when it starts again."""

    restart: bool
    text: str


_HOST = Loss(
    False,
    "the machine's memory is used up: give a smaller --batch-size, or take a machine with more "
    "memory",
)
_MEMORY = Loss(
    False,
    "the GPU's memory is used up: give a smaller --batch-size (or --accumulate more), --precision "
    "mixed_float16, or take a GPU with more memory",
)
_DEVICE = Loss(
    True, "the GPU failed while this run used it: start it again, best on another machine"
)
_NCCL = Loss(
    True, "the GPUs no longer talk to each other (NCCL): one failed or hangs; start all again"
)
_NAMES = {
    "CUDA_ERROR_OUT_OF_MEMORY": _MEMORY,
    **dict.fromkeys(
        (
            *("CUDA_ERROR_ECC_UNCORRECTABLE", "CUDA_ERROR_LAUNCH_FAILED"),
            *("CUDA_ERROR_LAUNCH_TIMEOUT", "CUDA_ERROR_HARDWARE_STACK_ERROR"),
            *("CUDA_ERROR_DEVICE_UNAVAILABLE", "CUDA_ERROR_NVLINK_UNCORRECTABLE"),
            *("CUDA_ERROR_EXTERNAL_DEVICE", "CUDA_ERROR_CONTAINED"),
            "fallen off the bus",
        ),
        _DEVICE,
    ),
    **dict.fromkeys(("NCCL", "unhandled cuda error", "unhandled system error"), _NCCL),
}
"""Names in an internal error, the surest first."""


def of(error: Any) -> Loss | None:
    """Return what an error of TensorFlow (tf.errors.OpError) says was lost, or None."""
    kind, message = type(error).__name__, str(error.message or "")
    if kind == "ResourceExhaustedError":
        return _HOST if "device:CPU" in message else _MEMORY
    if kind not in ("InternalError", "UnknownError", "UnavailableError", "AbortedError"):
        return None
    return next((loss for name, loss in _NAMES.items() if name in message), None)
