"""The libraries of an image on an engine.

The image's own Python reads them in a container without network, in a second. An image that has no
Python (3.9 or newer) is streamed out of the engine instead, which takes half a minute.
"""

from __future__ import annotations

import io
import json
import re
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING

from builder.devicecode.inventory import from_files
from builder.devicecode.verdict import Audit
from builder.engine import refusals
from builder.prove.audit.reader import Chunks, as_library, program

if TYPE_CHECKING:
    import docker
    from docker.models.containers import Container

_PLACE = "device-code"
_NOT_FILES = ("dev", "proc", "run", "sys")
_READ = """
import sys
sys.dont_write_bytecode = True
reader, root, *left_out = sys.argv[1:]
sys.path.insert(0, reader)
import dataclasses, json
from pathlib import Path
from devicecode.inventory import from_folder
for top in sorted(Path(root).iterdir()):
    if top.name not in left_out and top.is_dir() and not top.is_symlink():
        for library in from_folder(top):
            print(json.dumps(dataclasses.asdict(library), default=sorted))
"""
"""The program that runs inside an image: it prints one Library as JSON a line."""


def of_image(client: docker.DockerClient, image: str) -> Audit:
    """Every library of an image that the engine holds, by reference or id. Raises OutsideError."""
    with refusals(image):
        config = client.images.get(image).attrs.get("Config") or {}
        first = (config.get("Entrypoint") or [""])[0]
        python = first if re.fullmatch(r"python[\d.]*", Path(first).name) else "python3"
        container = client.containers.create(
            image,
            ["-I", "-B", "-c", _READ, f"/{_PLACE}", "/", *_NOT_FILES],
            entrypoint=[python],
            user="0:0",  # to read files that only root may read
            network_mode="none",
            cap_drop=["ALL"],
            cap_add=["DAC_READ_SEARCH"],
            security_opt=["no-new-privileges:true"],
            environment={"NVIDIA_VISIBLE_DEVICES": "void"},  # keeps the driver's libraries out
        )
        try:
            container.put_archive("/", _reader())
            return _by_its_python(container) or Audit(tuple(from_files(_files(container))))
        finally:
            container.remove(force=True, v=True)


def _reader() -> bytes:
    """The folder builder/devicecode as a tar archive."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name, content in program().items():
            entry = tarfile.TarInfo(f"{_PLACE}/devicecode/{name}")
            entry.size, entry.mode = len(content), 0o644
            archive.addfile(entry, io.BytesIO(content))
    return buffer.getvalue()


def _by_its_python(container: Container) -> Audit | None:
    """What the image's own Python read; None for an image without a Python that can."""
    from docker.errors import APIError

    try:
        container.start()
    except APIError as error:
        if "executable file not found" in str(error) or "no such file" in str(error):
            return None
        raise
    if container.wait()["StatusCode"] != 0:
        return None
    return _answer(container.logs(stdout=True, stderr=False).decode())


def _answer(text: str) -> Audit:
    """What _READ printed."""
    return Audit(tuple(as_library(json.loads(line)) for line in text.splitlines()))


def _files(container: Container) -> Iterator[tuple[str, IO[bytes]]]:
    """Every file of a container that is not running, its layers merged."""
    chunks, _ = container.get_archive("/", chunk_size=1 << 20)
    with tarfile.open(fileobj=Chunks(chunks), mode="r|") as archive:
        for member in archive:
            file = archive.extractfile(member) if member.isfile() else None
            if file:
                yield f"/{member.name.removeprefix('./').lstrip('/')}", file
