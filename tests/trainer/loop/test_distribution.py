"""Which strategy and precision a machine gets: the decisions, without the devices."""

import json
import socket
import threading

import pytest

from trainer.config import UsageError
from trainer.loop import distribution, stalls
from trainer.loop.distribution import Cluster


def tf_config(kind: str, index: int, **cluster: int) -> dict[str, str]:
    hosts = {name: [f"{name}-{n}:2222" for n in range(count)] for name, count in cluster.items()}
    return {"TF_CONFIG": json.dumps({"cluster": hosts, "task": {"type": kind, "index": index}})}


def spelt(cluster: object, **task: object) -> dict[str, str]:
    """TF_CONFIG as a person writes it; task=None leaves the task out."""
    told = {} if task.get("task", 1) is None else {"task": {"type": "worker", "index": 0, **task}}
    return {"TF_CONFIG": json.dumps({"cluster": cluster, **told})}


def test_without_tf_config_or_with_one_task_there_is_one_worker() -> None:
    for environment in ({}, {"TF_CONFIG": ""}, tf_config("chief", 0, chief=1)):
        assert distribution.cluster(environment) == Cluster(workers=1, index=0)
    assert Cluster().chief


@pytest.mark.parametrize(
    ("kind", "number", "cluster", "workers", "index", "chief"),
    [
        ("chief", 0, {"chief": 1, "worker": 2}, 3, 0, True),
        ("worker", 0, {"chief": 1, "worker": 2}, 3, 1, False),
        ("worker", 0, {"worker": 2}, 2, 0, True),
        ("worker", 1, {"worker": 2}, 2, 1, False),
        ("chief", 0, {"chief": 1, "worker": 2, "ps": 2}, 1, 0, True),
        ("worker", 1, {"chief": 1, "worker": 2, "ps": 2}, 1, 1, False),
        ("ps", 1, {"chief": 1, "worker": 2, "ps": 2}, 1, 1, False),
    ],
)
def test_the_chief_comes_first_and_with_parameter_servers_it_alone_runs_the_loop(
    kind: str, number: int, cluster: dict[str, int], workers: int, index: int, chief: bool
) -> None:
    place = distribution.cluster(tf_config(kind, number, **cluster))
    assert (place.workers, place.index, place.chief) == (workers, index, chief)
    assert (place.role, place.task) == (kind, number)
    assert place.parameter_servers is ("ps" in cluster)


@pytest.mark.parametrize("listed", [0, 1])
def test_an_evaluator_is_a_role_of_its_own_and_of_the_others_it_is_no_part(listed: int) -> None:
    evaluator = {"evaluator": 1} if listed else {}
    place = distribution.cluster(tf_config("evaluator", 0, chief=1, worker=1, **evaluator))
    assert (place.role, place.workers, place.chief, place.others) == ("evaluator", 1, False, {})
    place = distribution.cluster(tf_config("worker", 0, chief=1, worker=1, evaluator=1))
    assert (place.workers, place.index, place.tasks.keys()) == (2, 1, {"chief", "worker"})
    assert distribution.cluster(tf_config("chief", 0, chief=1, evaluator=1)) == Cluster()


def test_vertex_s_worker_pools_are_roles_and_tf_config_wins() -> None:
    pools = {"workerpool0": ["a:1"], "workerpool1": ["b:1", "c:1"], "workerpool3": ["d:1"]}
    task = {"type": "workerpool1", "index": 1}
    spec = {"CLUSTER_SPEC": json.dumps({"cluster": pools, "task": task, "environment": "cloud"})}
    place = distribution.cluster(spec)
    assert (place.workers, place.index, place.role) == (3, 2, "worker")
    assert distribution.cluster({**spec, **tf_config("chief", 0, chief=1, worker=1)}).chief
    pools["workerpool2"] = ["e:1", "f:1"]
    for pool, role in zip(sorted(pools)[:3], ("chief", "worker", "ps"), strict=True):
        task = {"type": pool, "index": len(pools[pool]) - 1}
        spec = {"CLUSTER_SPEC": json.dumps({"cluster": pools, "task": task})}
        place = distribution.cluster(spec)
        assert (place.role, place.task, place.chief) == (role, task["index"], role == "chief")
        assert (place.parameter_servers, place.workers) == (True, 1)


