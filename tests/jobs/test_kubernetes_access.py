"""Who asks a cluster, and how: kubeconfig files over TLS on loopback."""

from __future__ import annotations

import ipaddress
import json
import os
import socket
import ssl
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from builder.core.errors import FactoryError, InputError, OutsideError
from builder.jobs.backends.kubernetes import access
from builder.jobs.backends.kubernetes.client import Client
from tests.emulators.web import LoopbackServer, answering

PLUGIN = """\
import json, os, pathlib, sys
info = json.loads(os.environ["KUBERNETES_EXEC_INFO"])
folder = pathlib.Path(os.environ["FOLDER"])
if os.environ["ANSWER"] == "fail":
    sys.exit("please log in")
with (folder / "count").open("a") as count:
    count.write("x")
status = {"token": f"plugin-{(folder / 'count').stat().st_size}"}
print(json.dumps({"apiVersion": info["apiVersion"], "kind": "ExecCredential", "status": status}))
"""


@dataclass(frozen=True)
class Asked:
    """What reached the server: the Authorization header, the client's certificate, and how."""

    authorization: str | None = None
    certificate: str | None = None
    server: str = "server"
    proxied: bool = False


@dataclass
class Loopback:
    """Servers that write down who asks. accepted: the only header that they accept."""

    folder: Path
    addresses: dict[str, str] = field(default_factory=dict)
    asked: list[Asked] = field(default_factory=list)
    accepted: str | None = None
    tunnels: int = 0

    def write(self, name: str, *files: Any) -> str:
        """Write kubeconfig files, each in a folder of its own; KUBECONFIG for them."""
        paths = []
        for number, content in enumerate(files):
            text = content if isinstance(content, str) else json.dumps(content)
            for key, address in self.addresses.items():
                text = text.replace(f"https://{key}/", address)
            path = self.folder / str(number) / name
            path.write_text(text.replace("<folder>", str(self.folder)))
            paths.append(str(path))
        return os.pathsep.join(paths)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    name: str
    loopback: Loopback

    def log_message(self, *_: Any) -> None:
        pass

    def do_GET(self) -> None:
        certificate = (
            self.connection.getpeercert() if isinstance(self.connection, ssl.SSLSocket) else {}
        )
        subject = dict(part[0] for part in (certificate or {}).get("subject", ()))
        header = self.headers.get("Authorization")
        proxied = self.loopback.tunnels > 0
        self.loopback.asked.append(Asked(header, subject.get("commonName"), self.name, proxied))
        refused = self.loopback.accepted not in (None, header)
        answer = {"kind": "Status", "message": "Unauthorized"} if refused else {"gitVersion": "v1"}
        data = json.dumps(answer).encode()
        self.send_response(401 if refused else 200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def do_CONNECT(self) -> None:
        self.loopback.tunnels += 1
        host, _, port = self.path.rpartition(":")
        far = socket.create_connection((host, int(port)))
        self.send_response(200)
        self.end_headers()
        threading.Thread(target=_pump, args=(far, self.connection), daemon=True).start()
        _pump(self.connection, far)
        self.close_connection = True


def _pump(source: socket.socket, sink: socket.socket) -> None:
    try:
        while data := source.recv(1 << 16):
            sink.sendall(data)
        sink.shutdown(socket.SHUT_WR)
    except OSError:
        pass


@pytest.fixture(scope="module")
def loopback(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Loopback]:
    """A server with a certificate, a plain one, and a proxy."""
    folder = tmp_path_factory.mktemp("kube")
    _certificates(folder)
    (folder / "plugin.py").write_text(f"#!{sys.executable}\n{PLUGIN}")
    (folder / "plugin.py").chmod(0o755)
    for number in ("0", "1"):
        (folder / number).mkdir()
        (folder / number / "token").write_text("token-of-me\n")
        for name in ("ca.pem", "me.pem", "me.key"):
            (folder / number / name).write_bytes((folder / name).read_bytes())
    loopback = Loopback(folder)
    with ExitStack() as stack:
        for name in ("server", "plain", "proxy"):
            handler = type("Handler", (_Handler,), {"name": name, "loopback": loopback})
            server = LoopbackServer(("127.0.0.1", 0), handler)
            if name == "server":
                context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
                context.load_cert_chain(folder / "server.pem", folder / "server.key")
                context.load_verify_locations(folder / "ca.pem")
                context.verify_mode = ssl.CERT_OPTIONAL
                server.socket = context.wrap_socket(server.socket, server_side=True)
            stack.enter_context(answering(server))
            scheme = "https" if name == "server" else "http"
            loopback.addresses[name] = f"{scheme}://127.0.0.1:{server.server_address[1]}"
        yield loopback


def _certificates(folder: Path) -> None:
    """Write a CA, and certificates of a server and of a person, each with its key."""
    ca, now = ec.generate_private_key(ec.SECP256R1()), datetime.now(UTC)
    names: dict[str, list[x509.GeneralName]] = {
        "ca": [],
        "server": [x509.IPAddress(ipaddress.ip_address("127.0.0.1"))],
        "me": [],
    }
    for name, alternatives in names.items():
        key = ca if name == "ca" else ec.generate_private_key(ec.SECP256R1())
        subject, issuer = (
            x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)]) for text in (name, "ca")
        )
        builder = x509.CertificateBuilder(
            issuer, subject, key.public_key(), x509.random_serial_number()
        )
        builder = builder.not_valid_before(now - timedelta(days=1))
        builder = builder.not_valid_after(now + timedelta(days=1))
        builder = builder.add_extension(x509.BasicConstraints(name == "ca", None), critical=True)
        if alternatives:
            builder = builder.add_extension(x509.SubjectAlternativeName(alternatives), False)
        pem = builder.sign(ca, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
        (folder / f"{name}.pem").write_bytes(pem)
        private = key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
        (folder / f"{name}.key").write_bytes(private)


def config(
    user: Any,
    server: str = "https://server/",
    name: str = "c",
    current: bool = True,
    **cluster: Any,
) -> dict[str, Any]:
    """Return a kubeconfig with one context."""
    content: dict[str, Any] = {
        "contexts": [{"name": name, "context": {"cluster": name, "user": name}}]
    }
    cluster = {"server": server, "certificate-authority": "ca.pem", **cluster}
    content["clusters"] = [{"name": name, "cluster": cluster}]
    content["users"] = [{"name": name, "user": user}] if user is not None else []
    return {**content, "current-context": name} if current else content


def plugin(answer: str = "token", command: str = "<folder>/plugin.py") -> dict[str, Any]:
    variables = {"FOLDER": "<folder>", "ANSWER": answer}
    env = [{"name": name, "value": value} for name, value in variables.items()]
    api = {"apiVersion": "client.authentication.k8s.io/v1", "command": command}
    return {"exec": {**api, "env": env, "interactiveMode": "Never"}}


CERTIFICATE = {"client-certificate": "me.pem", "client-key": "me.key"}
TOKEN = {"token": "t"}
CASES: dict[str, tuple[list[Any], Asked | None]] = {
    "token": ([config(TOKEN)], Asked("Bearer t")),
    "token file": ([config({"tokenFile": "token"})], Asked("Bearer token-of-me")),
    "certificate": ([config(CERTIFICATE)], Asked(None, "me")),
    "plugin": ([config(plugin())], Asked("Bearer plugin-1")),
    "plain": ([config(TOKEN, "https://plain/")], Asked(server="plain")),
    "proxy": (
        [config(TOKEN, **{"proxy-url": "https://proxy/"})],
        Asked("Bearer t", proxied=True),
    ),
    "first context wins": (
        [config({"token": "1"}, name="a"), config({"token": "2"}, name="b")],
        Asked("Bearer 1"),
    ),
    "unknown authority": ([config(TOKEN, **{"certificate-authority": ""})], None),
    "failing plugin": ([config(plugin("fail"))], None),
    "missing plugin": ([config(plugin(command="nobody-has-this"))], None),
    "no context": ([config(TOKEN, current=False)], None),
    "no cluster": ([{**config(TOKEN), "clusters": []}], None),
    "no server": ([config(TOKEN, "server")], None),
    "no file": ([config({**CERTIFICATE, "client-key": "no.key"})], None),
    "no YAML": (["kind: ["], None),
}
"""Kubeconfig files, and what reaches the server; None where nothing may."""


def prepare(loopback: Loopback, name: str) -> str:
    loopback.asked.clear()
    loopback.tunnels, loopback.accepted = 0, None
    (loopback.folder / "count").unlink(missing_ok=True)
    return loopback.write("config", *CASES[name][0])


@pytest.mark.parametrize("name", CASES)
def test_each_kubeconfig(name: str, loopback: Loopback, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBECONFIG", prepare(loopback, name))
    monkeypatch.setattr("urllib3.util.retry.Retry.sleep", lambda *_: None)
    expected = CASES[name][1]
    if expected is not None:
        assert Client(access.load(None)).get("/version") == {"gitVersion": "v1"}
        assert loopback.asked == [expected]
        return
    with pytest.raises(FactoryError) as caught:
        Client(access.load(None)).get("/version")
    assert caught.value.fix and "\n" not in caught.value.message and loopback.asked == []


def test_credentials_that_have_expired_are_asked_for_once_more(
    loopback: Loopback, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBECONFIG", prepare(loopback, "plugin"))
    client = Client(access.load(None))
    for number in (1, 2):
        loopback.accepted = f"Bearer plugin-{number}"
        for _ in range(2):
            assert client.get("/version") == {"gitVersion": "v1"}
    assert (loopback.folder / "count").read_text() == "xx"
    loopback.accepted = "nobody"
    with pytest.raises(OutsideError, match="the credentials are not accepted"):
        client.get("/version")


def test_in_a_pod_its_own_account_counts(
    loopback: Loopback, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    prepare(loopback, "token")
    for name, text in {"namespace": "jobs", "token": "secret"}.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "ca.crt").write_bytes((loopback.folder / "ca.pem").read_bytes())
    host, port = loopback.addresses["server"].removeprefix("https://").split(":")
    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(InputError, match="there is no kubeconfig"):
        access.load(None)
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", host)
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", port)
    monkeypatch.setattr(access, "IN_POD", tmp_path)
    loaded = access.load(None)
    assert loaded.namespace == "jobs" and Client(loaded).get("/version")
    assert loopback.asked == [Asked("bearer secret")]
