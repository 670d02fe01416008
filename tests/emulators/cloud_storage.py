"""Loopback Cloud Storage: what the log and the source of a build need of it.

It has what gcp-storage-emulator lacks: preconditions (ifGenerationMatch) and generations.
"""

from __future__ import annotations

import base64
import re
import threading
import time
import uuid
from dataclasses import dataclass, field
from json import loads
from typing import Any
from urllib.parse import unquote

import google_crc32c

from tests.emulators.google import Refused
from tests.emulators.web import QuietHandler

PROJECT = "loopback-project"


@dataclass
class Object:
    """An object of Cloud Storage."""

    data: bytes
    generation: int
    metadata: dict[str, str] = field(default_factory=dict)


class Storage:
    """Buckets and objects in memory; every write is a new generation."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.buckets: dict[str, dict[str, Object]] = {}
        self.owners: dict[str, str] = {}
        self.uploads: dict[str, tuple[dict[str, Any], str | None, bytearray]] = {}
        self.generation = int(time.time() * 1e6)

    def make(self, bucket: str, owner: str = PROJECT) -> None:
        with self.lock:
            self.buckets.setdefault(bucket, {})
            self.owners[bucket] = owner

    def put(
        self, bucket: str, name: str, data: bytes, match: str | None = None, **metadata: str
    ) -> None:
        with self.lock:
            old = self.buckets[bucket].get(name)
            if match is not None and int(match) != (old.generation if old else 0):
                raise Refused(412, "conditionNotMet", "At least one of the pre-conditions ...")
            self.generation += 1
            self.buckets[bucket][name] = Object(data, self.generation, metadata)

    def get(self, bucket: str, name: str) -> Object:
        with self.lock:
            if name not in self.buckets.get(bucket, {}):
                raise Refused(404, "notFound", f"No such object: {bucket}/{name}")
            return self.buckets[bucket][name]

    def objects(self, prefix: str = "") -> list[str]:
        """Return every object as BUCKET/NAME."""
        with self.lock:
            names = [f"{bucket}/{name}" for bucket, own in self.buckets.items() for name in own]
            return [name for name in names if name.startswith(prefix)]


class StorageHandler(QuietHandler):
    """Answers the JSON API. `cloud` has the storage, and an address."""

    cloud: Any
    body: bytes
    query: dict[str, str]

    def serve_storage(self, path: str) -> None:
        storage, shape = self.cloud.storage, r".*/storage/v1/b(?:/([^/]+)(?:/o(?:/(.*))?)?)?"
        match = re.fullmatch(shape, path)
        assert match
        bucket, name = match[1], unquote(match[2] or "")
        if bucket is None and self.command == "POST":
            storage.make(loads(self.body)["name"])
            self.json(_bucket(loads(self.body)["name"]))
        elif bucket is None:
            prefix = self.query.get("prefix", "")
            own = [name for name, owner in storage.owners.items() if owner == PROJECT]
            self.json({"items": [_bucket(name) for name in own if name.startswith(prefix)]})
        elif bucket not in storage.buckets:
            raise Refused(404, "notFound", "The specified bucket does not exist.")
        elif path.startswith("/upload"):
            self._upload(bucket)
        elif not name:
            self.json(_bucket(bucket))
        elif self.command == "DELETE":
            generation = self.query.get("ifGenerationMatch")
            if generation and int(generation) != storage.get(bucket, name).generation:
                raise Refused(412, "conditionNotMet", "At least one of ...")
            with storage.lock:
                del storage.buckets[bucket][name]
            self.reply(204)
        else:
            self.json(self._metadata(bucket, name))

    def _upload(self, bucket: str) -> None:
        """Take a resumable upload, with ifGenerationMatch. The client sends small files the same
        way once its chunk size is set, and with uploadType=multipart otherwise."""
        storage, match = self.cloud.storage, self.query.get("ifGenerationMatch")
        if key := self.query.get("upload_id"):
            described, match, data = storage.uploads[key]
            data += self.body
            total = self.headers["Content-Range"].rpartition("/")[2]
            if total == "*" or len(data) < int(total):
                self.reply(308, headers={"Range": f"bytes=0-{len(data) - 1}"})
                return
            self._put(bucket, described, bytes(data), match)
        elif self.query["uploadType"] == "resumable":
            key, described = uuid.uuid4().hex, loads(self.body or b"{}")
            described.setdefault("name", self.query.get("name"))
            storage.uploads[key] = (described, match, bytearray())
            address = f"{self.cloud.url}/upload/storage/v1/b/{bucket}/o?upload_id={key}"
            self.reply(200, headers={"Location": address})
        else:
            (boundary,) = re.findall(r'boundary="?([^";]+)', self.headers["Content-Type"])
            _, first, second, _ = self.body.split(f"--{boundary}".encode())
            described = loads(first.split(b"\r\n\r\n", 1)[1])
            data = second.split(b"\r\n\r\n", 1)[1].removesuffix(b"\r\n")
            self._put(bucket, described, data, match)

    def _put(self, bucket: str, described: Any, data: bytes, match: str | None) -> None:
        name = described["name"]
        self.cloud.storage.put(bucket, name, data, match, **described.get("metadata", {}))
        self.json(self._metadata(bucket, name))

    def _metadata(self, bucket: str, name: str) -> dict[str, Any]:
        known = self.cloud.storage.get(bucket, name)
        crc32c = base64.b64encode(google_crc32c.Checksum(known.data).digest()).decode()
        return {
            "kind": "storage#object", "bucket": bucket, "name": name, "metageneration": "1",
            "generation": str(known.generation), "size": str(len(known.data)), "crc32c": crc32c,
            "metadata": known.metadata,
        }  # fmt: skip


def _bucket(name: str) -> dict[str, Any]:
    return {"kind": "storage#bucket", "id": name, "name": name, "projectNumber": "123456789"}
