"""The description of a training job: jobs/<name>.yaml as a checked, frozen Job.

job.py, study.py and vertex.py hold the fields, values.py the kinds of values, reading.py the way
from a file to a Job.
"""

from builder.jobs.description.job import ROLE_FIELDS, Job, Scheduling
from builder.jobs.description.reading import (
    JOBS,
    SCHEMA,
    SUFFIX,
    load,
    name_from,
    names,
    parse,
    schema_text,
    shown,
    where,
)
from builder.jobs.description.study import Parameter, Study
from builder.jobs.description.values import DEFAULT_TIMEOUT, Accelerators, length, seconds

__all__ = [
    "DEFAULT_TIMEOUT",
    "JOBS",
    "ROLE_FIELDS",
    "SCHEMA",
    "SUFFIX",
    "Accelerators",
    "Job",
    "Parameter",
    "Scheduling",
    "Study",
    "length",
    "load",
    "name_from",
    "names",
    "parse",
    "schema_text",
    "seconds",
    "shown",
    "where",
]
