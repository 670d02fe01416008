"""The libraries of an image in a registry, with nothing but Python.

The OCI distribution specification 1.1 says what is asked, and Docker's token authentication
(distribution, spec/auth/token.md) how an anonymous reader gets a token. Layers are streamed, and
compared with their digests. The factory's own reader (builder/prove/audit/in_registry.py) knows
logins, mirrors and retries; this one is for machines that have neither.
"""

from __future__ import annotations

import hashlib
import json
import re
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from typing import IO, Any, NamedTuple

from . import layers
from .images import chosen_manifest
from .inventory import Library
from .pruning.errors import InputError

_REFERENCE = re.compile(
    r"(?P<host>(?:[a-z0-9-]+\.)+[a-z0-9-]+(?::\d+)?|localhost(?::\d+)?)/"
    r"(?P<repository>[a-z0-9]+(?:[._/-]+[a-z0-9]+)*)"
    r"(?::(?P<tag>\w[\w.-]{0,127}))?(?:@(?P<digest>sha256:[0-9a-f]{64}))?"
)
_ACCEPT = ", ".join(
    f"application/vnd.{kind}"
    for kind in (
        "oci.image.index.v1+json",
        "oci.image.manifest.v1+json",
        "docker.distribution.manifest.list.v2+json",
        "docker.distribution.manifest.v2+json",
    )
)
_CHALLENGE = re.compile(r'(\w+)="([^"]*)"')
_LARGEST_JSON = 4 << 20
_SECONDS = 60.0


class RemoteImage(NamedTuple):
    """An image in a registry. target: its tag or digest."""

    host: str
    repository: str
    target: str

    def __str__(self) -> str:
        between = "@" if ":" in self.target else ":"
        return f"{self.host}/{self.repository}{between}{self.target}"


def reference(text: str) -> RemoteImage | None:
    """HOST/REPOSITORY[:TAG][@DIGEST]; None for anything else."""
    found = _REFERENCE.fullmatch(text)
    if found is None:
        return None
    return RemoteImage(
        found["host"], found["repository"], found["digest"] or found["tag"] or "latest"
    )


def libraries(image: RemoteImage) -> tuple[Library, ...]:
    """Every library that a container of the image (of its linux/amd64 part) would see.

    Raises InputError where there is no such image, or it may not be read, OSError where the
    registry cannot be reached.
    """
    client = _Stranger(image)
    content = client.manifest(image.target)
    for _ in range(3):  # an index may name an index
        chosen = chosen_manifest(content, str(image))
        if chosen is None:
            break
        content = client.manifest(chosen)
    read = [client.layer(str(one.get("digest"))) for one in content.get("layers") or ()]
    return layers.merge(reversed(read))


class _Hashed:
    """A stream of which the digest is taken."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream, self.digest = stream, hashlib.sha256()

    def read(self, size: int = -1) -> bytes:
        block = self._stream.read(size)
        self.digest.update(block)
        return block


class _Stranger:
    """One repository of one registry, as an anonymous reader."""

    def __init__(self, image: RemoteImage) -> None:
        host = image.host.partition(":")[0]
        scheme = "http" if host in ("localhost", "127.0.0.1") else "https"
        self._image = image
        self._root = f"{scheme}://{image.host}/v2/{image.repository}"
        self._token = ""

    def manifest(self, target: str) -> Mapping[str, Any]:
        with self._open(f"manifests/{target}") as answer:
            text = answer.read(_LARGEST_JSON)
        if ":" in target and f"sha256:{hashlib.sha256(text).hexdigest()}" != target:
            raise self._damaged(target)
        try:
            content = json.loads(text)
        except (ValueError, RecursionError):
            content = None
        if not isinstance(content, dict):
            raise InputError(f"{self._image}: its manifest is no JSON", "name an image")
        return content

    def layer(self, digest: str) -> layers.ReadLayer:
        with self._open(f"blobs/{digest}") as answer:
            stream = _Hashed(answer)
            found = layers.read(stream, f"{self._image}: layer {digest[:19]}")  # type: ignore[arg-type]
            while stream.read(1 << 20):
                pass
        if f"sha256:{stream.digest.hexdigest()}" != digest:
            raise self._damaged(digest)
        return found

    def _open(self, path: str) -> IO[bytes]:
        try:
            return self._ask(path)
        except urllib.error.HTTPError as error:
            if error.code != 401 or self._token:
                raise self._refused(error) from None
            self._token = self._anonymous(error.headers.get("WWW-Authenticate", ""))
        try:
            return self._ask(path)
        except urllib.error.HTTPError as error:
            raise self._refused(error) from None

    def _ask(self, path: str) -> IO[bytes]:
        question = urllib.request.Request(f"{self._root}/{path}", headers={"Accept": _ACCEPT})
        if self._token:  # not sent on to where a registry redirects: that is another host's
            question.add_unredirected_header("Authorization", f"Bearer {self._token}")
        answer: IO[bytes] = urllib.request.urlopen(question, timeout=_SECONDS)
        return answer

    def _anonymous(self, challenge: str) -> str:
        """A token for somebody without a login."""
        asked = dict(_CHALLENGE.findall(challenge))
        realm = asked.pop("realm", "")
        if not challenge.startswith("Bearer ") or not realm.startswith(("https://", "http://")):
            raise InputError(f"{self._image}: the registry asks for a login", _LOGIN)
        query = urllib.parse.urlencode(asked)
        try:
            with urllib.request.urlopen(f"{realm}?{query}", timeout=_SECONDS) as answer:
                found = json.loads(answer.read(1 << 20))
        except (urllib.error.HTTPError, ValueError):
            found = {}
        token = found.get("token") or found.get("access_token") if isinstance(found, dict) else ""
        if not token:
            raise InputError(f"{self._image}: the registry gives strangers no token", _LOGIN)
        return str(token)

    def _refused(self, error: urllib.error.HTTPError) -> InputError:
        if error.code in (401, 403):
            return InputError(f"{self._image}: may not be read without a login", _LOGIN)
        return InputError(f"{self._image}: the registry answers {error.code}", "correct its name")

    def _damaged(self, digest: str) -> InputError:
        return InputError(f"{self._image}: {digest[:19]} did not arrive whole", "try it again")


_LOGIN = "save the image with docker save, and audit the archive"
