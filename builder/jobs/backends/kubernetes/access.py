"""Which cluster a job goes to, and who asks: kubeconfig as kubectl reads it.

TLS, proxies and requests are the official client's, which also runs credential plugins. By itself
that client reads a kubeconfig otherwise than kubectl in eleven of thirty cases: of several
current-contexts it takes the last, it looks for a user's certificate beside the cluster's file, it
keeps the newline of a token file, it goes on without credentials after a plugin has failed, it
sends credentials over http, it does not know proxy-url, and it renews an OIDC token over a
connection that it does not check. So this module reads the files by kubectl's rules, puts the
contents of the files that they name in their place, and hands the result over. Source: client-go,
tools/clientcmd; tests/jobs/test_kubernetes_access.py asks Debian's kubectl the same.
"""

from __future__ import annotations

import base64
import contextlib
import os
import ssl
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from builder.core import web
from builder.core.errors import InputError, OutsideError

if TYPE_CHECKING:
    from kubernetes.client import ApiClient, Configuration

IN_POD: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_RENEW: Final = "write the entry anew: on GKE, gcloud container clusters get-credentials CLUSTER"
_FILES: Final = ("certificate-authority", "client-certificate", "client-key")
"""The keys that name a file; KEY-data holds its contents."""


@dataclass(frozen=True)
class Entry:
    """A cluster, a user or a context of kubeconfig. folder: where its relative paths begin."""

    values: Mapping[str, Any]
    folder: Path

    def inlined(self, source: str) -> dict[str, Any]:
        """Return the values with the contents of files in place of their paths."""
        values = dict(self.values)
        for key in _FILES:
            path, data = values.pop(key, None), values.get(f"{key}-data")
            if path and not data:
                data = values[f"{key}-data"] = _base64(_read(self.folder / path, source))
            if data and b"-----BEGIN" not in base64.b64decode(data + "==="):
                raise InputError(f"{source}: {key} holds no certificate and no key", _RENEW)
        if path := values.pop("tokenFile", None):
            values["token"] = _read(self.folder / path, source).decode().strip()
        plugin = values.get("exec")
        if plugin and "/" in str(plugin.get("command")):
            values["exec"] = {**plugin, "command": str(self.folder / plugin["command"])}
        return values


@dataclass(frozen=True)
class Access:
    """One cluster, and one user of it.

    context: its name in kubeconfig, "" in a pod. server: the API server's address. namespace: the
    context's.
    """

    context: str
    server: str
    namespace: str
    cluster: Entry
    user: Entry

    def connect(self) -> ApiClient:
        """Return the official client with this cluster's trust and this user's credentials.

        Runs the user's credential plugin. A later call may return other credentials. Raises
        InputError for an entry that cannot be used, OutsideError where the plugin fails.
        """
        from kubernetes.client import Configuration
        from kubernetes.config import new_client_from_config_dict

        source = f"context {self.context}" if self.context else "this pod"
        cluster = self.cluster.inlined(source)
        user = _credentials(self.user.inlined(source), cluster, source)
        if not self.server.startswith("https://"):
            user = {}
        configuration = Configuration()
        _set_proxy(configuration, cluster.get("proxy-url") or web.proxy_of(self.server))
        merged = {
            "current-context": "job",
            "contexts": [{"name": "job", "context": {"cluster": "job", "user": "job"}}],
            "clusters": [{"name": "job", "cluster": cluster}],
            "users": [{"name": "job", "user": user}],
        }
        client = new_client_from_config_dict(merged, client_configuration=configuration)
        if self.server.startswith("https://"):
            _set_trust(client, "certificate-authority-data" in cluster)
        return client


def load(context: str | None) -> Access:
    """Read the cluster and the user of a context; None for the current one.

    The files of KUBECONFIG count, else ~/.kube/config; of two entries with one name the first.
    Without any file, a pod's own service account counts. Raises InputError.
    """
    named = [Path(path) for path in os.environ.get("KUBECONFIG", "").split(os.pathsep) if path]
    paths = named or [Path.home() / ".kube" / "config"]
    files = [Entry(_parsed(path), path.parent.absolute()) for path in paths if path.is_file()]
    if not files and context is None and "KUBERNETES_SERVICE_HOST" in os.environ:
        return _in_pod()
    searched = os.pathsep.join(str(path) for path in paths)
    if not files:
        raise InputError(
            f"{searched}: there is no kubeconfig",
            "on GKE: gcloud container clusters get-credentials CLUSTER; else set KUBECONFIG",
        )
    current = (file.values.get("current-context") for file in files)
    name = context or next((value for value in current if value), "")
    contexts = _entries(files, "context")
    if name not in contexts:
        raise InputError(
            f"{searched}: no context is called {name}"
            if name
            else f"{searched}: no current-context",
            f"give --context: {', '.join(sorted(contexts))}" if contexts else _RENEW,
        )
    chosen = contexts[name].values
    cluster = _named(files, "cluster", chosen.get("cluster"), searched)
    user = (
        _named(files, "user", chosen["user"], searched) if chosen.get("user") else Entry({}, Path())
    )
    server = str(cluster.values.get("server") or "").rstrip("/")
    if not server.startswith(("https://", "http://")):
        raise InputError(f"context {name}: {server!r} is no server", _RENEW)
    return Access(name, server, chosen.get("namespace") or "default", cluster, user)


