"""Records into a bucket, by TensorFlow's file systems."""

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from trainer.job import storage
from trainer.options import UsageError

_LAST = "dataset.json"
"""Says what the other files are, so it is copied after them."""


def check(folder: str) -> None:
    """Raise UsageError if nothing can be written to `folder`."""
    storage.check_writable(folder.rstrip("/"))


def upload(out: Path, folder: str) -> None:
    """Copy the records in `out` to `folder`, but for files that it has already, by the SHA-256 in
    its dataset.json. Raises UsageError.
    """
    folder = folder.rstrip("/")
    own, there = _files((out / _LAST).read_bytes()), {}
    try:
        if storage.gfile.exists(f"{folder}/{_LAST}"):
            there = _files(storage.read(f"{folder}/{_LAST}"))
            storage.gfile.remove(f"{folder}/{_LAST}")  # no longer true of all that is there
        wanted = [name for name, about in own.items() if there.get(name) != about]

        def send(name: str) -> None:
            storage.write(f"{folder}/{name}", (out / name).read_bytes())

        for name in there.keys() - own.keys():
            storage.gfile.remove(f"{folder}/{name}")
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(send, wanted))
        send("labels.txt")
        send(_LAST)
    except storage.FAILURES as error:
        again = (
            f"the records are whole in {out}; go on with: gcloud storage rsync -r {out} {folder}"
        )
        raise UsageError(f"{folder}: {storage.words(error)}; {again}") from error


def _files(content: bytes) -> dict[str, Any]:
    """Return what a dataset.json says of each file."""
    splits = json.loads(content)["splits"].values()
    return {name: about for split in splits for name, about in split["files"].items()}
