"""An image as an archive or a folder: what `docker load`, skopeo and buildah read.

The archive is an OCI image layout with Docker's own `manifest.json` in it. Which engine reads what,
tried on Docker 20.10.24 and 26.1.5 (graph driver overlay2), Docker 28.5.2 (containerd image store)
and Podman 5.4.2:

    in the archive                         20.10        26.1         28.5              Podman
    layers packed with zstd                refused      read         read              read
    layers packed with gzip, or plain      read         read         read              read
    OCI layout without manifest.json       refused      refused      read              read
    layers that the engine has, left out   read if all layers below  read              read
                                           are the same, too
    layers that it lacks, left out         refused      refused      taken, unusable   refused

The image's id is the manifest's digest on 28.5, and the configuration's on the others. Neither
changes with the packing of the layers in the archive, because the configuration names the layers as
they are before packing. What 26.1 pulled it pushes as another manifest, with Docker's own types and
gzip; 28.5 pushes the manifest that it got.
"""

from __future__ import annotations

import tarfile
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final

from builder.bases.assembled import AssembledImage
from builder.bases.layer import Layer
from builder.core import files
from builder.core.templates import EPOCH
from builder.registry import manifests
from builder.registry.manifests import OCI_LAYER_ZSTD, blob_path

Blobs = Callable[[Layer], Path]
"""The file of a layer's blob. It may fetch the blob first where it is not on this machine."""

_PIECE: Final = 1 << 20
_END: Final = bytes(tarfile.RECORDSIZE)


@dataclass(frozen=True)
class Archive:
    """An image as one tar, which is never a file. It can be read several times.

    name: REPOSITORY:TAG, as an engine will name the image. left_out: digests before packing of the
    layers that the engine has. plain: unpack layers of zstd, for an engine that cannot.
    """

    image: AssembledImage
    blobs: Blobs
    name: str
    left_out: Collection[str] = frozenset()
    plain: bool = False

    @property
    def layers(self) -> tuple[Layer, ...]:
        """The layers that the archive holds."""
        return tuple(one for one in self.image.layers if one.diff_id not in self.left_out)

    @property
    def size(self) -> int:
        """Bytes of the layers as they are packed: what progress is counted in."""
        return sum(layer.blob.size for layer in self.layers)

    def stream(self, sent: Callable[[int], object]) -> Iterator[bytes]:
        """The archive in pieces. sent: called with the bytes of `size` that were given out."""
        count = 0
        for path, content in _texts(self.image, self.name, self.plain).items():
            yield from (_header(path, len(content)), content, bytes(-len(content) % 512))
        for layer in self.layers:
            with self.blobs(layer).open("rb") as file:
                if self._unpacks(layer):
                    size = sum(len(piece) for piece in _unpacked(file))
                    file.seek(0)
                    path, pieces = blob_path(layer.diff_id), _unpacked(file)
                else:
                    size, path, pieces = layer.blob.size, blob_path(layer.blob.digest), _read(file)
                yield _header(path, size)
                for piece in pieces:
                    yield piece
                    sent(count + min(file.tell(), layer.blob.size))
                yield bytes(-size % tarfile.BLOCKSIZE)
            count += layer.blob.size
        yield _END

    def _unpacks(self, layer: Layer) -> bool:
        return self.plain and layer.blob.media_type == OCI_LAYER_ZSTD


def write_layout(image: AssembledImage, blobs: Blobs, name: str, folder: Path) -> None:
    """Write an OCI image layout. The index is written last: until then it is no layout.

    name: REPOSITORY:TAG, as an engine that loads the folder's archive will name the image.
    """
    for layer in image.layers:
        to = folder / blob_path(layer.blob.digest)
        if to.is_file() and to.stat().st_size == layer.blob.size:
            continue
        with blobs(layer).open("rb") as file, files.replacing(to, 0o644) as copy:
            for piece in _read(file):
                copy.write(piece)
    texts = _texts(image, name, plain=False)
    for path in sorted(texts, key="index.json".__eq__):
        files.write(folder / path, texts[path])


def _texts(image: AssembledImage, name: str, plain: bool) -> dict[str, bytes]:
    """Everything but the layers, by path."""
    config = {blob_path(image.config_digest): image.configuration}
    if not plain:
        return manifests.layout(image.manifest, name) | config
    layers = (
        one.diff_id if one.blob.media_type == OCI_LAYER_ZSTD else one.blob.digest
        for one in image.layers
    )
    return manifests.docker_archive(image.config_digest, layers, name) | config


def _header(path: str, size: int) -> bytes:
    info = tarfile.TarInfo(path)
    info.size, info.mtime = size, EPOCH
    return info.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape")


def _read(file: IO[bytes]) -> Iterator[bytes]:
    while piece := file.read(_PIECE):
        yield piece


def _unpacked(file: IO[bytes]) -> Iterator[bytes]:
    import zstandard

    with zstandard.ZstdDecompressor().stream_reader(file, closefd=False) as reader:
        while piece := reader.read(_PIECE):
            yield piece
