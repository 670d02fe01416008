"""What a person may write: the table [slurm] of builder.toml, the section of a job's file."""

from __future__ import annotations

from pydantic import Field

from builder.core.filemodel import FileModel
from builder.jobs.description.values import Text, WrittenModel


class SlurmSettings(FileModel):
    """Where batch jobs go."""

    partition: str | None = None
    """None: the cluster's default."""
    account: str | None = None
    """None: the user's default."""
    folder: str = "build/slurm"
    """What the jobs print and write; all nodes have to see it. It counts from the project."""


class Section(WrittenModel):
    """What only a Slurm cluster has: its names of GPUs."""

    gpu: Text | None = Field(None, examples=["a100-sxm4"])
    """What the cluster calls the GPU (Gres of sinfo); by default the accelerator's short name."""
