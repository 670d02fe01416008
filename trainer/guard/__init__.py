"""Is the accelerator there that the job is paid for? Asked before TensorFlow is imported.

What is expected comes as text: `V100:2`, or with what the factory derives from its tables,
`V100:2,capability=7.0,cuda=12,driver=525` or `TPU-v5e:4,topology=2x2`. What is there, NVML tells
(NVIDIA's management library, part of every driver), or of a TPU its devices and variables
(trainer/guard/tpu.py). A job that would compute on the CPU, or fail at its first kernel, is refused
with the cause and its remedy. Nothing is asked where nothing is expected. What is not known is
never a reason to refuse.

The trainer calls `check`. The factory copies this package into its images, too, where the start
hook calls `refusal` for any other program: so it imports nothing but Python's standard library.
"""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from .nvml import Code, Device, Nvml, meaning

VARIABLE = "TRAINING_ACCELERATOR"
"""The environment variable in which an image, or the place of a job, says what is expected."""
LOOKED_AT = "TRAINING_ACCELERATOR_LOOKED_AT"
"""The variable that keeps the processes which a program starts from asking again: the memory of the
GPU is then its own."""
AUTO, NONE, ANY = "auto", "none", "GPU"
"""Of --accelerator: as VARIABLE says; the CPU is wanted. And the name of any GPU."""

_WRITTEN = re.compile(
    r"(?P<name>[A-Za-z][A-Za-z0-9-]*)(:(?P<count>[1-9][0-9]{0,2}))?"
    r"(,capability=(?P<capability>[0-9]+\.[0-9]+))?(,cuda=(?P<cuda>[0-9]+(\.[0-9]+)?))?"
    r"(,driver=(?P<driver>[0-9]+(\.[0-9]+)*))?(,topology=(?P<topology>[0-9]+(x[0-9]+){1,2}))?"
)
_FULL = 0.95
"""Share of a GPU's memory from which on too little is free for a training."""
_OPTION = f"--accelerator {NONE} trains on the CPU"
_SETTING = f"{VARIABLE}={NONE} computes on the CPU"
_MOUNTS = (
    "start it with docker run --gpus all and NVIDIA's container toolkit, or on Kubernetes with the "
    "limit nvidia.com/gpu and the node's device plugin"
)


class Refused(Exception):  # noqa: N818 - the guard does what it is for
    """The accelerator is not there, or its description cannot be read: one line, exit code 2."""


@dataclass(frozen=True)
class Expected:
    """Describes what the job is paid for."""

    name: str
    count: int = 1
    capability: str = ""
    """Of the GPU."""
    cuda: str = ""
    """The CUDA that a driver has to know, driver: the oldest that does."""
    driver: str = ""
    """`capability`, `cuda`, `driver`: "" where that is not known."""
    topology: str = ""
    """That of all hosts."""
    paid: bool = False
    """Whether the text counts GPUs, as a job's does; an image's names the kind alone. Of a TPU,
    count: its chips on one host."""

    def __str__(self) -> str:
        if self.tpu:
            shape = f" with topology {self.topology}" if self.topology else ""
            return (
                self.name + (f" with {self.count} chips a host" if self.count > 1 else "") + shape
            )
        return f"{self.count} x {self.name}"

    @property
    def tpu(self) -> bool:
        return self.name.upper().startswith("TPU")

    def is_named(self, device: str) -> bool:
        """Return whether a GPU's name has the words of the expected one. A V100S is a V100, too."""
        words = re.split(r"[^A-Z0-9]+", device.upper())
        return self.name.upper() == ANY or all(
            any(re.fullmatch(re.escape(part) + "[A-Z]?", word) for word in words)
            for part in self.name.upper().split("-")
        )


def expected(text: str, source: str) -> Expected | None:
    """Return what the text describes; None for `auto` and `none`. Raises Refused that names
    `source`."""
    if text in (AUTO, NONE):
        return None
    match = _WRITTEN.fullmatch(text)
    if match is None:
        raise Refused(f"{source} {text}: is not none, GPU, V100, or V100:2 for two of them")
    given = {key: value for key, value in match.groupdict().items() if value}
    values: dict[str, Any] = {
        **given,
        "count": int(given.get("count", 1)),
        "paid": "count" in given,
    }
    return Expected(**values)


def check(accelerator: str, environment: MutableMapping[str, str], patience: float = 3.0) -> None:
    """Raise Refused with cause and remedy if what `accelerator` describes is not there.

    `none` hides the GPUs from this process. patience: seconds in which memory may become free: a
    process that was killed gives it back late.
    """
    wanted = expected(accelerator, "--accelerator")
    if accelerator == NONE:
        environment["CUDA_VISIBLE_DEVICES"] = "-1"
    cause = missing(wanted, environment, patience) if wanted else ""
    if cause:
        raise Refused(f"this job is paid for {wanted}, and {cause} ({_OPTION})")
    if accelerator != AUTO:
        environment[VARIABLE] = environment[LOOKED_AT] = accelerator


