"""The Docker engine: find it, build on it, look at its images, run containers.

`builder.engine.discovery.connect(settings)` returns the machine's own engine where one answers,
else the private one. It stands apart: most of the factory is handed an engine.
"""

from builder.engine.buildx import BuildRequest, BuiltImage
from builder.engine.docker import PLATFORM, DiskSpace, Engine, EngineImage

__all__ = ["PLATFORM", "BuildRequest", "BuiltImage", "DiskSpace", "Engine", "EngineImage"]
