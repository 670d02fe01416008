"""What no reader of a file that a person writes may take minutes, or the memory, for."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from builder.cloudbuild.reader import buildfile
from builder.core.errors import InputError
from builder.core.yamlfile import DEPTH, VALUES, parse
from builder.jobs import description
from builder.jobs.aiplatform import convert
from builder.spec import catalogue

READERS: dict[str, Callable[[str], object]] = {
    "image": lambda text: catalogue.parse(text, Path("images/v100/image.yaml")),
    "job": lambda text: description.parse(text, Path("jobs/one.yaml")),
    "build": lambda text: buildfile.parse(text, Path("cloudbuild.yaml")),
    "old": lambda text: convert.convert(text, Path("config.yaml")),
}


def aliases(deep: int) -> str:
    """Nine values, and `deep` times a list of nine lists of them: nine to the power of `deep`."""
    lines = ["a0: &a0 [" + ", ".join("x" * 9) + "]"]
    lines += [f"a{n}: &a{n} [" + ", ".join([f"*a{n - 1}"] * 9) + "]" for n in range(1, deep + 1)]
    return "\n".join(lines) + "\n"


def merges(deep: int) -> str:
    lines = ["a0: &a0 {x: y}"]
    lines += [f"a{n}: &a{n} {{<<: [*a{n - 1}, *a{n - 1}]}}" for n in range(1, deep + 1)]
    return "\n".join(lines) + "\n"


ENDLESS = {
    "aliases": (aliases(9), 5, f"more than {VALUES} values"),
    "aliases in a name": (aliases(9) + "? *a9\n: x\n", 5, f"more than {VALUES} values"),
    "merges": (merges(28), 12, f"more than {VALUES} values"),
    "labels": (
        "labels:\n" + "".join(f"  l{n}: x\n" for n in range(60_000)),
        10_000,
        f"more than {VALUES} values",
    ),
    "lists": ("a:\n  " + "[" * 100_000, 2, f"more than {DEPTH} lists and mappings"),
    "mappings": ("a:\n  " + "{x: " * 100_000, 2, f"more than {DEPTH} lists and mappings"),
    "indents": ("- " * 100_000, 1, f"more than {DEPTH} lists and mappings"),
}


@pytest.mark.timeout(20)
@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize(("text", "line", "what"), ENDLESS.values(), ids=ENDLESS)
def test_what_would_take_for_ever_is_refused_at_its_line(
    text: str, line: int, what: str, reader: str
) -> None:
    with pytest.raises(InputError) as raised:
        READERS[reader](text)
    assert f":{line}: {what}" in raised.value.message


def test_deep_json_with_tabs_is_refused_too() -> None:
    with pytest.raises(InputError, match=f":2: more than {DEPTH} lists"):
        buildfile.parse('{"steps":\n\t' + "[" * 100_000, Path("cloudbuild.json"))


def test_a_file_of_megabytes_is_none_that_a_person_wrote() -> None:
    with pytest.raises(InputError, match=r"one\.yaml: 2000000 characters, more than 1048576"):
        parse("#" * 2_000_000, "one.yaml")


def test_aliases_as_people_use_them_are_read() -> None:
    text = "base: &base {a: [1, 2], b: x}\n" + "".join(f"n{n}: *base\n" for n in range(1000))
    assert parse(text, "one.yaml").value["n999"] == {"a": ["1", "2"], "b": "x"}  # type: ignore[index,call-overload]


def test_a_merge_that_contains_itself_is_a_mistake() -> None:
    text = "steps:\n- &a\n  name: x\n  <<: {<<: *a}\n"
    [problem] = buildfile.parse(text, Path("cloudbuild.yaml")).problems
    assert (problem.line, problem.what) == (2, "contains itself")


def test_a_name_that_is_a_list_is_a_mistake() -> None:
    with pytest.raises(InputError, match=r":1: a name must be text"):
        READERS["image"]("? [a, b]\n: x\naccelerator: V100\n")


NUMBERS = ("9" * 5000, "-" + "9" * 5000, "1e999", ".inf", ".nan", "1:30", "0x10", "1_0", "٣")
OLD = "trainingInput: {{scaleTier: CUSTOM, region: europe-west4, "
FIELDS = {
    "user": ("image", "accelerator: V100\nsize_budget: 2 GB\nuser: {}\n"),
    "budget": ("image", "accelerator: V100\nsize_budget: {}\n"),
    "disk": ("job", "image: a/b:c\ndisk: {{size_gb: {}}}\n"),
    "replicas": ("job", "image: a/b:c\nreplicas: {{workers: {}}}\n"),
    "timeout": ("job", "image: a/b:c\ntimeout: {}\n"),
    "low": (
        "job",
        "image: a/b:c\n"
        "study: {{metric: m, parameters: {{x: {{type: integer, min: {}, max: 3}}}}}}\n",
    ),
    "step timeout": ("build", "steps: [{{name: a, timeout: {}}}]\n"),
    "step timeout in s": ("build", "steps: [{{name: a, timeout: {}s}}]\n"),
    "exit code": ("build", "steps: [{{name: a, allowExitCodes: [{}]}}]\n"),
    "worker count": (
        "old",
        OLD + "workerType: n1-standard-4, workerCount: {}, masterType: n1-standard-4}}",
    ),
    "old disk": (
        "old",
        OLD + "masterType: n1-standard-4, "
        "masterConfig: {{imageUri: 'a/b:c', diskConfig: {{bootDiskSizeGb: {}}}}}}}",
    ),
    "old accelerators": (
        "old",
        OLD + "masterType: n1-standard-4, "
        "masterConfig: {{acceleratorConfig: {{type: NVIDIA_TESLA_V100, count: {}}}}}}}",
    ),
    "old trials": (
        "old",
        OLD + "masterType: n1-standard-4, hyperparameters: {{goal: MAXIMIZE, "
        "hyperparameterMetricTag: m, maxTrials: {}, params: "
        "[{{parameterName: x, type: INTEGER, minValue: {}, maxValue: 3}}]}}}}",
    ),
}


@pytest.mark.parametrize("number", NUMBERS, ids=range(len(NUMBERS)))
@pytest.mark.parametrize(("reader", "text"), FIELDS.values(), ids=FIELDS)
def test_a_number_that_is_none_is_a_mistake_of_the_file(
    reader: str, text: str, number: str
) -> None:
    try:
        read = READERS[reader](text.format(number, number))
    except InputError as error:
        assert error.fix
    else:
        assert reader != "build" or not read.problems or read.problems[0].line == 1  # type: ignore[attr-defined]


def test_every_command_ends_at_once(tmp_path: Path) -> None:
    for name in ("builder.toml", "images/v100/image.yaml"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / "builder.toml").write_text("", encoding="utf-8")
    (tmp_path / "images/v100/image.yaml").write_text(aliases(9), encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "builder", "list"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=20,
    )
    assert done.returncode == 2
    assert "images/v100/image.yaml:5: more than" in done.stderr


def test_an_address_in_a_list_does_not_open_a_way_around_the_bounds() -> None:
    bomb = "a: &a [gs://b/x, y]\n" + "".join(
        f"b{number}: &b{number} [{', '.join([f'*b{number - 1}' if number else '*a'] * 9)}]\n"
        for number in range(9)
    )
    with pytest.raises(InputError, match="each alias written out"):
        parse(bomb, "x.yaml")
    assert parse("a: [gs://b/x, {c: gs://d}]\n", "x.yaml").value == {
        "a": ["gs://b/x", {"c": "gs://d"}]
    }
    with pytest.raises(InputError, match=r"x\.yaml:1: not YAML"):
        parse("a: [gs://b/x, b: [}\n", "x.yaml")
