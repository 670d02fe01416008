"""Where the time of a run goes, with a clock that the test sets. No TensorFlow."""

import pytest

from tests.clock import Clock
from trainer.observe.stopwatch import PARTS, Stopwatch, process_age


@pytest.fixture
def clock() -> Clock:
    return Clock(100.0)


@pytest.fixture
def watch(clock: Clock) -> Stopwatch:
    """A stopwatch after startup: 5 s before it, 3 s of its own, and the first call's 2 s."""
    watch = Stopwatch(clock, age=5.0)
    clock.now += 3  # reading a checkpoint, say
    measure(watch, clock, "compute", 2)
    return watch


def measure(watch: Stopwatch, clock: Clock, part: str, seconds: float) -> None:
    with watch.measure(part):
        clock.now += seconds


def test_startup_lasts_until_the_first_call_has_been_compiled(
    watch: Stopwatch, clock: Clock
) -> None:
    measure(watch, clock, "compute", 1)
    clock.now += 0.5  # in no part
    seconds = watch.seconds()
    assert (seconds["startup"], seconds["compute"], seconds["other"]) == (10, 1, 0.5)
    assert 0 < process_age() < 24 * 3600


def test_the_parts_add_up_to_the_wall_clock_and_one_within_another_stops_its_clock(
    watch: Stopwatch, clock: Clock
) -> None:
    began = clock.now - 10
    for number, part in enumerate(PARTS[1:-1] * 3):
        with watch.measure(part):
            clock.now += number
            measure(watch, clock, "summaries", 0.25)
        clock.now += 0.125
    seconds = watch.seconds()
    assert sum(seconds.values()) == pytest.approx(clock.now - began)
    assert (seconds["summaries"], seconds["input"]) == (12 * 0.25, 0 + 4 + 8)


def test_the_times_go_on_after_a_restart(watch: Stopwatch, clock: Clock) -> None:
    measure(watch, clock, "compute", 10)
    second = Stopwatch(clock)
    second.restore(watch.state())
    measure(second, clock, "compute", 2)  # the first call of this attempt
    measure(second, clock, "compute", 1)
    report = second.state()
    assert report["attempts"] == 2
    assert (report["seconds"]["compute"], report["seconds"]["startup"]) == (11, 10 + 2)
    assert report["wall_seconds"] == pytest.approx(20 + 3)
