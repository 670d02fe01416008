"""Jobs as containers: busybox stands for a program that is not ours, training:cpu is ours."""

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from builder import contract
from builder.core.errors import InputError, OutsideError
from builder.engine import Engine, containers
from builder.jobs import description
from builder.jobs.backends.local import folder as folders
from builder.jobs.backends.local import run as local
from builder.jobs.backends.local.backend import ThisMachine
from builder.jobs.backends.local.replicas import LocalJob
from builder.jobs.backends.local.study import run_study
from builder.jobs.pools import Pool
from builder.jobs.running import JobEvent, Note, Outcome, ReplicaLine, Stop

pytestmark = [pytest.mark.engine]

ROOT = Path(__file__).resolve().parents[2]


def left(engine: Engine) -> list[str]:
    """Containers and networks of jobs of this process."""
    filters = {"label": f"{containers.OWNER}={containers.owner(os.getpid())}"}
    return [
        str(each.name)
        for each in (
            *engine.client.containers.list(all=True, filters=filters, ignore_removed=True),
            *engine.client.networks.list(filters=filters),
        )
    ]


def run(engine: Engine, local_job: LocalJob, **more: Any) -> tuple[Outcome, list[JobEvent]]:
    """Run a job; return its outcome and its events."""
    events: list[JobEvent] = []
    outcome = local.run(engine, local_job, on_event=events.append, **more)
    assert left(engine) == []
    return outcome, events


def lines(events: list[JobEvent], replica: str) -> list[str]:
    return [e.text for e in events if isinstance(e, ReplicaLine) and e.replica == replica]


def notes(events: list[JobEvent]) -> list[str]:
    return [e.text for e in events if isinstance(e, Note)]


ROLE = 'role=$(echo "$TF_CONFIG" | sed "s/.*\\"task\\": {\\"type\\": \\"//; s/\\".*//"); '
"""Which role a container has, in the words of a shell."""


def test_a_job_ends_with_its_chief_and_the_others_are_told_to_go(
    engine: Engine, job: Callable[..., LocalJob]
) -> None:
    script = ROLE + (
        'if [ "$role" = chief ]; then sleep 1; echo over >&2; exit 0; fi; '
        "trap 'echo told to go; exit 0' TERM; while :; do sleep 0.1; done"
    )
    outcome, events = run(engine, job(script, pools=(Pool("chief"), Pool("worker"))))
    assert (outcome.state, outcome.exit_code) == ("succeeded", 0)
    assert lines(events, "chief-0") == ["over"]
    assert lines(events, "worker-0") == ["told to go"]
    assert [(each.name, each.state, each.exit_code) for each in outcome.replicas] == [
        ("chief-0", "succeeded", 0),
        ("worker-0", "succeeded", 0),
    ]


def test_replicas_reach_each_other_by_the_names_they_are_told(
    engine: Engine, job: Callable[..., LocalJob]
) -> None:
    script = ROLE + (
        'if [ "$role" = worker ]; then echo hello | nc -l -p 2222; sleep 60; fi; '
        'host=$(echo "$TF_CONFIG" | sed "s/.*\\"worker\\": \\[\\"//; s/:.*//"); '
        'for i in 1 2 3 4 5 6 7 8 9; do nc -w 5 "$host" 2222 && exit 0; sleep 0.3; done; exit 1'
    )
    outcome, events = run(engine, job(script, grace=0.2, pools=(Pool("chief"), Pool("worker"))))
    assert outcome.exit_code == 0
    assert "hello" in lines(events, "chief-0")


def test_what_the_job_wrote_is_the_callers_and_a_log_of_each_replica(
    engine: Engine, job: Callable[..., LocalJob]
) -> None:
    local_job = job(
        "mkdir /job/model; echo 1 > ${AIP_MODEL_DIR}x; chmod 600 /job/model/x; echo said"
    )
    run(engine, local_job)
    made = local_job.folder / "model/x"
    assert made.read_text() == "1\n"
    assert {path.stat().st_uid for path in local_job.folder.rglob("*")} == {os.geteuid()}
    assert (local_job.folder / "local/chief-0.log").read_text().endswith(" said\n")
    state = json.loads((local_job.folder / "local/state.json").read_text())
    assert (state["state"], state["exit_code"]) == ("succeeded", 0)


