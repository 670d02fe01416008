"""Mistakes in a file that a person wrote, in the words of that file.

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
from builder.core.errors import InputError
from builder.core.yamlfile import Document, Mistake


class FileModel(BaseModel):
    """A part of a file that a person writes: frozen, and an unknown key is a mistake."""

    model_config = ConfigDict(frozen=True, extra="forbid")


def refuse(what: str, fix: str) -> PydanticCustomError:
    """An error of a validator, with its fix, for pydantic to collect."""
    return PydanticCustomError("refused", "{what}", {"what": what, "fix": fix})


def matches(pattern: str, what: str, fix: str) -> AfterValidator:
    """A validator: the whole text has to match `pattern`, else it "is not `what`"."""
    shape = re.compile(pattern)

    def check(value: str) -> str:
        if not shape.fullmatch(value):
            raise refuse(f"{value!r} is not {what}", fix)
        return value

    return AfterValidator(check)


def read_text(path: Path, where: str) -> str:
    """The text of a file, which errors call `where`. Raises InputError."""
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise InputError(
            f"{where}: not UTF-8 (byte {error.start})", "save the file as UTF-8"
        ) from None
    except OSError as error:
        raise InputError(f"{where}: {error.strerror}", "make it a file that can be read") from None


def place(path: Path, where: str, *field: str | int) -> str:
    """`images/v100/image.yaml:3: tensorflow`: where a field is written, or would be."""
    name = ".".join(str(step) for step in field)
    try:
        document = yamlfile.parse(path.read_text(encoding="utf-8"), where)
    except (OSError, InputError):
        return f"{where}: {name}"
    return f"{where}:{document.line(*field)}: {name}"


def error(where: str, problems: Sequence[Mistake]) -> InputError:
    """All mistakes of a file as one error, in the order of its lines."""
    problems = sorted(problems, key=lambda problem: problem.line)
    lines = [
        f"{where}:{one.line}: {one.field + ': ' if one.field else ''}{one.what}" for one in problems
    ]
    if len(problems) == 1:
        return InputError(lines[0], problems[0].fix)
    told = [f"{line} -> {one.fix}" for line, one in zip(lines, problems, strict=True)]
    return InputError("\n".join(told), f"mend these {len(told)} lines, then try again")


def problems(
    document: Document, details: Sequence[ErrorDetails], model: type[BaseModel]
) -> list[Mistake]:
    """Pydantic's errors in the words of the file.

    A key that is missing because it is misspelt is one mistake, not two.
    """
    found: list[Mistake] = []
    meant = set()
    for detail in sorted(details, key=lambda one: one["type"] == "missing"):
        path = _path(detail["loc"], model)
        field = ".".join(str(step) for step in path)
        what, fix = _words(path, detail, model)
        same = any(one.field == field and one.what == what for one in found)
        if same or (detail["type"] == "missing" and f"did you mean {path[-1]}?" in meant):
            continue
        if detail["type"] == "literal_error" and any(one.field == field for one in found):
            continue  # the other half of `accelerators: 2 x V100 | none`
        meant.add(fix)
        found.append(Mistake(document.line(*path), field, what, fix))
    return found


def _path(loc: tuple[int | str, ...], root: type[BaseModel]) -> tuple[str | int, ...]:
    """The path in the file: pydantic's path without the names of its types."""
    result: list[str | int] = []
    model: Any = root
    for step in loc:
        if step == "[key]" or (isinstance(step, str) and re.search(r"[\[(]", step)):
            continue
        if isinstance(step, str) and _is_model(model) and step in _model_names(root):
            continue
        result.append(step)
        model = _inside(model, step)
    return tuple(result)


def _is_model(value: Any) -> bool:
    return isinstance(value, type) and issubclass(value, BaseModel)


def _model_names(root: type[BaseModel]) -> set[str]:
    """Names of the models below `root`. Pydantic puts the names of a union's members into paths."""
    below = [_model_of(field.annotation) for field in root.model_fields.values()]
    models = [one for one in below if one is not None]
    return {one.__name__ for one in models}.union(*map(_model_names, models))


