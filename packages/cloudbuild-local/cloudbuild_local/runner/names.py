"""The names of Cloud Build, and the names that one build's things have on this machine's engine.

On a worker of Cloud Build, a build is alone: its workspace is the folder /workspace of the worker,
its network is `cloudbuild`, its steps are the containers `step_0`, `step_1` ..., its volumes have
their own names. Here several builds share an engine with other containers. So a step reaches the
engine through a proxy (proxy.py), which translates the names of requests and answers:

* The name of a container, network or volume gets the build's prefix, and loses it in an answer.
* A path of the worker becomes a path in one of the build's volumes, on the engine's disk. Folders
  of the system itself (/dev, /etc ...) are this machine's.
* Lists and removals of everything (`docker ps`, `docker system prune`) see only what belongs to the
  build. What a step creates belongs to the build, too, and is removed with it.

Source: Docker Engine API 1.41 to 1.51, docs.docker.com/reference/api/engine/.
"""

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
_CONTAINER_PARAMETERS = ("container", "since", "before")

Json = dict[str, Any]


@dataclass(frozen=True)
class Names:
    """The translation of one build."""

    prefix: str
    """Of its names on the engine."""
    label: str
    """Of everything that it creates, as LABEL=VALUE."""
    paths: Mapping[str, str] = field(default_factory=dict)
    """On the worker -> on the engine's machine."""
    worker: str = ""
    """The folder on the engine's machine that holds every other path of the worker."""

    @property
    def labels(self) -> dict[str, str]:
        """The label as the engine takes it."""
        name, _, value = self.label.partition("=")
        return {name: value}

    def own(self, name: str) -> str:
        """Return a container's, network's or volume's name on the engine. Ids stay as they are."""
        bare = name.removeprefix("/")
        if not bare or _ID.fullmatch(bare) or bare.startswith(self.prefix):
            return bare
        return self.prefix + bare

    def network(self, name: str) -> str:
        """Translate a network mode: a network, one of the engine's own, or `container:NAME`."""
        kind, colon, other = name.partition(":")
        if colon and kind == "container":
            return f"container:{self.own(other)}"
        return name if name in _BUILT_IN_NETWORKS else self.own(name)

    def path(self, path: str) -> str:
        """Return where a folder or file of the worker is on the engine's machine."""
        path = posixpath.normpath(path)
        for on_worker, on_engine in self.paths.items():
            if path == on_worker or path.startswith(f"{on_worker}/"):
                return on_engine + path[len(on_worker) :]
        if _SYSTEM.fullmatch(path) or path.startswith((self.worker, *self.paths.values())):
            return path
        return self.worker + path

    def restored(self, answer: bytes) -> bytes:
        """Return an answer of the engine with the names that a step knows."""
        for on_worker, on_engine in (*self.paths.items(), ("", self.worker), ("", self.prefix)):
            answer = answer.replace(on_engine.encode(), on_worker.encode())
        return answer

    def target(self, method: str, target: str, unnamed: str) -> str:
        """Translate the path and query of a request. unnamed: names a container without a name."""
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
                query["name"] = [self.own(name) for name in query["name"]]
        if _is_list(method, kind, rest):
            (filters,) = query.get("filters", ["{}"])
            query["filters"] = [json.dumps(self._filters(kind, rest, json.loads(filters)))]
        if kind in ("commit", "containers"):
            for key in query.keys() & set(_CONTAINER_PARAMETERS):
                query[key] = [self.own(name) for name in query[key]]
        if any(query.get("networkmode", [])):
            query["networkmode"] = [self.network(mode) for mode in query["networkmode"]]
        return f"{version}/{kind}{rest}" + (f"?{urlencode(query, doseq=True)}" if query else "")

    def _rest(self, kind: str, rest: str) -> str:
        _, _, name_and_more = rest.partition("/")
        name, slash, more = name_and_more.partition("/")
        if not name or (not slash and name in ("json", "create", "prune")):
            return rest
        own = self.network(name) if kind == "networks" else self.own(name)
        return f"/{quote(own, safe='')}{slash}{more}"

    def _filters(self, kind: str, rest: str, filters: Json) -> dict[str, dict[str, bool]]:
        filters = {
            key: [self._filter(kind, key, value) for value in values]
            for key, values in filters.items()
        }
        if kind == "build":  # BuildKit's cache has no owners: none of it belongs to the build
            filters["id"] = [self.prefix]
        elif (kind, rest) != ("networks", ""):  # the engine's own networks are listed, too
            filters["label"] = [*filters.get("label", []), self.label]
        return {key: dict.fromkeys(values, True) for key, values in filters.items()}

    def _filter(self, kind: str, key: str, value: str) -> str:
        if key == "name":  # a pattern
            bare = re.sub(r"^\^(/\??)?", "", value)
            if kind == "networks" and bare.rstrip("$") in _BUILT_IN_NETWORKS:
                return value
            return f"{self.prefix}.*{value}" if bare == value else f"^/?{self.prefix}{bare}"
        if key in (*_CONTAINER_PARAMETERS, "network") or (
            key == "volume" and not value.startswith("/")
        ):
            return self.network(value)
        return value

    def body(self, method: str, target: str, body: Json) -> Json:
        """Translate the JSON of a request. target: the path and query as the step sent them."""
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
        mounts = [self._mount(mount) for mount in host.get("Mounts") or []]
        binds = [self._bind(text) for text in host.pop("Binds", None) or []]
        host["Binds"] = [bind for bind in binds if isinstance(bind, str)]
        host["Mounts"] = [*mounts, *(bind for bind in binds if not isinstance(bind, str))]
        host["VolumesFrom"] = [self._first(text) for text in host.get("VolumesFrom") or []]
        for key in ("NetworkMode", "PidMode", "IpcMode"):
            if host.get(key, "").startswith("container:") or (key == "NetworkMode" and host[key]):
                host[key] = self.network(host[key])
        endpoints = (body.get("NetworkingConfig") or {}).get("EndpointsConfig") or {}
        networks = {
            self.network(network): self._endpoint(endpoint or {}, name)
            for network, endpoint in endpoints.items()
            if network not in _BUILT_IN_NETWORKS
        }
        mode = host.get("NetworkMode", "")
        if mode.startswith(self.prefix) and mode not in networks:
            networks[mode] = self._endpoint({}, name)
        return {**body, "HostConfig": host, "NetworkingConfig": {"EndpointsConfig": networks}}

    def _endpoint(self, endpoint: Json, name: str) -> Json:
        """Return an endpoint at which others reach a container by the name that a step gave it."""
        if name and not _ID.fullmatch(name):
            return {**endpoint, "Aliases": [*(endpoint.get("Aliases") or []), name]}
        return endpoint

    def _first(self, text: str) -> str:
        name, colon, rest = text.partition(":")
        return self.own(name) + colon + rest

    def _bind(self, text: str) -> str | Json:
        """Translate `SOURCE:PATH[:OPTIONS]`. A volume becomes a mount, which can carry a label."""
        source, _, rest = text.partition(":")
        if source.startswith("/"):
            return f"{self.path(source)}:{rest}"
        path, _, options = rest.partition(":")
        mount: Json = {"Type": "volume", "Source": source, "Target": path}
        if "ro" in options.split(","):
            mount["ReadOnly"] = True
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

    def has_names(self, target: str) -> bool:
        """Return whether the answer to a request carries names, and is no stream."""
        match = _TARGET.fullmatch(target)
        if not match or match[2] not in ("containers", "networks", "volumes"):
            return False
        rest = match[3] or ""
        return match[2] != "containers" or rest.endswith(("/json", "/create", "/prune"))

    def answer(self, target: str, body: bytes) -> bytes:
        """Translate the JSON of an answer; of a list of networks, leave out those of others."""
        match = _TARGET.fullmatch(target)
        if match and match[2] == "networks" and not match[3]:
            own = (self.prefix, *_BUILT_IN_NETWORKS)
            networks = [item for item in json.loads(body) if item["Name"].startswith(own)]
            body = json.dumps(networks).encode()
        return self.restored(body)


def _is_list(method: str, kind: str, rest: str) -> bool:
    """Return whether a request is about everything of a kind."""
    if method == "POST":
        return rest == "/prune"
    lists = (("containers", "/json"), ("networks", ""), ("volumes", ""))
    return method == "GET" and (kind, rest) in lists


def _name(query: str | None) -> str:
    return parse_qs(query or "").get("name", [""])[0]
