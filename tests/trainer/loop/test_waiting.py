"""Who is waited for: it is said by name, within seconds, also if the kernel still answers."""

import socket

import pytest

from tests.trainer.loop.test_distribution import ports, two
from trainer.loop import distribution, waiting


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    lines: list[tuple[str, str]] = []
    monkeypatch.setattr(
        waiting, "say", lambda event, text, severity, **_: lines.append((severity, text))
    )
    return lines


def test_a_process_answers_is_silent_or_is_gone() -> None:
    with socket.create_server(("127.0.0.1", 0)) as frozen:  # it never accepts
        address = f"127.0.0.1:{frozen.getsockname()[1]}"
        assert waiting.probe(address, 0.2) == "silent"
    assert waiting.probe(address) == "gone"
    with distribution._listening(address):
        assert waiting.probe(address) == "answers"


def test_the_others_have_names_and_evaluators_are_not_waited_for() -> None:
    tasks = {"chief": ("a:1",), "worker": ("b:1", "c:1"), "evaluator": ("d:1",)}
    assert waiting.others(tasks, "worker", 1) == {
        "a:1": "chief 0 at a:1",
        "b:1": "worker 0 at b:1",
    }


def test_a_wait_is_told_within_thirty_seconds_and_again_each_minute() -> None:
    clock = Clock()
    wait = waiting.Wait("step 7", clock)
    times = []
    for clock.now in range(200):
        if wait.due():
            times.append(clock.now)
    assert times == [20, 80, 140]


@pytest.mark.parametrize(
    ("presence", "severity", "who"),
    [
        ("silent", "WARNING", "for worker 1 at b:1: no answer"),
        ("answers", "INFO", "and all other processes answer"),
    ],
)
def test_the_one_that_is_waited_for_is_named(
    presence: str, severity: str, who: str, told, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waiting, "probe", lambda host: presence)
    clock, waits = Clock(), waiting.Waits({})
    waits.named = {"b:1": "worker 1 at b:1"}
    wait = waiting.Wait("step 7", clock)
    for clock.now in (14, 19, 21, 22):
        waits.look(wait)
    [(said, text)] = told
    assert said == severity
    assert text.startswith(f"step 7 waits since {wait._since} (21 s) {who}")


def test_a_process_that_waits_for_a_late_one_at_the_start_names_it(
    told, monkeypatch: pytest.MonkeyPatch
) -> None:
    both = ports()
    monkeypatch.setattr(waiting, "FIRST", 0.3)

    def given_up(code: int) -> None:
        raise SystemExit(code)

    monkeypatch.setattr(distribution.os, "_exit", given_up)
    monkeypatch.setattr(distribution, "say", lambda *_: None)
    with pytest.raises(SystemExit, match="143"):
        distribution.meet(two(0, both), 1.0)
    [(_, text)] = told
    assert text.startswith("the start waits since ")
    assert text.endswith(f"for worker 1 at 127.0.0.1:{both[1]}: no answer")


def test_a_step_that_never_ends_is_given_up(told, monkeypatch: pytest.MonkeyPatch) -> None:
    """NCCL waits on the GPU, where no signal and no other thread of the process can end it."""
    clock = Clock()
    wait = waiting.Wait("step 7", clock)
    waits, for_ever = waiting.Waits({}, patience=600.0), waiting.Waits({})
    found = []
    for clock.now in (20, 599, 601):
        found.append((waits.hangs(wait), for_ever.hangs(wait)))
    assert found == [(False, False), (False, False), (True, False)]

    def exits(code: int) -> None:
        raise SystemExit(code)

    monkeypatch.setattr(waiting.os, "_exit", exits)
    with pytest.raises(SystemExit, match="143"):
        waiting.give_up(wait)
    assert told == [
        (
            "ERROR",
            "step 7 has not ended in 601 s: a GPU hangs, or NCCL waits for one; start all again",
        )
    ]
