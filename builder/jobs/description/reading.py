"""Reading jobs/<name>.yaml. All errors of a file are reported at once, each with its line."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator
from pathlib import Path

from pydantic import ValidationError

from builder.core import findings, yamlfile
from builder.core.errors import InputError
from builder.core.yamlfile import Mistake
from builder.jobs.description.model import Job
from builder.jobs.description.values import NAME_LENGTH, REGION

JOBS = "jobs"
SUFFIX = ".yaml"


def names(root: Path) -> tuple[str, ...]:
    """The names of all jobs of a project, sorted."""
    return tuple(sorted(path.stem for path in (root / JOBS).glob(f"*{SUFFIX}")))


def load(root: Path, name_or_path: str) -> Job:
    """One job: by its name (jobs/<name>.yaml of the project), or by the path of its file.

    Raises InputError: no such job, or every problem of its file.
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
    text = findings.read_text(path, shown(path))
    return parse(text, path)


def parse(text: str, source: Path) -> Job:
    """The text of one job's file. Raises InputError with every problem of the text."""
    where = shown(source)
    document = yamlfile.parse(text, where)
    problems = list(document.problems)
    job = None
    if isinstance(document.value, dict):
        try:
            job = Job.model_validate(document.value)
        except ValidationError as error:
            problems += findings.problems(document, error.errors(), Job)
    else:
        problems.append(Mistake(1, "", "is not a list of `key: value` lines", "image: v100"))
    if job is not None and job.name is None:
        problems += _name_problems(source.stem)
    if problems or job is None:
        raise findings.error(where, problems)
    job._name, job._source = source.stem, source
    return job


def where(job: Job, *field: str) -> str:
    """`jobs/cats.yaml:3: machine`: where a field is written, or would be; of one way to run a job,
    where that way is written."""
    return findings.place(job.source, shown(job.source), *(job.at or field))


def in_region(job: Job, region: str | None) -> Job:
    """The job with its region's name in job_dir. Raises InputError where there is no region."""
    if not job.job_dir or REGION not in job.job_dir:
        return job
    if not region:
        raise InputError(
            f"{where(job, 'job_dir')}: {job.job_dir!r} names the region, and there is none",
            "write a bucket's name without {region}, or add region:",
        )
    return job.model_copy(update={"job_dir": job.job_dir.replace(REGION, region)})


def shown(path: Path) -> str:
    """A job's file as a person names it: from jobs/ on."""
    return "/".join(path.parts[-2:]) if path.parent.name == JOBS else str(path)


def _name_problems(name: str) -> Iterator[Mistake]:
    if not re.fullmatch(rf"[a-z](?:[a-z0-9-]{{0,{NAME_LENGTH - 2}}}[a-z0-9])?", name):
        slug = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-0123456789")[:NAME_LENGTH] or "job"
        what = f"the file's name {name!r} is not a job's name: a-z, 0-9 and -, a letter first"
        yield Mistake(1, "", what, f"rename the file to {slug}{SUFFIX}, or add name: {slug}")
