"""Where a cluster's API server is and who asks it, as kubectl reads it from kubeconfig.

The files of KUBECONFIG count, else ~/.kube/config; of two entries with one name the first wins.
Without any file, a pod's own service account counts. Source: kubernetes.io, Organizing Cluster
Access Using kubeconfig Files; client-go, tools/clientcmd.
"""

from __future__ import annotations

import base64
import binascii
import json
import os
import ssl
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from builder.core import web, yamlfile
from builder.core.errors import InputError, OutsideError

DEFAULT: Final = Path("~/.kube/config")
IN_POD: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
NAMESPACE: Final = "default"
PLUGIN_SECONDS: Final = 120.0
"""How long a credential plugin may take: it may ask the person to log in."""
PLUGINS: Final = ("client.authentication.k8s.io/v1", "client.authentication.k8s.io/v1beta1")
INFO: Final = "KUBERNETES_EXEC_INFO"


@dataclass(frozen=True)
class Identity:
    """Who asks. token: of the header `Authorization: Bearer`; basic: of `Basic`; both "" for none.
    certificate: a certificate and its key, PEM."""

    token: str = ""
    basic: str = ""
    certificate: tuple[str, str] | None = None

    @property
    def headers(self) -> dict[str, str]:
        """The header that names the asking person."""
        if self.token:
            return {"Authorization": f"Bearer {self.token}"}
        return {"Authorization": f"Basic {self.basic}"} if self.basic else {}


@dataclass(frozen=True)
class Access:
    """One cluster and one user of it. context: its name in kubeconfig, "" in a pod.

    server: the API server's address. namespace: the one that the context names. authority: the CA
    that signed the server's certificate, PEM; None for those that this machine trusts. trusted:
    the server's certificate is not looked at if False. user: the entry of kubeconfig; folder: where
    its relative paths begin.
    """

    context: str
    server: str
    namespace: str
    authority: str | None
    trusted: bool
    user: Mapping[str, Any]
    folder: Path

    @property
    def expires(self) -> bool:
        """Whether `credentials` may return other ones when asked again."""
        return "exec" in self.user or "tokenFile" in self.user

    def credentials(self) -> Identity:
        """Who asks; runs the user's credential plugin. Raises InputError, OutsideError."""
        user = self.user
        if "exec" in user:
            return _plugin(user["exec"], self)
        if "auth-provider" in user:
            raise InputError(
                f"{self._where}: auth-provider is read by no kubectl since 1.26",
                "on GKE: gcloud container clusters get-credentials CLUSTER",
            )
        if path := _text(user, "tokenFile"):
            return Identity(token=_read(self.folder / path, self._where).strip())
        certificate = _data(user, "client-certificate", self.folder, self._where)
        key = _data(user, "client-key", self.folder, self._where)
        if (certificate is None) != (key is None):
            raise InputError(
                f"{self._where}: client-certificate and client-key belong together", "name both"
            )
        pair = (certificate, key) if certificate and key else None
        name, password = _text(user, "username"), _text(user, "password")
        login = web.basic(name, password) if name else ""
        return Identity(_text(user, "token"), login, pair)

    def trust(self, credentials: Identity) -> ssl.SSLContext:
        """What an https connection trusts and shows. Raises InputError for a bad certificate."""
        try:
            context = web.trust()
            if self.authority is not None:
                context = ssl.create_default_context(cadata=self.authority)
                # Go accepts a CA that OpenSSL's strict mode refuses; clusters have such CAs
                context.verify_flags &= ~ssl.VERIFY_X509_STRICT
            if not self.trusted:
                context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
            if credentials.certificate is not None:
                _show(context, credentials.certificate)
        except (ssl.SSLError, ValueError) as error:
            raise InputError(
                f"{self._where}: a certificate cannot be read: {error}", _AGAIN
            ) from None
        return context

    @property
    def _where(self) -> str:
        return f"context {self.context}" if self.context else "this pod"


_AGAIN: Final = "write the entry anew: on GKE, gcloud container clusters get-credentials CLUSTER"


