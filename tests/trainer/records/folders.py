"""The command in this process, what is read back from its folders."""

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
