"""Container registries: names, credentials, what they hold, and the requests to them.

This face has what the rest of the factory uses most: `registry.parse(name)`,
`registry.Registry(host)`.
"""

from builder.registry.client import Registry
from builder.registry.manifests import EMPTY, Descriptor, Manifest, artifact, manifest
from builder.registry.names import DOCKER_HUB, Reference, is_loopback, parse
from builder.registry.refusals import refusal

__all__ = [
    "DOCKER_HUB",
    "EMPTY",
    "Descriptor",
    "Manifest",
    "Reference",
    "Registry",
    "artifact",
    "is_loopback",
    "manifest",
    "parse",
    "refusal",
]
