"""The names of the hosted service, and what one build's things are called on this machine's engine.

On a worker of the service, a build is alone: its workspace is the folder /workspace of the worker,
its network is `cloudbuild`, its steps are the containers `step_0`, `step_1` ..., its volumes have
their own names. Here several builds share an engine with other containers. So a step asks the
engine through a proxy (proxy.py), which translates the names of requests and answers by these
rules:

* A name of a container, network or volume gets the build's prefix, and loses it in an answer.
* A path of the worker becomes one of the build's volumes, on the engine's disk. Folders of the
  system itself (/dev, /etc ...) are this machine's.
* Lists and removals of everything (`docker ps`, `docker system prune`) see only what is the
  build's. What a step makes is the build's, too, and goes with it.

Source: Docker Engine API 1.41 to 1.51, docs.docker.com/reference/api/engine/.
"""

from __future__ import annotations

import json
import posixpath
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs, quote, urlencode

NETWORK = "cloudbuild"
_BUILT_IN_NETWORKS = ("bridge", "default", "host", "nat", "none")
_ID = re.compile(r"[0-9a-f]{12,64}")
_SYSTEM = re.compile(r"/((dev|etc|lib|lib64|proc|run|sys|usr|var/run)(/.*)?)?")
_TARGET = re.compile(r"(/v[0-9.]+)?/(\w+)(/[^?]*)?(?:\?(.*))?")
_REFERS = ("container", "since", "before")
"""Parameters that name one container."""

Json = dict[str, Any]


