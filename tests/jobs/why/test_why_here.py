"""A job that ran on the engine, and why it ended."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from builder.engine import Engine
from builder.jobs.backends.local import run as local
from builder.jobs.backends.local.backend import ThisMachine
from builder.jobs.backends.local.replicas import LocalJob
from builder.jobs.pools import Pool
from builder.jobs.why import logs
from builder.jobs.why.diagnose import Diagnosis, diagnose
from tests.jobs.test_job_local import ROLE

pytestmark = [pytest.mark.engine]


def why(engine: Engine, local_job: LocalJob) -> Diagnosis:
    """Run a job to its end, and read its folder."""
    local.run(engine, local_job)
    place = ThisMachine(local_job.folder)
    return diagnose(logs.of_job(place, place.find(str(local_job.folder))))


def test_the_cause_in_a_worker_wins_over_what_the_chief_says_of_it(
    engine: Engine, job: Callable[..., LocalJob]
) -> None:
    script = ROLE + (
        'if [ "$role" = chief ]; then echo "failed to connect to all addresses"; sleep 60; fi; '
        'sleep 1; echo "OOM when allocating tensor with shape[64]"; exit 1'
    )
    diagnosis = why(engine, job(script, grace=0.2, pools=(Pool("chief"), Pool("worker"))))
    assert diagnosis.ending == "device-memory"
    assert diagnosis.evidence[0].where.startswith("worker-0, ")
    assert diagnosis.evidence[1].text == "exit code 1"
    assert [each.ending for each in diagnosis.seen] == ["peer-lost"]


def test_silent_ends(engine: Engine, job: Callable[..., LocalJob]) -> None:
    assert why(engine, job("exit 0")).ending == "ended-well"
    assert why(engine, job("exit 7")).ending == "unknown"
    assert why(engine, job("exit 137", restarts="never")).ending == "killed"
