"""Where a model comes from: JOB_DIR/provenance.json, which `builder verify JOB_DIR` follows back to
the image and its locks."""

import dataclasses
import hashlib
import json
import posixpath
from collections.abc import Iterator, Mapping
from typing import Any

from trainer.config import Config
from trainer.job import storage
from trainer.job.checkpoints import Checkpoints

FILE = "provenance.json"
IMAGE = "TRAINING_IMAGE"
"""Environment variable: the image by its digest, as the place that started it knows it."""
_PIECE = 1 << 20


def write(
    config: Config,
    environment: Mapping[str, str],
    records: Mapping[str, Any],
    software: Mapping[str, Any],
) -> None:
    """Write what a job was made from, and the SHA-256 of each file of its models and of its newest
    checkpoint. records: splits.fingerprint. Raises one of storage.FAILURES."""
    made = [config.model_dir, f"{config.job_dir}/export"]
    paths = [path for folder in made for path in _files(folder)]
    checkpoints = Checkpoints(config.checkpoint_dir, config.keep_checkpoints)
    if steps := checkpoints.steps():
        paths += checkpoints.paths(steps[-1])
    content = {
        "schema": 1,
        "image": environment.get(IMAGE, ""),
        "software": dict(software),
        "options": dataclasses.asdict(config),
        "records": dict(records),
        "files": {p.removeprefix(f"{config.job_dir}/"): sha256(p) for p in sorted(paths)},
    }
    storage.write(f"{config.job_dir}/{FILE}", json.dumps(content, indent=1).encode())


def sha256(path: str) -> str:
    """Return the hash of a file, in hex. Raises one of storage.FAILURES."""
    digest = hashlib.sha256()
    with storage.gfile.GFile(path, "rb") as file:
        while piece := file.read(_PIECE):
            digest.update(piece)
    return digest.hexdigest()


def _files(folder: str) -> Iterator[str]:
    for root, _, names in storage.gfile.walk(folder):
        yield from (posixpath.join(root, name) for name in names)
