"""What a study tries, what it reads of a trial, and when it gives up."""

import json
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from builder.core.errors import InputError, OutsideError
from builder.jobs import description
from builder.jobs.description import Study
from builder.jobs.running import Outcome, Stop
from builder.jobs.studies import loop, record
from builder.jobs.studies.proposers import Grid, Proposer, Sampled, from_sample, to_sample
from builder.jobs.studies.results import (
    Point,
    StudyOutcome,
    TrialResult,
    best,
    dump,
    falls_behind,
    measurements,
    result,
)


def study(text: str, algorithm: str = "random", trials: int = 40) -> Study:
    whole = (
        "image: cpu\nmachine: n1-standard-4\nstudy:\n  metric: accuracy\n"
        f"  algorithm: {algorithm}\n  trials: {trials}\n  parameters:\n{text}"
    )
    found = description.parse(whole, Path("jobs/cats.yaml")).study
    assert found is not None
    return found


MIXED = """
    rate: {min: 0.001, max: 1.0, scale: log}
    late: {min: 0.001, max: 1.0, scale: reverse-log}
    layers: {min: 2, max: 4}
    batch: {values: [16, 64, 32]}
    optimizer: {values: [adam, sgd]}
"""


def asked(one: Study, proposer: Proposer) -> list[dict]:
    found = []
    for _ in range(one.trials):
        proposed = proposer.ask()
        if proposed is None:
            break
        found.append(proposed[1])
        proposer.tell(proposed[0], 0.5)
    return found


@pytest.mark.parametrize("algorithm", ["random", "bayesian"])
def test_every_value_is_within_its_parameter_and_all_are_tried(algorithm: str) -> None:
    one = study(MIXED, algorithm)
    values = asked(one, Sampled(one, seed=1))
    assert len(values) == 40
    assert all(0.001 <= value["rate"] <= 1.0 for value in values)
    assert {value["layers"] for value in values} == {2, 3, 4}
    assert {value["batch"] for value in values} == {16, 32, 64}
    assert {value["optimizer"] for value in values} == {"adam", "sgd"}
    if algorithm == "random":
        # a log scale is dense at the low end, a reverse log scale at the high end
        assert sum(value["rate"] < 0.1 for value in values) > 15
        assert sum(value["late"] > 0.9 for value in values) > 15


def test_the_same_seed_tries_the_same() -> None:
    one = study(MIXED)
    assert asked(one, Sampled(one, 3)) == asked(one, Sampled(one, 3))
    assert asked(one, Sampled(one, 3)) != asked(one, Sampled(one, 4))


def test_a_grid_is_every_combination_once() -> None:
    one = study(
        "    layers: {min: 2, max: 3}\n    batch: {values: [16, 32]}\n    mode: {values: [a, b]}\n",
        "grid",
    )
    values = asked(one, Grid(one))
    assert len(values) == 8
    assert len({tuple(value.items()) for value in values}) == 8
    assert values[0] == {"layers": 2, "batch": 16, "mode": "a"}


def test_the_bayesian_search_comes_closer_than_chance() -> None:
    """A parabola with its top at 0.3: half of the trials, after the first ones, land near it."""

    def near(algorithm: str) -> int:
        one = study("    x: {min: 0.0, max: 1.0}\n", algorithm, trials=40)
        proposer = Sampled(one, seed=0)
        found = []
        for _ in range(one.trials):
            key, values = proposer.ask() or (None, {})
            found.append(float(values["x"]))
            proposer.tell(key, -((found[-1] - 0.3) ** 2))
        return sum(abs(x - 0.3) < 0.1 for x in found[10:])

    assert near("bayesian") > 15 > near("random")


def test_a_metric_file_is_read_as_cloudml_hypertune_writes_it() -> None:
    lines = [
        json.dumps({"timestamp": 1.5, "trial": "1", "accuracy": "0.5", "global_step": "10"}),
        json.dumps({"timestamp": 2.5, "trial": "1", "loss": "0.1", "global_step": "10"}),
        "{torn",
        "[]",
        json.dumps({"accuracy": "nan", "global_step": "15"}),
        json.dumps({"accuracy": 0.75, "global_step": "20", "checkpoint_path": ""}),
        json.dumps({"accuracy": "0.8"}),
    ]
    assert measurements("\n".join(lines), "accuracy") == (
        Point(10, 0.5),
        Point(20, 0.75),
        Point(0, 0.8),
    )


