"""A cluster's API server: which one and who asks, requests to it, and what its refusals mean.

The official client reads kubeconfig, runs its plugins and keeps the connection; objects are plain
values here. Beside that client this module takes the first current-context of several files, as
kubectl does, reads proxy-url, takes the machine's own trust where a cluster names no authority, and
sends no request without the credentials that an entry promises. It repeats reads where a connection
breaks or a server is busy. A request that creates is never repeated.
"""

from __future__ import annotations

import json
import os
import ssl
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from builder.core import web
from builder.core.errors import InputError, OutsideError
from builder.jobs.backends.protocol import GoneError, LostAnswer, UnansweredError

if TYPE_CHECKING:
    from kubernetes.client import ApiClient, ApiException, Configuration

RETRIES: Final = 3
"""How often a request that changes nothing is repeated, or one that reached no server."""
STREAMS: Final = 64
"""Texts that grow, read at once."""
QUIET: Final = 60.0
"""Seconds after which a connection without a word is given up."""
_BUSY: Final = (429, 500, 502, 503, 504)
_RENEW: Final = "write the entry anew: on GKE, gcloud container clusters get-credentials CLUSTER"


def load(context: str | None) -> ClusterClient:
    """Read the cluster and the user of a context; None for the current one.

    The files of KUBECONFIG count, else ~/.kube/config. Raises InputError.
    """
    from kubernetes.config.kube_config import KubeConfigLoader, KubeConfigMerger

    paths = os.environ.get("KUBECONFIG") or str(Path.home() / ".kube" / "config")
    files = _usable(paths, lambda: KubeConfigMerger(paths))
    if files.config is None:
        raise InputError(
            f"{paths}: there is no kubeconfig",
            "on GKE: gcloud container clusters get-credentials CLUSTER; else set KUBECONFIG",
        )
    current = (file.get("current-context") for file in files.config_files.values())
    name = context or next(filter(None, current), None)
    known = [entry["name"] for entry in files.config["contexts"].value]
    if name not in known:
        what = f"no context is called {name}" if name else "no current-context"
        raise InputError(
            f"{paths}: {what}", f"give --context: {', '.join(known)}" if known else _RENEW
        )
    loader = _usable(paths, lambda: KubeConfigLoader(files.config, name, config_base_path=None))
    entry = loader.current_context["context"]
    cluster = files.config["clusters"].get_with_name(entry["cluster"])["cluster"].value
    server = str(cluster.get("server") or "").rstrip("/")
    if not server.startswith(("https://", "http://")):
        raise InputError(f"context {name}: {server!r} is no server", _RENEW)
    namespace = entry.get("namespace") or "default"
    return ClusterClient(
        str(name), server, namespace, loader.load_and_set, cluster.get("proxy-url")
    )


def _usable(source: str, read: Callable[[], Any]) -> Any:
    """Return what the client reads of a kubeconfig. Raises InputError with its first line."""
    from kubernetes.config import ConfigException
    from yaml import YAMLError

    try:
        return read()
    except (ConfigException, YAMLError, OSError, ValueError, TypeError, AttributeError) as error:
        why = (str(error).splitlines() or [type(error).__name__])[0]
        raise InputError(f"{source}: {why}", _RENEW) from None


def _set_trust(client: ApiClient) -> None:
    """Trust what this machine trusts where the cluster names no authority of its own.

    Go accepts an authority that Python 3.13 refuses for its form; clusters have such ones.
    """
    from urllib3 import disable_warnings
    from urllib3.exceptions import InsecureRequestWarning
    from urllib3.util.ssl_ import create_urllib3_context

    if not client.configuration.verify_ssl:
        disable_warnings(InsecureRequestWarning)
        return
    context = create_urllib3_context() if client.configuration.ssl_ca_cert else web.trust()
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    client.rest_client.pool_manager.connection_pool_kw["ssl_context"] = context


# --- requests -------------------------------------------------------------------------------------

JOBSETS: Final = "jobset.x-k8s.io/v1alpha2"
PAGE: Final = 500
_MAYBE_DONE: Final = (500, 502, 504)
"""After these the API server, or a proxy before it, may have done what it was asked for."""

