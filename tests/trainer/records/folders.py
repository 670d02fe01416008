"""The command in this process, what is read back from its folders, and packed sources."""

import tarfile
import zipfile
from pathlib import Path

from trainer.records import command, tfrecord


def run(*arguments: object) -> int:
    return command.main([*map(str, arguments), "--workers", "1"])


def read(folder: Path, split: str) -> list[dict]:
    """The features of each record."""
    found = []
    for path in sorted(folder.glob(f"{split}-*.tfrecord")):
        with path.open("rb") as file:
            for place in list(tfrecord.lengths(file, path.stat().st_size)):
                payload = tfrecord.payload(file, *place)
                assert payload is not None
                found.append(tfrecord.features(payload))
    return found


def names(folder: Path, split: str) -> list[str]:
    return [record["image/filename"].decode() for record in read(folder, split)]


def content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def as_zip(pictures: Path, to: Path) -> Path:
    with zipfile.ZipFile(to / "p.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        for path in sorted(pictures.rglob("*")):
            archive.write(path, Path("dataset") / path.relative_to(pictures))
    return to / "p.zip"


def as_tar(pictures: Path, to: Path, suffix: str = "tar", mode: str = "w") -> Path:
    with tarfile.open(to / f"p.{suffix}", mode) as archive:
        archive.add(pictures, ".")
    return to / f"p.{suffix}"
