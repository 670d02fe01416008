"""What a study tries, what it reads of a trial, and when it gives up."""

import json
from pathlib import Path

import pytest

from builder.jobs import description, studies
from builder.jobs.description import Study
from builder.jobs.local import Outcome
from builder.jobs.studies import Grid, Point, Sampled, TrialResult, best, measurements


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


def asked(one: Study, proposer: studies.Proposer) -> list[dict]:
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
    good = studies.result(1, {}, outcome(), text, "accuracy")
    assert (good.state, good.value) == ("succeeded", 0.4)
    bad = studies.result(1, {}, outcome(), text, "auc")
    assert (bad.state, bad.message) == ("failed", "it reported no auc, but accuracy, val_acc")
    failed = studies.result(1, {}, outcome("failed"), text, "accuracy")
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
    assert bool(studies._given_up(one, done)) == gives_up
