"""Which process does what on which devices, by the environment and the options."""

import contextlib
import importlib.util
import json
import platform
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from trainer import guard
from trainer.config import UsageError
from trainer.event_lines import leave
from trainer.guard import tpu as chips
from trainer.job.preemption import RESTART
from trainer.loop import stalls

_POOLS = {"workerpool0": "chief", "workerpool1": "worker", "workerpool2": "ps"}
_POOLS["workerpool3"] = _EVALUATOR = "evaluator"


@dataclass(frozen=True)
class Cluster:
    """Says which of the run's processes this is."""

    workers: int = 1
    """Processes that run the training loop, with the chief. With parameter servers this is the
    chief alone: it hands out the steps, and the workers in `tasks` make them."""
    index: int = 0
    """Index of this process among them. 0 is the chief, and only the chief writes."""
    role: str = "chief"
    """chief, worker, ps or evaluator."""
    task: int = 0
    """Index among the tasks of this role."""
    tasks: Mapping[str, tuple[str, ...]] = field(default_factory=dict, hash=False)
    """Addresses by type of task; {} if there is one process."""

    @property
    def chief(self) -> bool:
        return self.role in ("chief", "worker") and self.index == 0

    @property
    def others(self) -> dict[str, str]:
        """Return the other processes, by their addresses."""
        return {
            host: f"{kind} {number} at {host}"
            for kind, hosts in self.tasks.items()
            for number, host in enumerate(hosts)
            if (kind, number) != (self.role, self.task)
        }

    @property
    def parameter_servers(self) -> bool:
        return bool(self.tasks.get("ps"))


def cluster(environment: Mapping[str, str]) -> Cluster:
    """Read TF_CONFIG, or CLUSTER_SPEC if that is not set. Raises UsageError. Needs no TensorFlow.

    Vertex AI, Kubeflow and TensorFlow itself use TF_CONFIG. CLUSTER_SPEC is Vertex AI's own and
    names worker pools: 0 the chief, 1 workers, 2 parameter servers, 3 evaluators (Vertex AI's
    documentation of distributed training). An evaluator follows the job's checkpoints by itself.
    """
    source = "TF_CONFIG" if environment.get("TF_CONFIG", "").strip() else "CLUSTER_SPEC"
    tasks, named = _read(source, environment.get(source, "").strip() or "{}")
    kind, task = named or ("worker", 0)
    if kind not in _POOLS.values():
        known = ", ".join(_POOLS.values())
        raise UsageError(f"{source}: a task of type {kind!r} is not one of {known}")
    if kind == _EVALUATOR:
        return Cluster(role=_EVALUATOR, task=task)
    chiefs, workers = tasks.get("chief", ()), tasks.get("worker", ())
    total = len(chiefs) + len(workers)
    if tasks.get("ps"):
        if not (chiefs and workers):
            raise UsageError(f"{source}: parameter servers need a chief and at least one worker")
    elif total <= 1:
        return Cluster()
    if named is None:
        raise UsageError(f'{source}: "task" is missing: it says which process this is')
    if not 0 <= task < len(tasks.get(kind, ())):
        raise UsageError(f"{source}: there is no task {kind}/{task} in its cluster")
    if tasks.get("ps"):
        return Cluster(index=task, role=kind, task=task, tasks=tasks)
    index = task if kind == "chief" else len(chiefs) + task
    return Cluster(total, index, kind, task, tasks)


