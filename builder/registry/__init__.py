"""Container registries: names, credentials, what they hold, and the requests to them.

This face has what the rest of the factory uses most: `registry.parse(name)`,
`registry.Registry(host)`.
"""

from builder.registry.authorization import Credentials, credentials_for
from builder.registry.client import Registry, fallback_tag
from builder.registry.manifests import (
    DOCKER_MANIFEST,
    EMPTY,
    OCI_MANIFEST,
    Descriptor,
    Manifest,
    artifact,
    digest_of,
    index,
    manifest,
)
from builder.registry.names import (
    DOCKER_HUB,
    Reference,
    is_loopback,
    login_command,
    parse,
)
from builder.registry.refusals import refused

__all__ = [
    "DOCKER_HUB",
    "DOCKER_MANIFEST",
    "EMPTY",
    "OCI_MANIFEST",
    "Credentials",
    "Descriptor",
    "Manifest",
    "Reference",
    "Registry",
    "artifact",
    "credentials_for",
    "digest_of",
    "fallback_tag",
    "index",
    "is_loopback",
    "login_command",
    "manifest",
    "parse",
    "refused",
]
