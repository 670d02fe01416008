"""Pydantic models of the files that a person writes, and their mistakes in the words of the file.

Pydantic reports models and types; a person needs lines and keys. Each message names the file, the
line and the field, and what to write instead, with the example of the field's model.
"""

from __future__ import annotations

import difflib
import re
import types
import typing
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin

from pydantic import AfterValidator, BaseModel, ConfigDict
from pydantic_core import ErrorDetails, PydanticCustomError

from builder.core import yamlfile
from builder.core.display import Lines
from builder.core.errors import InputError
from builder.core.yamlfile import Document, Mistake

_EXPECTED = {
    "string_type": "one text",
    "tuple_type": "a list",
    "list_type": "a list",
    "dict_type": "{mapping}",
    "model_type": "{mapping}",
    "model_attributes_type": "{mapping}",
    "bool_parsing": "true or false",
    "int_type": "a whole number",
    "int_parsing_size": "a whole number of at most 18 digits",
    "int_parsing": "a whole number",
    "int_from_float": "a whole number",
    "too_short": "at least one entry",
    "too_long": "at most {max_length} entries",
    "greater_than_equal": "at least {ge}",
    "less_than_equal": "at most {le}",
    "greater_than": "more than {gt}",
}
"""What the kinds of pydantic's errors say of a field."""


class FileModel(BaseModel):
    """A part of a file that a person writes: frozen, and an unknown key is a mistake."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)

    @classmethod
    def file_keys(cls) -> tuple[str, ...]:
        return tuple(field.alias or name for name, field in cls.model_fields.items())

    @classmethod
    def field_of(cls, key: str) -> str:
        return key


def invalid(what: str, fix: str) -> PydanticCustomError:
    """Return an error of a validator, with its fix, for pydantic to collect."""
    return PydanticCustomError("refused", "{what}", {"what": what, "fix": fix})


def matches(pattern: str, what: str, fix: str) -> AfterValidator:
    """Return a validator: the whole text has to match `pattern`, else it "is not `what`"."""

    def check(value: str) -> str:
        if not re.fullmatch(pattern, value):  # compiled at its first use: most fields are left out
            raise invalid(f"{shown(value)} is not {what}", fix)
        return value

    return AfterValidator(check)


def read_text(path: Path, where: str) -> str:
    """Return the text of a file, which errors call `where`. Raises InputError."""
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise InputError(
            f"{where}: not UTF-8 (byte {error.start})", "save the file as UTF-8"
        ) from None
    except OSError as error:
        raise InputError(f"{where}: {error.strerror}", "make it a file that can be read") from None


def location(path: Path, where: str, *field: str | int) -> str:
    """Return where a field of a YAML file is written, or would be:
    `images/v100/image.yaml:3: tensorflow`."""
    name = ".".join(str(step) for step in field)
    try:
        document = yamlfile.parse(path.read_text(encoding="utf-8"), where)
    except (OSError, InputError):
        return f"{where}: {name}"
    return f"{where}:{document.line(*field)}: {name}"


def error(where: str, mistakes: Sequence[Mistake]) -> InputError:
    """Return all mistakes of a file as one error, in the order of its lines."""
    mistakes = sorted(mistakes, key=lambda mistake: mistake.line)
    lines = [f"{where}:{mistake.line}: {mistake}" for mistake in mistakes]
    if len(mistakes) == 1:
        return InputError(lines[0], mistakes[0].fix)
    fixes = [f"{line} -> {mistake.fix}" for line, mistake in zip(lines, mistakes, strict=True)]
    return InputError(Lines.of(fixes), f"mend these {len(fixes)} lines, then try again")


def mistakes(
    document: Document, details: Sequence[ErrorDetails], model: type[BaseModel]
) -> list[Mistake]:
    """Return pydantic's errors in the words of the file.

    A key that is missing because it is misspelt is one mistake, not two.
    """
    result: list[Mistake] = []
    for detail in sorted(details, key=lambda detail: detail["type"] == "missing"):
        path, owner, example = _walk(detail["loc"], model)
        field = ".".join(str(step) for step in path)
        what, fix = _words(document, path, detail, owner, example)
        known = [mistake for mistake in result if mistake.field == field]
        if any(mistake.what == what for mistake in known):
            continue
        if detail["type"] == "literal_error" and known:
            continue  # the other half of `accelerators: 2 x V100 | none`
        if detail["type"] == "missing" and any(
            mistake.fix == f"did you mean {path[-1]}?" for mistake in result
        ):
            continue
        result.append(Mistake(document.line(*path), field, what, fix))
    return result


# --- where a field is -----------------------------------------------------------------------------


def _walk(
    loc: tuple[int | str, ...], outermost: type[BaseModel]
) -> tuple[tuple[str | int, ...], Any, str]:
    """Return where pydantic's `loc` is: its path in the file, which lacks the names of types; the
    model that has its last key; and an example of this key's value."""
    path: list[str | int] = []
    model: Any = outermost
    owner, example = model, None
    for step in loc:
        if isinstance(step, str) and (re.search(r"[\[(]", step) or step in _model_names(outermost)):
            continue
        path.append(step)
        owner, field = model, model.model_fields.get(model.field_of(str(step)))
        if field is not None:
            example = field.examples[0] if field.examples else None
            model = _model_of(field.annotation) or model
        elif isinstance(example, dict):  # a name that the user chose: study.parameters.<name>
            example = next(iter(example.values()))
        elif isinstance(example, list) and example:
            example = example[0]
    return tuple(path), owner, "" if example is None else to_yaml(example)