def _inside(model: Any, step: str | int) -> Any:
    """The type that the key `step` of `model` leads to: a model where there is one, else None."""
    if _is_model(model) and str(step) in model.model_fields:
        return _model_of(model.model_fields[str(step)].annotation)
    return model if isinstance(model, type) and not _is_model(model) else None


def _model_of(annotation: Any) -> Any:
    if _is_model(annotation):
        return annotation
    if get_origin(annotation) in (Annotated, typing.Union, types.UnionType, dict, tuple):
        for one in get_args(annotation):
            if (found := _model_of(one)) is not None:
                return found
    return None


def _place(path: tuple[str | int, ...], root: type[BaseModel]) -> tuple[Any, str]:
    """The model that holds the last key of `path`, and an example of that key's value."""
    model: Any = root
    example: object = ""
    for index, step in enumerate(path):
        field = model.model_fields.get(str(step)) if _is_model(model) else None
        if field is None:  # a name that the user chose: study.parameters.<name>
            if isinstance(example, dict):
                example = next(iter(example.values()))
            continue
        example = field.examples[0] if field.examples else ""
        deeper = _model_of(field.annotation)
        if index < len(path) - 1 and deeper is not None:
            model = deeper
    return model, to_yaml(example)


def _words(
    path: tuple[str | int, ...], detail: ErrorDetails, root: type[BaseModel]
) -> tuple[str, str]:
    kind, found = detail["type"], detail["input"]
    context = detail.get("ctx", {})
    model, example = _place(path, root)
    last = str(path[-1]) if path else ""
    entry = path and isinstance(path[-1], int)
    written = f"- {example.removeprefix('[').removesuffix(']')}" if entry else f"{last}: {example}"
    if kind == "refused":
        return str(context["what"]), str(context["fix"])
    if kind == "extra_forbidden":
        near = difflib.get_close_matches(last.lower(), model.model_fields, n=1)
        known = ", ".join(model.model_fields)
        return "unknown key", f"did you mean {near[0]}?" if near else f"known keys: {known}"
    if kind == "missing":
        return "is missing", f"add {last}: {example}"
    if found is None:
        return "is empty", f"write {last}: {example}, or leave the key out"
    if kind == "literal_error":
        options = re.findall(r"'([^']*)'", str(context["expected"]))
        near = difflib.get_close_matches(str(found), options, n=1)
        fix = f"write {near[0]}" if near else f"write {' | '.join(options)}"
        return f"{_found(found)} is not one of {', '.join(options)}", fix
    wanted = {
        "string_type": "one text",
        "tuple_type": "a list",
        "list_type": "a list",
        "dict_type": "`name: value` lines",
        "model_type": "`name: value` lines",
        "model_attributes_type": "`name: value` lines",
        "bool_parsing": "true or false",
        "int_type": "a whole number",
        "int_parsing_size": "a whole number of at most 18 digits",
        "int_parsing": "a whole number",
        "int_from_float": "a whole number",
        "too_short": "at least one entry",
        "too_long": f"at most {context.get('max_length')} entries",
        "greater_than_equal": f"at least {context.get('ge')}",
        "less_than_equal": f"at most {context.get('le')}",
        "greater_than": f"more than {context.get('gt')}",
    }.get(kind, detail["msg"])
    return f"expected {wanted}, found {_found(found)}", f"write {written}"


def _found(value: object) -> str:
    if isinstance(value, dict):
        return "`name: value` lines"
    found = "a list" if isinstance(value, list) else repr(value)
    return found if len(found) < 80 else f"{found[:60]}... ({len(found)} characters)"


def to_yaml(value: object) -> str:
    """An example value as a person would write it, on one line."""
    if isinstance(value, list):
        return "[" + ", ".join(to_yaml(one) for one in value) + "]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {to_yaml(one)}" for key, one in value.items()) + "}"
    return str(value).lower() if isinstance(value, bool) else str(value)
