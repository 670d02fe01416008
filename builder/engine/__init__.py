"""The Docker engine: find it, build on it, look at its images, run containers.

`connect(settings)` gives the machine's own engine where one answers, and the private one otherwise.
"""

from builder.engine.buildx import BuildFailed, BuildRequest, BuiltImage
from builder.engine.discovery import NoEngine, connect
from builder.engine.docker import DiskSpace, Engine, EngineImage, refusals
from builder.engine.progress import BuildStep

__all__ = [
    "BuildFailed",
    "BuildRequest",
    "BuildStep",
    "BuiltImage",
    "DiskSpace",
    "Engine",
    "EngineImage",
    "NoEngine",
    "connect",
    "refusals",
]
