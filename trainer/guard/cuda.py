"""Whether CUDA itself starts: asked of the driver in a process of its own, with a time limit.

NVML may be well where `cuInit` fails: the fabric manager of a machine with NVSwitch does not run
(802), the libraries do not fit the kernel module (803), a cgroup hides the devices (100). Then
TensorFlow says one line and trains on the CPU (pytorch#35710). A driver that hangs never answers.

Like the guard, this imports nothing but Python's standard library.
"""

from __future__ import annotations

import subprocess
import sys

SECONDS = 30.0
"""How long cuInit may take. A machine with eight H100 takes 5 s."""

_PROGRAM = """
import ctypes
cuda, count, device = ctypes.CDLL("libcuda.so.1"), ctypes.c_int(), ctypes.c_int()
code = cuda.cuInit(0) or cuda.cuDeviceGetCount(ctypes.byref(count))
for index in range(count.value):
    code = code or cuda.cuDeviceGet(ctypes.byref(device), index)
print(code, count.value)
"""

_MEANINGS = {
    2: "out of memory",
    34: "libcuda.so.1 is the stub of the CUDA toolkit, not the driver's",
    46: "every GPU is in use by another process in exclusive mode",
    100: "no GPU is given to this container (cgroup or device plugin), although NVML lists one",
    101: "a GPU cannot be opened",
    802: "the system is not ready: the fabric manager does not run (systemctl start "
    "nvidia-fabricmanager)",
    803: "libcuda.so.1 does not fit the kernel module: restart the machine, or remove libcuda from "
    "the image",
    804: "the forward compatibility package in the image does not support this GPU: remove it",
    999: "unknown error: restart the container, then the machine (see dmesg for an Xid)",
}
"""What a code of the driver means (NVIDIA, cuda.h, CUresult)."""


def missing(seconds: float = SECONDS) -> str:
    """Return why CUDA does not start, or sees no GPU; "" if it does, or cannot be asked."""
    if not sys.executable:
        return ""
    command = [sys.executable, "-I", "-S", "-c", _PROGRAM]
    try:
        child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    except OSError:
        return ""
    try:
        answer = child.communicate(timeout=seconds)[0].split()
    except subprocess.TimeoutExpired:
        child.kill()  # and not waited for: a process inside a hung driver cannot be killed
        return (
            f"the driver does not answer: cuInit did not return in {seconds:.0f} s: restart the "
            "machine"
        )
    if child.returncode < 0:
        return f"CUDA does not start: cuInit ended its process by signal {-child.returncode}"
    if len(answer) != 2:
        return ""
    code, count = map(int, answer)
    if code:
        meaning = _MEANINGS.get(code, "see CUresult in cuda.h")
        return f"CUDA does not start: error {code}, {meaning}"
    return "" if count else "CUDA sees no GPU, although NVML lists one"
