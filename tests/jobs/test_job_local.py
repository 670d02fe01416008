"""Jobs as containers: busybox stands for a program that is not ours, that of cpu is ours."""

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from builder.core.errors import InputError, OutsideError
from builder.engine import Engine, containers
from builder.jobs import description
from builder.jobs.backends.local import backend
from builder.jobs.backends.local import run as local
from builder.jobs.backends.local.backend import ThisMachine
from builder.jobs.backends.local.replicas import LocalJob
from builder.jobs.backends.local.study import run_study
from builder.jobs.backends.protocol import SERVICE, JobStatus, LogLine
from builder.jobs.machines import Pool
from builder.jobs.stopping import Stop
from builder.jobs.why.diagnose import Diagnosis
from tests import ROOT
from tests.clock import until
from tests.conftest import Run
from tests.jobs import jobfiles

pytestmark = [pytest.mark.engine]


def left(engine: Engine, owner: str = "") -> list[Any]:
    """Containers and networks of jobs of a process, by default of this one."""
    filters = {"label": f"{containers.OWNER}={owner or containers.owner(os.getpid())}"}
    return [
        *engine.client.containers.list(all=True, filters=filters, ignore_removed=True),
        *engine.client.networks.list(filters=filters),
    ]


def run(engine: Engine, local_job: LocalJob, **more: Any) -> tuple[JobStatus, list[LogLine]]:
    """Run a job; return how it ended, and its lines."""
    printed: list[LogLine] = []
    ended = local.run(engine, local_job, on_line=printed.append, **more)
    assert left(engine) == []
    return ended, printed


def lines(printed: list[LogLine], replica: str) -> list[str]:
    return [line.text for line in printed if line.replica == replica]


BOTH = (Pool("chief"), Pool("worker"))
ROLE = 'role=$(echo "$TF_CONFIG" | sed "s/.*\\"task\\": {\\"type\\": \\"//; s/\\".*//"); '
"""Which role a container has, in the words of a shell."""


def test_replicas_reach_each_other_and_the_job_ends_with_its_chief(
    engine: Engine, job: Callable[..., LocalJob]
) -> None:
    script = ROLE + (
        "trap 'echo told to go; exit 0' TERM; "
        'if [ "$role" = worker ]; then echo hello | nc -l -p 2222; '
        "while :; do sleep 0.1; done; fi; "
        'host=$(echo "$TF_CONFIG" | sed "s/.*\\"worker\\": \\[\\"//; s/:.*//"); '
        "mkfifo /tmp/open; "  # what nc reads: it ends the other one where that ends
        'for i in 1 2 3 4 5 6 7 8 9; do nc -w 5 "$host" 2222 <>/tmp/open && exit 0; sleep 0.3; '
        "done; exit 1"
    )
    outcome, printed = run(engine, job(script, pools=BOTH))
    assert (outcome.state, outcome.exit_code) == ("succeeded", 0)
    assert "hello" in lines(printed, "chief-0")
    assert lines(printed, "worker-0") == ["told to go"]
    assert [(each.name, each.state, each.exit_code) for each in outcome.replicas] == [
        ("chief-0", "succeeded", 0),
        ("worker-0", "succeeded", 0),
    ]


def test_what_a_container_may_read_and_write_and_what_stays(
    engine: Engine, job: Callable[..., LocalJob], tmp_path: Path
) -> None:
    records, buckets = tmp_path / "records", tmp_path / "buckets"
    records.mkdir()
    (records / "a").write_text("data")
    (buckets / "mine").mkdir(parents=True)
    local_job = job(
        "id -u; id -g; echo $HOME; cp /records/a /gcs/mine/copy; "
        "touch /records/b 2>/dev/null || echo refused; "
        "mkdir /job/model; echo 1 > ${AIP_MODEL_DIR}x; chmod 600 /job/model/x; echo said",
        records=records,
        buckets=buckets,
    )
    _, printed = run(engine, local_job)
    who = [str(os.geteuid()), str(os.getegid()), "/tmp"]
    assert lines(printed, "chief-0") == [*who, "refused", "said"]
    assert (buckets / "mine/copy").read_text() == "data"
    assert (local_job.folder / "model/x").read_text() == "1\n"
    assert {path.stat().st_uid for path in local_job.folder.rglob("*")} == {os.geteuid()}
    assert (local_job.folder / "local/chief-0.log").read_text().endswith(" said\n")
    ended = ThisMachine(ROOT).find(str(local_job.folder))
    assert (ended.state, ended.exit_code) == ("succeeded", 0)


