"""What a person sees of an address or a name from elsewhere."""

from __future__ import annotations

import pytest

from builder.core.display import Annotation, address, duration, masked, plain, size


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("http://me:s3cret@proxy:3128", "http://***@proxy:3128"),
        ("me:s3cret@proxy:3128", "***@proxy:3128"),
        ("http://me:s3/cret@proxy:3128", "http://***@proxy:3128"),
        ("'me:s3cret@host.example/x:v1' is no name", "'***@host.example/x:v1' is no name"),
        ("pkg @ git+https://s3cret@host/x", "pkg @ git+https://***@host/x"),
        ("pkg @ https://a:s3cret@host/x, b", "pkg @ https://***@host/x, b"),
        ("http://host:5000/a@b", "http://host:5000/a@b"),
        ("host.example/x:v1@sha256:12", "host.example/x:v1@sha256:12"),
        ("x:v1@sha256:12", "x:v1@sha256:12"),
        ("http://me:s3'cr,et@host/x, y", "http://***@host/x, y"),
        ("write to me@example.com", "write to me@example.com"),
    ],
)
def test_the_credentials_of_an_address_are_not_shown(text: str, shown: str) -> None:
    assert masked(text) == shown


@pytest.mark.parametrize("password", ["s3 cret", "s3'cret", "s3,cret", 's3"c', "s/3@c"])
def test_the_password_of_one_address_may_hold_anything(password: str) -> None:
    for scheme in ("http://", ""):
        assert address(f"{scheme}me:{password}@host:1/x") == f"{scheme}***@host:1/x"


@pytest.mark.parametrize("text", ["a{}@", "//,{} @", "/{}@"])
def test_a_megabyte_without_a_space_is_read_at_once(text: str) -> None:
    """25 minutes where each place is tried as a beginning: the test's time limit would end it."""
    long = text.format(text.partition("{")[0][-1] * 10**6)
    assert len(masked(long)) >= 10**6


def test_a_name_gives_no_command_to_the_service_that_reads_the_output() -> None:
    assert plain("x\n::stop-commands::t\n  ##[error]y") == "x\n\\::stop-commands::t\n  \\##[error]y"
    ours = Annotation("::error title=a::b")
    assert plain(ours) == ours


def test_a_name_does_not_move_the_cursor() -> None:
    assert plain("a\x1b[31m\x1b]0;title\x07\x1b\x07\x9b\u202eb\n\tc é") == "a????b\n\tc é"


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (None, "unknown"),
        (999, "999 B"),
        (1_000, "1 kB"),
        (1_234_567, "1.2 MB"),
        (999_600_000, "1.0 GB"),
        (2.5e12, "2,500.0 GB"),
    ],
)
def test_sizes_are_decimal(count: float | None, text: str) -> None:
    assert size(count) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.44, "0.4 s"),
        (12.3, "12 s"),
        (119.6, "2 min"),
        (185, "3 min 05 s"),
        (3599.6, "1 h"),
        (4800, "1 h 20 min"),
    ],
)
def test_durations_are_short(seconds: float, text: str) -> None:
    assert duration(seconds) == text
