"""Who asks a cluster, and how: contexts, certificates, tokens, credential plugins."""

from __future__ import annotations

import base64
import ipaddress
import json
import ssl
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from builder.core.errors import InputError, OutsideError
from builder.jobs.places.kubernetes import kubeconfig
from builder.jobs.places.kubernetes.api import Api
from tests.emulators.kubernetes import server

JOBSETS = "/apis/jobset.x-k8s.io/v1alpha2/namespaces/default/jobsets"


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A CA, and certificates of a server at 127.0.0.1 and of a person, each with its key."""
    folder = tmp_path_factory.mktemp("keys")
    ca_key = ec.generate_private_key(ec.SECP256R1())
    ca = _signed("loopback CA", ca_key, "loopback CA", ca_key, ca=True)
    (folder / "ca.pem").write_bytes(ca.public_bytes(serialization.Encoding.PEM))
    for name in ("server", "me"):
        key = ec.generate_private_key(ec.SECP256R1())
        made = _signed(name, key, "loopback CA", ca_key)
        (folder / f"{name}.pem").write_bytes(made.public_bytes(serialization.Encoding.PEM))
        (folder / f"{name}.key").write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            )
        )
    return folder


def _signed(name: str, key: Any, issuer: str, signer: Any, ca: bool = False) -> x509.Certificate:
    now = datetime.now(UTC)
    named = lambda text: x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])  # noqa: E731
    address = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
    return (
        x509.CertificateBuilder()
        .subject_name(named(name))
        .issuer_name(named(issuer))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.BasicConstraints(ca, None), critical=True)
        .add_extension(x509.SubjectAlternativeName([address]), critical=False)
        .sign(signer, hashes.SHA256())
    )


@pytest.fixture
def secure(tmp_path: Path, keys: Path) -> Iterator[server.Cluster]:
    """A cluster that asks each client for a certificate of its CA."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(keys / "server.pem", keys / "server.key")
    context.load_verify_locations(keys / "ca.pem")
    context.verify_mode = ssl.CERT_REQUIRED
    (tmp_path / "ca.pem").write_bytes((keys / "ca.pem").read_bytes())
    with server.running(tmp_path, tls=context) as found:
        yield found


@pytest.fixture
def plain(tmp_path: Path) -> Iterator[server.Cluster]:
    with server.running(tmp_path) as found:
        yield found


def api(path: Path, context: str | None = None) -> Api:
    return Api(kubeconfig.load(context, {"KUBECONFIG": str(path)}))


def test_a_client_certificate_from_files_or_from_data(secure: server.Cluster, keys: Path) -> None:
    files = {"client-certificate": str(keys / "me.pem"), "client-key": str(keys / "me.key")}
    assert api(secure.kubeconfig(**files)).items(JOBSETS) == []
    data = {
        f"{name}-data": base64.b64encode(Path(path).read_bytes()).decode()
        for name, path in files.items()
    }
    assert api(secure.kubeconfig(**data)).items(JOBSETS) == []


def test_a_client_without_a_certificate_and_a_server_that_nobody_trusts(
    secure: server.Cluster, tmp_path: Path
) -> None:
    with pytest.raises(OutsideError, match="cannot be reached"):
        api(secure.kubeconfig()).create(JOBSETS, {})
    path = secure.kubeconfig()
    content = json.loads(path.read_text())
    del content["clusters"][0]["cluster"]["certificate-authority"]
    path.write_text(json.dumps(content))
    with pytest.raises(OutsideError, match=r"cannot be reached: .*(certificate|CERTIFICATE)"):
        api(path).create(JOBSETS, {})


def test_a_token_and_one_in_a_file(plain: server.Cluster, tmp_path: Path) -> None:
    plain.faults.token = "t-1"
    assert api(plain.kubeconfig(token="t-1")).items(JOBSETS) == []
    (tmp_path / "token").write_text("t-1\n")
    there = api(plain.kubeconfig(tokenFile="token"))
    assert there.items(JOBSETS) == []
    plain.faults.token = "t-2"
    (tmp_path / "token").write_text("t-2\n")  # as a pod's token is renewed
    assert there.items(JOBSETS) == []


PLUGIN = """\
import json, os, pathlib
told = json.loads(os.environ["KUBERNETES_EXEC_INFO"])
count = pathlib.Path(os.environ["COUNT"])
count.write_text(count.read_text() + "x" if count.exists() else "x")
status = {"token": f"token-{len(count.read_text())}"}
answer = {"apiVersion": told["apiVersion"], "kind": "ExecCredential", "status": status}
print(json.dumps(answer))
"""


@pytest.fixture
def plugin(tmp_path: Path) -> Callable[..., dict[str, Any]]:
    def make(text: str = PLUGIN, version: str = "v1") -> dict[str, Any]:
        (tmp_path / "plugin.py").write_text(text)
        return {
            "exec": {
                "apiVersion": f"client.authentication.k8s.io/{version}",
                "command": sys.executable,
                "args": [str(tmp_path / "plugin.py")],
                "env": [{"name": "COUNT", "value": str(tmp_path / "count")}],
                "interactiveMode": "IfAvailable",
            }
        }

    return make


