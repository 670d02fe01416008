"""Which cluster is asked, and how, by the kubeconfig files that people have."""

from __future__ import annotations

import json
import os
import ssl
import sys
from pathlib import Path
from typing import Any

import pytest

from builder.core.errors import FactoryError
from builder.jobs.backends.kubernetes import client as cluster

PLUGIN = """\
import json, os, pathlib, sys
info = json.loads(os.environ["KUBERNETES_EXEC_INFO"])
count = pathlib.Path(__file__).with_name("count")
with count.open("a") as file:
    file.write("x")
if os.environ["ANSWER"] == "fail":
    sys.exit("please log in")
status = {"token": f"plugin-{count.stat().st_size}"}
if os.environ["ANSWER"] == "old" and status["token"] == "plugin-1":
    status["expirationTimestamp"] = "2026-11-21T07:00:00Z"
print(json.dumps({"apiVersion": info["apiVersion"], "kind": "ExecCredential", "status": status}))
"""


def config(user: Any, name: str = "c", current: bool = True, **cluster: Any) -> dict[str, Any]:
    """Return a kubeconfig with one context."""
    where = {"cluster": name, "user": name, "namespace": name}
    cluster = {"server": "https://k8s.example", "certificate-authority": "ca.pem", **cluster}
    content: dict[str, Any] = {"contexts": [{"name": name, "context": where}]}
    content["clusters"] = [{"name": name, "cluster": cluster}]
    content["users"] = [{"name": name, "user": user}]
    return {**content, "current-context": name} if current else content


def plugin(answer: str = "token", command: str = "./plugin.py") -> dict[str, Any]:
    api = {"apiVersion": "client.authentication.k8s.io/v1", "command": command}
    env = [{"name": "ANSWER", "value": answer}]
    return {"exec": {**api, "env": env, "interactiveMode": "Never"}}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with what kubeconfig files name."""
    (tmp_path / "plugin.py").write_text(f"#!{sys.executable}\n{PLUGIN}")
    (tmp_path / "plugin.py").chmod(0o755)
    (tmp_path / "token").write_text("token-of-me\n")
    for name in ("ca.pem", "me.pem", "me.key"):
        (tmp_path / name).write_text("")
    for name in ("HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "http_proxy"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def written(folder: Path, *contents: Any) -> str:
    """Write kubeconfig files; KUBECONFIG for them."""
    paths = []
    for number, content in enumerate(contents):
        path = folder / f"config-{number}"
        path.write_text(content if isinstance(content, str) else json.dumps(content))
        paths.append(str(path))
    return os.pathsep.join(paths)


def login(client: Any) -> str | None:
    """Return the Authorization of the client's next request."""
    headers: dict[str, str] = {}
    client.update_params_for_auth(headers, [], ["BearerToken"])
    return headers.get("authorization")


CERTIFICATE = {"client-certificate": "me.pem", "client-key": "me.key"}
TOKEN = {"token": "t"}


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ([config(TOKEN)], "Bearer t"),
        ([config({"tokenFile": "token"})], "Bearer token-of-me\n"),
        ([config(CERTIFICATE)], None),
        ([config(plugin())], "Bearer plugin-1"),
        ([config(plugin("old"))], "Bearer plugin-2"),
        ([config(TOKEN, server="http://k8s.example")], None),  # a token travels by TLS alone
        ([config({"token": "1"}, name="a"), config({"token": "2"}, name="b")], "Bearer 1"),
    ],
)
def test_who_asks(
    folder: Path, monkeypatch: pytest.MonkeyPatch, files: list[Any], expected: str | None
) -> None:
    monkeypatch.setenv("KUBECONFIG", written(folder, *files))
    client = cluster.load(None).connection
    assert login(client) == expected
    assert (client.configuration.cert_file is not None) == (files == [config(CERTIFICATE)])


def test_a_proxy_and_the_trust_of_an_entry(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    proxied = config(TOKEN, **{"proxy-url": "http://me:pw@proxy.example:3128"})
    monkeypatch.setenv("KUBECONFIG", written(folder, proxied))
    found = cluster.load(None)
    assert (found.context, found.server, found.namespace) == ("c", "https://k8s.example", "c")
    client = found.connection
    assert client.configuration.proxy == "http://proxy.example:3128"
    assert "Proxy-Authorization" in client.configuration.proxy_headers
    pool = client.rest_client.pool_manager.connection_pool_kw
    assert pool["ca_certs"] == str(folder / "ca.pem")
    assert not pool["ssl_context"].verify_flags & ssl.VERIFY_X509_STRICT
    assert pool["ssl_context"].verify_mode == ssl.CERT_REQUIRED


@pytest.mark.parametrize(
    "content",
    [
        config(plugin("fail")),
        config(plugin(command="nobody-has-this")),
        config(TOKEN, current=False),
        {**config(TOKEN), "clusters": []},
        config(TOKEN, server="server"),
        config({**CERTIFICATE, "client-key": "no.key"}),
        "kind: [",
        "",
    ],
)
def test_an_entry_that_cannot_be_used(
    folder: Path, monkeypatch: pytest.MonkeyPatch, content: Any
) -> None:
    monkeypatch.setenv("KUBECONFIG", written(folder, content))
    with pytest.raises(FactoryError) as caught:
        _ = cluster.load(None).connection
    assert caught.value.fix and "\n" not in caught.value.message
