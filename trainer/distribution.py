"""Which devices a run uses: chosen from the environment, never from an option."""

import importlib.util
import json
import platform
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainer.config import UsageError

COLLECTIVE_TIMEOUT = 600.0
"""Seconds a worker waits for the others; TensorFlow's own default is for ever."""


@dataclass(frozen=True)
class Cluster:
    """This process's place among the run's processes."""

    workers: int = 1
    index: int = 0
    """0 is the chief, which alone writes."""

    @property
    def chief(self) -> bool:
        return self.index == 0


def cluster(environment: Mapping[str, str]) -> Cluster:
    """Read TF_CONFIG, as Vertex AI and Kubeflow set it. Raises UsageError. No TensorFlow."""
    text = environment.get("TF_CONFIG", "").strip() or "{}"
    try:
        config = json.loads(text)
        tasks = {kind: list(hosts) for kind, hosts in config.get("cluster", {}).items()}
        kind = config.get("task", {}).get("type", "worker")
        index = int(config.get("task", {}).get("index", 0))
    except (ValueError, TypeError, AttributeError) as error:
        raise UsageError(f"TF_CONFIG cannot be read: {error}") from None
    if "ps" in tasks:
        raise UsageError("TF_CONFIG names parameter servers: use workers, all of them train")
    if kind not in ("chief", "worker"):
        raise UsageError(f"TF_CONFIG: a task of type {kind!r} is not one of chief, worker")
    chiefs, workers = tasks.get("chief", []), tasks.get("worker", [])
    total = len(chiefs) + len(workers)
    if total <= 1:
        return Cluster()
    if not 0 <= index < len(tasks.get(kind, [])):
        raise UsageError(f"TF_CONFIG: there is no task {kind}/{index} in its cluster")
    return Cluster(total, index if kind == "chief" else len(chiefs) + index)


def has_tpu(environment: Mapping[str, str]) -> bool:
    """Is this a TPU VM's container: libtpu installed, and the TPU named or its devices there?"""
    if importlib.util.find_spec("libtpu") is None:
        return False
    named = "TPU_NAME" in environment or "TPU_NODE_NAME" in environment
    return named or any(
        device for pattern in ("accel*", "vfio/[0-9]*") for device in Path("/dev").glob(pattern)
    )


def create(place: Cluster, environment: Mapping[str, str]) -> Any:
    """The tf.distribute.Strategy of this machine."""
    import tensorflow as tf

    if has_tpu(environment):
        resolver = tf.distribute.cluster_resolver.TPUClusterResolver(
            tpu=environment.get("TPU_NAME", "local")
        )
        tf.config.experimental_connect_to_cluster(resolver)
        tf.tpu.experimental.initialize_tpu_system(resolver)
        return tf.distribute.TPUStrategy(resolver)
    if place.workers > 1:
        return tf.distribute.MultiWorkerMirroredStrategy(
            communication_options=tf.distribute.experimental.CommunicationOptions(
                timeout_seconds=COLLECTIVE_TIMEOUT
            )
        )
    if len(tf.config.list_physical_devices("GPU")) > 1:
        return tf.distribute.MirroredStrategy()
    return tf.distribute.get_strategy()


def compute_capabilities() -> list[tuple[int, int]]:
    """Of each GPU that TensorFlow sees; (0, 0) of one that does not say."""
    import tensorflow as tf

    return [
        tf.config.experimental.get_device_details(gpu).get("compute_capability", (0, 0))
        for gpu in tf.config.list_physical_devices("GPU")
    ]


def precision(choice: str, tpu: bool, capabilities: list[tuple[int, int]]) -> str:
    """The Keras dtype policy: what the slowest device has matrix units for.

    float16 has them from compute capability 7.0, bfloat16 from 8.0 (NVIDIA, CUDA C++ Programming
    Guide, compute capabilities); TPUs compute in bfloat16.
    """
    if choice != "auto":
        return choice
    if tpu:
        return "mixed_bfloat16"
    weakest = min(capabilities, default=(0, 0))
    if weakest >= (8, 0):
        return "mixed_bfloat16"
    return "mixed_float16" if weakest >= (7, 0) else "float32"


def facts(strategy: Any, place: Cluster) -> dict[str, Any]:
    """What the first log line says about software and devices."""
    import keras
    import tensorflow as tf

    build = tf.sysconfig.get_build_info()
    return {
        "tensorflow": tf.__version__,
        "keras": keras.__version__,
        "python": platform.python_version(),
        "cuda": build.get("cuda_version"),
        "cudnn": build.get("cudnn_version"),
        "strategy": type(strategy).__name__.removesuffix("V2"),
        "replicas": strategy.num_replicas_in_sync,
        "workers": place.workers,
        "devices": [device.name for device in tf.config.list_logical_devices()],
        "compute_capabilities": [f"{major}.{minor}" for major, minor in compute_capabilities()],
    }
