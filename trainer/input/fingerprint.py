"""What records a job began with, so that a restart notices others.

A checkpoint holds the fingerprint. It has the names of the classes in their order, and of each file
its name, its number of records, its bytes and the checksum of its last record.
"""

from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from trainer.config import Config, UsageError
from trainer.input.parts import Shard
from trainer.job import storage
from trainer.records import tfrecord


def of(shards: Iterable[Shard], names: Iterable[str]) -> dict[str, Any]:
    """Return the fingerprint of these files and classes, as JSON."""
    shards = tuple(shards)
    with ThreadPoolExecutor(8) as pool:
        ends = tuple(pool.map(_end, shards))
    files = {
        shard.path.rpartition("/")[2]: [shard.records, shard.bytes, end]
        for shard, end in zip(shards, ends, strict=True)
    }
    return {"classes": list(names), "files": files}


def check(config: Config, before: Mapping[str, Any] | None, now: Mapping[str, Any]) -> None:
    """Refuse to go on with other records than those before. Raises UsageError."""
    if before is None or config.accept_changed_records:
        return
    if difference := differences(before, now):
        raise UsageError(
            f"the records in {config.records} are not those that this job began with: "
            f"{difference}; use another --job-dir, or --accept-changed-records to go on with them"
        )


def differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """Say, in words, how the records differ; "" if they are the same. Never more than a line."""
    for number, (old, new) in enumerate(zip(before["classes"], now["classes"], strict=False)):
        if old != new:
            return f"line {number + 1} of labels.txt was {old!r} and is {new!r}"
    if len(before["classes"]) != len(now["classes"]):
        return f"labels.txt had {len(before['classes'])} lines and has {len(now['classes'])}"
    old_files, new_files = before["files"], now["files"]
    kinds = {
        "gone": sorted(old_files.keys() - new_files.keys()),
        "new": sorted(new_files.keys() - old_files.keys()),
        "changed": [name for name, old in old_files.items() if new_files.get(name, old) != old],
    }
    return ", ".join(
        f"{names[0]} is {kind}" + (f" and {len(names) - 1} more" if len(names) > 1 else "")
        for kind, names in kinds.items()
        if names
    )


def _end(shard: Shard) -> str:
    """Return the checksum that a file's last record ends with; "": there is none."""
    if shard.bytes < tfrecord.FOOTER:
        return ""
    with storage.gfile.GFile(shard.path, "rb") as file:
        file.seek(shard.bytes - tfrecord.FOOTER)
        return bytes(file.read(tfrecord.FOOTER)).hex()