def _model_names(outermost: type[BaseModel]) -> set[str]:
    """Return the names of the models below `root`, which pydantic puts into the paths of unions."""
    models = [_model_of(field.annotation) for field in outermost.model_fields.values()]
    below = [model for model in models if model is not None]
    return {model.__name__ for model in below}.union(*map(_model_names, below))


def _model_of(annotation: Any) -> Any:
    if isinstance(annotation, type) and issubclass(annotation, FileModel):
        return annotation
    if get_origin(annotation) in (Annotated, typing.Union, types.UnionType, dict, tuple):
        models = (_model_of(argument) for argument in get_args(annotation))
        return next((model for model in models if model is not None), None)
    return None


# --- what is wrong with it ------------------------------------------------------------------------


def _words(
    document: Document, path: tuple[str | int, ...], detail: ErrorDetails, model: Any, example: str
) -> tuple[str, str]:
    kind, value, context = detail["type"], detail["input"], detail.get("ctx", {})
    last = str(path[-1]) if path else ""
    if kind == "refused":
        return str(context["what"]), str(context["fix"])
    if kind == "extra_forbidden":
        keys = model.file_keys()
        near = difflib.get_close_matches(last.lower(), keys, n=1)
        fix = f"did you mean {near[0]}?" if near else f"known keys: {', '.join(keys)}"
        return "unknown key", fix
    written = document.written(last, example)
    if path and isinstance(path[-1], int):
        written = f"- {example}"
    if kind == "missing":
        return "is missing", f"add {written}"
    if value is None:
        rest = "remove the line" if written.startswith("- ") else "leave the key out"
        return "is empty", f"write {written}, or {rest}"
    if kind == "literal_error":
        options = re.findall(r"'([^']*)'", str(context["expected"]))
        near = difflib.get_close_matches(str(value), options, n=1)
        fix = f"write {near[0]}" if near else f"write {' | '.join(options)}"
        return f"{shown(value)} is not one of {', '.join(options)}", fix
    expected = _EXPECTED.get(kind, detail["msg"]).format(mapping=document.mapping, **context)
    return f"expected {expected}, found {shown(value)}", f"write {written}"


def shown(value: object) -> str:
    """Return a value as an error names it, cut where it is long."""
    if isinstance(value, dict):
        return "`name: value` lines"
    text = "a list" if isinstance(value, list) else repr(value)
    return text if len(text) < 80 else f"{text[:60]}... ({len(text)} characters)"


def to_yaml(value: object) -> str:
    """Return an example value as a person would write it, on one line."""
    if isinstance(value, list):
        return "[" + ", ".join(to_yaml(item) for item in value) + "]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {to_yaml(item)}" for key, item in value.items()) + "}"
    return str(value).lower() if isinstance(value, bool) else str(value)
