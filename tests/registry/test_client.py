"""Requests to a registry: what is tried again, what is not, and what a real one answers."""

from __future__ import annotations

import base64
import json
import os
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import pytest

from builder import registry
from builder.core.errors import CheckFailed, InputError, OutsideError
from builder.core.retry import Retry
from builder.prove import audit
from builder.registry import OCI_MANIFEST, Descriptor, Manifest, Registry, referrers
from tests.emulators import tls
from tests.emulators.answers import serving
from tests.emulators.registry_faults import Fault, faulty
from tests.emulators.web import LoopbackServer
from tests.registry import server as registry_server
from tests.registry.making import coded, docker_config, put_image
from tests.registry.server import USER, RegistryServer, skopeo

DIGEST = "sha256:" + "a" * 64
QUICK = Retry(attempts=3, first=0.01)
KIND = "application/vnd.example.note.v1+json"


# Connections -------------------------------------------------------------------------------------


def test_unknown_host_is_not_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(*_: object, **__: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    for variable in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    said: list[str] = []
    with (
        Registry("registry.invalid", QUICK, said.append) as there,
        pytest.raises(OutsideError, match=r"registry\.invalid: no such host"),
    ):
        there.head("x", "y")
    assert said == []


def test_a_name_server_that_stumbles_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    real = socket.getaddrinfo
    failed: list[int] = []

    def stumble(*arguments: Any, **how: Any) -> Any:
        if not failed:
            failed.append(1)
            raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")
        return real(*arguments, **how)

    with faulty() as proxy, Registry(proxy.host, QUICK) as there:
        monkeypatch.setattr(socket, "getaddrinfo", stumble)
        assert there.head("x", "y") is None
    assert failed


# Faults -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [429, 500, 502, 503, 504, None])
def test_what_passes_is_asked_again(status: int | None) -> None:
    fault = Fault("HEAD", "/manifests/", status, times=2, headers={"Retry-After": "0"})
    said: list[str] = []
    with faulty(None, fault) as proxy, Registry(proxy.host, QUICK, said.append) as there:
        assert there.head("training", "v100") is None
        assert proxy.count("^HEAD") == 3
    assert len(said) == 2
    assert "trying again in" in said[0]


def test_what_does_not_pass_ends_after_a_bounded_number_of_tries() -> None:
    body = b'{"errors": [{"code": "UNKNOWN", "message": "disk on fire"}]}'
    fault = Fault("GET", "/manifests/", 500, times=None, body=body)
    with (
        faulty(None, fault) as proxy,
        Registry(proxy.host, QUICK) as there,
        pytest.raises(OutsideError) as caught,
    ):
        there.manifest("training", "v100")
    assert fault.happened == 3
    assert caught.value.message == (
        f"{proxy.host} answered 500 Internal Server Error to GET: UNKNOWN disk on fire"
        " (tried 3 times)"
    )


def test_the_registrys_own_pause_is_kept() -> None:
    fault = Fault("HEAD", "/manifests/", 429, headers={"Retry-After": "1"})
    with faulty(None, fault) as proxy, Registry(proxy.host, QUICK) as there:
        began = time.monotonic()
        there.head("training", "v100")
    assert time.monotonic() - began >= 1.0


def test_nothing_listens_is_one_line() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        host = f"127.0.0.1:{free.getsockname()[1]}"
    with (
        Registry(host, QUICK) as there,
        pytest.raises(OutsideError, match=r"Connection refused.* \(tried 3 times\)"),
    ):
        there.head("x", "y")


def test_401_without_credentials_names_the_login_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    fault = Fault("POST", "/uploads/", 401, headers={"WWW-Authenticate": 'Basic realm="x"'})
    with (
        faulty(None, fault) as proxy,
        Registry(proxy.host, QUICK) as there,
        pytest.raises(OutsideError) as caught,
    ):
        there.check_write("training")
    assert (
        caught.value.message
        == f"not logged in to {proxy.host}: write access to training needs a login"
    )
    assert caught.value.fix == f"run: docker login {proxy.host}"


def test_credentials_never_travel_to_a_token_service_in_plain_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    challenge = 'Bearer realm="http://tokens.example.com/",service="x"'
    fault = Fault("HEAD", "/manifests/", 401, times=None, headers={"WWW-Authenticate": challenge})
    with faulty(None, fault) as proxy, Registry(proxy.host, QUICK) as there:
        monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
        docker_config(tmp_path, {"auths": {proxy.host: {"auth": coded()}}})
        with pytest.raises(OutsideError, match="in plain text"):
            there.head("x", "y")


def test_credentials_are_looked_up_when_a_registry_asks_for_some(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    (tmp_path / "config.json").write_text("{")  # is refused once it is read
    challenge = {"WWW-Authenticate": 'Basic realm="x"'}
    faults = Fault("HEAD", "/free/", 404), Fault("HEAD", "/x/", 401, headers=challenge)
    with faulty(None, *faults) as proxy, Registry(proxy.host, QUICK) as there:
        assert there.head("free", "y") is None
        with pytest.raises(InputError, match="not JSON"):
            there.head("x", "y")


def test_a_public_image_is_read_with_a_token_for_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    docker_config(tmp_path, {})
    with faulty() as proxy:
        words = f'realm="http://{proxy.host}/token",service="x",scope="repository:debian:pull"'
        proxy.faults = [
            Fault("HEAD", "/manifests/", 401, headers={"WWW-Authenticate": f"Bearer {words}"}),
            Fault("GET", "/token", 200, body=b'{"token": "for nobody"}'),
            Fault("HEAD", "/manifests/", 200, headers={"Docker-Content-Digest": DIGEST}),
        ]
        with Registry(proxy.host, QUICK) as there:
            assert there.head("debian", "bookworm-slim") == DIGEST
        assert proxy.seen == [
            "HEAD /v2/debian/manifests/bookworm-slim",
            "GET /token?service=x&scope=repository:debian:pull",
            "HEAD /v2/debian/manifests/bookworm-slim",
        ]


# TLS --------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A certificate for no known CA: (certificate, key)."""
    return tls.certificate(tmp_path_factory.mktemp("tls"))


@pytest.fixture
def registry_test(monkeypatch: pytest.MonkeyPatch) -> None:
    """The name registry.test leads to loopback, without a proxy."""
    real = socket.getaddrinfo
    monkeypatch.setenv("NO_PROXY", "*")
    monkeypatch.setattr(
        socket,
        "getaddrinfo",
        lambda host, *rest, **how: real(
            "127.0.0.1" if host in ("registry.test", b"registry.test") else host, *rest, **how
        ),
    )


def test_an_unknown_ca_is_one_line_and_a_named_one_is_trusted(
    certificate: tuple[Path, Path], registry_test: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    with faulty() as proxy:
        tls.encrypt(proxy, certificate)
        host = proxy.host.replace("127.0.0.1", "registry.test")
        with Registry(host, QUICK) as there, pytest.raises(OutsideError) as caught:
            there.head("x", "y")
        assert "its TLS certificate is not trusted: self" in caught.value.message
        assert f"/etc/docker/certs.d/{host}/ca.crt" in caught.value.fix
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate[0]))
        with Registry(host, QUICK) as there:
            assert there.head("x", "y") is None


def test_a_password_does_not_follow_from_https_to_http(
    certificate: tuple[Path, Path],
    registry_test: None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The answer to the start of an upload leads to the same host and port, without TLS."""
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate[0]))
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    asked: list[str] = []
    with faulty() as proxy:
        tls.encrypt(proxy, certificate)
        host = proxy.host.replace("127.0.0.1", "registry.test")
        docker_config(tmp_path, {"auths": {host: {"auth": coded()}}})
        place = f"http://{host}/v2/x/blobs/uploads/1?signature=secret"
        proxy.faults = [
            Fault("POST", "/uploads/", 401, headers={"WWW-Authenticate": 'Basic realm="x"'}),
            Fault("POST", "/uploads/", 202, times=None, headers={"Location": place}),
        ]
        with Registry(host, QUICK) as there:
            sent = there._http.request

            def noted(method: str, url: str, **how: Any) -> Any:
                asked.append(url)
                return sent(method, url, **how)

            monkeypatch.setattr(there._http, "request", noted)
            with pytest.raises(OutsideError, match="in plain text, to http://registry") as raised:
                there.put_blob("x", b"content")
            there.check_write("x")
    assert "secret" not in raised.value.message
    assert all(url.startswith("https://") for url in asked)


def test_a_host_without_tls_is_one_line(registry_test: None) -> None:
    with faulty() as proxy:
        host = proxy.host.replace("127.0.0.1", "registry.test")
        with (
            Registry(host, QUICK) as there,
            pytest.raises(OutsideError, match="does not speak TLS; plain http is for loopback"),
        ):
            there.head("x", "y")


# A real registry --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RegistryServer]:
    with registry_server.registry(tmp_path_factory.mktemp("registry")) as running:
        yield running


@pytest.mark.network
def test_what_is_put_is_what_a_foreign_client_sees(server: RegistryServer) -> None:
    with Registry(server.host) as there:
        made = put_image(there, "some/image")
        assert there.head("some/image", "t") == made.digest
        assert there.manifest("some/image", "t") == made
        assert there.head("some/image", "nothing") is None
        assert there.head("other", "t") is None
    seen = json.loads(
        skopeo("inspect", "--tls-verify=false", f"docker://{server.host}/some/image:t")
    )
    assert seen["Digest"] == made.digest
    assert seen["Labels"] == {"text": "hello"}


@pytest.mark.network
def test_a_500_in_the_middle_of_a_blob_is_tried_again(server: RegistryServer) -> None:
    data = os.urandom(300_000)
    faults = (
        Fault("PUT", "/blobs/uploads/", 500, after=100_000),
        Fault("PUT", "/blobs/uploads/", None, after=100_000),
    )
    with faulty(server.host, *faults) as proxy, Registry(proxy.host, QUICK) as there:
        blob = there.put_blob("torn", data)
        assert [fault.happened for fault in faults] == [1, 1]
        assert there.blob("torn", blob) == data
        assert proxy.count("^POST") == 3  # each try is a new upload


@pytest.mark.network
def test_a_registry_whose_storage_gives_addresses(
    server: RegistryServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It answers HEAD and GET of a blob with a redirect; the address is signed for GET alone."""
    with Registry(server.host) as there:
        image = put_image(there, "redirects/image")
    with serving() as storage, faulty(server.host) as proxy:
        for digest in (image.config.digest, image.layers[0].digest):
            place = {"Location": f"{storage.address}/{digest}?signature=x"}
            storage.answers[f"/{digest}?signature=x"] = (
                200,
                {},
                server.blob_file(digest).read_bytes(),
            )
            for method in ("GET", "HEAD"):
                proxy.faults.append(
                    Fault(method, f"/blobs/{digest}", 307, times=None, headers=place)
                )
        with Registry(proxy.host, QUICK) as there:
            assert there.labels("redirects/image", image) == {"text": "hello"}
            assert there.has_blob("redirects/image", image.layers[0].digest)
            sent = there.put_blob("redirects/image", bytes(1024))  # is there: nothing is uploaded
            assert proxy.count("POST") == 0
            with there.stream("redirects/image", image.layers[0]) as chunks:
                assert b"".join(chunks) == bytes(1024)
        assert sent.digest == image.layers[0].digest
        found = audit.of_registry(registry.parse(f"{proxy.host}/redirects/image:t"), tmp_path).found
        assert found.libraries == ()
        assert {method for method, *_ in storage.seen} == {"GET"}
        moved = Fault("HEAD", "/manifests/", 307, headers={"Location": f"{storage.address}/m"})
        proxy.faults.append(moved)
        with Registry(proxy.host, QUICK) as there:
            assert there.head("redirects/image", "t") == image.digest


def test_other_bytes_than_the_digest_names_are_refused(server: RegistryServer) -> None:
    with Registry(server.host) as there:
        made = put_image(there, "tampered")
    change = Fault("GET", "/manifests/|/blobs/", times=None, change=lambda body: body + b" ")
    with faulty(server.host, change) as proxy, Registry(proxy.host, QUICK) as there:
        with pytest.raises(CheckFailed, match="the registry has other bytes"):
            there.manifest("tampered", "t")
        with pytest.raises(CheckFailed, match="the registry has other bytes"):
            there.blob("tampered", Descriptor.read(made.content["config"]))


def note(there: Registry, repository: str, subject: Manifest, text: str) -> Manifest:
    """An artifact of one file that refers to `subject`."""
    data = text.encode()
    there.put_blob(repository, registry.EMPTY)
    there.put_blob(repository, data)
    content = Descriptor.of(KIND, data)
    return registry.artifact(KIND, content, {"text": text}, subject.descriptor)


@pytest.mark.network
def test_artifacts_are_found_through_the_fallback_tag(server: RegistryServer) -> None:
    with Registry(server.host) as there:
        image = put_image(there, "noted")
        assert there.referrers("noted", image.digest, KIND) == ()
        referrers.attach(there, "noted", note(there, "noted", image, "first"))
        referrers.attach(there, "noted", note(there, "noted", image, "second"))
        first, second = there.referrers("noted", image.digest, KIND)
        referrers.attach(there, "noted", note(there, "noted", image, "first"))  # no twin
        assert there.referrers("noted", image.digest, KIND) == (first, second)
        assert there.referrers("noted", image.digest, "application/other") == ()
        assert first.annotations == {"text": "first"}
        assert there.head("noted", registry.fallback_tag(image.digest))


@pytest.mark.network
def test_a_registry_with_the_referrers_api_gets_no_fallback_tag(server: RegistryServer) -> None:
    with Registry(server.host) as there:
        image = put_image(there, "modern")
    listed = registry.index((Descriptor(OCI_MANIFEST, DIGEST, 1, KIND),))
    faults = (
        Fault("GET", "/referrers/", 200, body=listed.data, times=None),
        Fault("PUT", "/manifests/", 201, headers={"OCI-Subject": image.digest}, times=None),
    )
    with faulty(server.host, *faults) as proxy, Registry(proxy.host, QUICK) as there:
        referrers.attach(there, "modern", note(there, "modern", image, "x"))
        (found,) = there.referrers("modern", image.digest, KIND)
        assert found.digest == DIGEST
        assert proxy.count("manifests/sha256-") == 0


@pytest.mark.network
def test_many_attach_at_once_and_none_is_lost(server: RegistryServer) -> None:
    with Registry(server.host) as there:
        image = put_image(there, "crowded")
        notes = [note(there, "crowded", image, f"note {number}") for number in range(6)]

    def attach(one: Manifest) -> None:
        with Registry(server.host) as mine:
            referrers.attach(mine, "crowded", one)

    threads = [threading.Thread(target=attach, args=(one,)) for one in notes]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with Registry(server.host) as there:
        found = there.referrers("crowded", image.digest, KIND)
    assert {one.digest for one in found} == {one.digest for one in notes}


@pytest.mark.network
def test_a_list_that_another_command_overwrites_gets_both(server: RegistryServer) -> None:
    """The other one reads the list, is slow, and writes it without what came in between."""
    with Registry(server.host) as there:
        image = put_image(there, "raced")
        mine, other = (note(there, "raced", image, text) for text in ("mine", "other"))
        whole, first = there.put_manifest, []

        def put(repository: str, target: str, content: Manifest) -> bool:
            if target == registry.fallback_tag(image.digest) and not first:
                first.append(target)
                with Registry(server.host) as theirs:
                    referrers.attach(theirs, "raced", other)
            return whole(repository, target, content)

        there.put_manifest = put  # type: ignore[method-assign]
        referrers.attach(there, "raced", mine)
        found = there.referrers("raced", image.digest, KIND)
    assert first
    assert {one.digest for one in found} == {mine.digest, other.digest}


@pytest.mark.network
def test_cleaning_up_what_is_untagged_leaves_the_artifacts(server: RegistryServer) -> None:
    with Registry(server.host) as there:
        image = put_image(there, "cleaned")
        one = note(there, "cleaned", image, "stays")
        referrers.attach(there, "cleaned", one)
        stray = put_image(there, "cleaned", "stray", "moves")
        put_image(there, "cleaned", "next", "moves")
    server.collect_garbage()
    with Registry(server.host) as there:
        assert there.manifest("cleaned", stray.digest) is None
        (found,) = there.referrers("cleaned", image.digest, KIND)
        held = there.manifest("cleaned", found.digest)
        assert held == one and there.blob("cleaned", held.layers[0]) == b"stays"


@pytest.mark.network
def test_basic_auth_with_what_docker_login_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    auth = registry_server.basic_auth(tmp_path / "registry")
    with registry_server.registry(tmp_path / "registry", auth) as closed:
        with Registry(closed.host, QUICK) as there, pytest.raises(OutsideError) as caught:
            there.check_write("training")
        assert caught.value.fix == f"run: docker login {closed.host}"

        docker_config(tmp_path, {"auths": {closed.host: {"auth": coded(password="wrong")}}})
        with Registry(closed.host, QUICK) as there, pytest.raises(OutsideError) as caught:
            there.check_write("training")
        assert "refused the credentials of someone" in caught.value.message

        docker_config(tmp_path, {"auths": {closed.host: {"auth": coded()}}})
        with Registry(closed.host, QUICK) as there:
            there.check_write("training")
            assert put_image(there, "training").digest == there.head("training", "t")


# Token service: what Docker Hub, Artifact Registry and most others ask for ------------------------


def url64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


@pytest.fixture
def tokens(tmp_path: Path, certificate: tuple[Path, Path]) -> Iterator[tuple[Any, RegistryServer]]:
    """A token service that signs for USER, and a real registry that believes nobody else."""
    cert, key = certificate
    asked: list[dict[str, str]] = []

    def sign(scope: str) -> bytes:
        kind, name, actions = scope.split(":")
        der = ssl.PEM_cert_to_DER_cert(cert.read_text())
        header = {"typ": "JWT", "alg": "RS256", "x5c": [base64.b64encode(der).decode()]}
        now = int(time.time())
        claims = {
            "iss": "tests",
            "aud": "registry",
            "sub": USER,
            "iat": now,
            "nbf": now - 10,
            "exp": now + 300,
            "access": [{"type": kind, "name": name, "actions": actions.split(",")}],
        }
        text = ".".join(url64(json.dumps(part).encode()) for part in (header, claims))
        signature = subprocess.run(
            ["openssl", "dgst", "-sha256", "-sign", str(key)],
            input=text.encode(),
            capture_output=True,
            check=True,
        ).stdout
        return f"{text}.{url64(signature)}".encode()

    from http.server import BaseHTTPRequestHandler

    class Tokens(BaseHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

        def answer(self, query: dict[str, str], allowed: bool) -> None:
            asked.append(query)
            body = json.dumps({"token": sign(query["scope"]).decode()} if allowed else {}).encode()
            self.send_response(200 if allowed else 401)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def do_GET(self) -> None:
            allowed = self.headers.get("Authorization") == f"Basic {coded()}"
            self.answer(dict(parse_qsl(urlsplit(self.path).query)), allowed)

        def do_POST(self) -> None:
            form = self.rfile.read(int(self.headers["Content-Length"])).decode()
            query = dict(parse_qsl(form))
            self.answer(query, query["refresh_token"] == "refresh")

    service = LoopbackServer(("127.0.0.1", 0), Tokens)
    thread = threading.Thread(target=service.serve_forever)
    thread.start()
    auth = {
        "token": {
            "realm": f"http://127.0.0.1:{service.server_port}/token",
            "service": "registry",
            "issuer": "tests",
            "rootcertbundle": str(cert),
        }
    }
    try:
        with registry_server.registry(tmp_path / "registry", auth) as running:
            yield asked, running
    finally:
        service.shutdown()
        service.server_close()
        thread.join()


@pytest.mark.network
@pytest.mark.parametrize(
    ("entry", "works"),
    [
        ({"auth": coded()}, True),
        ({"auth": coded(user="<token>", password=""), "identitytoken": "refresh"}, True),
        ({"auth": coded(password="wrong")}, False),
    ],
)
def test_bearer_tokens(
    tokens: tuple[list[dict[str, str]], RegistryServer],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    entry: dict[str, str],
    works: bool,
) -> None:
    asked, closed = tokens
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    docker_config(tmp_path, {"auths": {closed.host: entry}})
    with Registry(closed.host, QUICK) as there:
        if not works:
            with pytest.raises(OutsideError, match="refused the credentials of someone"):
                there.check_write("training")
            return
        made = put_image(there, "training")
        assert there.head("training", "t") == made.digest
    # one token for reading, one for writing, however many requests
    actions = [set(query["scope"].rsplit(":")[-1].split(",")) for query in asked]
    assert actions == [{"pull"}, {"pull", "push"}]
