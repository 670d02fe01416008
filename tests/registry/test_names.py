"""The names of images: what is read, what is refused, and what to write instead."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from builder.core.errors import InputError
from builder.registry import Reference, Registry, is_loopback, parse

DIGEST = "sha256:" + "a" * 64


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("python", Reference("docker.io", "library/python")),
        ("python:3.11-slim", Reference("docker.io", "library/python", "3.11-slim")),
        ("someone/training:v100", Reference("docker.io", "someone/training", "v100")),
        ("index.docker.io/someone/x", Reference("docker.io", "someone/x")),
        ("docker.io/python", Reference("docker.io", "library/python")),
        ("localhost/training", Reference("localhost", "training")),
        ("127.0.0.1:5000/a/b:t", Reference("127.0.0.1:5000", "a/b", "t")),
        ("[::1]:5000/a:t", Reference("[::1]:5000", "a", "t")),
        ("gcr.io/project/image", Reference("gcr.io", "project/image")),
        ("eu.gcr.io/example.com/p/i:1", Reference("eu.gcr.io", "example.com/p/i", "1")),
        (
            f"europe-west4-docker.pkg.dev/p/r/i:v100@{DIGEST}",
            Reference("europe-west4-docker.pkg.dev", "p/r/i", "v100", DIGEST),
        ),
    ],
)
def test_a_reference_is_read_as_docker_reads_it(text: str, expected: Reference) -> None:
    assert parse(text) == expected
    assert parse(str(expected)) == expected


@pytest.mark.parametrize(
    ("text", "message", "fix"),
    [
        ("someone/Training", "is not a repository", "write docker.io/someone/training"),
        ("a/b:tag with space", "is not a tag", "write HOST/PATH[:TAG]"),
        ("a/b@sha256:12", "is not a digest", "64 hex digits"),
        ("us-docker.pkg.dev/p/r:v100", "Artifact Registry names have", "PROJECT/REPOSITORY/IMAGE"),
        ("gcr.io/example.com:p/i", "is not a tag", "write HOST/PATH[:TAG]"),
        ("a//b", "is not a repository", "a-z, 0-9"),
        ("", "is not a repository", "a-z, 0-9"),
        ("https://host/x", "is not", ""),
    ],
)
def test_what_is_no_reference_is_refused_with_what_to_write(
    text: str, message: str, fix: str
) -> None:
    with pytest.raises(InputError) as caught:
        parse(text)
    assert message in caught.value.message
    assert fix in caught.value.fix
    assert "\n" not in caught.value.message + caught.value.fix


@settings(max_examples=30, deadline=None)
@given(st.text(max_size=20))
def test_any_text_is_a_reference_or_an_input_error(text: str) -> None:
    try:
        reference = parse(text)
    except InputError:
        return
    assert parse(str(reference)) == reference


def test_a_bad_tag_is_refused_with_one_that_works() -> None:
    with pytest.raises(InputError) as caught:
        parse("a/b").tagged("feature/x")
    assert caught.value.fix == "write feature-x"


@pytest.mark.parametrize(
    ("host", "loopback"),
    [
        ("127.0.0.1:5000", True),
        ("127.8.9.1", True),
        ("localhost:5000", True),
        ("[::1]:5000", True),
        ("127.0.0.1.example.com", False),
        ("localhost.example.com", False),
        ("10.0.0.1:5000", False),
        ("docker.io", False),
    ],
)
def test_plain_http_is_for_loopback_only(host: str, loopback: bool) -> None:
    assert is_loopback(host) is loopback
    with Registry(host) as there:
        assert there.address.startswith("http://" if loopback else "https://")
