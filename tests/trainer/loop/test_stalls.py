"""Who is waited for: it is reported by name, within seconds, also if the kernel still answers."""

import socket

import pytest

from tests.clock import Clock
from tests.trainer.loop.test_distribution import ports, two
from trainer import event_lines
from trainer.loop import distribution, stalls


@pytest.fixture
def lines(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """Severity and text of each line; an exit is SystemExit."""
    reported: list[tuple[str, str]] = []
    for module in (stalls, event_lines):
        monkeypatch.setattr(
            module, "say", lambda event, text, severity, **_: reported.append((severity, text))
        )

    def exits(code: int) -> None:
        raise SystemExit(code)

    monkeypatch.setattr("os._exit", exits)
    monkeypatch.setattr(event_lines, "hush", lambda: None)  # stderr is the tests' own
    return reported


def test_a_process_answers_is_silent_or_is_gone() -> None:
    with socket.create_server(("127.0.0.1", 0)) as frozen:  # it never accepts
        address = f"127.0.0.1:{frozen.getsockname()[1]}"
        assert stalls.probe(address, 0.2) == "silent"
    assert stalls.probe(address) == "gone"
    with distribution._listening(address):
        assert stalls.probe(address, 60) == "answers"


def test_a_wait_is_reported_within_thirty_seconds_and_again_each_minute() -> None:
    clock = Clock()
    wait = stalls.Wait("step 7", clock)
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
    presence: str, severity: str, who: str, lines, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stalls, "probe", lambda host: presence)
    clock, monitor = Clock(), stalls.StallMonitor({})
    monitor.named = distribution.Cluster(tasks={"chief": ("a:1",), "worker": ("b:0", "b:1")}).others
    del monitor.named["b:0"]
    wait = stalls.Wait("step 7", clock)
    for clock.now in (14, 19, 21, 22):
        monitor.look(wait, again=True)
    assert lines == [(severity, f"step 7 waits since {wait._since} (21 s) {who}")]


def test_a_process_that_waits_for_a_late_one_at_the_start_names_it(
    lines, monkeypatch: pytest.MonkeyPatch
) -> None:
    both = ports()
    monkeypatch.setattr(stalls, "FIRST", 0.3)
    with pytest.raises(SystemExit, match="143"):
        distribution.meet(two(0, both), 1.0)
    late = f"worker 1 at 127.0.0.1:{both[1]}"
    (_, text), ended = lines
    assert text.startswith("the start waits since ") and text.endswith(f"for {late}: no answer")
    assert ended == ("ERROR", f"no answer from {late} in 1 s: start all again")


def test_what_is_compiled_first_may_take_long_but_not_beside_a_frozen_process(
    lines, monkeypatch: pytest.MonkeyPatch
) -> None:
    monitor, wait = stalls.StallMonitor({}, patience=600.0), stalls.Wait("the start", Clock())
    monitor.named = {"b:0": "ps 0 at b:0"}
    wait._clock.now = 601
    monkeypatch.setattr(stalls, "probe", lambda *_: "answers")
    monitor.look(wait, again=False)
    monkeypatch.setattr(stalls, "probe", lambda *_: "silent")
    with pytest.raises(SystemExit, match="143"):
        monitor.look(wait, again=False)
    assert lines[-1] == ("ERROR", "the start has not ended in 601 s: a process or a GPU hangs; "
                         "start all again")  # fmt: skip


def test_a_step_that_never_ends_is_given_up(lines) -> None:
    """NCCL waits on the GPU, where no signal and no other thread of the process can end it."""
    clock = Clock()
    wait = stalls.Wait("step 7", clock)
    monitor, for_ever = stalls.StallMonitor({}, patience=600.0), stalls.StallMonitor({})
    for clock.now in (20, 599, 601):
        for_ever.look(wait, again=True)
        monitor.look(wait, again=False)  # which compiles
        if clock.now < 600:
            monitor.look(wait, again=True)
    with pytest.raises(SystemExit, match="143"):
        monitor.look(wait, again=True)
    text = "step 7 has not ended in 601 s: a process or a GPU hangs; start all again"
    assert lines == [("ERROR", text)]
