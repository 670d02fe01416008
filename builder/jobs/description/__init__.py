"""The description of a training job: jobs/<name>.yaml as a checked, frozen Job.

job.py and the modules beside it hold the fields, values.py the kinds of values. All errors of a
file are reported at once, each with its line.
"""

from __future__ import annotations

import difflib
import json
import re
from pathlib import Path

from pydantic import ValidationError

from builder.core import filemodel, yamlfile
from builder.core.errors import InputError
from builder.core.yamlfile import Mistake
from builder.jobs.description.job import Job, described
from builder.jobs.description.values import NAME_LENGTH

JOBS = "jobs"
SUFFIX = ".yaml"
SCHEMA = "schema.json"


def names(root: Path) -> tuple[str, ...]:
    return tuple(sorted(path.stem for path in (root / JOBS).glob(f"*{SUFFIX}")))


def load(root: Path, name_or_path: str) -> Job:
    """Return a job by its name (jobs/<name>.yaml of the project), or by the path of its file.

    Raises InputError where there is none, and with every problem of its file.
    """
    written = name_or_path.endswith((SUFFIX, ".yml")) or "/" in name_or_path
    path = Path(name_or_path) if written else root / JOBS / f"{name_or_path}{SUFFIX}"
    if written and not path.is_absolute() and not path.exists() and (root / path).exists():
        path = root / path
    if not path.is_file():
        known = names(root)
        near = difflib.get_close_matches(path.stem.lower(), known, n=1, cutoff=0.5)
        has = f"known: {', '.join(known)}" if known else f"create {JOBS}/{path.stem}{SUFFIX}"
        raise InputError(
            f"no job is called {name_or_path!r}: there is no {shown(path)}",
            f"write {near[0]}; {has}" if near else has,
        )
    text = filemodel.read_text(path, shown(path))
    return parse(text, path)


def parse(text: str, source: Path) -> Job:
    """Return the job of a file's text. Raises InputError with every problem of the text."""
    where = shown(source)
    document = yamlfile.parse(text, where)
    problems = list(document.problems)
    job = None
    if isinstance(document.value, dict):
        try:
            job = described().model_validate(document.value)
        except ValidationError as error:
            problems += filemodel.mistakes(document, error.errors(), described())
    else:
        problems.append(Mistake(1, "", "is not a list of `key: value` lines", "image: v100"))
    if problems or job is None:
        raise filemodel.error(where, problems)
    job._name, job._source, job._document = name_from(source.stem), source, document
    return job


def mistake(job: Job, error: InputError, *field: str) -> Mistake:
    """Return a refusal as a mistake at the line where a field is written, or would be."""
    return Mistake(job._document.line(*field), ".".join(field), error.message, error.fix)


def shown(path: Path) -> str:
    return "/".join(path.parts[-2:]) if path.parent.name == JOBS else str(path)


def schema_text() -> str:
    schema = described().model_json_schema(mode="validation")
    schema["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    return json.dumps(schema, indent=2, ensure_ascii=False) + "\n"


def name_from(text: str) -> str:
    """Return a text as a job's name: a-z, 0-9 and -, a letter first and no dash last."""
    words = re.sub(r"[^a-z0-9]+", "-", text.lower()).lstrip("-0123456789")
    return words[:NAME_LENGTH].rstrip("-") or "job"
