"""How an option is declared: a field of a dataclass is its command line. No TensorFlow."""

import dataclasses
from typing import Any, Literal

import pytest

from trainer.options import Section, UsageError, read

_food = Section("food")
_drink = Section("drink")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Meal:
    """One option of each kind."""

    guest: str = _food(..., "who eats")
    eggs: int = _food(2, "how many", least=1, most=9, alias="--ova")
    salt: float = _food(0.5, "share, 100 % at most", most=1)
    sugar: float = _food(0.1, "any amount")
    boiled: bool = _food(False, "hard")
    style: Literal["plain", "fried"] = _food("plain", "how")
    tea_cups: int = _drink(0, "cups")
    sides: tuple[str, ...] = _drink(
        ("bread",), "a list", parse=lambda text: tuple(text.split("+")), shown="bread"
    )


def meal(*arguments: str) -> Meal:
    return Meal(**read(Meal, ["--guest", "ann", *arguments]))


def test_what_is_not_given_has_the_default_and_is_not_among_the_values() -> None:
    assert read(Meal, ["--guest", "ann"]) == {"guest": "ann"}
    assert meal() == Meal(guest="ann")
    assert meal().sides == ("bread",)


@pytest.mark.parametrize(
    ("given", "field", "value"),
    [
        (("--eggs", "3"), "eggs", 3),
        (("--eggs=3.0",), "eggs", 3),
        (("--ova", "3"), "eggs", 3),
        (("--salt=1",), "salt", 1.0),
        (("--boiled",), "boiled", True),
        (("--boiled", "true"), "boiled", True),
        (("--boiled=0",), "boiled", False),
        (("--style", "fried"), "style", "fried"),
        (("--tea_cups=4",), "tea_cups", 4),
        (("--tea-cups=4", "--tea_cups", "5"), "tea_cups", 5),
        (("--sides", "jam+butter"), "sides", ("jam", "butter")),
    ],
)
def test_the_fields_type_makes_the_value(given: tuple[str, ...], field: str, value: Any) -> None:
    found = getattr(meal(*given), field)
    assert (found, type(found)) == (value, type(value))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("--eggs=0", "--eggs 0: must be between 1 and 9"),
        ("--eggs=10", "--eggs 10: must be between 1 and 9"),
        ("--eggs=2.5", "argument --eggs/--ova: '2.5' is not a whole number"),
        ("--salt=nan", "--salt nan: must be between 0 and 1"),
        ("--sugar=inf", "--sugar inf: must be a finite number"),
        ("--tea-cups=-1", "--tea-cups -1: must be 0 or more"),
        ("--boiled=maybe", "argument --boiled: 'maybe' is not one of true, false"),
        ("--style=raw", "argument --style: invalid choice: 'raw'"),
        ("--egg=3", "unrecognized arguments: --egg=3"),
    ],
)
def test_what_does_not_fit_the_field_is_one_line(given: str, message: str) -> None:
    with pytest.raises(UsageError) as error:
        meal(given)
    assert str(error.value).startswith(message)
    assert "\n" not in str(error.value)
