"""The names of an engine's images."""

from __future__ import annotations

from typing import Any

from builder.engine import Engine


def tags(engine: Engine) -> list[str]:
    """Of all images. Docker's `images.list` looks at each, and fails if another test removes one
    meanwhile."""
    listed: Any = engine.client.api.images()
    return [tag for image in listed for tag in image["RepoTags"] or ()]
