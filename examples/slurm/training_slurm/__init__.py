"""A Slurm cluster as a backend for jobs: each is one batch job of containers."""

from builder.core.backends import BackendKind, Flag
from builder.core.plugins import later

BACKEND = BackendKind(
    name="slurm",
    title="Slurm",
    open=later("training_slurm.backend:connect"),
    flags=tuple(Flag(each, f"the {each}.", sends=True) for each in ("partition", "account")),
    settings=later("training_slurm.options:SlurmSettings"),
    section=later("training_slurm.options:Section"),
    examine=later("training_slurm.backend:findings"),
    text=lambda values: str(values["script"]),
)
