"""Vertex AI as a backend: a job becomes a CustomJob or a HyperparameterTuningJob.

messages.py renders a job, status.py reads what became of it, backend.py is the protocol;
settings.py and section.py say what a person may write, doctor.py what a job needs.
"""

from builder.core.backends import BackendKind, Flag
from builder.core.plugins import later

_HERE = "builder.jobs.backends.vertex"

BACKEND = BackendKind(
    name="vertex",
    title="Vertex AI",
    open=later(f"{_HERE}.backend:connect"),
    flags=(Flag("project", "the project."), Flag("region", "such as us-central1.")),
    settings=later(f"{_HERE}.settings:JobSettings"),
    own_table="job",
    section=later(f"{_HERE}.section:VertexSection"),
    examine=later(f"{_HERE}.doctor:findings"),
)
