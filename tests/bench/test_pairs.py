"""The bench of published pairs: its table, what it asks, how it counts. No framework is needed."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest

from builder.facts.devices import GIB
from tools.bench import pairs
from tools.bench.pairs import PROGRAMS, Pair, Python, Said, line, totals


def pair(fits: bool = True, **more: object) -> Pair:
    return Pair("a step", "torch", "bert", "V100", fits, "anatomy", **more)  # type: ignore[arg-type]


def test_every_pair_calls_a_program_that_is_there_with_its_arguments() -> None:
    found, environments = pairs.read()
    assert len(found) >= 30 and len({each.name for each in found}) == len(found)
    assert {each.environment for each in found} == set(environments)
    for framework in {each.framework for each in found}:
        tree = ast.parse((PROGRAMS / f"of_{framework}.py").read_text())
        known = {node.name: node.args for node in tree.body if isinstance(node, ast.FunctionDef)}
        for each in (each for each in found if each.framework == framework):
            arguments = known[each.program]
            names = [argument.arg for argument in arguments.args]
            needed = names[: len(names) - len(arguments.defaults)]
            assert set(needed) <= set(each.given) <= set(names), each.name
            assert each.on.memory and bool(each.peak) == bool(each.of)


@pytest.mark.long
@pytest.mark.network
def test_an_older_jax_says_what_its_own_page_says(tmp_path: Path) -> None:
    """0.6.2: it knows less of a GPU's description, and tells no calls of libraries."""
    found, environments = pairs.read()
    published = [each for each in found if each.source == "jax_memories"]
    python = Python(tmp_path)
    python.make(environments["jax 0.6.2"])
    for each in published:
        said = pairs.ask(each, python)
        error = said.error(each)
        assert said.fits and error is not None and abs(error) < 0.05, said
        assert "its libraries are not known" in said.words


def test_a_peak_is_compared_with_the_number_of_its_kind() -> None:
    said = Said(True, needs=9.0, allocated=8.0)
    assert said.error(pair(peak=10.0, of="allocated")) == pytest.approx(-0.2)
    assert said.error(pair(peak=10.0, of="device", beside=2.0)) == pytest.approx(0.1)
    assert said.error(pair(peak=10.0, of="program")) == pytest.approx(-0.1)
    beside = pair().on.taken / GIB
    assert said.error(pair(peak=9.0, of="device")) == pytest.approx(beside / 9)
    assert said.error(pair()) is None and Said(None).error(pair(peak=9.0, of="device")) is None
    assert pair(memory=32.0).on.memory == 32 * GIB


def test_what_is_not_known_is_not_right() -> None:
    measured = pair(peak=10.0, of="allocated")
    asked = [
        (measured, Said(True, needs=9.0, allocated=8.0)),
        (pair(fits=False), Said(True, needs=3.0)),
        (pair(), Said(None)),
    ]
    assert totals(asked)[-1] == "all: 1 of 3 right; error of 1 peaks: 20.0%, at most 20.0%"
    assert (
        line(*asked[0]) == "| torch | a step | V100 | fits, 10.00 | fits, 8.00 | right | -20.0% |"
    )
    assert line(*asked[1]).endswith("| does not fit | fits, 3.00 | WRONG | - |")
    assert line(*asked[2]).endswith("| fits | not known | WRONG | - |")


def test_the_checks_own_hook_answers_in_a_python_of_this_machine(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Here the framework is missing: the hook was asked, and says so."""
    monkeypatch.setattr(pairs, "PROGRAMS", tmp_path)
    program = "from training_image_compile import take\ntake(print, [])\n"
    (tmp_path / "of_torch.py").write_text(program)
    said = pairs.ask(pair(), Python(Path(sys.prefix)))
    assert said.fits is None
    assert said.words.startswith("not known: print could not be compiled here: ModuleNotFoundError")
