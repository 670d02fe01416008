"""How an option is declared, once: the field of a frozen dataclass is also its command line.

    run = Section("the run")

    @dataclass(frozen=True, kw_only=True)
    class Config:
        batch_size: int = run(32, "examples in a step, over all replicas", least=1)
        precision: Literal["auto", "float32"] = run("auto", "auto: by the device")

Name, type and choices come from the field; default, help text and bounds stand beside it. `read`
turns arguments into values for the fields that were given; the others keep their defaults.
"""

import argparse
import math
from collections.abc import Callable, Sequence
from dataclasses import MISSING, Field, dataclass, field, fields
from typing import Any, Literal, NoReturn, get_args, get_origin, get_type_hints

LARGEST = 2**53
"""No option is a whole number beyond this, above which a float is no longer exact."""


class UsageError(Exception):
    """What the user gave cannot be right: one line, exit code 2."""


@dataclass(frozen=True)
class Option:
    """Says what a field's name, type and default do not say about its option."""

    section: str
    """Title of its group in --help."""
    help: str
    parse: Callable[[str], Any] | None = None
    """Makes the value from its text; None: by the field's type."""
    metavar: str | None = None
    """Stands for the value in --help; None: by the field's type."""
    shown: str | None = None
    """The default, as --help shows it; None: the default itself; "": not shown."""
    least: float = 0.0
    most: float = math.inf
    """A number must lie from `least` to `most`, and be finite."""
    alias: str | None = None
    """A second name, with its hyphens."""
    positional: bool = False
    """It is an argument without a name, and has to be given."""
    bare: bool = False
    """A switch that takes no value, so that an argument may follow it."""
    choices: tuple[str, ...] = ()
    """Where the field's type is no Literal; (): any value."""


class Section:
    """Declares the options of a group."""

    def __init__(self, title: str) -> None:
        self.title = title

    def __call__(self, default: Any, help: str, **about: Any) -> Any:
        """Return a dataclass field whose option is described by `help` and `about`, as Option has
        them. Its default is `default`, or none where that is `...`."""
        option = Option(self.title, help, **about)
        return field(default=MISSING if default is ... else default, metadata={"option": option})


ALL = "--help-all"


def read(
    kind: type, arguments: Sequence[str], common: Sequence[str] = (), **about: Any
) -> dict[str, Any]:
    """Return the values that `arguments` give to fields of the dataclass `kind`, by their names.

    --help shows the fields that `common` names, in that order, and --help-all shows every one by
    its section. `about` goes to argparse: usage, description, epilog. Raises UsageError, and
    SystemExit after --help and --help-all.
    """
    every = ALL in arguments or not common
    parser = _Parser(
        allow_abbrev=False,
        argument_default=argparse.SUPPRESS,  # what is not given has the dataclass's default
        **about,
    )
    parser.add_argument(ALL, action="help", help="show all options by group and exit")
    types = get_type_hints(kind)
    declared = {entry.name: entry for entry in fields(kind) if "option" in entry.metadata}
    groups: dict[str, Any] = {}
    for name in dict.fromkeys((*(() if every else common), *declared)):
        option = declared[name].metadata["option"]
        title = option.section if every else f"common options ({ALL}: all)"
        if title not in groups:
            groups[title] = parser.add_argument_group(title)
        hidden = not every and name not in common
        _add(groups[title], declared[name], option, types[name], hidden)
    given = vars(parser.parse_args(["--help"] if ALL in arguments else _hyphens(arguments)))
    for name, value in given.items():
        _check_bounds(_name(declared[name]), value, declared[name].metadata["option"])
    return given


def _name(entry: Field[Any]) -> str:
    return "--" + entry.name.replace("_", "-")


def _add(
    group: Any, entry: Field[Any], option: Option, annotation: Any, hidden: bool = False
) -> None:
    """Declare the option of a field to argparse; a `hidden` one is read, and not shown."""
    names = [_name(entry), *([option.alias] if option.alias else [])]
    about: dict[str, Any] = {"help": argparse.SUPPRESS if hidden else _help(entry, option)}
    if option.positional:
        group.add_argument(entry.name, **about)
        return
    if option.bare:
        group.add_argument(*names, action="store_true", **about)
        return
    if get_origin(annotation) is Literal or option.choices:
        about["choices"] = option.choices or get_args(annotation)
    else:
        parse, metavar = _KINDS.get(annotation, (None, None))
        about["type"] = option.parse or parse
        about["metavar"] = option.metavar or metavar or entry.name.rpartition("_")[2].upper()
    if annotation is bool:
        about |= {"nargs": "?", "const": True}
    group.add_argument(*names, required=entry.default is MISSING, **about)


def _help(entry: Field[Any], option: Option) -> str:
    """Return the help text, with what holds if the option is not given."""
    default = "" if entry.default in (MISSING, None) else entry.default
    shown = f"{default:g}" if isinstance(default, float) else str(default)
    shown = shown.lower() if isinstance(default, bool) else shown
    shown = shown if option.shown is None else option.shown
    return option.help.replace("%", "%%") + (f" (default: {shown})" if shown else "")


def _check_bounds(name: str, value: Any, option: Option) -> None:
    """Raise UsageError for a number out of bounds, and for one that is not a number."""
    least, most = option.least, option.most
    if isinstance(value, bool) or not isinstance(value, int | float):
        return
    if value == math.inf and most == math.inf:
        raise UsageError(f"{name} {value}: must be a finite number")
    if not least <= value <= most:
        shown = f"{value:g}" if isinstance(value, float) else value
        bounds = f"between {least:g} and {most:.10g}" if most < math.inf else f"{least:g} or more"
        raise UsageError(f"{name} {shown}: must be {bounds}")


def _hyphens(arguments: Sequence[str]) -> list[str]:
    """Return --learning_rate=0.1, as a tuning service writes it, as --learning-rate=0.1."""
    hyphened = []
    for argument in arguments:
        name, equals, value = argument.partition("=")
        name = name.replace("_", "-") if name.startswith("--") else name
        hyphened.append(f"{name}{equals}{value}")
    return hyphened


class _Parser(argparse.ArgumentParser):
    """Raises UsageError where argparse prints several lines and exits."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message} (--help-all lists the options)")


def whole_number(text: str) -> int:
    """Return 32 of "32", and of "32.0", as a tuning service writes it."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if abs(value) > LARGEST:
        raise argparse.ArgumentTypeError(f"{text!r} is too large")
    if value.is_integer():
        return int(value)
    raise argparse.ArgumentTypeError(f"{text!r} is not a whole number")


def switch(text: str) -> bool:
    try:
        return {"true": True, "1": True, "false": False, "0": False}[text.lower()]
    except KeyError:
        raise argparse.ArgumentTypeError(f"{text!r} is not one of true, false") from None


_KINDS: dict[Any, tuple[Callable[[str], Any], str]] = {
    int: (whole_number, "N"),
    float: (float, "X"),
    bool: (switch, "true|false"),
}
"""By the field's type: what makes its value from text, and what stands for it in --help."""
