"""What a study tries, what it reads of a trial, when it gives up, and how it continues."""

import json
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from builder.core.errors import InputError, OutsideError
from builder.jobs import description
from builder.jobs.backends.local import study as place
from builder.jobs.backends.local.backend import ThisMachine
from builder.jobs.backends.local.replicas import LocalJob, Trial
from builder.jobs.backends.protocol import JobStatus, LogLine
from builder.jobs.description.study import Study
from builder.jobs.stopping import Stop
from tests.jobs import jobfiles

MIXED = """
    rate: {min: 0.001, max: 1.0, scale: log}
    layers: {min: 2, max: 4}
    batch: {values: [16, 64, 32]}
    optimizer: {values: [adam, sgd]}
"""
ONE = "    x: {min: 0.0, max: 1.0}\n"


def study(parameters: str = ONE, **fields: Any) -> Study:
    lines = {"metric": "score", "algorithm": "random", "trials": 12, **fields}
    text = "image: cpu\nmachine: n1-standard-4\nstudy:\n"
    text += "".join(f"  {name}: {value}\n" for name, value in lines.items())
    parsed = description.parse(f"{text}  parameters:\n{parameters}", Path("jobs/t.yaml")).study
    assert parsed is not None
    return parsed


Ended = tuple[str, list[tuple[int, float]]]
"""The state in which a trial ends, and the steps and scores that it reports."""
Act = Callable[[Trial, Stop], Ended]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., JobStatus]:
    """Run a study whose trials are a function."""

    def run(wanted: Study, act: Act, **options: Any) -> JobStatus:
        def run_trial(engine: Any, job: LocalJob, *, stop: Stop, on_line: Any) -> JobStatus:
            assert job.trial is not None
            state, reported = act(job.trial, stop)
            with (job.trial.metrics / place.METRICS_FILE).open("a") as file:
                for step, value in reported:
                    line = {"score": str(value), "global_step": str(step)}
                    file.write(json.dumps(line) + "\n")
            return jobfiles.ran(job.folder, state, error="why it ended")

        monkeypatch.setattr("builder.jobs.backends.local.run.run", run_trial)
        folder = tmp_path / options.pop("name", "t")
        job = LocalJob("t", "image:1", folder, arguments=options.pop("arguments", ()))
        return place.run_study(None, job, wanted, **options)  # type: ignore[arg-type]

    return run


GRID = "    layers: {min: 2, max: 3}\n    batch: {values: [16, 32]}\n    mode: {values: [a, b]}\n"


def test_every_value_is_within_its_parameter_and_a_grid_is_every_combination_once(
    run: Callable[..., JobStatus],
) -> None:
    ended = run(study(GRID, algorithm="grid"), lambda *_: ("succeeded", [(1, 0.5)]))
    assert len({tuple(trial.parameters.items()) for trial in ended.trials}) == 8
    assert ended.trials[0].parameters == {"layers": "2", "batch": "16", "mode": "a"}
    for algorithm in ("random", "bayesian"):
        wanted = study(MIXED, algorithm=algorithm, trials=6 if algorithm == "random" else 9)
        ended = run(wanted, lambda *_: ("succeeded", [(1, 0.5)]), name=algorithm)
        values = [trial.parameters for trial in ended.trials]
        assert (ended.state, ended.exit_code, len(values)) == ("succeeded", 0, wanted.trials)
        assert all(0.001 <= float(value["rate"]) <= 1.0 for value in values)
        assert {value["layers"] for value in values} <= {"2", "3", "4"}
        assert {value["batch"] for value in values} <= {"16", "32", "64"}
        assert {value["optimizer"] for value in values} == {"adam", "sgd"}


@pytest.mark.parametrize(("count", "value"), [(1, 0.5), (5, 0.5), (6, 0.75)])
def test_a_metric_file_is_read_as_cloudml_hypertune_writes_it(
    count: int, value: float, tmp_path: Path
) -> None:
    lines = [
        json.dumps({"timestamp": 1.5, "trial": "1", "score": "0.5", "global_step": "10"}),
        json.dumps({"timestamp": 2.5, "trial": "1", "loss": "0.1", "global_step": "10"}),
        "{torn",
        "[]",
        json.dumps({"score": "nan", "global_step": "15"}),
        json.dumps({"score": 0.75, "global_step": "20", "checkpoint_path": ""}),
    ]
    path = tmp_path / "output.metrics"
    assert place.last_value(path, "score") is None
    path.write_text("\n".join(lines[:count]))
    assert place.last_value(path, "score") == value


