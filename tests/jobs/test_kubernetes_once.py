"""One job in a cluster, whatever breaks while several commands submit it."""

from __future__ import annotations

import contextlib
import os
import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from builder.core.errors import OutsideError
from builder.jobs import submission
from builder.jobs.places.kubernetes.place import Kubernetes
from builder.jobs.places.protocol import LostAnswer, NoRoom
from builder.jobs.ready import Ready
from tests.clock import replace_pauses
from tests.emulators.kubernetes import server
from tests.emulators.kubernetes.kubelet import Scripted
from tests.jobs.test_kubernetes import ready
from tests.jobs.test_kubernetes_place import JOB, connected, send


@pytest.fixture
def loopback(tmp_path: Path) -> Iterator[server.Cluster]:
    """A cluster whose pods wait for a node."""
    with server.running(tmp_path, Scripted()) as found:
        found.controllers.pods_stay_pending = "0/3 nodes are available"
        yield found


@pytest.fixture
def slept(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The pauses that would have been made."""
    found: list[float] = []
    replace_pauses(monkeypatch, found.append)
    return found


def test_a_server_that_is_too_busy_is_asked_again_when_it_says(
    loopback: server.Cluster, slept: list[float], tmp_path: Path
) -> None:
    loopback.faults.bursts = [("POST .*jobsets$", 429, 2), ("GET .*jobsets$", 429, 1)]
    assert send(connected(loopback), ready(JOB), tmp_path).created
    assert slept == [1.0, 1.0, 1.0] and len(loopback.jobsets()) == 1


def test_a_server_that_stays_too_busy_is_told(loopback: server.Cluster, slept: list[float]) -> None:
    loopback.faults.bursts = [("POST .*jobsets$", 429, 99)]
    with pytest.raises(OutsideError, match="too many requests: Too many requests, please") as found:
        connected(loopback).create(ready(JOB))
    assert "run the same command again" in found.value.fix and loopback.jobsets() == []


def test_of_two_commands_one_says_that_it_made_the_job(
    loopback: server.Cluster, tmp_path: Path
) -> None:
    loopback.faults.behind = 10_000  # no list shows anything
    sent = together(loopback, ready(JOB), tmp_path, 4)
    assert len(loopback.jobsets()) == 1 and sum(one.created for one in sent) == 1
    assert {one.why for one in sent} == {"", "another command made it at the same moment"}


def test_a_list_that_does_not_show_what_failed_leads_to_the_next_attempt(
    loopback: server.Cluster, tmp_path: Path
) -> None:
    first = send(connected(loopback), ready(JOB), tmp_path).job
    fail(loopback, first.name)
    loopback.faults.behind = 10_000
    second = send(connected(loopback), ready(JOB), tmp_path / "elsewhere")
    assert second.created and second.job.name == f"{first.name}-a2"


def test_submissions_in_which_everything_breaks_leave_one_job_each(
    loopback: server.Cluster, slept: list[float], tmp_path: Path
) -> None:
    """Quotas, a server that is too busy, away or breaks off, and lists that lag, in random order;
    two commands at once, on two machines, and a third one later. Some jobs fail before that, and
    have one next attempt. BUILDER_RANDOM_FAULTS=200 is what docs/kubernetes.md tells of.
    """
    dice = random.Random(15)
    for number in range(int(os.environ.get("BUILDER_RANDOM_FAULTS", "40"))):
        wanted = ready(f"{JOB}arguments: {{steps: {number}}}\n")
        folder, before = tmp_path / str(number), list[str]()
        if dice.random() < 0.3:
            first = send(connected(loopback), wanted, folder / "before").job
            fail(loopback, first.name)
            before.append(first.display_name)
        faults = random_faults(dice)
        vars(loopback.faults).update(vars(faults))
        if faults.quota:
            with pytest.raises(NoRoom, match="exceeded quota"):
                send(connected(loopback), wanted, folder / "a")
            assert len(loopback.jobsets()) == len(before), (number, faults)
            loopback.faults.quota = False
        sent = together(loopback, wanted, folder, 2)
        sent.append(persistent(connected(loopback), wanted, folder / "later"))
        vars(loopback.faults).update(vars(server.Faults()))
        names = [one["metadata"]["name"] for one in loopback.jobsets()]
        assert len(names) == len(before) + 1, (number, faults)
        assert {one.job.display_name for one in sent} == {*names} - {*before}, (number, faults)
        assert not sent[-1].created and any(one.created for one in sent), (number, faults)
        loopback.store.forget("jobsets", "jobs", "pods")


def random_faults(dice: random.Random) -> server.Faults:
    """What goes wrong with one submission."""
    create, lists = "POST .*jobsets$", "GET .*(jobsets|pods)$"
    bursts = [
        (create, dice.choice((429, 500, 504)), dice.randint(0, 2)),
        (lists, dice.choice((429, 500, 503)), dice.randint(0, 2)),
    ]
    dice.shuffle(bursts)
    behind = dice.choice((0, 1, 3, 10_000))
    return server.Faults(bursts, dice.randint(0, 2), quota=dice.random() < 0.2, behind=behind)


def together(
    loopback: server.Cluster, wanted: Ready, folder: Path, count: int
) -> list[submission.Submitted]:
    """The same job, submitted by so many machines at once."""
    places: list[Kubernetes] = [connected(loopback) for _ in range(count)]
    folders = [folder / str(number) for number in range(count)]
    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(lambda place, at: persistent(place, wanted, at), places, folders))


def persistent(place: Kubernetes, wanted: Ready, folder: Path) -> submission.Submitted:
    """A person who runs the same command again where the answers got lost, as it says."""
    for _ in range(2):
        with contextlib.suppress(LostAnswer):
            return send(place, wanted, folder)
    return send(place, wanted, folder)


def fail(loopback: server.Cluster, name: str) -> None:
    """Let a job fail, as JobSet's controller says it."""
    with loopback.store.changed:
        found: Any = loopback.store.get("jobsets", *name.split("/"))
        failed = {
            "type": "Failed",
            "status": "True",
            "reason": "FailedJobs",
            "message": "it failed",
        }
        found["status"] = {"conditions": [failed | {"lastTransitionTime": "2026-11-22T10:00:00Z"}]}
        loopback.store.update("jobsets", found)
