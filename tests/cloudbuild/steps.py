"""The image that stands in for every builder in tests of builds."""

from __future__ import annotations

import contextlib
import io
import subprocess
import tarfile
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from docker.errors import ImageNotFound

from builder.engine import Engine
from builder.engine.private.programs import install

REPOSITORY = "cloudbuild-steps"
BASE = f"{REPOSITORY}:base"
"""What the Dockerfiles of small projects start from."""
BASH = b'#!/bin/sh\nexec sh "$@"\n'
LIBC = (Path("/lib64/ld-linux-x86-64.so.2"), Path("/lib/x86_64-linux-gnu/libc.so.6"))


@contextlib.contextmanager
def imported(engine: Engine, busybox: Path) -> Iterator[str]:
    """Import an image with busybox, and docker with buildx, for the time of the block."""
    name, tag = REPOSITORY, uuid.uuid4().hex[:12]  # of this process: another may end before it
    api: Any = engine.client.api
    api.import_image_from_data(_root(busybox), repository=name, tag=tag)
    reference = f"{name}:{tag}"
    image = engine.client.images.get(reference)
    image.tag(BASE)
    yield reference
    with contextlib.suppress(ImageNotFound):
        if engine.client.images.get(BASE).id == image.id:
            engine.client.images.remove(BASE, force=True)
        engine.client.images.remove(reference, force=True)
        engine.client.images.remove(str(image.id), force=True)


def _root(busybox: Path) -> bytes:
    docker = install(lambda event: None).folder / "root/usr"
    programs = {
        "bin/busybox": busybox,
        "bin/docker": docker / "bin/docker",
        "usr/libexec/docker/cli-plugins/docker-buildx": (
            docker / "libexec/docker/cli-plugins/docker-buildx"
        ),
        **{str(path).lstrip("/"): path for path in LIBC},
    }
    applets = subprocess.run([busybox, "--list"], capture_output=True, text=True).stdout.split()
    links = {f"bin/{name}": "busybox" for name in sorted(set(applets) - {"busybox"})}
    links |= {"var/run": "/run", "usr/bin": "../bin"}  # as in most images
    bash = tarfile.TarInfo("bin/bash")
    bash.size, bash.mode = len(BASH), 0o755
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as tar:
        for name, path in programs.items():
            tar.add(path.resolve(), name, filter=_plain)
        tar.addfile(bash, io.BytesIO(BASH))
        for name, target in links.items():
            link = tarfile.TarInfo(name)
            link.type, link.linkname = tarfile.SYMTYPE, target
            tar.addfile(link)
        for name, mode in (("tmp", 0o1777), ("run", 0o755), ("etc", 0o755), ("proc", 0o755)):
            folder = tarfile.TarInfo(name)
            folder.type, folder.mode = tarfile.DIRTYPE, mode
            tar.addfile(folder)
    return data.getvalue()


def _plain(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    member.mtime = 0
    return member
