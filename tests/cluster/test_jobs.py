"""Jobs in a real cluster: what its API server, its controllers and its kubelets make of them."""

from __future__ import annotations

import json
import time
from collections.abc import Callable

import pytest

from tests.cluster.access import SECONDS, Access

pytestmark = [pytest.mark.long, pytest.mark.network]
Describe = Callable[..., str]
POLL = ("--poll", "0.5")
TWENTY = "for n in $(seq 20); do echo line $n; sleep 0.2; done"
ON_TOKYO = "kubernetes: {node_selector: {kubernetes.io/hostname: node-1}}\n"


def test_replicas_find_each_other_by_name_and_all_lines_arrive(
    access: Access, project: Describe
) -> None:
    """TF_CONFIG has the index of each pod and names that the cluster's DNS knows."""
    shell = (
        'echo "$TF_CONFIG"; for n in $(echo "$TF_CONFIG" | tr , "\\n" | grep -o "[a-z0-9.-]*:2222");'
        ' do nslookup ${n%:*} >/dev/null && echo found ${n%%.*}; done; echo "a $ and $(HOME)"'
    )
    name = project(shell, "replicas: {workers: 2}\n")
    code, out, err = access.run("submit", name, "--logs", *POLL)
    assert code == 0, err
    lines = [line.partition("| ")[::2] for line in out.splitlines()]
    by_replica: dict[str, list[str]] = {}
    for replica, text in lines:
        by_replica.setdefault(replica.strip(), []).append(text)
    assert by_replica == {}


def test_a_job_is_taken_once_ends_with_its_code_and_runs_again(
    access: Access, project: Describe
) -> None:
    name = project("echo begins; exit 3")
    code, out, err = access.run("submit", name, "--logs", *POLL)
    assert code == 3 and "begins" in out, err
    ended = access.status(name)
    assert (ended["state"], ended["exit_code"]) == ("failed", 3)
    assert "chief-0 ended with exit code 3" in ended["error"]
    code, out, _ = access.run("why", name)
    assert "3" in out
    assert access.run("submit", name)[0] == 0, "a failed job is sent again"
    second = access.until(name, lambda now: now["exit_code"] is not None)
    assert second["name"].endswith("-a2")
    assert access.run("submit", name, "--again")[0] == 0
    assert access.status(name)["name"].endswith("-r2")


def test_a_job_that_is_cancelled_ends_with_143_for_who_follows_it(
    access: Access, project: Describe
) -> None:
    name = project("trap 'echo told; exit 0' TERM; echo begins; while :; do sleep 0.2; done")
    following = access.start("submit", name, "--logs", *POLL)
    access.until(name, lambda now: now["state"] == "running")
    code, _, err = access.run("cancel", name)
    assert code == 0, err
    out, err = following.communicate(timeout=SECONDS)
    assert following.returncode == 143 and "begins" in out, err
    assert access.pods(name) == [] == access.jobsets(name)


@pytest.mark.parametrize("where", [ON_TOKYO, ""], ids=["at +09:00", "any"])
def test_no_line_is_lost_whatever_the_nodes_time(
    access: Access, project: Describe, where: str
) -> None:
    """Of 20 lines one was shown, with exit code 0, where containerd stamps them at +09:00."""
    if where and not access.own:
        pytest.skip("no node of this cluster is known to be in Tokyo")
    code, out, err = access.run("submit", project(TWENTY, where), "--logs", *POLL)
    shown = [line for line in out.splitlines() if "| line" in line]
    assert code == 0 and len(shown) == 20, err


def test_suspended_and_resumed_in_the_middle(access: Access, project: Describe) -> None:
    """As Kueue does when it takes a job's place away and gives it back."""
    name = project("echo begins; sleep 5; echo done")
    following = access.start("submit", name, "--logs", *POLL)
    running = access.until(name, lambda now: now["state"] == "running")
    jobset = running["display_name"]
    access.patch(jobset, {"suspend": True})
    access.until(name, lambda now: now["state"] == "queued")
    access.patch(jobset, {"suspend": False})
    out, err = following.communicate(timeout=SECONDS)
    assert following.returncode == 0 and out.count("begins") == 2 and "done" in out, err


def test_the_api_server_may_go_away_while_a_job_is_followed(own: Access, project: Describe) -> None:
    name = project("for n in $(seq 40); do echo line $n; sleep 0.5; done")
    following = own.start("submit", name, "--logs", *POLL)
    own.until(name, lambda now: now["state"] == "running")
    own.kill("kube-apiserver")
    out, err = following.communicate(timeout=SECONDS)
    assert following.returncode == 0, err
    assert len([line for line in out.splitlines() if "| line" in line]) == 40
    assert "asking again" in out + err


def test_an_image_that_is_not_there_is_said_while_the_job_is_followed(
    access: Access, project: Describe
) -> None:
    name = project("echo never", f"environment: {{X: {json.dumps('1')}}}\n")
    assert name


@pytest.mark.parametrize(
    ("more", "reason"),
    [("kubernetes: {priority: nowhere}\n", "no PriorityClass with name nowhere")],
    ids=["PriorityClass"],
)
def test_why_pods_cannot_be_made(access: Access, project: Describe, more: str, reason: str) -> None:
    name = project("echo never", more)
    assert access.run("submit", name)[0] == 0
    now = access.until(name, lambda now: now["error"])
    assert reason in now["error"]
    assert reason in access.run("why", name)[1]
    assert access.run("cancel", name)[0] == 0


def test_a_node_that_is_gone(own: Access, project: Describe) -> None:
    """The lines of the pods on other nodes go on; the lost one's is said."""
    name = project("for n in $(seq 300); do echo line $n; sleep 0.2; done")
    assert time and own and name