@dataclass(frozen=True)
class Names:
    """One build's translation.

    prefix: of its names on the engine. labels: of everything that it makes. mine: the label that
    tells its things from others, as LABEL=VALUE. paths: on the worker -> on the engine's machine.
    worker: the folder on the engine's machine that holds every other path of the worker. hosts,
    environment: NAME:ADDRESS and NAME=VALUE for containers on the build's network.
    """

    prefix: str
    labels: Mapping[str, str]
    mine: str
    paths: Mapping[str, str] = field(default_factory=dict)
    worker: str = ""
    hosts: tuple[str, ...] = ()
    environment: tuple[str, ...] = ()

    def own(self, name: str) -> str:
        """A container's, network's or volume's name on the engine. Ids stay as they are."""
        bare = name.removeprefix("/")
        if not bare or _ID.fullmatch(bare) or bare.startswith(self.prefix):
            return bare
        return self.prefix + bare

    def network(self, name: str) -> str:
        """A network mode: a network, one of the engine's own, or `container:NAME`."""
        kind, colon, other = name.partition(":")
        if colon and kind == "container":
            return f"container:{self.own(other)}"
        return name if name in _BUILT_IN_NETWORKS else self.own(name)

    def path(self, path: str) -> str:
        """A folder or file of the worker, on the engine's machine."""
        path = posixpath.normpath(path)
        for there, here in self.paths.items():
            if path == there or path.startswith(f"{there}/"):
                return here + path[len(there) :]
        if _SYSTEM.fullmatch(path) or path.startswith((self.worker, *self.paths.values())):
            return path
        return self.worker + path

    def shown(self, answer: bytes) -> bytes:
        """An answer of the engine, with the names that a step knows."""
        for there, here in (*self.paths.items(), ("", self.worker), ("", self.prefix)):
            answer = answer.replace(here.encode(), there.encode())
        return answer

    # --- requests ---------------------------------------------------------------------------------

    def target(self, method: str, target: str, unnamed: str) -> str:
        """The path and query of a request, translated. unnamed: for a container without a name."""
        match = _TARGET.fullmatch(target)
        if not match:
            return target
        version, kind, rest, text = match[1] or "", match[2], match[3] or "", match[4]
        query = parse_qs(text or "", keep_blank_values=True)
        if kind in ("containers", "networks", "volumes"):
            rest = self._rest(kind, rest)
            if kind == "containers" and rest == "/create":
                query.setdefault("name", [unnamed])
            if "name" in query:
                query["name"] = [self.own(one) for one in query["name"]]
        if _is_list(method, kind, rest):
            (filters,) = query.get("filters", ["{}"])
            query["filters"] = [json.dumps(self._filters(kind, rest, json.loads(filters)))]
        if kind in ("commit", "containers"):
            for key in query.keys() & set(_REFERS):
                query[key] = [self.own(one) for one in query[key]]
        if any(query.get("networkmode", [])):
            query["networkmode"] = [self.network(one) for one in query["networkmode"]]
        return f"{version}/{kind}{rest}" + (f"?{urlencode(query, doseq=True)}" if query else "")

    def _rest(self, kind: str, rest: str) -> str:
        _, _, name_and_more = rest.partition("/")
        name, slash, more = name_and_more.partition("/")
        if not name or (not slash and name in ("json", "create", "prune")):
            return rest
        own = self.network(name) if kind == "networks" else self.own(name)
        return f"/{quote(own, safe='')}{slash}{more}"

    def _filters(self, kind: str, rest: str, given: Json) -> dict[str, dict[str, bool]]:
        wanted = {key: list(values) for key, values in given.items()}
        for key, values in wanted.items():
            wanted[key] = [self._filter(kind, key, value) for value in values]
        if kind == "build":  # BuildKit's cache has no owners: none of it is the build's
            wanted["id"] = [self.prefix]
        elif (kind, rest) != ("networks", ""):  # the engine's own networks are seen, too
            wanted["label"] = [*wanted.get("label", []), self.mine]
        return {key: dict.fromkeys(values, True) for key, values in wanted.items()}

    def _filter(self, kind: str, key: str, value: str) -> str:
        if key == "name":  # a pattern
            bare = re.sub(r"^\^(/\??)?", "", value)
            if kind == "networks" and bare.rstrip("$") in _BUILT_IN_NETWORKS:
                return value
            return f"{self.prefix}.*{value}" if bare == value else f"^/?{self.prefix}{bare}"
        if key in (*_REFERS, "network") or (key == "volume" and not value.startswith("/")):
            return self.network(value)
        return value

    def body(self, method: str, target: str, body: Json) -> Json:
        """The JSON of a request, translated. target: as it came from the step."""
        match = _TARGET.fullmatch(target)
        kind, rest = (match[2], match[3] or "") if match else ("", "")
        if method != "POST" or kind not in ("containers", "networks", "volumes"):
            return body
        if rest == "/create":
            body = {**body, "Labels": {**(body.get("Labels") or {}), **self.labels}}
            if kind == "containers":
                return self._container(body, _name(match[4] if match else None))
            return {**body, "Name": self.own(body["Name"])} if body.get("Name") else body
        if kind == "networks" and body.get("Container"):
            endpoint = self._endpoint(body.get("EndpointConfig") or {}, body["Container"])
            connect = {"EndpointConfig": endpoint} if rest.endswith("/connect") else {}
            return {**body, **connect, "Container": self.own(body["Container"])}
        return body

    def _container(self, body: Json, name: str) -> Json:
        host = dict(body.get("HostConfig") or {})
        mounts = [self._mount(one) for one in host.get("Mounts") or []]
        binds = [self._bind(one) for one in host.pop("Binds", None) or []]
        host["Binds"] = [one for one in binds if isinstance(one, str)]
        host["Mounts"] = [*mounts, *(one for one in binds if not isinstance(one, str))]
        for key in ("VolumesFrom", "Links"):
            host[key] = [self._first(one) for one in host.get(key) or []]
        for key in ("NetworkMode", "PidMode", "IpcMode"):
            if host.get(key, "").startswith("container:") or (key == "NetworkMode" and host[key]):
                host[key] = self.network(host[key])
        networks = {
            self.network(one): self._endpoint(endpoint or {}, name)
            for one, endpoint in (
                (body.get("NetworkingConfig") or {}).get("EndpointsConfig") or {}
            ).items()
            if one not in _BUILT_IN_NETWORKS
        }
        mode = host.get("NetworkMode", "")
        if mode.startswith(self.prefix) and mode not in networks:
            networks[mode] = self._endpoint({}, name)
        made = {**body, "HostConfig": host, "NetworkingConfig": {"EndpointsConfig": networks}}
        if mode == self.own(NETWORK):
            host["ExtraHosts"] = [*(host.get("ExtraHosts") or []), *self.hosts]
            made["Env"] = [*self.environment, *(body.get("Env") or [])]
        return made

    def _endpoint(self, endpoint: Json, name: str) -> Json:
        """An endpoint at which the others find a container by the name that a step gave it."""
        found = {**endpoint, "Links": [self._first(one) for one in endpoint.get("Links") or []]}
        if name and not _ID.fullmatch(name):
            found["Aliases"] = [*(endpoint.get("Aliases") or []), name]
        return found

    def _first(self, text: str) -> str:
        name, colon, rest = text.partition(":")
        return self.own(name) + colon + rest

    def _bind(self, text: str) -> str | Json:
        """`SOURCE:PATH[:OPTIONS]`. A volume becomes a mount, which can carry the build's label."""
        source, _, rest = text.partition(":")
        if source.startswith("/"):
            return f"{self.path(source)}:{rest}"
        path, _, options = rest.partition(":")
        mount = {"Type": "volume", "Source": source, "Target": path}
        if "ro" in options.split(","):
            mount["ReadOnly"] = True  # type: ignore[assignment]
        return self._mount(mount)

    def _mount(self, mount: Json) -> Json:
        source = mount.get("Source") or ""
        if mount.get("Type") == "bind":
            return {**mount, "Source": self.path(source)}
        if mount.get("Type") != "volume":
            return mount
        options = dict(mount.get("VolumeOptions") or {})
        options["Labels"] = {**(options.get("Labels") or {}), **self.labels}
        return {**mount, "Source": self.own(source), "VolumeOptions": options}

    # --- answers ----------------------------------------------------------------------------------

    def is_told(self, target: str) -> bool:
        """Whether the answer to a request carries names, and is no stream."""
        match = _TARGET.fullmatch(target)
        if not match or match[2] not in ("containers", "networks", "volumes"):
            return False
        rest = match[3] or ""
        return match[2] != "containers" or rest.endswith(("/json", "/create", "/prune"))

    def answer(self, target: str, body: bytes) -> bytes:
        """The JSON of an answer, with the build's own things under the names that a step knows."""
        match = _TARGET.fullmatch(target)
        if match and match[2] == "networks" and not match[3]:
            found = json.loads(body)
            seen = [
                one
                for one in found
                if one["Name"] in _BUILT_IN_NETWORKS or one["Name"].startswith(self.prefix)
            ]
            body = json.dumps(seen).encode()
        return self.shown(body)


def _is_list(method: str, kind: str, rest: str) -> bool:
    """Whether a request is about everything of a kind."""
    if method == "POST":
        return rest == "/prune"
    lists = (("containers", "/json"), ("networks", ""), ("volumes", ""))
    return method == "GET" and (kind, rest) in lists


def _name(query: str | None) -> str:
    return parse_qs(query or "").get("name", [""])[0]