def test_status_shows_what_a_running_replica_uses(
    engine: Engine, job: Callable[..., LocalJob], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local, "MEASURED", 0.0)
    step = '{"event": "step", "step": 1, "gpu_percent": 87.5, "gpu_memory_bytes": 3221225472}'
    busy = job(f"trap 'exit 0' TERM; echo '{step}'; while :; do :; done")
    stop, seen = Stop(), list[str]()
    thread = threading.Thread(target=local.run, args=(engine, busy), kwargs={"stop": stop})
    thread.start()

    def measured() -> bool:
        now = backend.read(busy.folder)
        seen.extend(each.uses for each in (now.replicas if now else ()) if each.uses)
        return any(float(uses.partition(" ")[0]) > 0.02 for uses in seen)  # it never rests

    try:
        until(measured)
    finally:
        stop.request()
        thread.join()
    assert seen[-1].endswith(" GiB, GPU 88 %, 3.0 GiB of GPU memory")
    assert ThisMachine(ROOT).find(str(busy.folder)).replicas[0].uses == ""  # it has ended


# --- restarts -------------------------------------------------------------------------------------


def test_a_signal_starts_a_replica_again_a_few_times_and_a_fault_does_not(
    engine: Engine, job: Callable[..., LocalJob], monkeypatch: pytest.MonkeyPatch
) -> None:
    script = "echo x >> /job/starts; case $(wc -l < /job/starts) in "
    script += "1) exit 134;; 2) exit 139;; 3) exit 143;; esac"
    outcome, printed = run(engine, job(script))
    assert (outcome.exit_code, outcome.replicas[0].restarts) == (0, 3)
    assert any("started again (restart 3 of 5)" in note for note in lines(printed, SERVICE))
    outcome, _ = run(engine, job("echo no such file >&2; exit 3"))
    assert (outcome.state, outcome.exit_code) == ("failed", 3)
    assert outcome.error == "chief-0 failed with exit code 3: no such file"
    assert outcome.replicas[0].restarts == 0
    monkeypatch.setattr(local, "RESTARTS", 1)
    for restarts, count in (("worker", 1), ("never", 0)):
        outcome, _ = run(engine, job("exit 139", restarts=restarts))
        assert (outcome.state, outcome.exit_code) == ("failed", 139)
        assert outcome.replicas[0].restarts == count


def test_a_timeout_ends_a_job_and_who_asks_twice_need_not_wait_for_the_grace(
    engine: Engine, job: Callable[..., LocalJob]
) -> None:
    outcome, _ = run(engine, job("sleep 60", timeout=1.0, grace=0.2))
    assert (outcome.state, outcome.exit_code) == ("failed", 1)
    assert "timeout of 1 s" in outcome.error
    stop = Stop()
    for after in (1.0, 2.0):
        threading.Timer(after, stop.request, (signal.SIGINT,)).start()
    outcome, _ = run(engine, job("trap '' TERM; sleep 60", grace=1e6), stop=stop)
    assert (outcome.state, outcome.exit_code) == ("cancelled", 130)


