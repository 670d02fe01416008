"""A container registry: names, credentials, and the few requests the factory makes itself.

Layers travel through the engine; what is asked here is small: does a manifest lie there, which
bytes are it, put it under one more tag, put a receipt beside it. The protocol is the OCI
distribution specification 1.1, with its fallback (the "referrers tag schema") for registries that
have no referrers API, such as docker-registry 2.8.

What passes (429, 5xx, a connection that breaks or times out, a name server that stumbles) is asked
again, a bounded number of times; what does not pass is one OutsideError of one line.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import functools
import hashlib
import ipaddress
import json
import os
import re
import socket
import ssl
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, Self
from urllib.parse import quote, urlencode, urljoin, urlsplit

from builder.core import web
from builder.core.errors import CheckFailed, FactoryError, InputError, OutsideError
from builder.core.retry import Passing, Retry, Said, silent
from builder.registry.manifests import (
    DOCKER_LIST,
    DOCKER_MANIFEST,
    EMPTY,
    OCI_INDEX,
    OCI_MANIFEST,
    Descriptor,
    Manifest,
    artifact,
    digest_of,
    index,
    manifest,
    object_in,
)

__all__ = [
    "DOCKER_HUB",
    "DOCKER_HUB_API",
    "DOCKER_LIST",
    "DOCKER_MANIFEST",
    "EMPTY",
    "OCI_INDEX",
    "OCI_MANIFEST",
    "Credentials",
    "Descriptor",
    "Manifest",
    "Reference",
    "Registry",
    "artifact",
    "credentials",
    "digest_of",
    "fallback_tag",
    "index",
    "is_loopback",
    "login_command",
    "manifest",
    "parse",
    "refused",
]

if TYPE_CHECKING:
    from urllib3 import BaseHTTPResponse as Response
    from urllib3.exceptions import HTTPError

DOCKER_HUB: Final = "docker.io"
DOCKER_HUB_API: Final = "registry-1.docker.io"
DOCKER_HUB_LOGIN: Final = "https://index.docker.io/v1/"
"""Under which key docker keeps the credentials of Docker Hub."""

SMALL: Final = 8 * 1024 * 1024
"""Bytes: no manifest or receipt is larger; more is not read."""

_NEXT: Final = re.compile(r"""<([^>]*)>[^,]*;\s*rel="?next\b""")
_UNSETTLED: Final = re.compile(r"(MANIFEST_)?BLOB_UNKNOWN|DIGEST_INVALID")
_ACCEPT: Final = ", ".join((OCI_MANIFEST, OCI_INDEX, DOCKER_MANIFEST, DOCKER_LIST))
_COMPONENT: Final = re.compile(r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*")
_TAG: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")
_DIGEST: Final = re.compile(r"sha256:[0-9a-f]{64}")
_HOST: Final = re.compile(r"(?:[A-Za-z0-9-]+(?:\.[A-Za-z0-9-]+)*|\[[0-9a-fA-F:]+\])(?::[0-9]+)?")
_ARTIFACT_REGISTRY: Final = re.compile(r"(?P<location>[a-z0-9-]+)-docker\.pkg\.dev")
_GCR: Final = re.compile(r"(?:(?P<location>us|eu|asia)\.)?gcr\.io")


# Names ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Reference:
    """Where an image lies: `host/repository[:tag][@digest]`, Docker Hub's short forms spelt out."""

    host: str
    repository: str
    tag: str | None = None
    digest: str | None = None

    @property
    def name(self) -> str:
        """Host and repository."""
        return f"{self.host}/{self.repository}"

    @property
    def target(self) -> str:
        """What a registry is asked for: the digest, else the tag, else `latest`."""
        return self.digest or self.tag or "latest"

    def tagged(self, tag: str) -> Reference:
        """The same repository under a tag. Raises InputError for what is no tag."""
        if not _TAG.fullmatch(tag):
            raise InputError(
                f"tag {tag!r}: a tag is 1 to 128 letters, digits, _ . - and starts with no . or -",
                f"write {re.sub(r'[^A-Za-z0-9_.-]', '-', tag).lstrip('.-')[:128] or 'a name'}",
            )
        return replace(self, tag=tag, digest=None)

    def at(self, digest: str) -> Reference:
        """The same repository at a digest."""
        return replace(self, tag=None, digest=digest)

    def __str__(self) -> str:
        tag = f":{self.tag}" if self.tag else ""
        return f"{self.name}{tag}{f'@{self.digest}' if self.digest else ''}"


def parse(text: str) -> Reference:
    """A reference as docker reads it: no host means Docker Hub. Raises InputError."""
    rest, at, digest = text.partition("@")
    if at and not _DIGEST.fullmatch(digest):
        raise _no_reference(text, f"{digest!r} is not a digest", "write @sha256: and 64 hex digits")
    first, slash, path = rest.partition("/")
    is_host = slash and (first == "localhost" or re.search(r"[.:A-Z]", first))
    host, path = (first, path) if is_host else (DOCKER_HUB, rest)
    path, colon, tag = path.partition(":")
    if host in ("index.docker.io", DOCKER_HUB_API):
        host = DOCKER_HUB
    if not _HOST.fullmatch(host):
        raise _no_reference(text, f"{host!r} is not HOST[:PORT]", f"write {_domain_project(text)}")
    if host == DOCKER_HUB and "/" not in path:
        path = f"library/{path}"
    if not all(_COMPONENT.fullmatch(part) for part in path.split("/")):
        fix = "use a-z, 0-9 and single . _ - inside each part of the path"
        if re.search("[A-Z]", path):
            fix = f"write {host}/{path.lower()}"
        elif "/" in tag:
            fix = f"write {_domain_project(text)}"
        raise _no_reference(text, f"{path!r} is not a repository", fix)
    if colon and not _TAG.fullmatch(tag):
        raise _no_reference(
            text, f"{tag!r} is not a tag", f"write {_domain_project(text)}" if "/" in tag else ""
        )
    parts = path.count("/") + 1
    if _ARTIFACT_REGISTRY.fullmatch(host) and parts < 3:
        raise _no_reference(
            text,
            "Artifact Registry names have a project, a repository and an image",
            f"write {host}/PROJECT/REPOSITORY/IMAGE",
        )
    if _GCR.fullmatch(host) and parts < 2:
        raise _no_reference(text, f"{host} names have a project", f"write {host}/PROJECT/IMAGE")
    return Reference(host, path, tag or None, digest or None)


def _no_reference(text: str, why: str, fix: str) -> InputError:
    return InputError(f"{text!r} is no image reference: {why}", fix or "write HOST/PATH[:TAG]")


def _domain_project(text: str) -> str:
    """`gcr.io/example.com:team/x` as it has to be written: the project's colon becomes a slash."""
    return re.sub(r"^((?:[\w-]+\.)*(?:gcr\.io|pkg\.dev)/[\w.-]+):(?=[\w-]+/)", r"\1/", text)


def is_loopback(host: str) -> bool:
    """Whether HOST[:PORT] is this machine: the only kind that is spoken to in plain http."""
    name = urlsplit(f"//{host}").hostname or ""
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return name == "localhost" or name.endswith(".localhost")


def login_command(host: str) -> str:
    """What a person runs once, to be let in by this host."""
    if _ARTIFACT_REGISTRY.fullmatch(host) or _GCR.fullmatch(host):
        return f"gcloud auth configure-docker {host}"
    return "docker login" if host == DOCKER_HUB else f"docker login {host}"


# Credentials ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Credentials:
    """What docker knows for a host; `source` says where it was found. Secrets stay out of repr."""

    username: str = ""
    password: str = field(default="", repr=False)
    identity_token: str = field(default="", repr=False)
    registry_token: str = field(default="", repr=False)
    source: str = ""

    def for_engine(self) -> dict[str, str]:
        """As the engine's API takes them."""
        if self.registry_token:
            return {"registrytoken": self.registry_token}
        if self.identity_token:
            return {"identitytoken": self.identity_token}
        return {"username": self.username, "password": self.password}


def docker_config(environ: Mapping[str, str] = os.environ) -> Path:
    """The configuration file of the docker command: `$DOCKER_CONFIG`, else `~/.docker`."""
    folder = environ.get("DOCKER_CONFIG")
    home = environ.get("HOME")
    return (Path(folder) if folder else Path(home or Path.home()) / ".docker") / "config.json"


def credentials(host: str, environ: Mapping[str, str] = os.environ) -> Credentials | None:
    """What docker would send to HOST, None where it knows nothing.

    As docker looks: a helper for the host (`credHelpers`), else the store for all (`credsStore`),
    else `auths` of the file. Raises InputError for a broken file, OutsideError for a broken helper.
    """
    path = docker_config(environ)
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except OSError as error:
        raise InputError(
            f"{path}: cannot be read: {error.strerror}", "make it readable for you"
        ) from None
    except ValueError as error:
        line = f":{error.lineno}" if isinstance(error, json.JSONDecodeError) else ""
        raise InputError(
            f"{path}{line}: not JSON: {error}", "repair it, or move it away and log in again"
        ) from None
    if not isinstance(config, dict):
        raise InputError(f"{path}: not a JSON object", "move it away and log in again")
    key = DOCKER_HUB_LOGIN if host == DOCKER_HUB else host
    helper = (config.get("credHelpers") or {}).get(key) or config.get("credsStore")
    if helper:
        return _from_helper(str(helper), key, path, environ)
    auths = config.get("auths") or {}
    names = [key] if key in auths else [name for name in auths if _hostname(name) == _hostname(key)]
    return _from_auth(auths[names[0]] or {}, names[0], path) if names else None


def _hostname(key: str) -> str:
    """`https://HOST/v2/` -> HOST: older docker wrote addresses."""
    return re.sub(r"^https?://", "", key).split("/")[0]


def _from_auth(auth: Mapping[str, Any], key: str, path: Path) -> Credentials | None:
    username, password = auth.get("username", ""), auth.get("password", "")
    if coded := auth.get("auth"):
        try:
            username, _, password = base64.b64decode(coded, validate=True).decode().partition(":")
        except (binascii.Error, UnicodeDecodeError, TypeError):
            host = DOCKER_HUB if key == DOCKER_HUB_LOGIN else _hostname(key)
            raise InputError(
                f"{path}: auths.{key}.auth is not base64", f"run: {login_command(host)}"
            ) from None
    found = Credentials(
        username=username,
        password=password.rstrip("\0"),
        identity_token=auth.get("identitytoken", ""),
        registry_token=auth.get("registrytoken", ""),
        source=str(path),
    )
    known = found.username or found.identity_token or found.registry_token
    return found if known else None  # docker leaves empty entries where a store holds the secret


def _from_helper(name: str, key: str, path: Path, environ: Mapping[str, str]) -> Credentials | None:
    program = f"docker-credential-{name}"
    host = DOCKER_HUB if key == DOCKER_HUB_LOGIN else _hostname(key)
    try:
        done = subprocess.run(
            [program, "get"],
            input=key,
            capture_output=True,
            text=True,
            timeout=60,
            env=dict(environ),
            check=False,
        )
    except OSError:
        raise OutsideError(
            f"{host}: {path} names the credential helper {program}, which is not on the PATH",
            f"install {program}, or take its line out of {path} and log in again",
        ) from None
    except subprocess.TimeoutExpired:
        raise OutsideError(
            f"{host}: {program} gave no answer in 60 s", f"try by hand: echo {key} | {program} get"
        ) from None
    if done.returncode:
        said = (done.stdout.strip() or done.stderr.strip()).splitlines()
        if any("credentials not found" in line for line in said):
            return None
        raise OutsideError(
            f"{host}: {program} failed: {said[-1] if said else f'exit {done.returncode}'}",
            f"run: {login_command(host)}",
        )
    try:
        answer = json.loads(done.stdout)
        username, secret = str(answer.get("Username", "")), str(answer.get("Secret", ""))
    except (ValueError, AttributeError):
        raise OutsideError(
            f"{host}: {program} answered no JSON object",
            f"try by hand: echo {key} | {program} get",
        ) from None
    if not username and not secret:
        return None
    if username == "<token>":
        return Credentials(identity_token=secret, source=program)
    return Credentials(username=username, password=secret, source=program)


# Talking to it ----------------------------------------------------------------------------------


Right = Literal["read", "write"]


class Registry:
    """One registry host. A context manager: it holds connections, and forgets tokens at the end.

    Docker's credentials for the host are looked up when the registry first asks for some.
    """

    def __init__(self, host: str, retry: Retry | None = None, said: Said = silent) -> None:
        self.host = host
        self.retry = retry or Retry()
        self.said = said
        loopback = is_loopback(host)
        api = DOCKER_HUB_API if host == DOCKER_HUB else host
        self.address = f"{'http' if loopback else 'https'}://{api}"
        # no proxy stands between a machine and itself
        self._http = web.Client(proxied=not loopback)
        self._authorization: dict[tuple[str, Right], str] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._http.close()

    @functools.cached_property
    def credentials(self) -> Credentials | None:
        """What docker knows for this host."""
        return credentials(self.host)

    # Manifests ----------------------------------------------------------------------------------

    def head(self, repository: str, target: str) -> str | None:
        """The digest that a tag or digest leads to, None where it does not exist. One HEAD."""
        response = self._ask("HEAD", repository, f"manifests/{target}", accept=_ACCEPT)
        if response.status == 404:
            return None
        if digest := response.headers.get("Docker-Content-Digest"):
            return str(digest)
        found = self.manifest(repository, target)
        return found.digest if found else None

    def manifest(self, repository: str, target: str) -> Manifest | None:
        """The manifest under a tag or digest, None where there is none.

        Raises CheckFailed where the bytes are not those that the digest names.
        """
        response = self._ask("GET", repository, f"manifests/{target}", accept=_ACCEPT)
        if response.status == 404:
            return None
        media_type = response.headers.get("Content-Type", "").split(";")[0].strip()
        found = Manifest(response.data, media_type)
        expected = target if ":" in target else response.headers.get("Docker-Content-Digest")
        if expected and expected != found.digest:
            raise self._other_bytes(repository, expected, found.digest)
        return found

    def put_manifest(self, repository: str, target: str, content: Manifest) -> bool:
        """Put a manifest under a tag or its digest; what it refers to must lie there already.

        Returns whether the registry itself noted the manifest's `subject` (OCI-Subject).
        """
        response = self._ask(
            "PUT",
            repository,
            f"manifests/{target}",
            right="write",
            body=content.data,
            content_type=content.media_type,
        )
        said = response.headers.get("Docker-Content-Digest", content.digest)
        if said != content.digest:
            raise self._other_bytes(repository, content.digest, said)
        return "OCI-Subject" in response.headers

    # Blobs --------------------------------------------------------------------------------------

    def blob(self, repository: str, blob: Descriptor) -> bytes:
        """A small blob (a config, a receipt). Raises CheckFailed where it is missing or other."""
        if blob.size > SMALL:
            raise CheckFailed(
                f"{self.host}/{repository}@{blob.digest}: {blob.size} bytes, more than {SMALL}",
                "this is not an image that the factory pushed",
            )
        response = self._ask("GET", repository, f"blobs/{blob.digest}")
        if response.status == 404:
            raise CheckFailed(
                f"{self.host}/{repository}@{blob.digest}: the registry has lost this blob",
                "push the image again",
            )
        if (actual := digest_of(response.data)) != blob.digest:
            raise self._other_bytes(repository, blob.digest, actual)
        return response.data

    def configuration(self, repository: str, image: Manifest) -> dict[str, Any]:
        """An image's configuration. Raises what `blob` raises."""
        return object_in(self.blob(repository, image.config))

    @contextlib.contextmanager
    def stream(self, repository: str, blob: Descriptor) -> Iterator[Iterator[bytes]]:
        """A blob of any size in chunks, as they come; where the end was read, its bytes are those
        that the digest names.

        Raises CheckFailed where it is missing or other, OutsideError where the connection breaks.
        """
        from urllib3.exceptions import HTTPError

        if not self.has_blob(repository, blob.digest):  # lets us in, too
            raise CheckFailed(
                f"{self.host}/{repository}@{blob.digest}: the registry has lost this blob",
                "push the image again",
            )
        known = self._authorization.get((repository, "read"))
        url = f"{self.address}/v2/{repository}/blobs/{blob.digest}"
        seen = hashlib.sha256()

        def chunks() -> Iterator[bytes]:
            for chunk in response.stream(1 << 20):
                seen.update(chunk)
                yield chunk
            if (actual := f"sha256:{seen.hexdigest()}") != blob.digest:
                raise self._other_bytes(repository, blob.digest, actual)

        headers = {"Authorization": known} if known else {}
        try:
            with self._http.request(
                "GET", url, headers=headers, follow=True, stream=True
            ) as response:
                if not _succeeded(response):
                    raise self._refusal(response, repository, "read")
                yield chunks()
        except HTTPError as error:
            raise OutsideError(
                f"{self.host}: the connection broke in the middle of a layer: {error}",
                "run this again",
            ) from error

    def has_blob(self, repository: str, digest: str) -> bool:
        """Whether a blob lies in this repository."""
        return self._ask("HEAD", repository, f"blobs/{digest}").status == 200

    def put_blob(self, repository: str, data: bytes) -> Descriptor:
        """Upload small content, unless it is there. A torn upload begins anew."""
        digest = digest_of(data)

        def upload() -> None:
            start = self._once("POST", repository, "blobs/uploads/", right="write")
            place = self._location(repository, start)
            done = self._once(
                "PUT",
                repository,
                f"{place}{'&' if '?' in place else '?'}digest={digest}",
                right="write",
                body=data,
                content_type="application/octet-stream",
            )
            if done.status in (404, 416):  # the session is gone
                raise Passing(f"{self.host}/{repository}: the upload was lost on the way")

        if not self.has_blob(repository, digest):
            self.retry.run(upload, self.said)
        return Descriptor("application/octet-stream", digest, len(data))

    def check_write(self, repository: str) -> None:
        """Raise the error of a push now, before gigabytes are on their way."""
        start = self._ask("POST", repository, "blobs/uploads/", right="write")
        with contextlib.suppress(Passing, FactoryError):  # a courtesy: sessions also expire
            self._once("DELETE", repository, self._location(repository, start), right="write")

    def _location(self, repository: str, started: Response) -> str:
        asked = f"{self.address}/v2/{repository}/blobs/uploads/"
        return urljoin(asked, started.headers.get("Location", ""))

    # Referrers ----------------------------------------------------------------------------------

    def referrers(self, repository: str, digest: str, kind: str) -> tuple[Descriptor, ...]:
        """The artifacts of a kind that refer to a manifest, from the API or the fallback tag."""
        found: list[Descriptor] = []
        place: str | None = f"referrers/{digest}?artifactType={quote(kind, safe='')}"
        while place:
            response = self._ask("GET", repository, place, accept=OCI_INDEX)
            if response.status != 200:
                break
            found += Manifest(response.data, OCI_INDEX).manifests
            following = _NEXT.search(response.headers.get("Link", ""))
            asked = f"{self.address}/v2/{repository}/"
            place = urljoin(urljoin(asked, place), following[1]) if following else None
        if not found:  # no API, or one that was added after the receipt
            listed = self.manifest(repository, fallback_tag(digest))
            found += listed.manifests if listed else ()
        return tuple(one for one in found if one.artifact_type == kind)

    def attach(self, repository: str, referrer: Manifest) -> Descriptor:
        """Put an artifact beside the manifest it refers to; its blobs must lie there already."""
        subject = str(referrer.content["subject"]["digest"])
        entry = replace(
            referrer.descriptor,
            artifact_type=referrer.content["artifactType"],
            annotations=referrer.content.get("annotations") or {},
        )
        if self.put_manifest(repository, referrer.digest, referrer):
            return entry
        tag = fallback_tag(subject)
        for _ in range(5):  # another push may have written in between: read back, and add again
            listed = self.manifest(repository, tag)
            there = listed.manifests if listed else ()
            if any(one.digest == entry.digest for one in there):
                return entry
            self.put_manifest(repository, tag, index((*there, entry)))
        raise OutsideError(
            f"{self.host}/{repository}:{tag}: others keep overwriting this list of referrers",
            "run this again when no other push of this image runs",
        )

    # One request --------------------------------------------------------------------------------

    def _ask(self, method: str, repository: str, place: str, **how: Any) -> Response:
        return self.retry.run(lambda: self._once(method, repository, place, **how), self.said)

    def _once(
        self,
        method: str,
        repository: str,
        place: str,
        *,
        right: Right = "read",
        accept: str = "*/*",
        body: bytes | None = None,
        content_type: str | None = None,
    ) -> Response:
        """One attempt: an answer below 300, or a 404 (else 400, 405, 406) of a question.

        `place` is a path below the repository, or a whole address that the registry gave.
        """
        url = place if "://" in place else f"{self.address}/v2/{repository}/{place}"
        headers = {"Accept": accept} | ({"Content-Type": content_type} if content_type else {})
        own = urlsplit(url).netloc == urlsplit(self.address).netloc

        def send() -> Response:
            known = self._authorization.get((repository, right))
            if own and known:
                headers["Authorization"] = known
            return self._call(method, url, headers=headers, body=body, follow=method == "GET")

        response = send()
        if response.status == 401 and own:
            self._authorize(response, repository, right)
            response = send()
            basic = self._authorization[repository, right].startswith("Basic ")
            if response.status == 401 and basic:
                raise self._bad_credentials(repository, right)
        if _succeeded(response):
            return response
        question = right == "read" and ("referrers/" in place or response.status == 404)
        upload = method == "PUT" and "/uploads/" in url
        if (question and response.status in (400, 404, 405, 406)) or (
            upload and response.status in (404, 416)
        ):
            return response
        if method == "PUT" and (said := _UNSETTLED.search(_message(response))):
            # just put, by us or by another push at the same time, and not to be seen everywhere yet
            raise Passing(f"{self.host}/{repository}: the registry answered {said[0]} to PUT")
        raise self._refusal(response, repository, right)

    def _call(self, method: str, url: str, **how: Any) -> Response:
        """A request on the wire. Raises Passing for what may pass."""
        from urllib3.exceptions import HTTPError

        try:
            response = self._http.request(method, url, **how)
        except HTTPError as error:
            raise self._broken(error, url) from None
        if response.status in (408, 425, 429, 500, 502, 503, 504):
            said = _message(response)
            fix = ""
            if response.status == 429:
                fix = "wait, or ask the registry's owner for a larger quota"
                if self.host == DOCKER_HUB and not self.credentials:
                    fix = "log in, anonymous requests are limited: run: docker login"
            raise Passing(
                f"{self.host} answered {response.status} {response.reason}"
                f" to {method}{f': {said}' if said else ''}",
                fix,
                _retry_after(response.headers.get("Retry-After", "")),
            )
        return response

    def _broken(self, error: HTTPError, url: str) -> Exception:
        """No answer, as Passing, or as the OutsideError that no waiting will mend."""
        from urllib3.exceptions import NewConnectionError, ProxyError, TimeoutError

        host = urlsplit(url).netloc
        causes = list(_chain(error))
        reason = str(causes[-1] or error).strip() or type(error).__name__
        if "Tunnel connection failed" in reason:
            return OutsideError(
                f"{host}: the proxy refused: {reason}", "check HTTPS_PROXY and NO_PROXY"
            )
        if by_proxy := any(isinstance(cause, ProxyError) for cause in causes):
            host += " through HTTPS_PROXY"
        for cause in causes:
            if isinstance(cause, ssl.SSLCertVerificationError):
                return OutsideError(
                    f"{host}: its TLS certificate is not trusted: {cause.verify_message}",
                    "add the CA to the system's bundle or name it in SSL_CERT_FILE;"
                    f" for the engine: /etc/docker/certs.d/{host}/ca.crt",
                )
            if isinstance(cause, ssl.SSLError) and re.search(
                r"WRONG_VERSION_NUMBER|RECORD_LAYER|HTTP_REQUEST|UNKNOWN_PROTOCOL", str(cause)
            ):
                return OutsideError(
                    f"{host} does not speak TLS; plain http is for loopback addresses only",
                    "give the registry a certificate, or reach it through 127.0.0.1",
                )
            if isinstance(cause, socket.gaierror) and cause.errno != socket.EAI_AGAIN:
                return OutsideError(
                    f"{host}: no such host ({cause.strerror})",
                    f"correct the name of the {'proxy' if by_proxy else 'registry'}",
                )
        if isinstance(error, TimeoutError) and not isinstance(error, NewConnectionError):
            return Passing(f"{host} gave no answer in time ({type(error).__name__})")
        return Passing(f"{host}: the connection failed: {reason}")

    # Being let in -------------------------------------------------------------------------------

    def _authorize(self, response: Response, repository: str, right: Right) -> None:
        """Answer a 401 with what it asks for: Basic, or a Bearer token (distribution, "token")."""
        challenges = dict(
            re.findall(
                r"(?i)\b(basic|bearer)\s+(.*?)(?=,\s*(?:basic|bearer)\s|$)",
                ", ".join(response.headers.getlist("WWW-Authenticate")),
            )
        )
        challenges = {scheme.lower(): words for scheme, words in challenges.items()}
        known = self.credentials
        if "bearer" in challenges:
            words = dict(re.findall(r'(\w+)="([^"]*)"', challenges["bearer"]))
            token = self._token(words, repository, right)
            self._authorization[repository, right] = f"Bearer {token}"
        elif "basic" in challenges and known and known.username:
            self._authorization[repository, right] = f"Basic {_basic(known)}"
        else:
            raise self._not_logged_in(repository, right)

    def _token(self, words: Mapping[str, str], repository: str, right: Right) -> str:
        known = self.credentials
        if known and known.registry_token:
            return known.registry_token
        realm = words.get("realm", "")
        address = urlsplit(realm)
        if address.scheme != "https" and not is_loopback(address.netloc):
            raise OutsideError(
                f"{self.host} wants credentials sent to {realm or 'no address'}, in plain text",
                "ask the registry's owner for a token service with TLS",
            )
        actions = "pull" if right == "read" else "pull,push"
        scope = words.get("scope") or f"repository:{repository}:{actions}"
        asked = {"service": words.get("service", ""), "scope": scope}
        if known and known.identity_token:
            form = asked | {
                "grant_type": "refresh_token",
                "refresh_token": known.identity_token,
                "client_id": "training-image-factory",
            }
            headers = {"Content-Type": "application/x-www-form-urlencoded"}
            response = self._call("POST", realm, headers=headers, body=urlencode(form).encode())
        else:
            headers = {"Authorization": f"Basic {_basic(known)}"} if known else {}
            place = f"{realm}{'&' if address.query else '?'}{urlencode(asked)}"
            response = self._call("GET", place, headers=headers)
        if not _succeeded(response):
            raise self._bad_credentials(repository, right)
        try:
            answer = response.json()
            return str(answer.get("token") or answer["access_token"])
        except (ValueError, KeyError, AttributeError):
            raise OutsideError(
                f"{self.host}: {realm} answered without a token", "look whether the registry is up"
            ) from None

    def _bad_credentials(self, repository: str, right: Right) -> OutsideError:
        known = self.credentials
        if not known:
            return self._not_logged_in(repository, right)
        who = known.username or "the stored token"
        return OutsideError(
            f"{self.host} refused the credentials of {who} (found in {known.source})",
            f"they may have run out; run: {login_command(self.host)}",
        )

    def _not_logged_in(self, repository: str, right: Right) -> OutsideError:
        return refused(Reference(self.host, repository), 401, "", right, None)

    # What it said -------------------------------------------------------------------------------

    def _refusal(self, response: Response, repository: str, right: Right) -> FactoryError:
        """An answer that no waiting will change, in one line, with what to do."""
        said = _message(response)
        return refused(
            Reference(self.host, repository),
            response.status,
            said or response.reason or "",
            right,
            self.credentials,
        )

    def _other_bytes(self, repository: str, expected: str, actual: str) -> CheckFailed:
        return CheckFailed(
            f"{self.host}/{repository}@{expected}: the registry has other bytes ({actual})",
            "do not use this image; look into the registry's storage, then push again",
        )


def fallback_tag(digest: str) -> str:
    """Where referrers are listed without the API (OCI distribution 1.1, "referrers tag schema")."""
    return digest.replace(":", "-")


def refused(
    where: Reference, status: int, said: str, right: Right, known: Credentials | None
) -> OutsideError:
    """The one line of a permanent refusal; `status` 0 where only the words are known."""
    host, words = where.host, said.lower()
    artifact_registry, gcr = _ARTIFACT_REGISTRY.fullmatch(host), _GCR.fullmatch(host)
    if "immutab" in words or "cannot be overwritten" in words:
        return OutsideError(
            f"{where}: the tag exists and this repository's tags are immutable: {said}",
            "push under a new tag, or let the repository's owner switch immutable tags off",
        )
    if "quota" in words or "insufficient storage" in words or status == 507:
        return OutsideError(
            f"{where}: over the quota of {host}: {said}",
            "delete images that nobody uses, or ask for a larger quota",
        )
    if status == 413:
        return OutsideError(
            f"{where}: too large for {host} or a proxy before it: {said}",
            "raise the limit there (nginx: client_max_body_size)",
        )
    missing = status == 404 or "name_unknown" in words or "name unknown" in words
    if missing and right == "write" and (artifact_registry or gcr):
        project, *rest = where.repository.split("/")
        place = artifact_registry["location"] if artifact_registry else "us"
        if gcr:
            place = {"eu": "europe"}.get(gcr["location"] or "us", gcr["location"] or "us")
        name = host if gcr else rest[0]
        return OutsideError(
            f"{host}: project {project} has no repository {name}",
            f"run: gcloud artifacts repositories create {name} --repository-format=docker"
            f" --location={place} --project={project}",
        )
    if missing:
        return OutsideError(f"{where}: not there: {said}", "correct the name, or create it")
    if status == 401 or (status == 403 and known is None):
        if known is None:
            return OutsideError(
                f"not logged in to {host}, which wants that to {right} {where.repository}",
                f"run: {login_command(host)}",
            )
        status = 403
    if status == 403 or "denied" in words:
        who = (known.username if known else "") or "you"
        if who in ("_dcgcloud_token", "oauth2accesstoken", "_json_key", "_json_key_base64"):
            who = "this account"
        fix = f"ask the owner for the right to {right} {where.name}, or log in as another user"
        if artifact_registry or gcr:
            role = "writer" if right == "write" else "reader"
            fix = f"ask for roles/artifactregistry.{role} on it; a missing repository is denied too"
        return OutsideError(f"{host}: {who} may not {right} {where.repository}: {said}", fix)
    answer = f"answered {status}" if status else "refused"
    return OutsideError(
        f"{where}: {host} {answer}{f': {said}' if said else ''}",
        "see the registry's log for the reason",
    )


def _basic(known: Credentials) -> str:
    return web.basic(known.username, known.password)


def _message(response: Response) -> str:
    """The registry's own words on one line, "" where it has none."""
    try:
        errors = response.json()["errors"]
        words = [f"{one.get('code', '')} {one.get('message') or ''}".strip() for one in errors]
    except (ValueError, KeyError, TypeError, AttributeError):
        plain = "text/plain" in response.headers.get("Content-Type", "")
        words = [response.data.decode(errors="replace")] if plain else []
    return " ".join("; ".join(words).split())[:300]


def _retry_after(value: str) -> float | None:
    """Seconds, from a number or a date."""
    if value.strip().isdigit():
        return float(value)
    try:
        return max(0.0, (parsedate_to_datetime(value) - datetime.now(UTC)).total_seconds())
    except (ValueError, TypeError):
        return None


def _succeeded(response: Response) -> bool:
    return 200 <= response.status < 300


def _chain(error: BaseException) -> Iterator[BaseException]:
    """An error and what it came from: urllib3 hands that on as an argument, Python as a cause."""
    seen: BaseException | None = error
    while seen is not None:
        yield seen
        inside = (one for one in seen.args if isinstance(one, BaseException))
        seen = next(inside, None) or seen.__cause__ or seen.__context__