def outcome(state: str = "succeeded") -> Outcome:
    return Outcome("t", state, 0, "how it ended", 1.0, 0, "", ())  # type: ignore[arg-type]


def test_a_trials_result_is_its_last_value_or_what_is_missing() -> None:
    text = '{"accuracy": "0.5"}\n{"accuracy": "0.4"}\n{"val_acc": "1"}\n'
    good = result(1, {}, outcome(), text, "accuracy")
    assert (good.state, good.value) == ("succeeded", 0.4)
    bad = result(1, {}, outcome(), text, "auc")
    assert (bad.state, bad.message) == ("failed", "it reported no auc, but accuracy, val_acc")
    failed = result(1, {}, outcome("failed"), text, "accuracy")
    assert (failed.state, failed.value, failed.message) == ("failed", None, "how it ended")


def test_the_best_trial_by_the_goal() -> None:
    trials = (
        TrialResult(1, "succeeded", {}, 0.5),
        TrialResult(2, "failed", {}),
        TrialResult(3, "succeeded", {}, 0.9),
        TrialResult(4, "succeeded", {}, 0.9),
    )
    assert best(trials, "maximize") == trials[2]
    assert best(trials, "minimize") == trials[0]
    assert best((), "minimize") is None


@pytest.mark.parametrize(
    ("max_failed", "states", "gives_up"),
    [
        (0, "fff", True),
        (0, "ff", False),
        (0, "fsff", False),
        (1, "f", False),
        (1, "fsf", True),
    ],
)
def test_a_study_gives_up_where_its_trials_only_fail(
    max_failed: int, states: str, gives_up: bool
) -> None:
    one = study(MIXED).model_copy(update={"max_failed": max_failed})
    names = {"f": "failed", "s": "succeeded"}
    done = {n: TrialResult(n, names[s], {}, message="why") for n, s in enumerate(states)}  # type: ignore[arg-type]
    assert bool(loop._given_up(one, done)) == gives_up


# --- going on where a study was interrupted -------------------------------------------------------


def proposer(one: Study, known: int = 0) -> Proposer:
    return Grid(one) if one.algorithm == "grid" else Sampled(one, 5, known)


@pytest.mark.parametrize("algorithm", ["random", "grid"])
def test_what_comes_next_is_what_would_have_come(algorithm: str) -> None:
    text = "    batch: {values: [16, 32, 64]}\n    mode: {values: [a, b, c]}\n"
    one = study(MIXED if algorithm == "random" else text, algorithm, trials=8)
    whole = asked(one, proposer(one))
    again = proposer(one, known=5)
    for number, values in enumerate(whole[:5], 1):
        again.recall(TrialResult(number, "succeeded" if number % 2 else "cancelled", values, 0.1))
    rest = [again.ask() for _ in range(3)]
    assert [found and found[1] for found in rest] == whole[5:]


def test_a_bayesian_search_knows_what_the_trials_before_found() -> None:
    """With the old trials it searches near the best of them from the start."""
    one = study("    x: {min: 0.0, max: 1.0}\n", "bayesian", trials=60)
    old = [
        TrialResult(number, "succeeded", {"x": number / 31}, -((number / 31 - 0.3) ** 2))
        for number in range(1, 31)
    ]
    search, fresh = Sampled(one, 0, known=len(old)), Sampled(one, 0)
    for trial in old:
        assert search.recall(trial) is None

    def near(proposer: Sampled) -> int:
        asked = [float((proposer.ask() or (0, {}))[1]["x"]) for _ in range(20)]
        return sum(abs(x - 0.3) < 0.15 for x in asked)

    assert near(search) > 11 > near(fresh) + 2


@pytest.mark.parametrize("state", ["cancelled", "running"])
def test_a_trial_that_had_not_ended_is_asked_for_again(state: str) -> None:
    one = study(MIXED, "bayesian")
    values = asked(one, Sampled(one, 1))[0]
    search = Sampled(one, 1, known=1)
    key = search.recall(TrialResult(1, state, values))  # type: ignore[arg-type]
    assert key.params["optimizer"] == values["optimizer"]
    search.tell(key, 0.5)