def load(
    context: str | None, environ: Mapping[str, str] | None = None, home: Path | None = None
) -> Access:
    """The cluster of a context; None for the current one. Raises InputError."""
    environ = os.environ if environ is None else environ
    named = [Path(one) for one in environ.get("KUBECONFIG", "").split(os.pathsep) if one]
    paths = named or [home / ".kube" / "config" if home else DEFAULT.expanduser()]
    files = [(path, _parsed(path)) for path in paths if path.is_file()]
    if not files and context is None and "KUBERNETES_SERVICE_HOST" in environ:
        return _in_pod(environ)
    shown = os.pathsep.join(str(one) for one in paths)
    if not files:
        raise InputError(
            f"{shown}: there is no kubeconfig",
            "on GKE: gcloud container clusters get-credentials CLUSTER; else set KUBECONFIG",
        )
    current = (_text(content, "current-context") for _, content in files)
    name = context or next((one for one in current if one), "")
    known = [_text(one, "name") for _, content in files for one in _list(content, "contexts")]
    if not name or name not in known:
        raise InputError(
            f"{shown}: no context is called {name}" if name else f"{shown}: no current-context",
            f"give --context: {', '.join(sorted(set(known))) or 'there is none'}",
        )
    chosen, _ = _entry(files, "contexts", "context", name, shown)
    cluster, cluster_path = _entry(files, "clusters", "cluster", _text(chosen, "cluster"), shown)
    user, user_path = _entry(files, "users", "user", _text(chosen, "user"), shown)
    return _access(name, chosen, cluster, cluster_path.parent, user, user_path.parent)


def _access(
    name: str,
    chosen: Mapping[str, Any],
    cluster: Mapping[str, Any],
    folder: Path,
    user: Mapping[str, Any],
    user_folder: Path,
) -> Access:
    where = f"context {name}"
    server = _text(cluster, "server").rstrip("/")
    if not server.startswith(("https://", "http://")):
        raise InputError(f"{where}: {server!r} is no server", _AGAIN)
    for field, instead in (
        ("proxy-url", "set HTTPS_PROXY in the environment"),
        ("tls-server-name", "name a server that its certificate names"),
    ):
        if _text(cluster, field):
            raise InputError(f"{where}: {field} is not supported here", instead)
    return Access(
        context=name,
        server=server,
        namespace=_text(chosen, "namespace") or NAMESPACE,
        authority=_data(cluster, "certificate-authority", folder, where),
        trusted=_text(cluster, "insecure-skip-tls-verify").lower() != "true",
        user=user,
        folder=user_folder,
    )


def _in_pod(environ: Mapping[str, str]) -> Access:
    """The cluster that this very process runs in."""
    host, port = environ["KUBERNETES_SERVICE_HOST"], environ.get("KUBERNETES_SERVICE_PORT", "443")
    host = f"[{host}]" if ":" in host else host
    namespace = _read(IN_POD / "namespace", "this pod").strip()
    authority = _read(IN_POD / "ca.crt", "this pod")
    user = {"tokenFile": "token"}
    return Access("", f"https://{host}:{port}", namespace, authority, True, user, IN_POD)


# --- credential plugins ---------------------------------------------------------------------------


