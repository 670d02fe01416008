"""What a device holds and how fast it is: devices.yaml, read once a process.

A device is what a program sees as one: a GPU, a chip of a TPU, or one of the two halves of a chip
that libtpu shows as two devices.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Final, Literal

from pydantic import TypeAdapter

from builder.core.errors import InputError
from builder.facts import DATA, accelerators, numbers, read_table
from builder.facts.accelerators import Accelerator

GIB: Final = 2**30


@dataclass(frozen=True)
class Capability:
    """What GPUs of one compute capability have in common."""

    threads: int
    units: int
    """32-bit units of a multiprocessor."""
    shared: int
    """Bytes of shared memory of a multiprocessor."""
    block: int
    """Bytes of shared memory that a block may ask for."""
    taken: int
    """MiB that the driver and CUDA's libraries take of the memory."""


@dataclass(frozen=True)
class TypeSince:
    """From which compute capability on a library calculates in a type; attention is as one."""

    type: str
    since: str
    library: Literal["cublas", "cudnn"]
    source: str


@dataclass(frozen=True)
class Device:
    name: str
    accelerator: str
    memory: int
    """Bytes. What libtpu takes itself is left out already."""
    bandwidth: float
    """Bytes a second."""
    flops: Mapping[str, float]
    """Operations a second, by type."""
    source: str
    rates_source: str
    """Keys of the table's sources."""
    cores: int = 0
    clock: float = 0.0
    cache: int = 0
    """Of a GPU: multiprocessors, GHz, bytes of L2."""
    topology: str = ""
    """Of a TPU: libtpu's name of the smallest slice of a whole host."""
    chip: str = ""
    """Of a TPU: chip_config_name, where it is not libtpu's default."""

    @property
    def is_gpu(self) -> bool:
        return not self.topology

    @property
    def capability(self) -> str:
        """The compute capability of a GPU, "7.0"; "" of a TPU."""
        return accelerators.find(self.accelerator).compute_capability or ""

    @property
    def taken(self) -> int:
        """Bytes that the driver and CUDA's libraries take of a GPU."""
        return _capabilities()[self.capability].taken * 2**20 if self.is_gpu else 0

    def lacks(self, library: str, kind: str) -> TypeSince | None:
        """Return why a library of NVIDIA's does not calculate in a type here, None where it does
        or where that is not known. kind: float8, bfloat16, attention."""
        if not self.is_gpu:
            return None
        here = numbers(self.capability)
        rows = (row for row in _types() if (row.library, row.type) == (library, kind))
        return next((row for row in rows if here < numbers(row.since)), None)

    def seconds(self, flops: float, moved: float, kinds: frozenset[str]) -> float:
        """Return the least time that a step takes, if nothing but one thing held it up.

        flops: operations on one device. moved: bytes that are read or written at least once. kinds:
        the types that products calculate in; the fastest of the device where none is in the table.
        """
        rates = [self.flops[kind] for kind in kinds if kind in self.flops]
        if not self.is_gpu or not rates:  # a TPU multiplies float32 in parts of bfloat16
            rates = list(self.flops.values())
        return max(flops / max(rates), moved / self.bandwidth)

    def target(self, cudnn: str) -> str:
        """Return how XLA is told of a GPU: stream_executor.GpuTargetConfigProto as text.

        cudnn: the version that is called, "9.10.2"; "" for none.
        """
        major, minor = self.capability.split(".")
        limits = _capabilities()[self.capability]
        version = [*cudnn.split("."), "0", "0"] if cudnn else ["0", "0", "0"]
        accelerated = "feature_extension: ACCELERATED_FEATURES" if int(major) >= 9 else ""
        return _TARGET.format(
            device=self,
            limits=limits,
            capability=f"major: {major} minor: {minor} {accelerated}",
            dnn=f"major: {version[0]} minor: {version[1]} patch: {version[2]}",
        )

    def properties(self) -> Mapping[str, Any]:
        """Return how cuDNN is told of a GPU: CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION."""
        limits = _capabilities()[self.capability]
        return {
            "deviceName": self.name,
            "deviceVer": int(self.capability.replace(".", "")) * 10,
            "multiProcessorCount": self.cores,
            "totalGlobalMem": self.memory,
            "l2CacheSize": self.cache,
            "smClockRateKHz": int(self.clock * 1e6),
            "maxThreadsPerSM": limits.threads,
            "maxSharedMemoryPerBlockOptin": limits.block,
            "reservedSharedMemoryPerBlock": limits.shared - limits.block,
            **_EVERY_GPU,
        }


