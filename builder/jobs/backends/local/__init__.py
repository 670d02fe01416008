"""This machine as a backend: a job runs as containers, in the environment of Vertex AI."""

from builder.core.backends import BackendKind
from builder.core.plugins import later

_HERE = "builder.jobs.backends.local"

BACKEND = BackendKind(
    name="local",
    title="this machine",
    open=later(f"{_HERE}.backend:connect"),
    prepare=later(f"{_HERE}.prepare:start"),
    ran_at=later(f"{_HERE}.backend:ran_at"),
    poll=1.0,
)