def _plugin(asked: Mapping[str, Any], access: Access) -> Identity:
    """What a credential plugin answers. Source: kubernetes.io, Authentication, client-go
    credential plugins."""
    version, command = _text(asked, "apiVersion"), _text(asked, "command")
    if version not in PLUGINS:
        raise InputError(
            f"{access._where}: a credential plugin of {version or 'no version'}",
            f"{_AGAIN}; known are {', '.join(PLUGINS)}",
        )
    spec: dict[str, Any] = {"interactive": False}
    if _text(asked, "provideClusterInfo").lower() == "true":
        cluster: dict[str, Any] = {"server": access.server}
        if access.authority:
            encoded = base64.b64encode(access.authority.encode()).decode()
            cluster["certificate-authority-data"] = encoded
        spec["cluster"] = cluster
    info = {"apiVersion": version, "kind": "ExecCredential", "spec": spec}
    given = {_text(one, "name"): _text(one, "value") for one in _list(asked, "env")}
    words = [str(one) for one in _list(asked, "args")]
    if "/" in command:
        command = str(access.folder / command)
    try:
        done = subprocess.run(
            [command, *words],
            env={**os.environ, **given, INFO: json.dumps(info)},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=PLUGIN_SECONDS,
        )
    except FileNotFoundError:
        hint = _text(asked, "installHint").strip().splitlines()
        raise OutsideError(
            f"{access._where}: its credential plugin {command} is not installed",
            hint[0] if hint else f"install {command}",
        ) from None
    except (OSError, subprocess.TimeoutExpired) as error:
        raise OutsideError(f"{access._where}: {command}: {error}", f"try it: {command}") from None
    said = done.stderr.decode(errors="replace").strip().splitlines()
    if done.returncode != 0:
        why = said[-1] if said else f"exit code {done.returncode}"
        raise OutsideError(f"{access._where}: {command} gave no credentials: {why}", "log in again")
    status: Any = {}
    with suppress(ValueError):
        answer = json.loads(done.stdout)
        status = answer.get("status") if isinstance(answer, dict) else {}
    status = status if isinstance(status, dict) else {}
    token = _text(status, "token")
    certificate = _text(status, "clientCertificateData"), _text(status, "clientKeyData")
    if not token and not all(certificate):
        raise OutsideError(
            f"{access._where}: {command} answered without credentials", f"try it: {command}"
        )
    return Identity(token=token, certificate=certificate if all(certificate) else None)


# --- pieces ---------------------------------------------------------------------------------------


def _parsed(path: Path) -> Mapping[str, Any]:
    document = yamlfile.parse(_read(path, "kubeconfig"), str(path))
    if document.problems or not isinstance(document.value, dict):
        where = document.problems[0] if document.problems else None
        line, what = (where.line, where.what) if where else (1, "not a kubeconfig")
        raise InputError(f"{path}:{line}: {what}", where.fix if where else _AGAIN)
    return document.value


def _entry(
    files: list[tuple[Path, Mapping[str, Any]]], kind: str, inner: str, name: str, shown: str
) -> tuple[Mapping[str, Any], Path]:
    """The first entry of this name, and the file that it stands in."""

    def entries() -> Iterator[tuple[Any, Path]]:
        for path, content in files:
            yield from ((one, path) for one in _list(content, kind) if isinstance(one, dict))

    for one, path in entries():
        if _text(one, "name") == name:
            value = one.get(inner)
            return (value if isinstance(value, dict) else {}), path
    if inner == "user" and not name:
        return {}, files[0][0]
    raise InputError(f"{shown}: {kind} has no {name!r}, which a context names", _AGAIN)


def _list(content: Mapping[str, Any], key: str) -> list[Any]:
    value = content.get(key)
    return value if isinstance(value, list) else []


def _text(content: Mapping[str, Any], key: str) -> str:
    value = content.get(key) if isinstance(content, dict) else None
    return value if isinstance(value, str) else ""


def _data(content: Mapping[str, Any], key: str, folder: Path, where: str) -> str | None:
    """The PEM of KEY-data, in base64, or of the file that KEY names; None where neither stands."""
    if encoded := _text(content, f"{key}-data"):
        try:
            return base64.b64decode(encoded, validate=True).decode()
        except (binascii.Error, UnicodeDecodeError):
            raise InputError(f"{where}: {key}-data is not base64 of PEM", _AGAIN) from None
    path = _text(content, key)
    return _read(folder / path, where) if path else None


def _read(path: Path, where: str) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "not text"
        raise InputError(f"{where}: {path}: {why}", "correct the path, or the file") from None


def _show(context: ssl.SSLContext, pair: tuple[str, str]) -> None:
    """Let a context show a certificate. OpenSSL reads it from a file only, which is gone after."""
    with tempfile.NamedTemporaryFile("w") as file:  # with mode 0600
        file.write("\n".join(pair))
        file.flush()
        context.load_cert_chain(file.name)