def _read(source: str, text: str) -> tuple[dict[str, tuple[str, ...]], tuple[str, int] | None]:
    """Return addresses by type of task; type and index of this process, or None if they are not
    given.

    Raises UsageError.
    """

    def contradiction(why: object) -> UsageError:
        return UsageError(f"{source} cannot be read: {why}")

    try:
        config = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise contradiction(error) from None
    if not isinstance(config, dict):
        raise contradiction('it has to be a JSON object with "cluster" and "task"')
    cluster, own = config.get("cluster") or {}, config.get("task") or {}
    if not (isinstance(cluster, dict) and isinstance(own, dict)):
        raise contradiction('"cluster" and "task" have to be JSON objects')
    tasks: dict[str, tuple[str, ...]] = {}
    for name, hosts in cluster.items():
        if not (isinstance(hosts, list) and all(isinstance(host, str) for host in hosts)):
            raise contradiction(f"the addresses of {name} have to be a list of host:port")
        if wrong := [host for host in hosts if not _address(host)]:
            raise contradiction(f"{wrong[0]!r}, of {name}, is not host:port")
        if hosts and _kind(name) != _EVALUATOR:
            tasks[_kind(name)] = tuple(hosts)
    if unknown := [name for name in tasks if name not in _POOLS.values()]:
        known = ", ".join(_POOLS.values())
        raise UsageError(f"{source}: its cluster has a {unknown[0]!r}, not one of {known}")
    if len(tasks.get("chief", ())) > 1:
        raise UsageError(f"{source}: {len(tasks['chief'])} of type chief, there can be one")
    addresses = [host for hosts in tasks.values() for host in hosts]
    if twice := [host for host in addresses if addresses.count(host) > 1]:
        raise UsageError(f"{source}: {twice[0]} is the address of two processes")
    if not own:
        return tasks, None
    index = own.get("index", 0)
    if isinstance(index, bool) or not str(index).isdecimal() or len(str(index)) > 9:
        raise contradiction(f"the task's index {index!r} is not a number of 0 or more")
    return tasks, (_kind(str(own.get("type", "worker"))), int(index))


def _kind(name: str) -> str:
    """Return the role that TensorFlow's or Vertex AI's name for a task means."""
    return _POOLS.get(name, "chief" if name == "master" else name)


def _address(text: str) -> bool:
    host, _, port = text.rpartition(":")
    return bool(host) and "/" not in host and port.isdecimal() and 0 < int(port) < 65536


def has_tpu(environment: Mapping[str, str]) -> bool:
    """Return whether this is a TPU VM's container: libtpu is installed, and a TPU is named or its
    devices are there.
    """
    if importlib.util.find_spec("libtpu") is None:
        return False
    named = "TPU_NAME" in environment or "TPU_NODE_NAME" in environment
    return named or bool(chips.files())


def create(
    place: Cluster, environment: Mapping[str, str], choice: str = "auto", timeout: float = 600.0
) -> Any:
    """Return the tf.distribute.Strategy of this process, for --strategy and --peer-timeout.

    Raises UsageError if --strategy does not fit this machine or cluster.
    """
    import tensorflow as tf

    gpus = len(tf.config.list_physical_devices("GPU"))
    expected = environment.get(guard.VARIABLE, "").strip() or guard.AUTO
    if cause := guard.unseen(expected, gpus):
        raise UsageError(cause)
    choice = _chosen(choice, place, environment, gpus)
    if choice == "tpu":
        # Never run on a TPU.
        tpu = tf.distribute.cluster_resolver.TPUClusterResolver(
            tpu=environment.get("TPU_NAME", "local")
        )
        tf.config.experimental_connect_to_cluster(tpu)
        tf.tpu.experimental.initialize_tpu_system(tpu)
        return tf.distribute.TPUStrategy(tpu)
    if choice == "ps":
        meet(place, timeout)
        # No partitioner: Keras needs each variable whole, on one server.
        return tf.distribute.ParameterServerStrategy(resolver(place))
    if choice == "multiworker":
        options = tf.distribute.experimental.CommunicationOptions(timeout_seconds=timeout)
        meet(place, timeout)
        return tf.distribute.MultiWorkerMirroredStrategy(
            resolver(place), communication_options=options
        )
    if choice == "mirrored":
        return tf.distribute.MirroredStrategy()
    return tf.distribute.get_strategy()


def _chosen(choice: str, place: Cluster, environment: Mapping[str, str], gpus: int) -> str:
    """Return the strategy's name: for `auto`, that of the cluster and the devices.

    Raises UsageError for one that does not fit them.
    """
    together = "ps" if place.parameter_servers else "multiworker" if place.workers > 1 else ""
    if choice == "auto":
        return together or ("tpu" if has_tpu(environment) else "mirrored" if gpus > 1 else "one")
    if together and choice != together:
        raise UsageError(
            f"--strategy {choice}: the cluster has several processes, which need {together}"
        )
    if choice in ("multiworker", "ps") and choice != together:
        raise UsageError(
            f"--strategy {choice}: neither TF_CONFIG nor CLUSTER_SPEC names such a cluster"
        )
    if choice == "tpu" and not has_tpu(environment):
        raise UsageError("--strategy tpu: there is no TPU here, or no libtpu")
    return choice


