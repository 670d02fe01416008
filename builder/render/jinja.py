"""Filling a template with values: a project's own template, else the factory's."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from builder.core.errors import InputError
from builder.core.templates import PACKAGED, TEMPLATES

if TYPE_CHECKING:
    import jinja2


def fill(name: str, templates: Path | None, **values: object) -> str:
    """The text of `name`, from its template `name`.j2.

    templates: the folder of the project's own templates. Raises InputError with the template's line
    where it cannot be rendered.
    """
    import jinja2

    try:
        return _environment(templates).get_template(f"{name}.j2").render(values)
    except jinja2.TemplateError as error:
        where = getattr(error, "filename", None) or f"{TEMPLATES}/{name}.j2"
        line = getattr(error, "lineno", None)
        place = f"{TEMPLATES}/{Path(where).name}" + (f":{line}" if line else "")
        raise InputError(
            f"{place}: {error.message or type(error).__name__}", "mend the template"
        ) from None


@cache
def _environment(templates: Path | None) -> jinja2.Environment:
    import jinja2

    return jinja2.Environment(
        loader=jinja2.FileSystemLoader([path for path in (templates, PACKAGED) if path]),
        undefined=jinja2.StrictUndefined,
        autoescape=False,  # Dockerfiles, no HTML; every value was checked by the catalogue
        keep_trailing_newline=True,
    )
