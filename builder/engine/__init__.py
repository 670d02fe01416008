"""The Docker engine, as the rest of the factory sees it: connect, build, look at images.

`connect(settings)` gives the machine's own engine where one answers, and the private one otherwise.
"""

from builder.engine.docker import (
    BuildFailed,
    BuildRequest,
    BuiltImage,
    Disk,
    Engine,
    EngineImage,
    connect,
    refusals,
)
from builder.engine.progress import Step

__all__ = [
    "BuildFailed",
    "BuildRequest",
    "BuiltImage",
    "Disk",
    "Engine",
    "EngineImage",
    "Step",
    "connect",
    "refusals",
]
