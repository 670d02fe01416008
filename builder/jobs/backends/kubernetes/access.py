"""Which cluster a job goes to, and who asks: the official client reads kubeconfig and runs plugins.

Beside that client this module takes the first current-context of several files, as kubectl does,
reads proxy-url, takes the machine's own trust where a cluster names no authority, and sends no
request without the credentials that an entry promises.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from builder.core import web
from builder.core.errors import InputError, OutsideError

if TYPE_CHECKING:
    from kubernetes.client import ApiClient, Configuration

RETRIES: Final = 3
"""How often a request that changes nothing is repeated, or one that reached no server."""
_BUSY: Final = (429, 500, 502, 503, 504)
_RENEW: Final = "write the entry anew: on GKE, gcloud container clusters get-credentials CLUSTER"


@dataclass(frozen=True)
class Access:
    """One cluster, and one user of it.

    context: its name in kubeconfig. namespace: the context's. fill: writes the address
    and the credentials into a configuration; it may run a plugin. proxy: of kubeconfig.
    """

    context: str
    server: str
    namespace: str
    fill: Callable[[Configuration], None]
    proxy: str | None = None

    def connect(self) -> ApiClient:
        """Return the official client with this cluster's trust and this user's credentials, which
        it renews where they say when they expire.

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


def load(context: str | None) -> Access:
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
    where = loader.current_context["context"]
    cluster = files.config["clusters"].get_with_name(where["cluster"])["cluster"].value
    server = str(cluster.get("server") or "").rstrip("/")
    if not server.startswith(("https://", "http://")):
        raise InputError(f"context {name}: {server!r} is no server", _RENEW)
    namespace = where.get("namespace") or "default"
    return Access(str(name), server, namespace, loader.load_and_set, cluster.get("proxy-url"))


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