@pytest.mark.parametrize("version", ["v1", "v1beta1"])
def test_a_credential_plugin_is_asked_once_and_again_when_it_has_expired(
    plain: server.Cluster, plugin: Callable[..., dict[str, Any]], tmp_path: Path, version: str
) -> None:
    plain.faults.token = "token-1"
    there = api(plain.kubeconfig(**plugin(version=version)))
    for _ in range(3):
        assert there.items(JOBSETS) == []
    plain.faults.token = "token-2"
    assert there.items(JOBSETS) == []
    assert (tmp_path / "count").read_text() == "xx"
    plain.faults.token = "another"
    with pytest.raises(OutsideError, match="the credentials are not accepted"):
        there.items(JOBSETS)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("raise SystemExit('please log in')", "gave no credentials: please log in"),
        ("print('{}')", "answered without credentials"),
        ("print('no JSON')", "answered without credentials"),
    ],
)
def test_a_plugin_that_fails(
    plain: server.Cluster, plugin: Callable[..., dict[str, Any]], text: str, said: str
) -> None:
    with pytest.raises(OutsideError, match=said) as caught:
        api(plain.kubeconfig(**plugin(text))).items(JOBSETS)
    assert caught.value.message.startswith("context loopback: ") and caught.value.fix


def test_a_plugin_that_is_missing_says_how_to_install_it(plain: server.Cluster) -> None:
    asked = {
        "apiVersion": "client.authentication.k8s.io/v1beta1",
        "command": "gke-gcloud-auth-plugin-of-nobody",
        "installHint": "Install gke-gcloud-auth-plugin for kubectl\nmore",
    }
    with pytest.raises(OutsideError, match="is not installed") as caught:
        api(plain.kubeconfig(exec=asked)).items(JOBSETS)
    assert caught.value.fix == "Install gke-gcloud-auth-plugin for kubectl"


# --- which cluster --------------------------------------------------------------------------------

TWO = """\
apiVersion: v1
kind: Config
current-context: b
contexts:
- {name: a, context: {cluster: a, user: u, namespace: training}}
- {name: b, context: {cluster: b, user: u}}
clusters:
- {name: a, cluster: {server: "https://a.example/"}}
- {name: b, cluster: {server: "https://b.example", insecure-skip-tls-verify: true}}
users:
- {name: u, user: {token: t}}
"""


def test_the_context_names_cluster_and_namespace(tmp_path: Path) -> None:
    path = tmp_path / "config"
    path.write_text(TWO)
    environ = {"KUBECONFIG": str(path)}
    current = kubeconfig.load(None, environ)
    assert (current.context, current.server, current.namespace) == (
        "b",
        "https://b.example",
        "default",
    )
    assert current.trusted is False and current.credentials().token == "t"
    other = kubeconfig.load("a", environ)
    assert (other.server, other.namespace, other.trusted) == ("https://a.example", "training", True)


def test_of_two_files_the_first_wins(tmp_path: Path) -> None:
    (tmp_path / "one").write_text(TWO.replace("current-context: b", ""))
    (tmp_path / "two").write_text(TWO.replace(".example", ".other"))
    environ = {"KUBECONFIG": f"{tmp_path / 'missing'}:{tmp_path / 'one'}:{tmp_path / 'two'}"}
    found = kubeconfig.load(None, environ)
    assert (found.context, found.server) == ("b", "https://b.example")


def test_in_a_pod_its_own_account_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, text in {"namespace": "jobs", "ca.crt": "PEM", "token": "secret\n"}.items():
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(kubeconfig, "IN_POD", tmp_path)
    environ = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "KUBERNETES_SERVICE_PORT": "443"}
    found = kubeconfig.load(None, environ, home=tmp_path)
    assert (found.server, found.namespace) == ("https://10.0.0.1:443", "jobs")
    assert found.credentials().token == "secret"


@pytest.mark.parametrize(
    ("before", "after", "said", "fix"),
    [
        ("current-context: b", "", "no current-context", "--context: a, b"),
        ("current-context: b", "current-context: c", "no context is called c", "a, b"),
        ("cluster: b, user", "cluster: x, user", "clusters has no 'x'", "get-credentials"),
        ("cluster: b, user: u", "cluster: b, user: x", "users has no 'x'", "get-credentials"),
        ('server: "https://b.example"', "server: b", "'b' is no server", "get-credentials"),
        ("token: t", "client-certificate: x.pem", "x.pem: No such file", "correct the path"),
        ("token: t", "client-key-data: '%%'", "client-key-data is not base64", "get-credentials"),
        ("token: t", "auth-provider: {name: gcp}", "auth-provider", "get-credentials"),
        ("token: t", "exec: {apiVersion: v0}", "a credential plugin of v0", "v1beta1"),
        ("insecure-skip-tls-verify: true", "proxy-url: http://p", "proxy-url", "HTTPS_PROXY"),
        ("kind: Config", "kind: [", "not YAML", ""),
    ],
)
def test_a_wrong_kubeconfig(tmp_path: Path, before: str, after: str, said: str, fix: str) -> None:
    path = tmp_path / "config"
    assert before in TWO
    path.write_text(TWO.replace(before, after))
    with pytest.raises(InputError) as caught:
        kubeconfig.load(None, {"KUBECONFIG": str(path)}).credentials()
    assert said in caught.value.message and fix in caught.value.fix
    assert "\n" not in caught.value.message


def test_no_kubeconfig_at_all(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="there is no kubeconfig") as caught:
        kubeconfig.load(None, {}, home=tmp_path)
    assert "get-credentials" in caught.value.fix
