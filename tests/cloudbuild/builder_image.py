"""The image that the steps of cloudbuild.yaml run in, built on this machine's engine.

In the cloud, the first step builds it with docker's own client. On this machine, the image of that
step and Docker Hub may be out of reach. So the root is made from locked packages, as that of a
base is (images/os-<suite>.lock). The host's certificates, proxies, indexes and mirrors reach the
build as secrets. Its layers are packed with gzip, because a worker of Cloud Build pulls no others.
"""

from __future__ import annotations

import subprocess
import tempfile
from pathlib import Path

from builder.config import debian, locking
from builder.core import files, system
from builder.core.errors import InputError
from builder.core.events import OnEvent, ignore
from builder.core.settings import Settings
from builder.engine import BuildRequest, Engine, buildx
from builder.image import cloudbuild, content_store, loading, rootfs
from builder.image.apt import ContainerApt
from builder.image.layer import Compression, assemble
from builder.image.plan import Rootfs

GZIP = "--output=type=image,compression=gzip,force-compression=true,store=true,unpack=true"


def reference(root: Path, settings: Settings) -> str:
    """Return the name of the project's builder image, as its files are now.

    Raises InputError for a project that is no checkout of the factory.
    """
    if not cloudbuild.has_cloud(root):
        raise InputError(
            f"{root} has no {cloudbuild.BUILDER_REQUIREMENTS}: its builds do not run from its"
            " source",
            "run this in a checkout of the factory",
        )
    text = cloudbuild.cloud_files(root)[cloudbuild.BUILDER_DOCKERFILE]
    return f"{settings.repository}:{cloudbuild.builder_tag(root, text)}"


def root_image(
    root: Path, settings: Settings, engine: Engine, on_event: OnEvent = ignore
) -> tuple[str, str]:
    """Return what the builder image starts from, on the engine: its name, and its Debian suite.

    Raises OutsideError.
    """
    apt = ContainerApt(root, settings, on_event)
    locked = locking.rootfs(root, cloudbuild.BUILDER_SUITE, apt)
    store, compression = content_store.of_this_machine(), Compression.of("gzip")
    packages = Rootfs(locked.suite, locked.packages)
    archives = debian.archives(settings)
    layer = rootfs.make(packages, engine, archives, store, compression, on_event)
    name = f"{rootfs.REPOSITORY}:{locked.suite}-{layer.key[:12]}"
    image = assemble([(layer, locked.origin)], {"Cmd": ["bash"]})
    loading.load(engine, image, store, name, on_event)
    return name, locked.suite


def build(root: Path, settings: Settings, engine: Engine) -> str:
    """Return the name of the builder image, built if the engine does not have it."""
    name = reference(root, settings)
    if engine.image(name):
        return name
    start, suite = root_image(root, settings, engine, ignore)
    archives = debian.archives(settings)
    dockerfile = root / "build" / "cloud" / cloudbuild.BUILDER_DOCKERFILE
    files.write(dockerfile, cloudbuild.cloud_files(root)[cloudbuild.BUILDER_DOCKERFILE])
    context = root / Path(cloudbuild.BUILDER_REQUIREMENTS).parent
    request = BuildRequest(dockerfile, context, (name,), build_args={"ROOT": start})
    contents = debian.build_secrets("".join(archives.sources(suite)))
    with (
        tempfile.TemporaryDirectory(prefix="builder-image-") as folder,
        system.secret_files(contents) as secrets,
    ):
        command = buildx.command(engine, request, Path(folder, "metadata.json"), secrets.paths)
        command = [GZIP if word.startswith("--output=") else word for word in command]
        environment, descriptors = dict(engine.environment), secrets.descriptors
        subprocess.run(
            command, env=environment, pass_fds=descriptors, check=True, capture_output=True
        )
    return name
