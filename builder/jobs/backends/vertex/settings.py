"""The table [job] of builder.toml."""

from __future__ import annotations

from builder.core.filemodel import FileModel
from builder.core.settings import Endpoint, ProjectId, Region


class JobSettings(FileModel):
    """Where jobs go on Vertex AI."""

    project: ProjectId | None = None
    region: Region | None = None
    endpoint: Endpoint | None = None
    """None: Google's own, as below."""
    logging_endpoint: Endpoint | None = None