def test_samples_and_values_lead_to_each_other() -> None:
    one = study(MIXED, "random")
    for values in asked(one, Sampled(one, 2)):
        for name, value in values.items():
            parameter = one.parameters[name]
            back = from_sample(parameter, to_sample(parameter, value))
            assert back == pytest.approx(value) if isinstance(value, float) else back == value
            low, high = parameter.min, parameter.max
            if low and high:
                assert float(low) <= to_sample(parameter, value) <= float(high)


def recorded(folder: Path, state: str, one: Study, **changes: Any) -> Mapping[str, Any]:
    """A folder with the study.json of a run that was asked for `one`; what is asked for again."""
    wanted = record.asked_for("image:1", ("--steps=5",), one, seed=3)
    trials = (
        TrialResult(1, "succeeded", {"rate": 0.5}, 0.9, "", 2.0, (Point(1, 0.8), Point(2, 0.9))),
        TrialResult(2, "running", {"rate": 0.25}),
    )
    before = {**wanted, **changes}
    text = dump(
        StudyOutcome("t", one.metric, one.goal, one.algorithm, state, "why", 7.5, str(folder), 1,
                     trials, 0, before)  # type: ignore[arg-type]
    )  # fmt: skip
    (folder / record.FILE).write_text(text)
    return wanted


@pytest.mark.parametrize("state", ["running", "cancelled"])
def test_an_interrupted_study_is_read_back(tmp_path: Path, state: str) -> None:
    assert record.earlier(tmp_path, {}) == record.Earlier()
    found = record.earlier(tmp_path, recorded(tmp_path, state, study(MIXED), seed=11))
    assert [(one.number, one.state) for one in found.trials] == [(1, "succeeded"), (2, "running")]
    assert found.trials[0].curve == (Point(1, 0.8), Point(2, 0.9))
    assert (found.seconds, found.asked["seed"]) == (7.5, 11)


def test_a_study_that_is_over_goes_on_only_where_more_trials_are_asked_for(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="has been run already"):
        record.earlier(tmp_path, recorded(tmp_path, "succeeded", study(MIXED)))
    with pytest.raises(InputError, match="this study failed: why"):
        record.earlier(tmp_path, recorded(tmp_path, "failed", study(MIXED)))
    more = recorded(tmp_path, "succeeded", study(MIXED), trials=20)
    assert len(record.earlier(tmp_path, more).trials) == 2


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"metric": "loss"}, "other metric"),
        ({"arguments": ["--steps=6"]}, "other arguments"),
        ({"parameters": [], "goal": "minimize"}, "other goal and parameters"),
    ],
)
def test_results_that_cannot_be_compared_are_not_mixed(
    tmp_path: Path, changes: dict[str, Any], said: str
) -> None:
    wanted = recorded(tmp_path, "cancelled", study(MIXED), **changes)
    with pytest.raises(InputError) as caught:
        record.earlier(tmp_path, wanted)
    assert said in caught.value.message and "--job-dir" in caught.value.fix


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"trials": [{}]}'])
def test_a_file_that_is_no_study_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / record.FILE).write_text(text)
    with pytest.raises(InputError, match="no study that can be continued"):
        record.earlier(tmp_path, record.asked_for("i", (), study(MIXED), 0))


# --- several at once ------------------------------------------------------------------------------


@dataclass
class FakeTrials:
    """Trials that a function carries out: it gets a trial's number, lane and Stop."""

    folder: Path
    act: Callable[[int, tuple[int, int], Stop], str]
    name: str = "t"
    image: str = "i"
    arguments: tuple[str, ...] = ()
    several: bool = False

    def run(
        self, number: int, arguments: Any, lane: tuple[int, int], stop: Stop, on_event: Any
    ) -> Outcome:
        return outcome(self.act(number, lane, stop))

    def reported(self, number: int) -> str:
        return '{"accuracy": "0.5", "global_step": "1"}\n'