def refusal(environment: MutableMapping[str, str], patience: float = 3.0) -> str:
    """Return why a program that is not the trainer may not start; "" if it may.

    A launcher gives each of its processes a part of the GPUs (CUDA_VISIBLE_DEVICES). So fewer than
    expected are enough there, if it is not none at all.
    """
    text = environment.get(VARIABLE, "").strip() or AUTO
    if environment.get(LOOKED_AT) == text:
        return ""
    try:
        wanted = expected(text, VARIABLE)
    except Refused as error:
        return str(error)
    cause = missing(wanted, environment, patience, part=True) if wanted else ""
    if cause:
        return f"this job is paid for {wanted}, and {cause} ({_SETTING})"
    environment[LOOKED_AT] = text
    return ""


def unseen(accelerator: str, count: int, kind: str = "GPU") -> str:
    """Return why a framework that sees so many devices may not start; "" if it may.

    kind: of the devices, GPU or TPU. A framework may leave devices out that are there, and say one
    line about it.
    """
    wanted = expected(accelerator, VARIABLE)
    if wanted is None or count or kind != ("TPU" if wanted.tpu else "GPU"):
        return ""
    there = "one is here" if wanted.tpu else "CUDA does"
    return (
        f"this job is paid for {wanted}, and the framework sees no {kind}, although {there}: a "
        "library that it opens is missing or wrong, or it is a build for the CPU; its own log "
        f"names it ({_SETTING})"
    )


def missing(
    wanted: Expected, environment: Mapping[str, str], patience: float, part: bool = False
) -> str:
    """Return why the expected accelerator cannot be used; "" if it can. Waits while memory is held.

    part: a part of the GPUs is enough where CUDA_VISIBLE_DEVICES names it.
    """
    if wanted.tpu:
        from . import tpu

        return tpu.missing(wanted.name, wanted.count, environment, part=part)
    until = time.monotonic() + patience
    while True:
        cause = _without_gpu(wanted, environment, part)
        if not isinstance(cause, _Busy) or time.monotonic() >= until:
            return cause
        time.sleep(0.25)


class _Busy(str):
    """A cause that may pass by itself."""


# --- GPU ------------------------------------------------------------------------------------------


def _without_gpu(wanted: Expected, environment: Mapping[str, str], part: bool) -> str:
    """Return why the expected GPUs cannot be used; "" if they can."""
    import ctypes

    from . import cuda as cuda_process

    try:
        nvml = Nvml(ctypes.CDLL("libnvidia-ml.so.1"))
    except OSError:
        return not_mounted(environment)
    if code := nvml.call("nvmlInit_v2"):
        return _no_answer(code)
    try:
        driver, devices = nvml.driver(), nvml.devices()
    finally:
        nvml.call("nvmlShutdown")
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return (
            "the container has the driver's libnvidia-ml.so.1 but not its libcuda.so.1: set "
            "NVIDIA_DRIVER_CAPABILITIES=compute,utility"
        )
    version = ctypes.c_int()
    cuda.cuDriverGetVersion(ctypes.byref(version))
    newest = version.value // 1000, version.value % 1000 // 10
    visible = environment.get("CUDA_VISIBLE_DEVICES")
    if part and visible is not None and (given := len(chosen(devices, visible))):
        wanted = replace(wanted, count=min(wanted.count, given))
    return (
        too_old(wanted, driver, newest)
        or not_usable(wanted, devices, visible)
        or _memory_held(wanted, devices, environment)
        or cuda_process.missing()
    )


def not_mounted(environment: Mapping[str, str], root: Path = Path("/")) -> str:
    """Return why there is no libnvidia-ml.so.1."""
    hidden = environment.get("NVIDIA_VISIBLE_DEVICES")
    if hidden in ("", "void", "none"):
        return (
            f"NVIDIA_VISIBLE_DEVICES={hidden} keeps the GPUs out of this container: remove it, or "
            "set it to all"
        )
    with contextlib.suppress(OSError):
        first = (root / "proc/driver/nvidia/version").read_text().partition("\n")[0]
        version = re.search(r"\s(\d+\.\d[\d.]*)\s", first)
        called = f"NVIDIA's driver {version[1]}" if version else "NVIDIA's driver"
        return f"the machine has {called}, which is not mounted in this container: {_MOUNTS}"
    if nodes := sorted((root / "dev").glob("nvidia[0-9]*")):
        return (
            f"{nodes[0]} is here, but not the driver's libraries (libnvidia-ml.so.1): {_MOUNTS}; "
            "or mount them at /usr/local/nvidia/lib64"
        )
    return (
        "no driver of NVIDIA is mounted (no libnvidia-ml.so.1), nor does this machine have one: "
        f"take a machine with a GPU and its driver, then {_MOUNTS}"
    )