_EVERY_GPU: Final = {
    "maxGridSize": [2147483647, 65535, 65535],
    "maxBlockSize": [1024, 1024, 64],
    "maxThreadsPerBlock": 1024,
    "regsPerBlock": 65536,
    "maxRegistersPerSM": 65536,
    "warpSize": 32,
    "maxSharedMemoryPerBlock": 49152,
    "supportCoopLaunch": 1,
    "isTccDriver": 0,
    "pciDeviceId": 0,
    "cudaDeviceId": 0,
    "driverVer": 12090,
    "maxCtasPerSM": 32,
    "memClockRateKHz": 1000000,
}
"""The last three are not those of every GPU: cuDNN wants to be told something, and its answers do
not depend on it. Of 120 convolutions (four types, two layouts, forward and both gradients) 9.10.2
named and built the same plans with 1 and 16 blocks, a memory's clock of 1 kHz and 7 GHz, driver
13.0, and even with 20 multiprocessors, 48 KiB a block or 1 MB of L2: V100, T4, A100, L4, H100,
asked 2026-11-29, each in a process of its own. The capability alone decided."""

_TARGET: Final = """\
gpu_device_info {{
  threads_per_block_limit: 1024
  threads_per_warp: 32
  shared_memory_per_block: 49152
  shared_memory_per_core: {limits.shared}
  threads_per_core_limit: {limits.threads}
  core_count: {device.cores}
  fpus_per_core: {limits.units}
  block_dim_limit_x: 2147483647
  block_dim_limit_y: 65535
  block_dim_limit_z: 65535
  memory_bandwidth: {device.bandwidth:.0f}
  l2_cache_size: {device.cache}
  clock_rate_ghz: {device.clock}
  device_memory_size: {device.memory}
  shared_memory_per_block_optin: {limits.block}
  cuda_compute_capability {{ {capability} }}
  registers_per_core_limit: 65536
  registers_per_block_limit: 65536
  thread_dim_limit_x: 1024
  thread_dim_limit_y: 1024
  thread_dim_limit_z: 64
}}
platform_name: "CUDA"
dnn_version_info {{ {dnn} }}
device_description_str: "{device.name}"
"""


@cache
def _table() -> Mapping[str, Any]:
    return read_table(DATA / "devices.yaml")


@cache
def devices() -> Mapping[str, Device]:
    rows = _table()["devices"]
    return {row.name: row for row in TypeAdapter(tuple[Device, ...]).validate_python(rows)}


def of(accelerator: Accelerator) -> Device | None:
    """Return the device that an image is compiled for: of several with one name, the smallest that
    is sold today, which is the first row. None for one that is not in the table."""
    rows = (row for row in devices().values() if row.accelerator == accelerator.name)
    return next(rows, None)


def on(topology: str) -> Device:
    """Return the device of a TPU's topology ("v5e:2x4"). Raises InputError for an unknown one."""
    series = topology.partition(":")[0]
    for row in devices().values():
        if row.topology.partition(":")[0] == series:
            return row
    known = ", ".join(row.topology for row in devices().values() if row.topology)
    raise InputError(f"no TPU is called {series!r}", f"write a topology such as {known}")


@cache
def _capabilities() -> Mapping[str, Capability]:
    rows = _table()["capabilities"]
    return TypeAdapter(dict[str, Capability]).validate_python(rows)


@cache
def _types() -> tuple[TypeSince, ...]:
    rows = _table()["types"]
    return TypeAdapter(tuple[TypeSince, ...]).validate_python(rows)
