"""A cluster of two on this machine of our trainer, and of the example of each other framework, in
containers of its image."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from builder import contract
from builder.core import project
from builder.engine import Engine, containers
from builder.jobs.backends.local import run as local
from builder.jobs.backends.local.replicas import LocalJob
from builder.jobs.backends.protocol import LogLine
from builder.jobs.machines import Pool
from tests import ROOT, commands
from tests.jobs import jobfiles

RECORDS = ROOT / "builder/prove/records"
MODELS = {
    "cpu": "model/saved_model.pb",
    "v100-torch": "model/model.pt2",
    "cpu-jax": "model/model.jax",
}
"""Target -> what its example writes at its end. PyPI has no PyTorch for the CPU alone."""
WORDS = "import os; os.write(1, 'rank {RANK} of {WORLD_SIZE}\\n'.format(**os.environ).encode())"

pytestmark = [pytest.mark.engine, pytest.mark.network, pytest.mark.long]


@pytest.fixture(scope="module", params=MODELS)
def target(request: pytest.FixtureRequest, engine: Engine) -> str:
    """A target, whose image with the example of the working tree the engine has."""
    name: str = request.param
    commands.builder("build", name, check=True)
    return name


def cluster(target: str, folder: Path, **fields: object) -> LocalJob:
    """A chief and a worker without a GPU."""
    pools, image = (Pool("chief"), Pool("worker")), f"training:{project.tag_of(ROOT, target)}"
    return LocalJob("digits", image, folder, pools=pools, shm=1 << 28, **fields)  # type: ignore[arg-type]


def text(lines: list[LogLine]) -> str:
    """All that was printed."""
    return "\n".join(f"{line.replica} {line.text}" for line in lines)


def test_two_processes_train_together_and_go_on_when_one_is_killed(
    engine: Engine, target: str, tmp_path: Path
) -> None:
    lines: list[LogLine] = []
    killed: list[LogLine] = []

    def kill_once(line: LogLine) -> None:
        """Kill the worker at step 120, as a machine that breaks."""
        lines.append(line)
        if line.fields.get("step") == 120 and not killed:
            killed.append(line)
            mine = f"{containers.OWNER}={containers.owner(os.getpid())}"
            for container in engine.client.containers.list(
                filters={"name": "-worker-0", "label": mine}
            ):
                container.kill("SIGKILL")

    job = cluster(
        target,
        tmp_path,
        arguments=("--steps=200", "--batch-size=48", "--checkpoint-every=40"),
        records=RECORDS,
        pass_job_dir=True,
    )
    outcome = local.run(engine, job, on_line=kill_once)
    said = text(lines)
    assert outcome.exit_code == 0, said
    ended = {replica.name: replica.state for replica in outcome.replicas}
    assert ended["chief-0"] == "succeeded"
    assert ended["worker-0"] in ("succeeded", "stopped")  # by the end of the chief, if it is slower
    assert killed and all(replica.restarts for replica in outcome.replicas), said
    assert jobfiles.why(tmp_path).ending == "ended-well", said
    reported = {line.fields.get("event"): line.fields for line in lines}
    assert contract.RESUMED in reported and reported[contract.EVALUATED]["accuracy"] > 0.9
    assert (tmp_path / MODELS[target]).stat().st_size > 1000


@pytest.mark.parametrize("target", ["v100-torch"], indirect=True)
def test_torchrun_starts_several_processes_in_each_container(
    engine: Engine, target: str, tmp_path: Path
) -> None:
    command = ("torchrun", "--nproc-per-node=2", "--no-python", "python", "-c", WORDS)
    lines: list[LogLine] = []
    outcome = local.run(engine, cluster(target, tmp_path, command=command), on_line=lines.append)
    said = text(lines)
    assert outcome.exit_code == 0, said
    for rank in range(4):
        assert f"rank {rank} of 4" in said
