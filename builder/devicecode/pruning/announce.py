"""Says in one line that an image was pruned for another GPU than the one that is here.

Copied into pruned images and called by a `.pth` file whenever Python starts there, so that it does
not matter how the program was started. Without a GPU it costs one look at a file; it never raises.
"""

import os
import sys

_SAID = "TRAINING_IMAGE_GPU_LOOKED_AT"
_DRIVER = "/proc/driver/nvidia/version"
_LIBRARY = "libnvidia-ml.so.1"


def announce(keep: str) -> None:
    """Write one line to stderr for GPUs that can't run what was kept for `keep` ("7.0").

    Once for a process and all it starts.
    """
    if _SAID in os.environ or not os.path.exists(_DRIVER):  # noqa: PTH110 - pathlib costs 5 ms
        return
    os.environ[_SAID] = keep
    try:
        found = devices()
    except Exception:  # whatever a driver does must not stop a training
        return
    line = complaint(keep, found)
    if line:
        sys.stderr.write(line + "\n")


def complaint(keep: str, found: "list[tuple[str, int, int]]") -> str:
    """The line for these GPUs (name, major, minor); "" where all run what was kept."""
    major, minor = (int(part) for part in keep.split("."))
    others = [
        "{} ({}.{})".format(*device) for device in found if device[1] != major or device[2] < minor
    ]
    if not others:
        return ""
    return (
        f"training-image-factory: this image has kernels for compute capability {keep} and newer "
        f"minors of {major} only, not for {', '.join(others)}: take the image for that GPU"
    )


def devices() -> "list[tuple[str, int, int]]":
    """Name and compute capability of every GPU, from the driver's management library."""
    import ctypes

    nvml = ctypes.CDLL(_LIBRARY)
    if nvml.nvmlInit_v2() != 0:
        return []
    found = []
    try:
        count = ctypes.c_uint()
        nvml.nvmlDeviceGetCount_v2(ctypes.byref(count))
        for index in range(count.value):
            handle, name = ctypes.c_void_p(), ctypes.create_string_buffer(96)
            major, minor = ctypes.c_int(), ctypes.c_int()
            if (
                nvml.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(handle)) == 0
                and nvml.nvmlDeviceGetName(handle, name, ctypes.c_uint(96)) == 0
                and nvml.nvmlDeviceGetCudaComputeCapability(
                    handle, ctypes.byref(major), ctypes.byref(minor)
                )
                == 0
            ):
                found.append((name.value.decode(), major.value, minor.value))
    finally:
        nvml.nvmlShutdown()
    return found
