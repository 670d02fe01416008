"""A job that writes to a persistent volume, and goes on from there."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cluster.access import Access, ended, lines, told

pytestmark = [pytest.mark.long, pytest.mark.network, pytest.mark.timeout(5400)]
VOLUME = "job_dir: /mnt/runs/{job}\nkubernetes: {volumes: {/mnt/runs: CLAIM}}\n"
COUNTS = (
    "mkdir -p $AIP_CHECKPOINT_DIR; cd $AIP_CHECKPOINT_DIR; n=0; [ -f n ] && n=$(cat n);"
    " echo from $n; while [ $n -lt 10 ]; do n=$((n+1)); echo $n >n; done; echo at $n;"
    " while [ ! -f go ]; do sleep 0.2; done; [ -f failed ] || { echo >failed; exit 3; };"
    " echo all $n"
)
"""Counts in its folder, waits there for a file `go`, and fails once at the end."""


def test_a_job_that_loses_its_pod_or_fails_goes_on_from_its_volume(
    own: Access, project: Callable[..., str], tmp_path: Path
) -> None:
    runs = tmp_path / "runs"
    runs.mkdir()
    with own.volume(runs) as claim:
        _counted(own, project(COUNTS, VOLUME.replace("CLAIM", claim)), runs)


def _counted(own: Access, name: str, runs: Path) -> None:
    following = own.follow(name)
    (pod,) = own.pods(name)
    own.printed(pod, "at 10")
    (folder,) = runs.iterdir()
    assert (folder / "checkpoints/n").read_text() == "10\n"
    own.lose(pod)
    own.until(name, lambda now: (now.replicas[0].restarts, now.state) == (1, "running"))
    (folder / "checkpoints/go").touch()
    code, shown = ended(following)
    begun = [line for line in lines(shown)["chief-0"] if line.startswith("from")]
    assert code == 3 and begun == ["from 0", "from 10"], shown
    code, shown = own.run("submit", name, "--logs", "--poll", "0.5")
    assert code == 0 and lines(shown)["chief-0"] == ["from 10", "at 10", "all 10"], shown
    assert own.until(name, bool).output == f"/mnt/runs/{folder.name}"


def test_a_claim_that_is_not_there_is_said(own: Access, project: Callable[..., str]) -> None:
    name = project("echo never", VOLUME.replace("CLAIM", "nowhere"))
    following = own.start("submit", name, "--logs", "--poll", "0.5")
    told(following, 'persistentvolumeclaim "nowhere" not found')
    assert own.run("cancel", name)[0] == 0
    assert ended(following)[0] == 143