_EXPIRED: Final = 410
_REPEATED: Final = "run the same command again: it finds the job if it was created"
_CORRECT: Final = ("refused", "correct the job; builder job render --on kubernetes shows it")
_REFUSALS: Final = {
    401: (
        "the credentials are not accepted",
        "log in again: {kubectl} auth can-i --list -n {namespace} tries it",
    ),
    403: ("not allowed", "builder doctor --on kubernetes names the command that grants it"),
    404: ("not found", "builder job list --on kubernetes shows all"),
    409: ("conflict", "run the same command again"),
    429: ("too many requests", "wait a little, then run the same command again"),
}
"""What a status means, and the way out. Any other below 500 is about the job."""

Object = dict[str, Any]


class ClusterRefused(OutsideError):
    """The API server refused. code: its HTTP status; reason: its own word, such as Forbidden."""

    def __init__(self, message: str, fix: str, code: int, reason: str) -> None:
        super().__init__(message, fix)
        self.code, self.reason = code, reason


class NotThere(ClusterRefused, GoneError):
    """The API server knows no object of this name."""


class ClusterBusy(ClusterRefused, UnansweredError):
    """The API server, or a proxy before it, does not answer now."""


@dataclass
class ClusterClient:
    """One cluster's API server, and one user of it. Its calls raise ClusterRefused, and
    OutsideError where the server cannot be reached."""

    context: str
    """Its name in kubeconfig."""
    server: str
    namespace: str
    """The context's."""
    fill: Callable[[Configuration], None]
    """Writes the address and the credentials into a configuration; it may run a plugin."""
    proxy: str | None = None
    """Of kubeconfig."""

    @cached_property
    def connection(self) -> ApiClient:
        """The official client with this cluster's trust and this user's credentials, which it
        renews where they say when they expire.

        Raises InputError for an entry that cannot be used, OutsideError where there are no
        credentials.
        """
        from kubernetes.client import ApiClient, Configuration
        from urllib3 import Retry

        configuration = Configuration()
        _usable(f"context {self.context}", lambda: self.fill(configuration))
        if not self.server.startswith("https://"):
            configuration.api_key.clear()
            configuration.refresh_api_key_hook = None
        elif not (configuration.api_key or configuration.cert_file):
            raise OutsideError(
                f"context {self.context}: no credentials",
                f"log in again; kubectl --context {self.context} get pods tries it",
            )
        configuration.connection_pool_maxsize = STREAMS + web.THREADS
        configuration.retries = Retry(
            RETRIES,
            status_forcelist=_BUSY,
            backoff_factor=0.3,
            retry_after_max=10,
            raise_on_status=False,
        )
        proxy, login = web.without_login(self.proxy or web.proxy_of(self.server) or "")
        configuration.proxy, configuration.no_proxy = proxy or None, ""
        if login:
            configuration.proxy_headers = {"Proxy-Authorization": f"Basic {login}"}
        client = ApiClient(configuration)
        if self.server.startswith("https://"):
            _set_trust(client)
        return client

    def path(self, version: str, resource: str, name: str = "", namespace: str = "") -> str:
        """Return the path of a resource in a namespace, by default in that of the context."""
        root = f"/api/{version}" if "/" not in version else f"/apis/{version}"
        inside = f"{root}/namespaces/{namespace or self.namespace}/{resource}"
        return f"{inside}/{name}" if name else inside

    def get(self, path: str, **query: str) -> Object:
        return self._object("GET", path, query)

    def items(self, path: str, **query: str) -> list[Object]:
        """Return all objects of a list, page by page; from its beginning where its token expires
        on the way (410: the pages are those of one moment, which the server forgets)."""
        items: list[Object] = []
        query["limit"] = str(PAGE)
        while True:
            try:
                page = self.get(path, **query)
            except ClusterRefused as error:
                if error.code != _EXPIRED or not query.pop("continue", ""):
                    raise
                items = []
                continue
            items += page.get("items") or []
            query["continue"] = (page.get("metadata") or {}).get("continue") or ""
            if not query["continue"]:
                return items

    def text(self, path: str, **query: str) -> str:
        text: str = self._answer("GET", path, query).data.decode(errors="replace")
        return text

    def lines(self, path: str, **query: str) -> Iterator[str]:
        """Yield the lines of a text that grows, until its end or QUIET seconds without one."""
        from urllib3 import exceptions

        answer = self._answer("GET", path, query, whole=False)
        try:
            for line in answer:
                yield line.decode(errors="replace").rstrip("\n")
        except exceptions.HTTPError:
            return
        finally:
            answer.close()

    def create(self, path: str, body: Mapping[str, Any], **query: str) -> Object:
        """Create an object; the server refuses a field that it does not know.

        Raises LostAnswer where the object may have been created.
        """
        query = {"fieldValidation": "Strict", **query}
        try:
            return self._object("POST", path, query, body)
        except ClusterRefused as error:
            if error.code in _MAYBE_DONE:
                raise LostAnswer(error.message, error.fix) from error
            raise

    def delete(self, path: str, **query: str) -> None:
        self._answer("DELETE", path, query)

    # --- the request itself -----------------------------------------------------------------------

    def _object(self, *request: Any) -> Object:
        """Return the object that answers a request, which is as of `_answer`."""
        answer = _parsed(self._answer(*request).data)
        if answer is None:
            what = f"{self.server} is no API server: its answer is no JSON"
            raise OutsideError(what, f"look at it: {self._kubectl} cluster-info")
        return answer

    def _answer(
        self,
        method: str,
        path: str,
        query: Mapping[str, str],
        body: Mapping[str, Any] | None = None,
        whole: bool = True,
    ) -> Any:
        """Return the answer, whose body is read already where it is wanted whole."""
        from kubernetes.client import ApiException
        from urllib3 import exceptions

        connection, login = self.connection, dict[str, str]()
        connection.update_params_for_auth(login, [], ["BearerToken"])
        headers = {name: value.strip() for name, value in login.items()}  # a file ends with a line
        try:
            return connection.rest_client.request(
                method,
                f"{self.server}{path}",
                query_params=query,
                headers={"Accept": "application/json", **headers},
                body=body,
                _preload_content=whole,
                _request_timeout=(20, QUIET),
            )
        except ApiException as error:
            if error.status:
                raise self._refusal(error, path) from None
            raise self._unreachable(UnansweredError, error.reason) from None  # of TLS
        except exceptions.HTTPError as error:
            cause = getattr(error, "reason", None) or error
            unsent = (
                exceptions.NewConnectionError,
                exceptions.ConnectTimeoutError,
                exceptions.SSLError,
                exceptions.ProxyError,
            )
            kind = UnansweredError if isinstance(cause, unsent) else LostAnswer
            raise self._unreachable(kind, cause) from error

    def _unreachable(self, kind: type[OutsideError], cause: object) -> OutsideError:
        why = str(cause).splitlines()[-1].rpartition(">: ")[2]
        what = f"{self.server} cannot be reached: {why}"
        return kind(what, f"look whether it is up: {self._kubectl} version")

    @property
    def _kubectl(self) -> str:
        return f"kubectl --context {self.context}"

    def _refusal(self, answer: ApiException, path: str) -> ClusterRefused:
        status = _parsed(answer.body) or {}
        text = str(status.get("message") or answer.body.decode(errors="replace"))
        words = " ".join(text.split())[:600] or str(answer.reason)
        error = (f"the cluster's error {answer.status}", _REPEATED)
        what, fix = _REFUSALS.get(answer.status, error if answer.status >= 500 else _CORRECT)
        unknown = JOBSETS in path and not (status.get("details") or {}).get("name")
        if answer.status == 404 and unknown and "namespaces" not in words:
            what = "the cluster knows no JobSet"
            fix = "install JobSet 0.10.1 or later there: docs/kubernetes.md"
        fix = fix.format(kubectl=self._kubectl, namespace=self.namespace)
        reason = str(status.get("reason") or "")
        kind = ClusterBusy if answer.status in _BUSY else ClusterRefused
        if answer.status == 404 and not unknown:
            kind = NotThere
        return kind(f"{what}: {words}", fix, answer.status, reason)


def _parsed(data: bytes) -> Object | None:
    try:
        value = json.loads(data)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None
