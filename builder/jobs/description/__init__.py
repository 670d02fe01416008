"""The description of a training job: jobs/<name>.yaml as a checked, frozen Job.

model.py holds the fields, values.py and study.py the kinds of values, reading.py the way from a
file to a Job, schema.py the JSON Schema for editors.
"""

from builder.jobs.description.alternatives import Accelerators, Alternative, Cheapest
from builder.jobs.description.model import BootDisk, Job, Scheduling
from builder.jobs.description.reading import (
    JOBS,
    SUFFIX,
    in_region,
    load,
    names,
    parse,
    shown,
    where,
)
from builder.jobs.description.schema import SCHEMA, schema, schema_text
from builder.jobs.description.study import Parameter, Study
from builder.jobs.description.values import DEFAULT_PATIENCE, DEFAULT_TIMEOUT, length, seconds

__all__ = [
    "DEFAULT_PATIENCE",
    "DEFAULT_TIMEOUT",
    "JOBS",
    "SCHEMA",
    "SUFFIX",
    "Accelerators",
    "Alternative",
    "BootDisk",
    "Cheapest",
    "Job",
    "Parameter",
    "Scheduling",
    "Study",
    "in_region",
    "length",
    "load",
    "names",
    "parse",
    "schema",
    "schema_text",
    "seconds",
    "shown",
    "where",
]
