"""Jobs in a real cluster: what its API server, its controllers and its kubelets make of them."""

from __future__ import annotations

import signal
from collections.abc import Callable

import pytest

from tests.cluster.access import Access, Gate, ended, lines, told

pytestmark = [pytest.mark.long, pytest.mark.network, pytest.mark.timeout(5400)]
Describe = Callable[..., str]
POLL = ("--poll", "0.5")
TWENTY = "for n in $(seq 20); do echo line $n; sleep 0.2; done"
TOKYO = "node-1"
ON_TOKYO = "kubernetes: {node_selector: {kubernetes.io/hostname: node-1}}\n"


def test_replicas_find_each_other_by_name_and_all_lines_arrive(
    access: Access, project: Describe, gate: Gate
) -> None:
    """TF_CONFIG has the index of each pod, and names that the cluster's DNS knows."""
    shell = (
        'for host in $(echo "$TF_CONFIG" | tr , "\\n" | grep -o "job-[a-z0-9.-]*"); do'
        f" until nslookup $host.{access.namespace}.svc.cluster.local >/dev/null; do"
        " sleep 0.3; done; echo found ${host%%.*}; done;"
        f" echo \"${{TF_CONFIG##*task}}\" $JOB_COMPLETION_INDEX '$(HOME)'; {gate.shell}"
    )
    name = project(shell, "replicas: {workers: 2}\n")
    following = access.start("submit", name, "--logs", *POLL)
    access.until(name, lambda now: len(access.pods(name)) == 3 and now.state == "running")
    for pod in access.pods(name):
        access.printed(pod, "$(HOME)")
    gate.open()
    code, shown = ended(following)
    assert code == 0, shown
    said = lines(shown)
    assert set(said) == {"chief-0", "worker-0", "worker-1"}
    for replica, (*found, last) in said.items():
        assert len(found) == 3 and all(line.startswith("found job-") for line in found)
        role, _, index = replica.partition("-")
        assert last == f'": {{"type": "{role}", "index": {index}}}}} {index} $(HOME)'


def test_a_job_is_taken_once_ends_with_its_code_and_runs_again(
    access: Access, project: Describe
) -> None:
    name = project("echo begins; exit 3")
    code, shown = access.run("submit", name, "--logs", *POLL)
    assert code == 3 and "begins" in shown
    first = access.until(name, bool)
    assert (first.state, first.exit_code) == ("failed", 3)
    assert "chief-0 ended with exit code 3" in first.error
    assert "3" in access.run("why", name)[1]
    assert access.run("submit", name)[0] == 0, "a failed job is sent again"
    second = access.until(name, lambda now: now.exit_code is not None)
    assert second.name.endswith("-a2")
    assert access.run("submit", name, "--again")[0] == 0
    assert access.until(name, bool).name.endswith("-r2")


def test_a_job_that_is_cancelled_ends_with_143_for_who_follows_it(
    access: Access, project: Describe
) -> None:
    name = project("trap 'echo told; exit 0' TERM; echo begins; while :; do sleep 0.2; done")
    following = access.follow(name)
    code, shown = access.run("cancel", name)
    assert code == 0, shown
    code, shown = ended(following)
    assert code == 143 and "begins" in shown
    assert access.pods(name) == [] == access.jobsets(name)


@pytest.mark.parametrize("where", [ON_TOKYO, ""], ids=["at +09:00", "any"])
def test_no_line_is_lost_whatever_the_nodes_time(
    access: Access, project: Describe, where: str
) -> None:
    """Of 20 lines one was shown, with exit code 0, where containerd stamps them at +09:00."""
    if where and not access.own:
        pytest.skip("no cluster with a node in Tokyo")
    code, shown = access.run("submit", project(TWENTY, where), "--logs", *POLL)
    assert code == 0 and len(lines(shown)["chief-0"]) == 20, shown


def test_suspended_and_resumed_in_the_middle(access: Access, project: Describe, gate: Gate) -> None:
    """As Kueue does when it takes a job's place away and gives it back."""
    name = project(f"trap 'exit 143' TERM; echo begins; {gate.shell}; echo done")
    following = access.follow(name)
    jobset = access.until(name, bool).display_name
    access.patch(jobset, {"suspend": True})
    access.until(name, lambda now: now.state == "queued")
    access.patch(jobset, {"suspend": False})
    access.until(name, lambda now: now.replicas[0].restarts == 1)
    gate.open()
    code, shown = ended(following)
    assert code == 0 and lines(shown)["chief-0"] == ["begins", "begins", "done"], shown


def test_the_api_server_may_go_away_while_a_job_is_followed(
    own: Access, project: Describe, gate: Gate
) -> None:
    counts = "for n in $(seq {}); do echo line $n; sleep 0.2; done"
    name = project(f"{counts.format('40')}; {gate.shell}; {counts.format('41 60')}")
    following = own.follow(name)
    with own.away("kube-apiserver"):
        shown = told(following, "asking again")
    gate.open()
    code, rest = ended(following)
    assert code == 0 and len(lines(shown + rest)["chief-0"]) == 60, shown + rest


STUDY = """\
study:
  metric: score
  trials: 4
  parallel: 2
  algorithm: grid
  parameters: {rate: {values: [1, 2, 3, 4]}}
"""


def test_a_study_is_a_jobset_for_each_trial_and_outlives_ctrl_c(
    access: Access, project: Describe, gate: Gate
) -> None:
    """The first two trials end while nobody asks; the third fails."""
    shell = (
        f"echo begins; {gate.shell}; [ $0 != --rate=3 ] || exit 3;"
        ' echo "{\\"event\\": \\"evaluated\\", \\"score\\": ${0#--rate=}}"'
    )
    name = project(shell, STUDY)
    asking = access.start("submit", name, "--logs", *POLL)
    access.until(name, lambda now: [row.state for row in now.trials] == ["running"] * 2)
    asking.send_signal(signal.SIGINT)
    code, shown = ended(asking)
    assert code == 130 and "its trials go on in Kubernetes" in shown, shown
    assert len(access.jobsets(name)) == 2
    gate.open()
    access.until(name, lambda now: [row.state for row in now.trials] == ["succeeded"] * 2)
    code, shown = access.run("submit", name, "--logs", *POLL)
    assert code == 0 and " goes on: rate " in shown, shown
    trials = {item["metadata"]["labels"]["builder-trial"] for item in access.jobsets(name)}
    assert trials == {"1", "2", "3", "4"} and len(access.jobsets(name)) == 4
    code, shown = access.run("status", name)
    assert [f"trial {n} (succeeded): {n}  rate={n}" in shown for n in (1, 2, 4)] == [True] * 3
    assert code == 0 and "trial 3 (failed)  rate=3" in shown, shown
    assert "3 of 4 trials; the best is trial 4: score 4.0" in shown


def test_cancel_ends_each_trial_of_a_study(access: Access, project: Describe) -> None:
    name = project("trap 'exit 0' TERM; echo begins; while :; do sleep 0.2; done", STUDY)
    asking = access.start("submit", name, "--logs", *POLL)
    access.until(name, lambda now: [row.state for row in now.trials] == ["running"] * 2)
    code, shown = access.run("cancel", name)
    assert code == 0, shown
    code, shown = ended(asking)
    assert code == 143 and "a trial was cancelled" in shown, shown
    assert access.pods(name) == [] == access.jobsets(name)