def _no_answer(code: int) -> str:
    """Return why NVML does not start."""
    if code == Code.NOT_LOADED:
        return "the driver's kernel module is not loaded: install the driver on the machine"
    if code == Code.MISMATCH:
        return (
            "the driver's libraries are of another version than its kernel module: restart the "
            "machine, whose driver was updated while it ran"
        )
    return (
        f"NVIDIA's driver does not start: {meaning(code)}: start the container again; if that does "
        "not help, take another machine"
    )


def too_old(wanted: Expected, driver: str, cuda: tuple[int, int]) -> str:
    """Return why the driver is too old; "" if it is not, or if its version is not known.

    cuda: the version that libcuda.so.1 knows. A CUDA forward compatibility package brings a libcuda
    that is newer than the driver.
    """
    if not (wanted.driver and driver) or _numbers(driver) >= _numbers(wanted.driver):
        return ""
    if wanted.cuda and cuda >= _numbers(wanted.cuda):
        return ""
    image = f", and this image's CUDA {wanted.cuda} needs" if wanted.cuda else ", below"
    return (
        f"the driver here is {driver}{image} {wanted.driver} or newer: update the machine's driver"
    )


def not_usable(wanted: Expected, devices: Sequence[Device], visible: str | None) -> str:
    """Return why there are fewer usable GPUs than expected; "" if there are enough."""
    seen = chosen(devices, visible)
    broken = [device for device in seen if device.problem]
    if broken and len(seen) - len(broken) < wanted.count:
        return f"{broken[0].label} {broken[0].problem}"
    seen = [device for device in seen if not device.problem]
    if len(seen) < wanted.count:
        count = f"{len(seen) or 'none'} of the {len(devices)} GPUs"
        if len(devices) >= wanted.count:
            return f"CUDA_VISIBLE_DEVICES={visible} shows {count} here: remove it"
        there = f"only {len(devices)} GPU is" if len(devices) == 1 else f"{len(devices)} GPUs are"
        return f"{there if devices else 'no GPU is'} in this container: {_MOUNTS}"
    fitting = [device for device in seen if _fits(wanted, device)]
    if len(fitting) < wanted.count:
        other = next(device for device in seen if device not in fitting)
        about = f" (compute capability {other.capability})" if other.capability else ""
        known = f" ({wanted.capability})" if wanted.capability else ""
        return (
            f"{other.label} is a {other.name}{about}: take a machine with {wanted.name}{known}, or "
            "the image and the job for this GPU"
        )
    return ""


def _fits(wanted: Expected, device: Device) -> bool:
    """Return whether it is the expected GPU, by its compute capability where that is known, else by
    its name.

    An image for one GPU runs on newer minors of its major, too (NVIDIA, CUDA C++ Programming Guide,
    "Binary compatibility"). A job that pays for a GPU wants that one.
    """
    if not (wanted.capability and device.capability):
        return not device.name or wanted.is_named(device.name)
    if wanted.paid:
        return wanted.capability == device.capability
    major, minor = _numbers(wanted.capability)
    return major == _numbers(device.capability)[0] and minor <= _numbers(device.capability)[1]


def _memory_held(
    wanted: Expected, devices: Sequence[Device], environment: Mapping[str, str]
) -> str:
    """Return which memory another process holds; "" if enough is free.

    With TF_FORCE_GPU_ALLOW_GROWTH processes share a GPU on purpose.
    """
    if environment.get("TF_FORCE_GPU_ALLOW_GROWTH", "").lower() in ("1", "true"):
        return ""
    seen = chosen(devices, environment.get("CUDA_VISIBLE_DEVICES"))
    full = [device for device in seen if device.used >= _FULL]
    if len(seen) - len(full) >= wanted.count:
        return ""
    held = f"{full[0].used:.0%} of the memory of {full[0].label} ({full[0].name})"
    return _Busy(f"another process holds {held}: end it (nvidia-smi names it), or take another GPU")


def chosen(devices: Sequence[Device], visible: str | None) -> list[Device]:
    """Return the devices that CUDA_VISIBLE_DEVICES leaves to this process; `visible` is None where
    it is not set."""
    if visible is None:
        return list(devices)
    usable: list[Device] = []
    for entry in entries(visible):
        if isinstance(entry, int):
            fitting = devices[entry : entry + 1]
        else:
            fitting = [device for device in devices if device.uuid.startswith(entry)][:1]
            fitting = fitting or [device for device in devices if device.gpu.startswith(entry)]
        if not fitting:
            break
        usable += [device for device in fitting if device not in usable]
    return usable


def entries(visible: str) -> Iterator[int | str]:
    """Yield numbers and UUIDs in CUDA_VISIBLE_DEVICES, up to the first word that is neither."""
    for word in visible.replace(" ", "").split(","):
        if word.isdecimal():
            yield int(word)
        elif word.startswith(("GPU-", "MIG-")):
            yield word
        else:
            return


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version))