def test_no_two_trials_have_the_same_place_at_once(tmp_path: Path) -> None:
    lock, active, seen = threading.Lock(), set(), []

    def act(number: int, lane: tuple[int, int], stop: Stop) -> str:
        place, at_once = lane
        with lock:
            assert place not in active
            active.add(place)
            seen.append((place, at_once, len(active)))
        time.sleep(0.01 * (number % 3))
        with lock:
            active.remove(place)
        return "succeeded"

    ended = loop.run(FakeTrials(tmp_path, act), study(MIXED), parallel=3)
    assert (ended.state, len(ended.trials)) == ("succeeded", 40)
    assert {place for place, _, _ in seen} == {0, 1, 2}
    assert {at_once for _, at_once, _ in seen} == {3}
    assert max(running for _, _, running in seen) == 3


@pytest.mark.parametrize("error", [OutsideError("the engine is gone", ""), OSError(5, "EIO")])
def test_whatever_ends_a_study_ends_its_trials(tmp_path: Path, error: Exception) -> None:
    """A fault in one of them, or a terminal that is gone: the others are not waited for."""

    def act(number: int, lane: tuple[int, int], stop: Stop) -> str:
        if number == 2 and isinstance(error, OutsideError):
            raise error
        while not stop.requests:
            time.sleep(0.01)
        return "cancelled"

    def terminal(event: Any) -> None:
        if isinstance(error, OSError):
            raise error

    trials = FakeTrials(tmp_path, act)
    if isinstance(error, OutsideError):
        with pytest.raises(OutsideError, match="the engine is gone"):
            loop.run(trials, study(MIXED), parallel=2, on_event=terminal)
    else:
        ended = loop.run(trials, study(MIXED), parallel=2, on_event=terminal)
        assert (ended.state, ended.exit_code) == ("cancelled", 129)
    states = [one["state"] for one in json.loads((tmp_path / record.FILE).read_text())["trials"]]
    assert set(states) <= {"running", "cancelled"}  # to go on with


# --- early stopping -------------------------------------------------------------------------------


def curve(*values: float, every: int = 10) -> tuple[Point, ...]:
    return tuple(Point(every * number, value) for number, value in enumerate(values, 1))


OTHERS = (curve(0.5, 0.7, 0.9), curve(0.4, 0.6, 0.8), curve(0.3, 0.5, 0.7))
"""Up to step 20 their means are 0.6, 0.5 and 0.4: the median is 0.5."""


@pytest.mark.parametrize(
    ("mine", "others", "behind"),
    [
        (curve(0.2, 0.49), OTHERS, True),
        (curve(0.2, 0.5), OTHERS, False),  # strictly below
        (curve(0.51, 0.1), OTHERS, False),  # its best counts, not its last
        (curve(0.39), OTHERS, True),  # up to step 10 the median is 0.4
        (curve(0.41), OTHERS, False),
        (curve(0.1), OTHERS[:2], False),  # too few to judge by
        (curve(0.1), (*OTHERS[:2], curve(0.9, every=100)), False),  # one had said nothing by then
        ((Point(0, 0.1),), OTHERS, False),  # it reports no steps
        ((), OTHERS, False),
    ],
)
def test_the_median_rule_is_the_services(
    mine: tuple[Point, ...], others: tuple[tuple[Point, ...], ...], behind: bool
) -> None:
    assert falls_behind(mine, others, "maximize") == behind
    turned = [tuple(replace(point, value=-point.value) for point in one) for one in others]
    mirrored = tuple(replace(point, value=-point.value) for point in mine)
    assert falls_behind(mirrored, turned, "minimize") == behind


def test_a_trial_that_was_stopped_early_has_its_last_value() -> None:
    text = '{"accuracy": "0.5", "global_step": "1"}\n{"accuracy": "0.4", "global_step": "2"}\n'
    early = result(1, {}, outcome("cancelled"), text, "accuracy", early=True)
    assert (early.state, early.value) == ("stopped", 0.4)
    asked_to = result(1, {}, outcome("cancelled"), text, "accuracy")
    assert (asked_to.state, asked_to.value) == ("cancelled", None)
    done = result(1, {}, outcome(), text, "accuracy", early=True)
    assert done.state == "succeeded"  # it ended by itself first