def resolver(place: Cluster) -> Any:
    """Return TensorFlow's resolver of the cluster."""
    import tensorflow as tf

    hosts = {kind: list(hosts) for kind, hosts in place.tasks.items()}
    return tf.distribute.cluster_resolver.SimpleClusterResolver(
        tf.train.ClusterSpec(hosts),
        task_type=place.role,
        task_id=place.task,
        rpc_layer="grpc",
    )


def meet(place: Cluster, seconds: float) -> None:
    """Wait for all other processes of the cluster; exit with 143 after `seconds`.

    TensorFlow itself would wait for an hour and hold Python's lock, so that no thread runs and no
    signal handler is called. Each process listens at its own address until it has seen the others;
    then TensorFlow listens there.
    """
    own = place.tasks[place.role][place.task]
    wait, missing = stalls.Wait("the start"), place.others
    with _listening(own):
        while missing := stalls.silent(missing):  # who has answered may be silent until it is up
            names = ", ".join(missing.values())
            if wait.due():
                wait.report(f"for {names}: no answer")
            if wait.seconds > seconds:
                leave(RESTART, "error", f"no answer from {names} in {seconds:g} s: start all again")
            time.sleep(0.2)


@contextlib.contextmanager
def _listening(address: str) -> Iterator[None]:
    """Answer at the port of `address` inside, in a thread."""
    both = socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if both else socket.AF_INET
    place = ("", int(address.rpartition(":")[2]))
    try:
        mine = socket.create_server(place, family=family, backlog=1024, dualstack_ipv6=both)
    except OSError:  # TensorFlow reports what is wrong with the address.
        yield
        return

    def answer() -> None:
        with contextlib.suppress(OSError):  # closed
            while True:
                caller, _ = mine.accept()
                with caller, contextlib.suppress(ConnectionError):
                    caller.sendall(b"here")

    with mine:
        thread = threading.Thread(target=answer, name="meet", daemon=True)
        thread.start()
        yield
        mine.shutdown(socket.SHUT_RDWR)  # which ends the thread's accept
        thread.join()


def parted(vote: Callable[[], object], error: Exception) -> Exception:
    """Return the `error` that ends all ranks alike, after one more `vote`.

    A rank may come out of a vote and exit before another has its result, for which that is the loss
    of a process. Who is gone by the next vote came through the one before.
    """
    import tensorflow as tf

    with contextlib.suppress(tf.errors.OpError):
        vote()
    return error


_PEERS = (
    *("unknown device", "remote_handle", "Primary device is not remote", "registered in binary"),
    *("worker was restarted", "incarnation", "CoordinationService", "Could not start gRPC server"),
)
"""What errors of other types say where a peer is gone or was started again, or the process before
still has the port (TensorFlow's cluster_coordinator.py, _is_worker_failure; eager_service_impl.cc;
collective_param_resolver_distributed.cc; grpc_server_lib.cc)."""


def outside(error: BaseException, stepped: bool) -> bool:
    """Return whether something outside the program, another process or a device, ended a step.

    A peer that is gone has types of its own, or a text of _PEERS. A failed GPU, NCCL, and a peer
    that is starting again may have neither. So an error of the runtime counts that another process
    sent, and any once a step was made (`stepped`): the program itself would have failed at the
    first step.
    """
    import tensorflow as tf

    errors = tf.errors
    peers = (errors.UnavailableError, errors.AbortedError, errors.CancelledError)
    runtime = (errors.InternalError, errors.UnknownError, errors.FailedPreconditionError)
    text = str(error)
    stepped = stepped or "from remote target /job:" in text
    kinds = (*peers, errors.DeadlineExceededError, *(runtime if stepped else ()))
    told = isinstance(error, errors.OpError) and any(peer in text for peer in _PEERS)
    return isinstance(error, kinds) or told


def compute_capabilities() -> list[tuple[int, int]]:
    """Return the compute capability of each GPU that TensorFlow sees; (0, 0) if it does not say."""
    import tensorflow as tf

    return [
        tf.config.experimental.get_device_details(gpu).get("compute_capability", (0, 0))
        for gpu in tf.config.list_physical_devices("GPU")
    ]


def policy(choice: str, tpu: bool, capabilities: Sequence[tuple[int, int]]) -> str:
    """Return the Keras dtype policy for --precision: the type that the oldest device has matrix
    units for.

    GPUs have matrix units for float16 from compute capability 7.0, and for bfloat16 from 8.0
    (NVIDIA, CUDA C++ Programming Guide, compute capabilities). TPUs compute in bfloat16.
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
    """Return software and devices, for the first event line."""
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
