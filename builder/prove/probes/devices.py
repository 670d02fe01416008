"""Which GPUs was the container given? It asks the driver, and needs no library of CUDA.

Request: {}
"""

from __future__ import annotations

import ctypes
import json
from typing import Any

COMPUTE_CAPABILITY_MAJOR, COMPUTE_CAPABILITY_MINOR = 75, 76


def devices(driver: Any) -> list[dict[str, Any]]:
    """Return index, name and compute capability of each GPU that libcuda (`driver`) knows."""
    count = ctypes.c_int(0)
    if driver.cuInit(0) != 0 or driver.cuDeviceGetCount(ctypes.byref(count)) != 0:
        return []
    gpus = []
    for index in range(count.value):
        device, value = ctypes.c_int(0), ctypes.c_int(0)
        driver.cuDeviceGet(ctypes.byref(device), index)
        name = ctypes.create_string_buffer(256)
        driver.cuDeviceGetName(name, len(name), device)
        numbers = []
        for attribute in (COMPUTE_CAPABILITY_MAJOR, COMPUTE_CAPABILITY_MINOR):
            driver.cuDeviceGetAttribute(ctypes.byref(value), attribute, device)
            numbers.append(str(value.value))
        capability = ".".join(numbers)
        gpus.append({"index": index, "name": name.value.decode(), "compute_capability": capability})
    return gpus


def main() -> dict[str, Any]:
    """Return the devices; none without a driver."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return {"problems": [], "seen": {"devices": []}}
    return {"problems": [], "seen": {"devices": devices(driver)}}


if __name__ == "__main__":
    print(json.dumps(main()))