def _in_pod() -> Access:
    """Return the cluster that this very process runs in, and the pod's own account."""
    host, port = (os.environ[f"KUBERNETES_SERVICE_{name}"] for name in ("HOST", "PORT"))
    server = f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"
    namespace = _read(IN_POD / "namespace", "this pod").decode().strip()
    cluster = Entry({"server": server, "certificate-authority": "ca.crt"}, IN_POD)
    return Access("", server, namespace, cluster, Entry({"tokenFile": "token"}, IN_POD))


# --- files ----------------------------------------------------------------------------------------


def _parsed(path: Path) -> Mapping[str, Any]:
    from ruamel.yaml import YAML
    from ruamel.yaml.error import YAMLError

    content: Any = None
    with contextlib.suppress(YAMLError, ValueError):
        content = YAML(typ="safe").load(_read(path, "kubeconfig")) or {}
    if not isinstance(content, dict):
        raise InputError(f"{path}: not a kubeconfig", "kubectl config view says what is wrong")
    return content


def _entries(files: Sequence[Entry], kind: str) -> dict[str, Entry]:
    """Return the entries of a kind by their names, of each name the first."""
    entries: dict[str, Entry] = {}
    for file in files:
        for item in file.values.get(f"{kind}s") or []:
            entries.setdefault(item.get("name"), Entry(item.get(kind) or {}, file.folder))
    return entries


def _named(files: Sequence[Entry], kind: str, name: object, searched: str) -> Entry:
    known = _entries(files, kind)
    if name not in known:
        raise InputError(f"{searched}: no {kind} is called {name!r}, which a context names", _RENEW)
    return known[str(name)]


def _read(path: Path, source: str) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise InputError(f"{source}: {path}: {error.strerror}", "correct the path") from None


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()


# --- credentials ----------------------------------------------------------------------------------


def _credentials(user: dict[str, Any], cluster: Mapping[str, Any], source: str) -> dict[str, Any]:
    """Return a user's entry with what its plugin answers."""
    provider, plugin = user.pop("auth-provider", None), user.pop("exec", None)
    if provider and provider.get("name") != "oidc":
        raise InputError(f"{source}: auth-provider is read by no kubectl since 1.26", _RENEW)
    if provider:  # kubectl renews the token, and keeps it there
        user.setdefault("token", (provider.get("config") or {}).get("id-token") or "")
    if plugin and not user.get("token"):
        user |= _from_plugin(plugin, cluster, source)
    if ("client-certificate-data" in user) != ("client-key-data" in user):
        raise InputError(
            f"{source}: client-certificate and client-key belong together", "name both"
        )
    return user


def _from_plugin(
    plugin: Mapping[str, Any], cluster: Mapping[str, Any], source: str
) -> dict[str, str]:
    """Run a credential plugin. Raises OutsideError with the last line of what it says."""
    from kubernetes.config import ConfigException
    from kubernetes.config.exec_provider import ExecProvider
    from kubernetes.config.kube_config import ConfigNode

    command = plugin.get("command")
    try:
        status = ExecProvider(
            ConfigNode("exec", plugin), None, ConfigNode("cluster", cluster)
        ).run()
    except FileNotFoundError:
        hint = str(plugin.get("installHint") or f"install {command}").strip().splitlines()[0]
        what = f"{source}: its credential plugin {command} is not installed"
        raise OutsideError(what, hint) from None
    except (ConfigException, AttributeError) as error:
        # at a terminal the plugin has spoken itself, and the client strips the text that it lacks
        why = "" if isinstance(error, AttributeError) else f": {str(error).splitlines()[-1]}"
        what = f"{source}: {command} gave no credentials{why}"
        raise OutsideError(what, "log in again") from None
    if status.get("clientCertificateData") and status.get("clientKeyData"):
        return {
            "client-certificate-data": _base64(status["clientCertificateData"].encode()),
            "client-key-data": _base64(status["clientKeyData"].encode()),
        }
    if status.get("token"):
        return {"token": status["token"]}
    raise OutsideError(f"{source}: {command} answered without credentials", f"try it: {command}")


# --- the connection -------------------------------------------------------------------------------


def _set_proxy(configuration: Configuration, proxy: str | None) -> None:
    """Set the proxy of a cluster; the client by itself takes HTTP_PROXY for https, too."""
    configuration.proxy, configuration.no_proxy = proxy, ""
    if proxy:
        configuration.proxy, login = web.without_login(proxy)
        configuration.proxy_headers = {"Proxy-Authorization": f"Basic {login}"} if login else {}


def _set_trust(client: ApiClient, own_authority: bool) -> None:
    """Trust what this machine trusts where the cluster names no authority of its own.

    Go accepts an authority that Python 3.13 refuses for its form; clusters have such ones.
    """
    from urllib3 import disable_warnings
    from urllib3.exceptions import InsecureRequestWarning
    from urllib3.util.ssl_ import create_urllib3_context

    if not client.configuration.verify_ssl:
        disable_warnings(InsecureRequestWarning)
        return
    context = create_urllib3_context() if own_authority else web.trust()
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    client.rest_client.pool_manager.connection_pool_kw["ssl_context"] = context
