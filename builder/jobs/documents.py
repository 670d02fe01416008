"""The one job of a file that `convert` reads, of several documents or the items of a List."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from builder.core import yamlfile
from builder.core.errors import InputError
from builder.core.yamlfile import Document
from builder.jobs.elsewhere import is_job


@dataclass(frozen=True)
class _Part:
    """A document of a file, or an item of a cluster's List."""

    line: int
    document: Document
    inside: tuple[str | int, ...]
    """The path to it in its document."""
    kind: str
    name: str


def _parts(text: str, where: str) -> Iterator[_Part]:
    begins = 0
    for each in re.split(r"^(?=---)", text, flags=re.MULTILINE):
        if re.search(r"^\s*[^\s#]", each.removeprefix("---"), re.MULTILINE):
            document = yamlfile.parse("\n" * begins + each, where)  # on its lines of the file
            value: Any = document.value if isinstance(document.value, dict) else {}
            items = value.get("items") if str(value.get("kind")).endswith("List") else None
            listed = items if isinstance(items, list) and items else None
            for index, item in enumerate(listed or [value]):
                inside = ("items", index) if listed else ()
                line = document.line(*inside) if listed else begins + 1
                named = item if isinstance(item, dict) else {}
                kind = str(named.get("kind", "Job" if is_job(named) else "no job"))
                called = named.get("metadata", named)
                name = str(called.get("name", "")) if isinstance(called, dict) else ""
                yield _Part(line, document, inside, kind, name)
        begins += each.count("\n")


def one_job(
    text: str, where: str, name: str | None
) -> tuple[Document, tuple[str | int, ...], dict[int, str]]:
    """Return the document with the one job of a file, the path to it there, and what else there is,
    by the first lines. name: that of the job, of several. Raises InputError for no job of the name,
    and for several jobs."""
    parts = [*_parts(text, where)]
    if len(parts) < 2 and not name:
        return (parts[0].document, parts[0].inside, {}) if parts else (Document({}), (), {})
    jobs = [each for each in parts if each.kind.endswith(("Job", "JobSet"))]
    jobs = jobs or [each for each in parts if each.kind == "Pod"]
    wanted = [each for each in jobs if name in (None, each.name)]
    if len(wanted) != 1:
        every = ", ".join(f"{each.name or each.kind} in line {each.line}" for each in jobs)
        what = f"{len(wanted) or 'no'} jobs" + (f" called {name}" if name else "")
        by_name = len({each.name for each in jobs} - {""}) == len(jobs) > 0
        fix = "give --job with the name of one" if by_name else "write each into a file of its own"
        raise InputError(f"{where}: {what}{every and f': {every}'}", fix)
    others = {each.line: each.kind for each in parts if each is not wanted[0]}
    return wanted[0].document, wanted[0].inside, others
