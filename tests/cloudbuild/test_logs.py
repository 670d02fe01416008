"""The log follower: every line once, against logs that grow while connections break."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

import pytest

from builder.cloudbuild.submission import logs
from builder.cloudbuild.submission.logs import (
    Bytes,
    Entries,
    LogEntry,
    LogFollower,
    ReadLogging,
    ReadStorage,
)

WORDS = ("Step #0: ok", "", "ünïcödé → 日本語", "\tindented", "x" * 300, "carriage", "naïve ✓")
START = datetime(2026, 1, 1, tzinfo=UTC)


@dataclass
class Log:
    """A log that grows, as Cloud Storage and Cloud Logging show it, with all their faults."""

    chance: random.Random
    lines: list[str]
    forbidden_after: int | None = None
    shown: int = 0
    """Lines that the build has written so far."""
    polls: int = 0
    stumbles: int = 0
    half: int = 0
    """Bytes of the next line that are written already: an upload ends anywhere."""
    late: dict[int, int] = field(default_factory=dict)
    ended: bool = False

    def grow(self) -> None:
        if self.shown < len(self.lines):
            self.shown += self.chance.randint(0, min(4, len(self.lines) - self.shown))
            self.half = self.chance.choice((0, 0, 1, 5))
        elif self.chance.random() < 0.4:
            self.ended = True

    @property
    def object(self) -> bytes:
        whole = [line.encode() + b"\n" for line in self.lines]
        if self.shown == len(self.lines):  # the last line of a log need not be ended
            return b"".join(whole)[: -1 if len(whole[-1]) > 1 else None]
        return b"".join(whole[: self.shown]) + whole[self.shown][: self.half]

    def stumble(self) -> bool:
        """Never so often in a row that the follower may give up."""
        may = self.stumbles < logs.ATTEMPTS - 2
        self.stumbles = self.stumbles + 1 if may and self.chance.random() < 0.3 else 0
        return self.stumbles > 0

    def answer(self, ask: ReadStorage | ReadLogging) -> Bytes | Entries:
        self.polls += 1
        assert self.polls < 2000, "the follower does not come to an end"
        if isinstance(ask, ReadLogging):
            return self.entries(ask)
        if self.forbidden_after is not None and self.polls > self.forbidden_after:
            return Bytes(403, b"<Error><Code>AccessDenied</Code></Error>")
        if self.stumble():
            status = self.chance.choice((0, 429, 500, 502, 503, 504))
            return Bytes(status, self.chance.choice((b"", b"try later\n", b"<html>\n")))
        data = self.object
        if not data and not self.ended:
            return Bytes(404, b"NoSuchKey")
        if ask.offset >= len(data):
            return Bytes(416)
        if self.chance.random() < 0.15:  # the range is not heeded
            start, status = 0, 200
        else:
            start, status = ask.offset, 206
        body = data[start:]
        if self.chance.random() < 0.3:  # cut in the middle, inside of a character too
            body = body[: self.chance.randint(ask.offset - start + 1, len(body))]
        return Bytes(status, body, start)

    def entries(self, ask: ReadLogging) -> Entries:
        if self.stumble():
            return Entries(self.chance.choice((0, 429, 500, 503)))
        shown = []
        for number in range(self.shown):
            # shown late, some out of order; and some within the same millisecond
            self.late.setdefault(number, self.polls + self.chance.choice((0, 0, 0, 1, 2)))
            if self.late[number] <= self.polls:
                time = START + timedelta(seconds=number * 20)
                shown.append(LogEntry(f"id{number}", time, self.lines[number]))
        listed = [one for one in shown if ask.since is None or one.time >= ask.since]
        return Entries(200, tuple(listed + self.chance.sample(listed, min(2, len(listed)))))


def follow(log: Log, follower: LogFollower) -> tuple[list[str], LogFollower]:
    """As submission.watch does: how the build is, then what it wrote until nothing is new."""
    got: list[str] = []
    while not follower.done:
        log.grow()
        if log.ended:
            follower = follower.end()
        while ask := follower.ask:
            follower, lines = follower.told(log.answer(ask))
            got += lines
            if follower.idle:
                break
    return got, follower


def text(chance: random.Random) -> list[str]:
    lines = [f"{number} {chance.choice(WORDS)}" for number in range(chance.randint(1, 25))]
    return [*lines[:-1], chance.choice((lines[-1], ""))] if len(lines) > 1 else lines


def test_no_line_is_lost_or_doubled_in_ten_thousand_schedules() -> None:
    for seed in range(10_000):
        chance = random.Random(seed)
        log = Log(chance, text(chance))
        got, follower = follow(log, LogFollower("storage"))
        assert got == log.lines, f"seed {seed}"
        assert follower.source == "storage"
        assert follower.lines == len(got)


def test_entries_of_cloud_logging_come_late_and_twice_and_each_is_told_once() -> None:
    for seed in range(2_000):
        chance = random.Random(seed)
        log = Log(chance, text(chance))
        got, _ = follow(log, LogFollower("logging"))
        assert sorted(got) == sorted(log.lines), f"seed {seed}"


def test_a_bucket_that_is_closed_half_way_is_continued_from_cloud_logging() -> None:
    for seed in range(2_000):
        chance = random.Random(seed)
        log = Log(chance, text(chance), forbidden_after=chance.randint(0, 12))
        log.late = dict.fromkeys(range(100), 0)  # in order: what is told is a whole log
        got, follower = follow(log, LogFollower("storage"))
        assert got == log.lines, f"seed {seed}"
        if follower.source == "logging":
            assert follower.note == "the log's bucket may not be read (HTTP 403)"


def test_a_log_that_is_never_written_ends_with_the_build() -> None:
    follower = LogFollower("storage")
    for _ in range(50):
        follower, lines = follower.told(Bytes(404))
        assert not lines
        assert not follower.done
    follower, _ = follower.end().told(Bytes(404))
    assert follower.source == "logging"
    follower, _ = follower.told(Entries(403))
    assert follower.done
    assert follower.source == "status"
    assert "wrote no log" in follower.note
    assert "Cloud Logging may not be read (HTTP 403)" in follower.note


@pytest.mark.parametrize("status", [0, 429, 500, 503])
def test_a_running_build_s_log_is_asked_for_for_ever_a_finished_one_s_is_not(status: int) -> None:
    follower = LogFollower("storage")
    for _ in range(1000):
        follower, _ = follower.told(Bytes(status))
    assert follower.source == "storage"
    assert follower.pause == 30.0
    follower = follower.end()
    for _ in range(logs.ATTEMPTS):
        follower, _ = follower.told(Bytes(status))
    assert follower.source == "logging"


def test_waiting_grows_with_each_failure_and_is_one_second_again_after_an_answer() -> None:
    follower = LogFollower("storage")
    pauses = []
    for _ in range(4):
        follower, _ = follower.told(Bytes(503))
        pauses.append(follower.pause)
    assert pauses == [2.0, 4.0, 8.0, 16.0]
    follower, lines = follower.told(Bytes(206, b"one\ntw", 0))
    assert lines == ("one",)
    assert follower.pause == 1.0


def test_an_answer_from_further_on_is_not_taken() -> None:
    follower, _ = LogFollower("storage").told(Bytes(206, b"one\n", 0))
    follower, lines = follower.told(Bytes(206, b"three\n", 8))
    assert lines == ()
    assert follower.offset == 4


def test_where_a_log_lies_is_what_the_build_says() -> None:
    from google.cloud.devtools.cloudbuild_v1 import Build, BuildOptions

    build = Build(id="b1", logs_bucket="gs://logs/of/builds")
    assert logs.address(build) == ("logs", "of/builds/log-b1.txt")
    assert logs.address(Build(id="b1", logs_bucket="gs://logs")) == ("logs", "log-b1.txt")
    assert logs.begin(build).source == "storage"
    build.options = BuildOptions(logging=BuildOptions.LoggingMode.CLOUD_LOGGING_ONLY)
    assert logs.begin(build).source == "logging"
    build.options.logging = BuildOptions.LoggingMode.NONE
    assert logs.begin(build).source == "status"