def test_several_jobs_at_once_stay_apart_but_not_in_one_folder(
    engine: Engine, job: Callable[..., LocalJob], tmp_path: Path
) -> None:
    outcomes: dict[int, JobStatus] = {}

    def run_number(number: int) -> None:
        waits = f"until test -e /job/go; do sleep 0.1; done; exit {number}"
        mine = replace(job(waits), folder=tmp_path / str(number))
        outcomes[number] = local.run(engine, mine)

    threads = [threading.Thread(target=run_number, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for number in range(2):
        until(lambda folder=tmp_path / str(number): backend.read(folder))  # type: ignore[misc]
    with pytest.raises(InputError, match="another run of this job"):
        local.run(engine, replace(job("exit 0"), folder=tmp_path / "1"))
    for number, thread in enumerate(threads):
        (tmp_path / str(number) / "go").touch()
        thread.join()
    assert {number: outcome.exit_code for number, outcome in outcomes.items()} == {0: 0, 1: 1}
    assert left(engine) == []


# --- ends that cross each other -------------------------------------------------------------------


@pytest.fixture
def workers_end_is_heard_of_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both replicas have ended, whichever was first, when the worker's end arrives; then the
    chief's."""
    follow, chief_ended, worker_heard = containers.follow, threading.Event(), threading.Event()

    def crossed(container: Any, on_line: Any, on_end: Callable[[], None]) -> None:
        def end() -> None:
            if container.name.endswith("worker-0"):
                assert chief_ended.wait(60)
                on_end()
                worker_heard.set()
            else:
                chief_ended.set()
                assert worker_heard.wait(60)
                on_end()

        follow(container, on_line, end)

    monkeypatch.setattr(containers, "follow", crossed)


@pytest.mark.usefixtures("workers_end_is_heard_of_first")
def test_a_worker_that_fails_when_the_chief_is_done_fails_nothing(
    engine: Engine, job: Callable[..., LocalJob]
) -> None:
    script = ROLE + '[ "$role" = chief ] && exit 0; sleep 1; exit 1'
    outcome, printed = run(engine, job(script, pools=BOTH))
    assert (outcome.state, outcome.exit_code) == ("succeeded", 0)
    assert "worker-0 failed with exit code 1, after the chief was done" in lines(printed, SERVICE)
    assert [each.state for each in outcome.replicas] == ["succeeded", "failed"]


def test_a_run_that_the_engine_refuses_is_on_record_as_failed(
    engine: Engine, job: Callable[..., LocalJob]
) -> None:
    with pytest.raises(OutsideError, match="the engine has no image no-such:image"):
        local.run(engine, replace(job("exit 0"), image="no-such:image"))
    local_job = job("exit 0", command=("/no/such/program",))
    with pytest.raises(OutsideError, match="no/such/program"):
        local.run(engine, local_job)
    assert left(engine) == []
    ended = ThisMachine(ROOT).find(str(local_job.folder))
    assert (ended.state, ended.active) == ("failed", False)
    assert "no/such/program" in ended.error


RUN = """
import signal
import sys
# as from a terminal: nohup and a shell's & have some of them ignored
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGTERM, signal.SIG_DFL)
signal.signal(signal.SIGHUP, signal.SIG_DFL)
from pathlib import Path
from builder.engine import discovery
from builder.jobs.backends.local import backend
from builder.jobs.backends.local import run as local
from builder.jobs.backends.local.replicas import LocalJob
from builder.jobs.machines import Pool
from builder.core.settings import Settings
job = LocalJob("t", sys.argv[1], Path(sys.argv[2]), pools=(Pool("chief"), Pool("worker")),
    arguments=("echo x > /job/made; sleep 60",), grace=0.3, shm=1 << 26)
docker = discovery.connect(Settings())
print("go", flush=True)
sys.exit(local.run(docker, job).exit_code)
"""


def started(shell: str, folder: Path) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", RUN, shell, str(folder)], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "go\n"
    return process


@pytest.mark.long
def test_ctrl_c_at_ten_random_moments_leaves_nothing(
    engine: Engine, shell: str, tmp_path: Path
) -> None:
    moments = random.Random(4)
    for number in range(10):
        process = started(shell, tmp_path / str(number))
        owner = containers.owner(process.pid)
        time.sleep(moments.uniform(0, 1.5))
        number_of = moments.choice([signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
        process.send_signal(number_of)  # SIGHUP: its terminal was closed
        code = process.wait(timeout=60)
        assert code in (128 + number_of, -number_of), number
        assert left(engine, owner) == [], number
        written = list((tmp_path / str(number)).rglob("*"))
        assert all(path.stat().st_uid == os.geteuid() for path in written)


def test_what_a_killed_builder_left_is_removed_by_the_next_run(
    engine: Engine, shell: str, job: Callable[..., LocalJob], tmp_path: Path
) -> None:
    process = started(shell, tmp_path / "killed")
    owner = containers.owner(process.pid)
    states = lambda: [getattr(one, "status", "") for one in left(engine, owner)]  # noqa: E731
    until(lambda: states().count("running") == 2)
    process.kill()
    process.wait()
    assert len(left(engine, owner)) == 3
    run(engine, job("exit 0"))
    assert left(engine, owner) == []


# --- studies --------------------------------------------------------------------------------------

REPORT = (
    'for one in "$@"; do :; done; '
    'echo "{\\"score\\": \\"0.$CLOUD_ML_TRIAL_ID\\", \\"global_step\\": \\"7\\"}" '
    '>> "$CLOUD_ML_HP_METRIC_FILE"; echo $0 "$@" > ${AIP_MODEL_DIR%/model/}/arguments; '
)


def study(text: str = "trials: 4, parallel: 2, algorithm: random") -> Any:
    whole = (
        "image: cpu\nmachine: n1-standard-4\nstudy: {metric: score, " + text + ", "
        "parameters: {rate: {min: 0.1, max: 0.9}}}\n"
    )
    return description.parse(whole, Path("jobs/t.yaml")).study


def test_a_study_runs_its_trials_a_few_at_a_time(
    engine: Engine, job: Callable[..., LocalJob]
) -> None:
    running: set[str] = set()
    most = 0

    def watch(line: LogLine) -> None:
        nonlocal most
        if line.replica == SERVICE and line.text.startswith("trial "):
            _, number, what = line.text.split()[:3]
            (running.add if what == "starts:" else running.discard)(number)
        most = max(most, len(running))

    outcome = run_study(engine, job(REPORT), study(), on_line=watch)
    assert left(engine) == []
    assert (outcome.state, outcome.exit_code, most) == ("succeeded", 0, 2)
    assert outcome.error == "4 of 4 trials; the best is trial 4: score 0.4"
    assert [trial.value for trial in outcome.trials] == [0.1, 0.2, 0.3, 0.4]
    folder = Path(outcome.name)
    for trial in outcome.trials:
        arguments = (folder / trial.id / "arguments").read_text().strip()
        assert arguments == f"--rate={trial.parameters['rate']}"
    here = ThisMachine(ROOT)
    assert here.find(str(folder)) == outcome and here.find(f"{folder}/3").state == "succeeded"
    assert run_study(engine, job(REPORT), study()).trials == outcome.trials


# --- why ------------------------------------------------------------------------------------------


def why(engine: Engine, local_job: LocalJob) -> Diagnosis:
    """Run a job to its end, and read its folder."""
    local.run(engine, local_job)
    return jobfiles.why(local_job.folder)


def test_the_cause_in_a_worker_wins_over_what_the_chief_says_of_it(
    engine: Engine, job: Callable[..., LocalJob]
) -> None:
    script = ROLE + (
        'if [ "$role" = chief ]; then echo "failed to connect to all addresses"; '
        "touch /job/said; sleep 60; fi; until test -e /job/said; do sleep 0.1; done; "
        'echo "OOM when allocating tensor with shape[64]"; exit 1'
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


# --- the command ----------------------------------------------------------------------------------


def test_the_command_runs_a_job_shows_its_lines_and_ends_with_its_code(
    shell: str, here: Path, run: Run
) -> None:
    file = here / "jobs" / "tiny.yaml"
    file.write_text(f"image: {shell}\nmachine: n1-standard-8\n")
    code, out, err = run("job", "local", "tiny", "--json", "--", "echo trained; exit 7")
    assert (code, json.loads(out)["state"]) == (7, "failed")
    assert "chief-0 | trained" in err and (here / "build/jobs/tiny/local/chief-0.log").is_file()
    assert run("job", "status", "tiny")[2].startswith("tiny: failed")