@pytest.mark.parametrize(
    ("max_failed", "states", "trials", "message"),
    [
        (0, "fff", 3, "3 trials failed, the first: why it ended"),
        (0, "fsffff", 6, ""),
        (1, "fsfs", 3, "2 trials failed, the first: why it ended"),
        (0, "nnn", 3, "3 trials failed, the first: it reported no score"),
    ],
)
def test_a_study_gives_up_where_its_trials_only_fail(
    max_failed: int, states: str, trials: int, message: str, run: Callable[..., JobStatus]
) -> None:
    def act(trial: Trial, stop: Stop, states: str = states) -> Ended:
        state = states[trial.number - 1]
        return ("failed" if state == "f" else "succeeded"), [(1, 0.5)] if state == "s" else []

    ended = run(study(trials=len(states), max_failed=max_failed), act, name=states)
    assert (ended.state == "failed") == bool(message)
    assert len(ended.trials) == trials and (not message or ended.error == message)


def test_the_same_command_continues_an_interrupted_study(
    run: Callable[..., JobStatus],
) -> None:
    """Trial 3 is cut off; it runs again in its folder, with its parameters."""
    stop, runs = Stop(), []

    def act(trial: Trial, own: Stop) -> Ended:
        runs.append((trial.number, str(trial.metrics), trial.arguments))
        if trial.number == 3 and len(runs) == 3:
            stop.request()
            return "cancelled", [(1, 0.1)]
        return "succeeded", [(1, 0.5)]

    first = run(study(trials=4), act, stop=stop)
    assert (first.state, first.exit_code, first.trials[2].state) == ("cancelled", 143, "running")
    lines: list[LogLine] = []
    second = run(study(trials=4), act, on_line=lines.append)
    assert (second.state, [number for number, *_ in runs]) == ("succeeded", [1, 2, 3, 3, 4])
    assert runs[2] == runs[3] and second.trials[:2] == first.trials[:2]
    assert lines[0].text == "goes on: 2 of 4 trials are kept"
    assert run(study(trials=4), act).trials == second.trials and len(runs) == 5  # nothing is left
    assert len(run(study(trials=6), act).trials) == 6  # more trials continue it
    for other, arguments in (
        (study(goal="minimize"), ()),
        (study("    y: {values: [1, 2]}\n"), ()),
        (study(), ("--steps=6",)),
    ):
        with pytest.raises(InputError, match=r"another description.*cannot be compared"):
            run(other, act, arguments=arguments)


def test_no_two_trials_have_the_same_place_at_once(
    run: Callable[..., JobStatus],
) -> None:
    lock, active, seen = threading.Lock(), set(), []
    together = threading.Barrier(3)

    def act(trial: Trial, stop: Stop) -> Ended:
        with lock:
            assert trial.place not in active
            active.add(trial.place)
            seen.append((trial.place, trial.at_once, len(active)))
        if trial.number <= 3:
            together.wait(timeout=60)
        with lock:
            active.remove(trial.place)
        return "succeeded", [(1, 0.5)]

    ended = run(study(parallel=3), act)
    assert (ended.state, len(ended.trials)) == ("succeeded", 12)
    assert {place for place, *_ in seen} == {0, 1, 2}
    assert {at_once for _, at_once, _ in seen} == {3}
    assert max(running for *_, running in seen) == 3


def test_a_fault_in_one_trial_ends_the_others(
    run: Callable[..., JobStatus], tmp_path: Path
) -> None:
    def act(trial: Trial, stop: Stop) -> Ended:
        if trial.number == 2:
            raise OutsideError("the engine is gone", "")
        while not stop.requests:
            time.sleep(0.01)
        return "cancelled", []

    with pytest.raises(OutsideError, match="the engine is gone"):
        run(study(parallel=2), act)
    ended = ThisMachine(tmp_path).find(str(tmp_path / "t"))
    assert {trial.state for trial in ended.trials} == {"running"}  # to continue with
