"""For tests: images of a few files, read as the factory reads any image."""

from __future__ import annotations

import gzip
import io
import json
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from builder.audit.audited import gpu_named
from builder.config import compatibility, image_yaml
from builder.prove import suites
from builder.prove.image import Image, Subject
from builder.reading import layers
from builder.reading.images import ImageContent
from tests import ROOT
from tests.devicecode.packing import digest, layout, tar

SITE = "/opt/venv/lib/python3.11/site-packages"
Files = Mapping[str, tuple[bytes, int, int]]
"""Content, mode and owner of each file by its path; a path that ends with / is a folder."""
CAPABILITY = bytes.fromhex("0100000280000000000000000000000000000000").decode("latin-1")
"""cap_setuid=ep (capabilities(7), VFS version 2)."""


TRAINER = suites.of_image({})
PROGRAM = suites.of_image({suites.LABEL: "program"})
"""TensorFlow's suites."""


def layer(
    files: Files,
    links: Mapping[str, str] | None = None,
    capable: str = "",
    hard: Mapping[str, str] | None = None,
) -> bytes:
    """A layer of these files, symbolic links and hard links. capable: the file that has a
    capability."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name, (content, mode, owner) in files.items():
            entry = tarfile.TarInfo(name.strip("/"))
            entry.size, entry.mode, entry.uid, entry.gid = len(content), mode, owner, owner
            if name.endswith("/"):
                entry.type = tarfile.DIRTYPE
            if name == capable:
                entry.pax_headers = {"SCHILY.xattr.security.capability": CAPABILITY}
            archive.addfile(entry, io.BytesIO(content))
        for kind, named in ((tarfile.SYMTYPE, links), (tarfile.LNKTYPE, hard)):
            for name, target in (named or {}).items():
                entry = tarfile.TarInfo(name.strip("/"))
                entry.type, entry.linkname = kind, target
                archive.addfile(entry)
    return buffer.getvalue()


def plain(*paths: str) -> Files:
    """Files of root's that everybody may read."""
    return dict.fromkeys(paths, (b"x", 420, 0))


def read(
    *packed: bytes,
    target: str = "",
    root: Path = ROOT,
    packages: Mapping[str, str] | None = None,
    **config: Any,
) -> Image:
    """The image of these layers, the lowest first. target: whose image it is, with the lowest layer
    as its base; "" for an image that others made."""
    present = tuple(layers.read(io.BytesIO(data)) for data in packed)
    content = ImageContent(layers.merge(present), present, {"config": config, "history": []})
    if not target:
        return Image(content)
    spec = image_yaml.load(root, target)
    stack, base = compatibility.resolve(spec), frozenset(each.diff_id for each in present[:1])
    subject = Subject("", spec, stack, packages or {}, Path(), base_layers=base)
    return Image(content, gpu_named(spec.accelerator) if stack.cuda else None, subject)


def archive(
    path: Path, *stack: bytes, config: Mapping[str, Any], history: tuple[str, ...] = ()
) -> Path:
    """Write an image of these layers as an OCI layout in an archive."""
    steps = [{"created_by": line} for line in history]
    diff_ids = list(map(digest, stack))
    content = {"rootfs": {"diff_ids": diff_ids}, "config": dict(config), "history": steps}
    path.write_bytes(tar(layout(json.dumps(content).encode(), *map(gzip.compress, stack))))
    return path
