"""Patterns of triggers: each verdict is RE2's own (google-re2 1.1.20251105)."""

import pytest

from builder.cloudbuild.patterns import problem


@pytest.mark.parametrize(
    "pattern",
    [
        r"^main$", r"^v\d+\.\d+$", r"^(?:main|release/.*)$", r"a\z", r"\Aa", r"(?P<n>a)",
        r"(?<n>a)", r"[[:alpha:]]+", r"[[:^alpha:]]", r"\pL", r"[\p{Greek}a]", r"(?i)main",
        r"(?s-i:a)", r"(?U)a", r"\Qa.b\E", r"\x{10FFFF}", r"a{1000}", r"a*?", r"[]a]", r"a{",
        r"(?P<1>a)", r"\C", "",
    ],
)  # fmt: skip
def test_what_re2_takes(pattern: str) -> None:
    assert problem(pattern) == ""


@pytest.mark.parametrize(
    ("pattern", "why"),
    [
        (r"^(?!dependabot)", "no lookaround"),
        (r"(?<=x)a", "no lookaround"),
        (r"(?>a)", "RE2 has no (?>a"),
        (r"(a)\1", r"RE2 has no backreference \1"),
        (r"(?P<n>a)(?P=n)", "RE2 has no (?P="),
        (r"a\Z", r"RE2 has no escape \Z"),
        (r"a++", "possessive"),
        (r"a{2}+", "possessive"),
        (r"a{1001}", "more than 1000 times"),
        (r"(", "missing )"),
        (r"*a", "nothing to repeat"),
        (r"[z-a]", "bad character range"),
    ],
)
def test_what_re2_refuses(pattern: str, why: str) -> None:
    assert why in problem(pattern)
