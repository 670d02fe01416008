"""The image that the steps of cloudbuild.yaml run in, built on this machine's engine.

In the cloud, the first step builds it with docker's own client. On this machine, the image of that
step and Docker Hub may be out of reach. So the root is made from Debian's packages. The host's
certificates, proxies and indexes reach the build as secrets, as in every other build.
"""

from __future__ import annotations

from pathlib import Path

from builder.core import files
from builder.core.errors import InputError
from builder.core.events import OnEvent, ignore
from builder.core.network import discover
from builder.core.settings import Settings
from builder.engine import BuildRequest, BuiltImage, Engine
from builder.lock import osroot
from builder.lock.debian import build_sources
from builder.render import cloud


def reference(root: Path, settings: Settings) -> str:
    """The name of the project's builder image, as its files are now.

    Raises InputError for a project that is no checkout of the factory.
    """
    if not cloud.has_cloud(root):
        raise InputError(
            f"{root} has no {cloud.BUILDER_REQUIREMENTS}: its builds do not run from its source",
            "run this in a checkout of the factory",
        )
    text = cloud.cloud_files(root)[cloud.BUILDER_DOCKERFILE]
    return f"{settings.repository}:{cloud.builder_tag(root, text)}"


def build(root: Path, settings: Settings, engine: Engine, on_event: OnEvent = ignore) -> BuiltImage:
    """The builder image, built if the engine does not have it. Raises OutsideError."""
    name = reference(root, settings)
    if found := engine.image(name):
        return BuiltImage(
            name, found.digest, found.image_id, found.compressed_bytes, found.unpacked_bytes
        )
    suite = cloud.BUILDER_SUITE
    made = osroot.make(suite, osroot.resolve(suite, on_event), on_event)
    loaded = osroot.load("docker", made, engine.environment)
    dockerfile = root / "build" / "cloud" / cloud.BUILDER_DOCKERFILE
    files.write(dockerfile, cloud.cloud_files(root)[cloud.BUILDER_DOCKERFILE])
    network = discover()
    return engine.build(
        BuildRequest(
            dockerfile=dockerfile,
            context=root / Path(cloud.BUILDER_REQUIREMENTS).parent,
            tags=(name,),
            build_args={"ROOT": loaded},
            secrets=network.secrets(build_sources(network, suite)),
        ),
        on_event,
    )