@pytest.mark.parametrize(
    ("choice", "cluster", "message"),
    [
        ("one", {"worker": 2}, "the cluster has several processes, which need multiworker"),
        ("mirrored", {"chief": 1, "worker": 1, "ps": 1}, "need ps"),
        ("multiworker", {}, "neither TF_CONFIG nor CLUSTER_SPEC"),
        ("ps", {"worker": 2}, "need multiworker"),
        ("tpu", {}, "no TPU here"),
    ],
)
def test_a_strategy_that_the_cluster_is_not_made_for_is_refused(
    choice: str, cluster: dict[str, int], message: str
) -> None:
    kind = "chief" if "chief" in cluster else "worker"
    place = distribution.cluster(tf_config(kind, 0, **cluster))
    with pytest.raises(UsageError, match=message):
        distribution._chosen(choice, place, {}, 0)


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({"TF_CONFIG": "{"}, "TF_CONFIG cannot be read"),
        ({"TF_CONFIG": "[]"}, "TF_CONFIG cannot be read: it has to be a JSON object"),
        ({"TF_CONFIG": "[" * 10**5}, "TF_CONFIG cannot be read"),
        (spelt({"worker": "a:1,b:1"}), "the addresses of worker have to be a list of host:port"),
        (spelt({"worker": [1, 2]}), "the addresses of worker have to be a list of host:port"),
        (spelt({"worker": ["a", "b:1"]}), "'a', of worker, is not host:port"),
        (spelt({"worker": ["grpc://a:1", "b:1"]}), "'grpc://a:1', of worker, is not host:port"),
        (spelt({"worker": ["a:0", "b:1"]}), "'a:0', of worker, is not host:port"),
        (spelt({"worker": ["a:1", "a:1"]}), "a:1 is the address of two processes"),
        (spelt({"worker": ["a:1", "b:1"]}, task=None), "it says which process this is"),
        (spelt({"worker": ["a:1", "b:1"]}, index=None), "index None is not a number"),
        (spelt({"worker": ["a:1", "b:1"]}, index=-1), "index -1 is not a number"),
        (spelt(["a:1"]), "have to be JSON objects"),
        (spelt({"chief": ["a:1", "b:1"]}), "2 of type chief, there can be one"),
        (spelt({"worker": ["a:1"], "sidecar": ["b:1"]}), "has a 'sidecar', not one of chief"),
        (tf_config("worker", 5, worker=2), "no task worker/5"),
        (tf_config("sidecar", 0, worker=2), "'sidecar' is not one of chief, worker, ps, evaluator"),
        (tf_config("worker", 0, worker=2, ps=1), "parameter servers need a chief"),
        (tf_config("ps", 3, chief=1, worker=2, ps=1), "no task ps/3"),
    ],
)
def test_a_tf_config_that_cannot_work_is_refused(environment: dict[str, str], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        distribution.cluster(environment)


@pytest.mark.parametrize(
    ("capabilities", "policy"),
    [
        ([], "float32"),
        ([(6, 0)], "float32"),  # P100: no tensor cores
        ([(7, 0)], "mixed_float16"),  # V100
        ([(7, 5)], "mixed_float16"),  # T4
        ([(8, 0), (8, 0)], "mixed_bfloat16"),  # A100
        ([(9, 0), (7, 5)], "mixed_float16"),  # the weakest decides
    ],
)
def test_precision_follows_the_device(capabilities: list[tuple[int, int]], policy: str) -> None:
    assert distribution.policy("auto", False, capabilities) == policy
    assert distribution.policy("float32", False, capabilities) == "float32"
    assert distribution.policy("auto", True, capabilities) == "mixed_bfloat16", "a TPU"


# --- meeting --------------------------------------------------------------------------------------


def two(index: int, ports: tuple[int, int]) -> Cluster:
    hosts = tuple(f"127.0.0.1:{port}" for port in ports)
    return Cluster(workers=2, index=index, role="worker", task=index, tasks={"worker": hosts})


def ports() -> tuple[int, int]:
    with socket.create_server(("", 0)) as one, socket.create_server(("", 0)) as other:
        return one.getsockname()[1], other.getsockname()[1]


def test_processes_that_come_one_after_the_other_meet() -> None:
    both, met = ports(), threading.Semaphore(0)

    def come(index: int) -> None:
        distribution.meet(two(index, both), 60.0)
        with distribution._listening(f"127.0.0.1:{both[index]}"):  # as TensorFlow does next
            met.release()
            done.wait(60)

    done = threading.Event()
    late = threading.Timer(0.5, come, (1,))
    first = threading.Thread(target=come, args=(0,))
    for thread in (first, late):
        thread.start()
    assert met.acquire(timeout=30)
    assert met.acquire(timeout=30)
    done.set()
    first.join()
    late.join()


def test_who_has_met_the_others_is_not_waited_for_until_tensorflow_listens_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """TensorFlow takes seconds to listen; if each waited for that, they would start in a row."""
    monkeypatch.setattr("os._exit", lambda code: pytest.fail(f"exit code {code}"))
    own, early = (f"127.0.0.1:{port}" for port in ports())
    presence = {early: iter(["answers", *["gone"] * 99]), "late:1": iter(["gone", "answers"])}
    monkeypatch.setattr(stalls, "probe", lambda address: next(presence[address]))
    tasks = {"worker": (own, early, "late:1")}
    distribution.meet(Cluster(workers=3, index=0, role="worker", task=0, tasks=tasks), 5.0)


@pytest.mark.tensorflow
@pytest.mark.parametrize(
    ("kind", "before", "after"),
    [
        ("UnavailableError", True, True),
        ("InternalError", False, True),
        ("FailedPreconditionError", False, True),
        ("InvalidArgumentError", False, False),
        ("ResourceExhaustedError", False, False),
    ],
)
def test_what_ends_a_step_from_outside_is_told_by_its_type_and_by_the_steps_before(
    kind: str, before: bool, after: bool
) -> None:
    error = getattr(pytest.importorskip("tensorflow").errors, kind)(None, None, "some words")
    assert distribution.outside(error, stepped=False) is before
    assert distribution.outside(error, stepped=True) is after
    assert not distribution.outside(RuntimeError("Socket closed"), stepped=True)


@pytest.mark.tensorflow
@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("InvalidArgumentError", "/job:ps/replica:0/task:0 unknown device."),
        ("InvalidArgumentError", "/job:ps/task:0: Unable to find the tensor remote_handle"),
        ("InvalidArgumentError", "/job:ps: context_id 7: Perhaps the worker was restarted, or"),
        ("NotFoundError", "'__inference_f_7' is neither a type of a primitive operation nor a name "
         "of a function registered in binary running on x: from remote target /job:worker/task:1"),
        ("FailedPreconditionError", "Device /job:worker/replica:0/task:1/device:CPU:0 current "
         "incarnation doesn't match with one in the group"),
        ("InternalError", "/job:worker/task:1: calling /tensorflow.CoordinationService/Heartbeat"),
        ("UnknownError", "Could not start gRPC server"),
        ("UnknownError", "Graph execution error: from remote target /job:worker/replica:0/task:1"),
    ],
)  # fmt: skip
def test_a_peer_that_is_gone_is_told_by_its_text_before_the_first_step(
    kind: str, text: str
) -> None:
    errors = pytest.importorskip("tensorflow").errors
    assert distribution.outside(getattr(errors, kind)(None, None, text), stepped=False)
    own = getattr(errors, kind)(None, None, "/job:chief/task:0: 7 is not in [0, 7)")
    assert not distribution.outside(own, stepped=False)
