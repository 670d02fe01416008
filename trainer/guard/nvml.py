"""What NVML tells of the GPUs of this container (NVIDIA's management library, nvml.h).

Like the guard, this imports nothing but Python's standard library.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any


@dataclass(frozen=True)
class Device:
    """Describes a GPU, or a MIG slice of one."""

    label: str
    name: str = ""
    uuid: str = ""
    gpu: str = ""
    """The UUID of the whole GPU."""
    capability: str = ""
    used: float = 0.0
    """The share of its memory, 0 where that is not known."""
    problem: str = ""
    """What it answers in place of its name."""


class Code:
    """Return codes (NVIDIA, nvml.h, nvmlReturn_t)."""

    NO_PERMISSION = 4
    NOT_LOADED = 9
    MISSING = 13
    LOST = 15
    RESET = 16
    MISMATCH = 18


_MEANINGS = {
    1: "NVML was not initialized",
    2: "an argument is invalid",
    3: "not supported on this GPU",
    Code.NO_PERMISSION: "no permission",
    6: "not found",
    8: "insufficient external power",
    Code.NOT_LOADED: "the driver is not loaded",
    10: "it timed out",
    11: "interrupt issue",
    12: "a library of the driver is missing",
    Code.LOST: "GPU is lost, it has fallen off the bus",
    Code.RESET: "GPU requires a reset",
    17: "the operating system blocks the GPU",
    Code.MISMATCH: "driver and library are of different versions",
    20: "not enough memory",
    999: "unknown error",
}
_BAD_MEMORY = "has bad memory that it cannot replace: take another machine, and have it exchanged"
_PENDING = (
    "has had an uncorrectable memory error, and starts no program until it is reset: restart the "
    "machine, or take another one"
)
"""NVIDIA, Dynamic Page Retirement, "DBE Detected": no context is created until it is mapped out."""
_BROKEN = frozenset({8, 11, Code.LOST, Code.RESET, 999})
"""The codes after which a device computes nothing; others mean that it does not tell."""


def meaning(code: int) -> str:
    """Return what a return code means, for the end of a sentence."""
    known = _MEANINGS.get(code)
    return f"{known} (NVML error {code})" if known else f"NVML error {code}"


class Nvml:
    """Calls NVML through ctypes."""

    def __init__(self, library: Any) -> None:
        import ctypes

        self._library, self._types = library, ctypes

    def call(self, name: str, *arguments: Any) -> int:
        """Return a call's code; that for a missing function where an old driver lacks it."""
        function = getattr(self._library, name, None)
        return Code.MISSING if function is None else int(function(*arguments))

    def driver(self) -> str:
        """Return the driver's version; "" where it is not known."""
        text = self._types.create_string_buffer(96)
        self.call("nvmlSystemGetDriverVersion", text, self._types.c_uint(96))
        return text.value.decode(errors="replace")

    def devices(self) -> list[Device]:
        """Return the GPUs that this container may use; in place of one with MIG, its slices."""
        count = self._types.c_uint()
        self.call("nvmlDeviceGetCount_v2", self._types.byref(count))
        devices: list[Device] = []
        for index in range(count.value):
            handle = self._types.c_void_p()
            at = self._types.c_uint(index)
            code = self.call("nvmlDeviceGetHandleByIndex_v2", at, self._types.byref(handle))
            if code == Code.NO_PERMISSION:  # another container's
                continue
            label = f"GPU {index}"
            devices += (
                [Device(label, problem=_broken(code))] if code else self._parts(label, handle)
            )
        return devices

    def _parts(self, label: str, handle: Any) -> list[Device]:
        whole = self._device(label, handle)
        types, mode, later, most = self._types, *(self._types.c_uint() for _ in range(3))
        self.call("nvmlDeviceGetMigMode", handle, types.byref(mode), types.byref(later))
        if whole.problem or not mode.value:
            return [whole]
        self.call("nvmlDeviceGetMaxMigDeviceCount", handle, types.byref(most))
        slices = []
        for index in range(most.value):
            part = types.c_void_p()
            place = types.c_uint(index)
            if not self.call(
                "nvmlDeviceGetMigDeviceHandleByIndex", handle, place, types.byref(part)
            ):
                device = self._device(f"MIG slice {index} of {label}", part)
                slices.append(replace(device, gpu=whole.uuid, capability=whole.capability))
        without = "has MIG switched on and no slice: make one with nvidia-smi mig -cgi PROFILE -C"
        return slices or [replace(whole, problem=without)]

    def _device(self, label: str, handle: Any) -> Device:
        types = self._types
        name, uuid = (types.create_string_buffer(96) for _ in range(2))
        major, minor = types.c_int(), types.c_int()
        memory = (types.c_ulonglong * 3)()  # total, free, used
        size = types.c_uint(96)
        codes = (
            self.call("nvmlDeviceGetName", handle, name, size),
            self.call("nvmlDeviceGetUUID", handle, uuid, size),
            self.call(
                "nvmlDeviceGetCudaComputeCapability",
                handle,
                types.byref(major),
                types.byref(minor),
            ),
            self.call("nvmlDeviceGetMemoryInfo", handle, types.byref(memory)),
        )
        broken = [code for code in codes if code in _BROKEN]
        called = uuid.value.decode(errors="replace")
        return Device(
            label,
            name.value.decode(errors="replace"),
            called,
            called,
            f"{major.value}.{minor.value}" if major.value else "",
            memory[2] / memory[0] if memory[0] else 0.0,
            _broken(broken[0]) if broken else self._memory(handle),
        )

    def _memory(self, handle: Any) -> str:
        """Return what is wrong with the GPU's memory. Ampere and later answer the first call, V100
        and T4 the second: a page may wait after errors that were corrected, too."""
        types = self._types
        rows = [types.c_uint() for _ in ("corrected", "uncorrected", "pending", "failed")]
        if not self.call("nvmlDeviceGetRemappedRows", handle, *map(types.byref, rows)):
            return _BAD_MEMORY if rows[-1].value else ""
        pending, errors = types.c_uint(), types.c_ulonglong()
        self.call("nvmlDeviceGetRetiredPagesPendingStatus", handle, types.byref(pending))
        uncorrected, since_start = types.c_int(1), types.c_int(0)
        self.call(
            "nvmlDeviceGetTotalEccErrors", handle, uncorrected, since_start, types.byref(errors)
        )
        return _PENDING if pending.value and errors.value else ""


def _broken(code: int) -> str:
    return (
        f"answers with an error: {meaning(code)}: take another machine, or restart this one; the "
        "kernel's log names the Xid"
    )
