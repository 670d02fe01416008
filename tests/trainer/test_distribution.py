"""Which strategy and precision a machine gets: the decisions, without the devices."""

import json

import pytest

from trainer import distribution
from trainer.config import UsageError
from trainer.distribution import Cluster


def tf_config(kind: str, index: int, **cluster: int) -> dict[str, str]:
    hosts = {name: [f"{name}-{n}:2222" for n in range(count)] for name, count in cluster.items()}
    return {"TF_CONFIG": json.dumps({"cluster": hosts, "task": {"type": kind, "index": index}})}


def test_without_tf_config_there_is_one_worker() -> None:
    assert distribution.cluster({}) == Cluster(workers=1, index=0)
    assert distribution.cluster({"TF_CONFIG": ""}).chief
    assert distribution.cluster(tf_config("chief", 0, chief=1)) == Cluster()


def test_the_chief_comes_first_and_workers_after_it() -> None:
    assert distribution.cluster(tf_config("chief", 0, chief=1, worker=2)) == Cluster(3, 0)
    assert distribution.cluster(tf_config("worker", 0, chief=1, worker=2)) == Cluster(3, 1)
    assert not distribution.cluster(tf_config("worker", 0, chief=1, worker=2)).chief


def test_without_a_chief_worker_0_is_it() -> None:
    assert distribution.cluster(tf_config("worker", 0, worker=2)).chief
    assert not distribution.cluster(tf_config("worker", 1, worker=2)).chief


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({"TF_CONFIG": "{"}, "TF_CONFIG cannot be read"),
        ({"TF_CONFIG": "[]"}, "TF_CONFIG cannot be read"),
        (tf_config("worker", 5, worker=2), "no task worker/5"),
        (tf_config("evaluator", 0, worker=2), "'evaluator' is not one of chief, worker"),
        (tf_config("worker", 0, worker=2, ps=1), "parameter servers"),
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
    assert distribution.precision("auto", False, capabilities) == policy
    assert distribution.precision("float32", False, capabilities) == "float32"


def test_a_tpu_computes_in_bfloat16() -> None:
    assert distribution.precision("auto", True, []) == "mixed_bfloat16"
