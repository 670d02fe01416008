"""YAML as it was written, with its lines; what would take a reader for ever is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from builder.config import image_yaml
from builder.core.errors import InputError
from builder.core.yamlfile import DEPTH, VALUES, dump, parse
from builder.jobs import description


def aliases(deep: int) -> str:
    """Nine values, and `deep` times a list of nine lists of them: nine to the power of `deep`."""
    lines = ["a0: &a0 [" + ", ".join(["x"] * 9) + "]"]
    lines += [f"a{n}: &a{n} [" + ", ".join([f"*a{n - 1}"] * 9) + "]" for n in range(1, deep + 1)]
    return "\n".join(lines) + "\n"


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    ("text", "what"),
    [
        (aliases(9), f":5: more than {VALUES} values"),
        ("labels:\n" + "".join(f"  l{n}: x\n" for n in range(20_001)), ":1: more than"),
        ("a: &a [*a]\n", f":1: more than {DEPTH} lists"),
        ("a: " + "[" * 200 + "]" * 200, f":1: more than {DEPTH} lists"),
        ("a:\n  " + "[" * 100_000, ": too much for a file"),  # ended the process
        ("#" * 2_000_000, ": too much for a file"),
    ],
    ids=range(6),
)
def test_what_would_take_for_ever_is_refused_at_its_line(text: str, what: str) -> None:
    for read in (
        lambda: parse(text, "one.yaml"),
        lambda: image_yaml.parse(text, Path("images/v100/image.yaml")),
        lambda: description.parse(text, Path("jobs/one.yaml")),
    ):
        with pytest.raises(InputError) as raised:
            read()
        assert what in raised.value.message and raised.value.fix


def test_scalars_stay_text_and_values_have_lines() -> None:
    document = parse("python: 3.10\nlist: [gs://b/x, {c: on}]\nnone:\n", "x.yaml")
    assert document.value == {"python": "3.10", "list": ["gs://b/x", {"c": "on"}], "none": None}
    assert (document.line("list", 1, "c"), document.line("list", "z")) == (2, 2)
    text = "base: &base {a: [1, 2], b: x}\n" + "".join(f"n{n}: *base\n" for n in range(1000))
    assert parse(text, "x.yaml").value["n999"] == {"a": ["1", "2"], "b": "x"}  # type: ignore[index,call-overload]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("a: 1\nb: 2\na: 3\n", "3 a stands twice, first in line 1"),
        ("? [a, b]\n: x\n", "1  a name must be text"),
        ("a: !!python/object x\n", "1 a has the tag python/object, which means nothing"),
    ],
)
def test_what_means_nothing_is_a_mistake(text: str, problem: str) -> None:
    (mistake,) = parse(text, "x.yaml").problems
    assert f"{mistake.line} {mistake.field} {mistake.what}" == problem and mistake.fix


@pytest.mark.parametrize(
    ("text", "line", "fix"),
    [
        ("a: [x, b: [}\n", 1, ""),
        ("a: 1\n\tb: 2\n", 2, "indent with spaces"),
        ("a: @x\n", 1, "put the value in quotes"),
        ("a: b: c\n", 1, "put a value that contains"),
        ("a: \x07\n", 1, "remove it"),
    ],
)
def test_what_is_not_yaml_names_its_line(text: str, line: int, fix: str) -> None:
    with pytest.raises(InputError, match=rf"^x\.yaml:{line}: ") as raised:
        parse(text, "x.yaml")
    assert fix in raised.value.fix


def test_what_is_written_is_read_again_by_readers_of_yaml_1_1() -> None:
    value = {"on": ["1_000", "yes", "2024-01-01", "gs://b/x"], "n": {"a": "1:30"}}
    text = dump(value, "of a test")
    assert text.startswith("# of a test\n") and '"on":' in text and '"1:30"' in text
    assert parse(text, "x.yaml").value == value
