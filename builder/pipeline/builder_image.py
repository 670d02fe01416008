"""The image that the steps of cloudbuild.yaml run in, built on this machine's engine.

In the cloud, the first step builds it with docker's own client. On this machine, the image of that
step and Docker Hub may be out of reach. So the root is made from locked packages, as that of a
base is (images/os-<suite>.lock). The host's certificates, proxies, indexes and mirrors reach the
build as secrets. Its layers are packed with gzip, because a worker of Cloud Build pulls no others.
"""

from __future__ import annotations

from pathlib import Path

from builder.bases import loading, osroot, store
from builder.bases.assembled import assemble
from builder.bases.layer import Compression
from builder.bases.osroot import Root
from builder.core import debian, files
from builder.core.errors import InputError
from builder.core.events import OnEvent, ignore
from builder.core.network import discover
from builder.core.settings import Settings
from builder.engine import BuildRequest, BuiltImage, Engine
from builder.lock import making
from builder.pipeline.choosing import LazyApt
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


def root_image(
    root: Path, settings: Settings, engine: Engine, on_event: OnEvent = ignore
) -> tuple[str, str]:
    """What the builder image starts from, on the engine: its name, and its suite of Debian.

    Raises OutsideError.
    """
    archives = debian.archives(settings, discover())
    locked = making.os_root(root, cloud.BUILDER_SUITE, LazyApt(root, settings, on_event))
    kept = store.of_this_machine()
    packed = Compression.of("gzip")
    layer = osroot.make(
        Root(locked.suite, locked.packages), engine, archives, kept, packed, on_event
    )
    start = f"{osroot.REPOSITORY}:{locked.suite}-{layer.key[:12]}"
    image = assemble([(layer, locked.origin)], {"Cmd": ["bash"]})
    loading.load(engine, image, kept.path, start, on_event)
    return start, locked.suite


def build(root: Path, settings: Settings, engine: Engine, on_event: OnEvent = ignore) -> BuiltImage:
    """The builder image, built if the engine does not have it. Raises OutsideError."""
    name = reference(root, settings)
    if found := engine.image(name):
        return BuiltImage(
            name, found.digest, found.image_id, found.compressed_bytes, found.unpacked_bytes
        )
    start, suite = root_image(root, settings, engine, on_event)
    host = discover()
    archives = debian.archives(settings, host)
    dockerfile = root / "build" / "cloud" / cloud.BUILDER_DOCKERFILE
    files.write(dockerfile, cloud.cloud_files(root)[cloud.BUILDER_DOCKERFILE])
    return engine.build(
        BuildRequest(
            dockerfile=dockerfile,
            context=root / Path(cloud.BUILDER_REQUIREMENTS).parent,
            tags=(name,),
            build_args={"ROOT": start},
            secrets=host.secrets("".join(debian.sources(archives, suite, host))),
            compression="gzip",
        ),
        on_event,
    )