@pytest.mark.parametrize("code", [134, 139, 143])
def test_a_replica_that_ends_by_a_signal_is_started_again(
    engine: Engine, job: Callable[..., LocalJob], code: int
) -> None:
    outcome, events = run(engine, job(f"[ -e /job/once ] && exit 0; touch /job/once; exit {code}"))
    assert (outcome.exit_code, outcome.replicas[0].restarts) == (0, 1)
    assert any("started again (restart 1 of 5)" in note for note in notes(events))


def test_an_error_of_the_program_ends_the_job_with_its_exit_code_and_last_words(
    engine: Engine, job: Callable[..., LocalJob]
) -> None:
    outcome, _ = run(engine, job("echo no such file >&2; exit 3"))
    assert (outcome.state, outcome.exit_code) == ("failed", 3)
    assert outcome.message == "chief-0 failed with exit code 3: no such file"
    assert outcome.replicas[0].restarts == 0


def test_restarts_of_a_replica_are_counted(
    engine: Engine, job: Callable[..., LocalJob], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert local.RESTARTS == 5, "Vertex AI's"
    monkeypatch.setattr(local, "RESTARTS", 2)
    outcome, _ = run(engine, job("echo x >> /job/starts; exit 139"))
    assert (outcome.state, outcome.exit_code) == ("failed", 139)
    assert outcome.replicas[0].restarts == 2
    assert len((Path(outcome.folder) / "starts").read_text().split()) == 1 + 2


def test_restarts_of_the_whole_job_and_none_at_all(
    engine: Engine, job: Callable[..., LocalJob]
) -> None:
    script = ROLE + (
        "echo $role >> /job/starts; "
        'if [ "$role" = worker ]; then [ -e /job/once ] && sleep 60; touch /job/once; exit 139; fi;'
        "[ -e /job/once ] || sleep 60; sleep 1"
    )
    both = (Pool("chief"), Pool("worker"))
    outcome, _ = run(engine, job(script, pools=both, restarts="job", grace=0.2))
    assert outcome.exit_code == 0
    started = sorted((Path(outcome.folder) / "starts").read_text().split())
    assert started == ["chief", "chief", "worker", "worker"]
    assert [each.restarts for each in outcome.replicas] == [1, 1]
    outcome, _ = run(engine, job("exit 139", restarts="never"))
    assert (outcome.state, outcome.exit_code) == ("failed", 139)


def test_a_timeout_ends_a_job_and_who_asks_twice_need_not_wait_for_the_grace(
    engine: Engine, job: Callable[..., LocalJob]
) -> None:
    outcome, _ = run(engine, job("sleep 60", timeout=1.0, grace=0.2))
    assert (outcome.state, outcome.exit_code) == ("failed", 1)
    assert "timeout of 1 s" in outcome.message
    stop = Stop()
    began = time.monotonic()
    for after in (1.0, 2.0):
        threading.Timer(after, stop.request, (signal.SIGINT,)).start()
    outcome, _ = run(engine, job("trap '' TERM; sleep 60", grace=50.0), stop=stop)
    assert (outcome.state, outcome.exit_code) == ("cancelled", 130)
    assert time.monotonic() - began < 40


def test_several_jobs_at_once_stay_apart_but_not_in_one_folder(
    engine: Engine, job: Callable[..., LocalJob], tmp_path: Path
) -> None:
    outcomes: dict[int, Outcome] = {}

    def run_number(number: int) -> None:
        mine = replace(job(f"sleep 1; exit {number}"), folder=tmp_path / str(number))
        outcomes[number] = local.run(engine, mine)

    threads = [threading.Thread(target=run_number, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    time.sleep(0.3)
    with pytest.raises(InputError, match="another run of this job"):
        local.run(engine, replace(job("exit 0"), folder=tmp_path / "1"))
    for thread in threads:
        thread.join()
    assert {number: outcome.exit_code for number, outcome in outcomes.items()} == {0: 0, 1: 1, 2: 2}
    assert left(engine) == []


def test_data_is_read_only_and_buckets_are_folders(
    engine: Engine, job: Callable[..., LocalJob], tmp_path: Path
) -> None:
    records, buckets = tmp_path / "records", tmp_path / "buckets"
    records.mkdir()
    (records / "a").write_text("data")
    (buckets / "mine").mkdir(parents=True)
    local_job = job(
        "cat /records/a; touch /records/b || echo refused; cp /records/a gs://mine/copy",
        records=records,
        buckets=buckets,
    )
    buckets.chmod(0o777)
    (buckets / "mine").chmod(0o777)
    _, events = run(engine, local_job)
    assert any(line.startswith("data") for line in lines(events, "chief-0"))
    assert any("refused" in line for line in lines(events, "chief-0"))
    assert (buckets / "mine/copy").read_text() == "data"


def test_someone_who_is_not_root_runs_it_as_themselves(
    engine: Engine, job: Callable[..., LocalJob], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folders, "user", lambda: "1234:1234")
    outcome, events = run(engine, job("id -u; echo $HOME; echo 1 > /job/made; ls -ln /job/made"))
    assert outcome.exit_code == 0
    printed = lines(events, "chief-0")
    assert printed[:2] == ["1234", "/tmp"]
    assert printed[2].split()[2:4] == ["1234", "1234"]


# --- ends that cross each other -------------------------------------------------------------------


@pytest.fixture
def workers_end_is_heard_of_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both replicas have ended, whichever was first, when the worker's end arrives; then the
    chief's."""
    follow, chief_ended, worker_heard = local._follow, threading.Event(), threading.Event()

    def crossed(container: Any, name: str, attempt: int, lines: Any) -> None:
        class Lines:
            def put(self, event: Any) -> None:
                if event.text is not None:
                    lines.put(event)
                elif name == "worker-0":
                    assert chief_ended.wait(60)
                    lines.put(event)
                    worker_heard.set()
                else:
                    chief_ended.set()
                    assert worker_heard.wait(60)
                    lines.put(event)

        follow(container, name, attempt, Lines())  # type: ignore[arg-type]

    monkeypatch.setattr(local, "_follow", crossed)


BOTH = (Pool("chief"), Pool("worker"))


@pytest.mark.usefixtures("workers_end_is_heard_of_first")
def test_a_worker_that_fails_when_the_chief_is_done_fails_nothing(
    engine: Engine, job: Callable[..., LocalJob]
) -> None:
    script = ROLE + '[ "$role" = chief ] && exit 0; sleep 1; exit 1'
    outcome, events = run(engine, job(script, pools=BOTH))
    assert (outcome.state, outcome.exit_code) == ("succeeded", 0)
    assert "failed with exit code 1, after the chief was done" in notes(events)
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
from builder.jobs.backends.local import run as local
from builder.jobs.backends.local.replicas import LocalJob
from builder.jobs.pools import Pool
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


def of(engine: Engine, owner: str) -> list[Any]:
    filters = {"label": f"{containers.OWNER}={owner}"}
    return [
        *engine.client.containers.list(all=True, filters=filters, ignore_removed=True),
        *engine.client.networks.list(filters=filters),
    ]


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
        assert of(engine, owner) == [], number
        written = list((tmp_path / str(number)).rglob("*"))
        assert all(path.stat().st_uid == os.geteuid() for path in written)


def test_what_a_killed_builder_left_is_removed_by_the_next_run(
    engine: Engine, shell: str, job: Callable[..., LocalJob], tmp_path: Path
) -> None:
    process = started(shell, tmp_path / "killed")
    owner = containers.owner(process.pid)
    while len([each for each in of(engine, owner) if getattr(each, "status", "") == "running"]) < 2:
        time.sleep(0.1)
    process.kill()
    process.wait()
    assert len(of(engine, owner)) == 3
    run(engine, job("exit 0"))
    assert of(engine, owner) == []


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

    def watch(event: JobEvent) -> None:
        nonlocal most
        if isinstance(event, Note) and event.text.startswith("starts:"):
            running.add(event.replica)
        if isinstance(event, Note) and "score" in event.text:
            running.discard(event.replica)
        most = max(most, len(running))

    outcome = run_study(engine, job(REPORT), study(), on_event=watch)
    assert left(engine) == []
    assert (outcome.state, outcome.exit_code, outcome.best, most) == ("succeeded", 0, 4, 2)
    assert [trial.value for trial in outcome.trials] == [0.1, 0.2, 0.3, 0.4]
    folder = Path(outcome.folder)
    for trial in outcome.trials:
        arguments = (folder / str(trial.number) / "arguments").read_text().strip()
        assert arguments == f"--rate={trial.parameters['rate']}"
    assert json.loads((folder / "study.json").read_text())["best"] == 4
    assert run_study(engine, job(REPORT), study()).trials == outcome.trials


# --- our own trainer ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def trainer(engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The CPU image with the trainer of the working tree."""
    command = [sys.executable, "-c", "from builder.cli import main; main()", "build", "cpu"]
    subprocess.run(command, cwd=ROOT, check=True)
    yield "training:cpu"


def accuracy(outcome: Outcome) -> float:
    summary = json.loads((Path(outcome.folder) / "summary.json").read_text())
    return float(summary["evaluation"]["accuracy"])


@pytest.mark.long
@pytest.mark.tensorflow
def test_a_cluster_whose_worker_is_killed_is_as_good_as_one_machine(
    engine: Engine, trainer: str, tmp_path: Path
) -> None:
    """Within 0.025 of the accuracy: at most five of the 200 pictures."""
    alone = LocalJob(
        "alone",
        trainer,
        tmp_path / "alone",
        arguments=("--steps=200", "--batch-size=48", "--checkpoint-every=40", "--deterministic"),
        records=ROOT / "builder/prove/records",
        pass_job_dir=True,
        shm=1 << 28,
    )
    pools = (Pool("chief"), Pool("worker", 2), Pool("evaluator"))
    single, _ = run(engine, alone)
    cluster = replace(alone, name="cluster", folder=tmp_path / "cluster", pools=pools)
    events: list[JobEvent] = []

    def kill_once(event: JobEvent) -> None:
        """Kill worker 1 at step 80, as a machine that breaks."""
        events.append(event)
        at = contract.step_of(event.text) if isinstance(event, ReplicaLine) else None
        if at == 80 and not (cluster.folder / "killed").exists():
            (cluster.folder / "killed").touch()
            mine = f"{containers.OWNER}={containers.owner(os.getpid())}"
            filters = {"name": "-worker-1", "label": mine}
            for container in engine.client.containers.list(filters=filters):
                container.kill("SIGKILL")

    several = local.run(engine, cluster, on_event=kill_once)
    printed = "\n".join(
        [*notes(events), *lines(events, "chief-0")[-30:], *lines(events, "worker-1")[-30:]]
    )
    assert (single.exit_code, several.exit_code) == (0, 0), printed
    results = {each.name: each for each in several.replicas}
    assert results["worker-1"].restarts >= 1
    assert results["evaluator-0"].state == "succeeded"
    assert any("resumed after step" in line for line in lines(events, "worker-1"))
    assert any('"evaluated"' in line for line in lines(events, "evaluator-0"))
    assert accuracy(single) > 0.95
    assert abs(accuracy(several) - accuracy(single)) <= 0.0251
