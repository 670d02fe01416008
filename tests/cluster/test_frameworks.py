"""JAX and PyTorch in a real cluster: two processes meet by the JobSet's names and train as one.

The cluster's DNS answers the names in TF_CONFIG. The start hook of our image for JAX makes the
framework's own variables of it. PyPI has no PyTorch for the CPU alone, and an image for a GPU has
gigabytes: so an image with Debian's runs the hook's module with PyTorch's names.
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from builder import contract
from builder.frameworks.torch import FRAMEWORK
from builder.image.start import training_image_rendezvous
from tests import ROOT
from tests.cluster.access import Access, ended, lines

pytestmark = [pytest.mark.long, pytest.mark.network, pytest.mark.timeout(5400)]
JAX = """
import os, socket, time, jax, jax.numpy as jnp
from jax.experimental import multihost_utils
jax.config.update("jax_cpu_collectives_implementation", "gloo")
rank, count = int(os.environ["JAX_PROCESS_ID"]), int(os.environ["JAX_NUM_PROCESSES"])
where = os.environ["JAX_COORDINATOR_ADDRESS"]
jax.distributed.initialize(num_processes=count, process_id=rank)
weight, mine = jnp.float32(4), jnp.float32(1 + rank)
loss = jax.value_and_grad(lambda weight: (weight * mine - 1) ** 2)
for step in range(20):
    both = jnp.stack(loss(weight))
    both = multihost_utils.process_allgather(both).mean(0)
    weight = weight - 0.05 * both[1]
"""
TORCH = f"""
{inspect.getsource(training_image_rendezvous)}
import os, socket, time, torch
os.environ.update(variables({dict(FRAMEWORK.rendezvous)!r}, os.environ))
from torch import distributed
distributed.init_process_group("gloo")
rank, count = distributed.get_rank(), distributed.get_world_size()
where = os.environ["MASTER_ADDR"]
weight, mine = torch.tensor(4.0, requires_grad=True), torch.tensor(1.0 + rank)
for step in range(20):
    loss = (weight * mine - 1) ** 2
    (slope,) = torch.autograd.grad(loss, weight)
    both = torch.stack([loss.detach(), slope])
    distributed.all_reduce(both)
    both /= count
    weight = (weight - 0.05 * both[1]).detach().requires_grad_()
both = both.numpy()
"""
SAYS = """
host = where.partition(":")[0]
print("meets at", host, socket.gethostbyname(host) != "127.0.0.1", flush=True)
print("rank", rank, "of", count, "loss", both[0].item().hex(), flush=True)
time.sleep(0 if rank else 5)
"""
"""The job ends with its chief."""


@pytest.mark.parametrize(
    ("target", "python", "program"),
    [("cpu-jax", "python", JAX), ("torch", "/usr/bin/python3", TORCH)],
    ids=["JAX", "PyTorch"],
)
def test_two_processes_meet_by_name_and_end_with_the_same_loss(
    access: Access,
    project: Callable[..., str],
    ours: Callable[[str], str],
    target: str,
    python: str,
    program: str,
) -> None:
    name = project("", "replicas: {workers: 1}\n", image=ours(target))
    path, words = Path(f"jobs/{name}.yaml"), json.dumps([python, "-c", program + SAYS])
    path.write_text(path.read_text().replace('["sh", "-c", ""]', words))
    code, shown = access.run("submit", name, "--logs", "--poll", "1")
    assert code == 0, shown
    (made,) = access.jobsets(name)
    jobset, losses = made["metadata"]["name"], set()
    for rank, replica in enumerate(("chief-0", "worker-0")):
        met, last = lines(shown)[replica][-2:]
        assert met == f"meets at {jobset}-chief-0-0.{jobset} True"
        said = re.fullmatch(rf"rank {rank} of 2 loss (\S+)", last)
        assert said, shown
        losses.add(float.fromhex(said[1]))
    assert len(losses) == 1 and losses.pop() < 1, "it began at 29"


def test_the_example_of_the_image_goes_on_from_its_volume_when_a_pod_is_lost(
    own: Access, ours: Callable[[str], str], project: Callable[..., str], tmp_path: Path
) -> None:
    """What a job on a spot machine goes through, with our image and its own entry point."""
    runs = tmp_path / "runs"
    runs.mkdir()
    runs.chmod(0o777)  # Kubernetes leaves a hostPath's owner as it is
    with own.volume(runs) as claim, own.volume(ROOT / "builder/prove/records") as records:
        mounts = f"{{/mnt/runs: {claim}, /mnt/records: {{claim: {records}, read_only: true}}}}"
        more = (
            "replicas: {workers: 1}\npass_job_dir: true\njob_dir: /mnt/runs/{job}\n"
            "arguments: {records: /mnt/records, steps: 400, batch-size: 48, checkpoint-every: 40}\n"
            f"kubernetes: {{volumes: {mounts}}}\n"
        )
        name = project("", more, image=ours("cpu-jax"))
        path = Path(f"jobs/{name}.yaml")
        path.write_text(path.read_text().replace('command: ["sh", "-c", ""]\n', ""))
        _resumed(own, name, runs)


def _resumed(own: Access, name: str, runs: Path) -> None:
    following = own.follow(name)
    chief, worker = (own.pods(name, role)[0] for role in ("chief", "worker"))
    own.printed(chief, '"step": 120')
    own.lose(worker)
    code, shown = ended(following)
    assert code == 0, shown
    said = [json.loads(line) for line in lines(shown)["chief-0"] if line.startswith("{")]
    resumed = [event["step"] for event in said if event["event"] == contract.RESUMED]
    assert resumed and resumed[0] >= 120, f"SIGTERM lets them save a step together: {shown}"
    accuracy = [each["accuracy"] for each in said if each["event"] == contract.EVALUATED]
    assert accuracy and accuracy[0] > 0.9
    (folder,) = runs.iterdir()
    assert (folder / "model/model.jax").stat().st_size > 1000
