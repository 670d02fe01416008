"""Logs as text: bounded, numbered, without what a terminal would obey."""

from __future__ import annotations

import io

import pytest

from builder.jobs.why import logs as text


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ("\x1b[31mred\x1b[0m", "red"),
        ("\x1b]0;a title\x07after", "after"),
        ("\x1b]8;;https://evil.example\x1b\\link\x1b]8;;\x1b\\", "link"),
        ("\x1bPq#0\x1b\\sixel", "sixel"),
        ("\x9b31mred", "red"),
        ("a\x00b\x08c\x7fd", "abcd"),
        ("user\u202egnp.exe", "usergnp.exe"),
        ("zero\u200bwidth\ufeff", "zerowidth"),
        ("tab\there\rback", "tab here back"),
        ("two\r\nlines", "two\nlines"),
        ("half an escape \x1b[", "half an escape "),
    ],
)
def test_what_a_terminal_would_obey_is_taken_out(given: str, shown: str) -> None:
    assert text.harmless(given) == shown


def test_a_short_log_is_read_whole_with_its_numbers() -> None:
    read = text.read(io.BytesIO(b"one\n\nthree\nfour"))
    assert read == ([(1, "one"), (3, "three"), (4, "four")], 0)
    assert text.read(io.BytesIO(b"")) == ([], 0)


def test_a_long_log_is_its_beginning_and_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text, "HEAD", 10)
    monkeypatch.setattr(text, "TAIL", 20)
    lines, skipped = text.read(io.BytesIO("\n".join(f"line {n}" for n in range(1, 1001)).encode()))
    numbers = [number for number, _ in lines]
    assert numbers == [*range(1, 11), *range(981, 1001)] and skipped == 970
    assert all(line == f"line {number}" for number, line in lines)


def test_a_line_without_an_end_is_not_held_whole() -> None:
    endless = io.BytesIO(b"begin " + b"x" * (8 << 20) + b" end\nnext\n")
    lines, _ = text.read(endless)
    assert lines[0][1].startswith("begin") and lines[-2][1].endswith("end")
    assert lines[-1][1] == "next" and max(len(line) for _, line in lines) < 20_000


def test_an_excerpt_shows_the_words_and_says_that_more_is_there() -> None:
    line = "x " * 500 + "No space left on device " + "y " * 500
    shown = text.excerpt(line, line.index("No space"))
    assert "No space left on device" in shown and len(shown) < 260
    assert shown.startswith("… ") and shown.endswith(" …")
    assert text.excerpt("  short   line ", 0) == "short line"
