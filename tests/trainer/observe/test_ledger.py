"""Where the time of a run goes, with a clock that the test sets. No TensorFlow."""

import pytest

from trainer.observe.ledger import PARTS, Ledger, process_age


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def ledger(clock: Clock) -> Ledger:
    return Ledger(clock, age=5.0)


def spend(ledger: Ledger, clock: Clock, part: str, seconds: float) -> None:
    with ledger.spend(part):
        clock.now += seconds


def running(ledger: Ledger, clock: Clock) -> Ledger:
    """A ledger after its first call, which counts as startup."""
    spend(ledger, clock, "compute", 2)
    return ledger


def test_startup_lasts_until_the_first_call_has_been_compiled(ledger: Ledger, clock: Clock) -> None:
    clock.now += 3  # reading a checkpoint, say
    spend(ledger, clock, "compute", 2)
    spend(ledger, clock, "compute", 1)
    clock.now += 0.5  # nobody's
    seconds = ledger.seconds()
    assert (seconds["startup"], seconds["compute"], seconds["other"]) == (10, 1, 0.5)


def test_the_parts_add_up_to_the_wall_clock(ledger: Ledger, clock: Clock) -> None:
    began = clock.now - 5
    for number, part in enumerate(PARTS * 3):
        with ledger.spend(part):
            clock.now += number
            with ledger.spend("summaries"):
                clock.now += 0.25
        clock.now += 0.125
    assert sum(ledger.seconds().values()) == pytest.approx(clock.now - began)
    assert ledger.wall() == pytest.approx(clock.now - began)


def test_a_part_within_another_stops_its_clock(ledger: Ledger, clock: Clock) -> None:
    running(ledger, clock)
    with ledger.spend("evaluation"):
        clock.now += 1
        with ledger.spend("summaries"):
            clock.now += 10
        clock.now += 1
    seconds = ledger.seconds()
    assert (seconds["evaluation"], seconds["summaries"]) == (2, 10)


def test_what_a_step_waited_for_input_is_not_computing(ledger: Ledger, clock: Clock) -> None:
    running(ledger, clock)
    spend(ledger, clock, "compute", 10)
    ledger.move(4, "compute", "input")
    assert (ledger.seconds()["compute"], ledger.seconds()["input"]) == (6, 4)
    ledger.move(100, "compute", "input")
    assert (ledger.seconds()["compute"], ledger.seconds()["input"]) == (0, 10)


def test_the_account_goes_on_after_a_restart(ledger: Ledger, clock: Clock) -> None:
    running(ledger, clock)
    spend(ledger, clock, "compute", 10)
    state = ledger.state()
    second = Ledger(clock)
    second.restore(state)
    running(second, clock)
    spend(second, clock, "compute", 1)
    report = second.report()
    assert report["attempts"] == 2
    assert report["seconds"]["compute"] == 11
    assert report["seconds"]["startup"] == 7 + 2
    assert report["wall_seconds"] == pytest.approx(17 + 3)


def test_what_a_killed_attempt_did_after_its_checkpoint_is_lost(
    ledger: Ledger, clock: Clock
) -> None:
    running(ledger, clock)
    spend(ledger, clock, "compute", 10)
    checkpoint = ledger.state()
    spend(ledger, clock, "compute", 6)
    journal = ledger.state()  # then kill -9

    second = Ledger(clock)
    second.restore(checkpoint)
    second.reconcile(journal, clean=False)
    running(second, clock)
    journal = second.state()  # killed again, before a checkpoint of its own

    third = Ledger(clock)
    third.restore(checkpoint)
    third.reconcile(journal, clean=False)
    report = third.report()
    assert report["attempts"] == 3
    assert report["work_seconds"] == {"useful": 10, "lost": 6 + 2, "overhead": 7}
    assert report["wall_seconds"] == pytest.approx(25)


def test_a_process_is_older_than_a_moment() -> None:
    assert 0 < process_age() < 24 * 3600
