"""Requests to a registry: what is tried again, what is not, and what a real one answers."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

import pytest

from builder import registry
from builder.core.errors import CheckFailed, InputError, OutsideError
from builder.core.retry import Retry
from builder.reading import images
from builder.registry import Descriptor, Manifest, Registry, client, referrers
from builder.registry.authorization import Authorization
from builder.registry.manifests import OCI_MANIFEST
from builder.registry.requests import Requests
from tests.clock import replace_pauses
from tests.emulators import tls
from tests.emulators.answers import Handler, serving
from tests.emulators.registry_faults import Fault, faulty
from tests.registry import server as registry_server
from tests.registry.making import coded, docker_config, put_image
from tests.registry.server import RegistryServer, skopeo

DIGEST = "sha256:" + "a" * 64
QUICK = Retry(attempts=3, first=0.01)
KIND = "application/vnd.example.note.v1+json"


# Connections -------------------------------------------------------------------------------------


def test_an_unknown_host_is_not_tried_again_and_nothing_there_is_one_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def unknown(*_: object, **__: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    for variable in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    retries: list[str] = []
    with (
        Registry("registry.invalid", QUICK, retries.append) as there,
        pytest.raises(OutsideError, match=r"registry\.invalid: no such host") as caught,
    ):
        there.head("x", "y")
    assert retries == [] and "check the network and the name server" in caught.value.fix
    monkeypatch.undo()
    with socket.create_server(("127.0.0.1", 0)) as free:
        host = f"127.0.0.1:{free.getsockname()[1]}"
    with (
        Registry(host, QUICK) as there,
        pytest.raises(OutsideError, match=r"Connection refused.* \(tried 3 times\)"),
    ):
        there.head("x", "y")


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


def test_a_transient_error_is_tried_again_a_bounded_number_of_times(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for status in (429, 503, None):
        fault = Fault("HEAD", "/manifests/", status, times=2, headers={"Retry-After": "0"})
        retries: list[str] = []
        with faulty(None, fault) as proxy, Registry(proxy.host, QUICK, retries.append) as there:
            assert there.head("training", "v100") is None
            assert proxy.count("^HEAD") == 3
        assert len(retries) == 2
        assert "trying again in" in retries[0]
    body = b'{"errors": [{"code": "UNKNOWN", "message": "disk on fire"}]}'
    fault = Fault("GET", "/manifests/", 500, times=None, body=body)
    with faulty(None, fault) as proxy, Registry(proxy.host, QUICK) as there:
        with pytest.raises(OutsideError) as caught:
            there.manifest("training", "v100")
        assert caught.value.message == (
            f"{proxy.host} answered 500 Internal Server Error to GET: UNKNOWN disk on fire"
            " (tried 3 times)"
        )
    assert fault.happened == 3
    pauses: list[float] = []
    replace_pauses(monkeypatch, pauses.append)
    fault = Fault("HEAD", "/manifests/", 429, headers={"Retry-After": "7"})
    with faulty(None, fault) as proxy, Registry(proxy.host, QUICK) as there:
        there.head("training", "v100")
    assert 7.0 in pauses, "the registry's own pause is kept"


def challenge(words: str) -> dict[str, str]:
    return {"WWW-Authenticate": words}


def test_credentials_are_looked_up_when_asked_for_and_without_some_the_login_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    fault = Fault("POST", "/uploads/", 401, times=None, headers=challenge('Basic realm="x"'))
    with faulty(None, fault) as proxy, Registry(proxy.host, QUICK) as there:
        with pytest.raises(OutsideError) as caught:
            there.check_write("training")
        assert caught.value.message == (
            f"not logged in to {proxy.host}: write access to training needs a login"
        )
        assert caught.value.fix == f"run: docker login {proxy.host}"
    (tmp_path / "config.json").write_text("{")  # is refused once it is read
    fault = Fault("HEAD", "/x/", 401, headers=challenge('Basic realm="x"'))
    with faulty(None, fault) as proxy, Registry(proxy.host, QUICK) as there:
        assert there.head("free", "y") is None
        with pytest.raises(InputError, match="cannot be read"):
            there.head("x", "y")


@pytest.mark.parametrize(
    ("realm", "reason"),
    [
        ("http://127.0.0.1:9/token", "in plain text"),
        ("http://tokens.example.com/", "in plain text"),
        ("https://127.0.0.1:9/token", "private address 127.0.0.1"),
        ("https://169.254.169.254/token", "private address 169.254.169.254"),
    ],
)
def test_a_token_service_has_tls_and_is_not_inside_of_this_machines_network(
    monkeypatch: pytest.MonkeyPatch, realm: str, reason: str
) -> None:
    def addresses(host: str, *_: object, **__: object) -> list[tuple[object, ...]]:
        return [(0, 0, 0, "", ("8.8.8.8" if host == "registry.example" else host, 443))]

    monkeypatch.setattr(socket, "getaddrinfo", addresses)
    send = Requests("registry.example").call
    with pytest.raises(OutsideError, match=reason):
        Authorization("registry.example", send).answer([f'Bearer realm="{realm}"'], "x", "read")


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


def test_tls_has_to_be_there_and_by_a_ca_that_is_trusted(
    certificate: tuple[Path, Path], registry_test: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    with faulty() as proxy:
        host = proxy.host.replace("127.0.0.1", "registry.test")
        with (
            Registry(host, QUICK) as there,
            pytest.raises(OutsideError, match="does not speak TLS; plain http is for loopback"),
        ):
            there.head("x", "y")
        tls.encrypt(proxy, certificate)
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
    urls: list[str] = []
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
            sent = there._requests._http.request

            def noted(method: str, url: str, **how: Any) -> Any:
                urls.append(url)
                return sent(method, url, **how)

            monkeypatch.setattr(there._requests._http, "request", noted)
            with pytest.raises(OutsideError, match="in plain text, to http://registry") as raised:
                there.put_blob("x", b"content")
            there.check_write("x")
    assert "secret" not in raised.value.message
    assert all(url.startswith("https://") for url in urls)


def test_an_upload_goes_to_the_same_host_however_it_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    logins: list[str] = []

    class WithLogin(Handler):
        def do_PUT(self) -> None:  # noqa: N802
            self.rfile.read(int(self.headers["Content-Length"]))
            logins.append(self.headers.get("Authorization", ""))
            known: dict[str, str] = {} if logins[-1] else {"WWW-Authenticate": 'Basic realm="x"'}
            self.server.answers[self.path] = (401 if known else 201, known, b"")
            self.answer()

    with serving() as server:
        server.RequestHandlerClass = WithLogin
        host = f"localhost:{server.server_port}"
        docker_config(tmp_path, {"auths": {host: {"auth": coded()}}})
        place = {"Location": f"http://LocalHost:{server.server_port}/v2/x/blobs/uploads/1"}
        server.answers["/v2/x/blobs/uploads/"] = (202, place, b"")
        with Registry(host, QUICK) as there:
            there.put_blob("x", b"content")
    assert logins == ["", f"Basic {coded()}"]


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
        reference = registry.parse(f"{proxy.host}/redirects/image:t")
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
        assert images.of_registry(reference).libraries == ()
        assert {method for method, *_ in storage.seen} == {"GET"}
        moved = Fault("HEAD", "/manifests/", 307, headers={"Location": f"{storage.address}/m"})
        proxy.faults.append(moved)
        with Registry(proxy.host, QUICK) as there:
            assert there.head("redirects/image", "t") == image.digest


def test_other_bytes_than_the_digest_names_are_refused() -> None:
    image = registry.manifest({"mediaType": OCI_MANIFEST})
    answers = {f"/v2/x/manifests/{image.digest}": (200, {}, image.data + b" ")}
    answers[f"/v2/x/blobs/{DIGEST}"] = (200, {}, b"other")
    with serving(answers) as server, Registry(f"127.0.0.1:{server.server_port}") as there:
        with pytest.raises(CheckFailed, match="the registry has other bytes"):
            there.manifest("x", image.digest)
        with pytest.raises(CheckFailed, match="the registry has other bytes"):
            there.blob("x", Descriptor("", DIGEST, 5))
        with (
            pytest.raises(CheckFailed, match="the registry has other bytes"),
            there.stream("x", Descriptor("", DIGEST, 5)) as chunks,
        ):
            list(chunks)


def note(there: Registry, repository: str, subject: Manifest, text: str) -> Manifest:
    """An artifact of one file that refers to `subject`."""
    data = text.encode()
    there.put_blob(repository, registry.EMPTY)
    there.put_blob(repository, data)
    content = Descriptor.of(KIND, data)
    return registry.artifact(KIND, content, {"text": text}, subject.descriptor)


@pytest.mark.network
def test_artifacts_are_found_through_the_fallback_tag_and_outlive_a_clean_up(
    server: RegistryServer,
) -> None:
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
        assert there.head("noted", client.fallback_tag(image.digest))
        stray = put_image(there, "noted", "stray", "moves")
        put_image(there, "noted", "next", "moves")
    server.collect_garbage()  # of what is untagged
    with Registry(server.host) as there:
        assert there.manifest("noted", stray.digest) is None
        assert there.referrers("noted", image.digest, KIND) == (first, second)
        left = there.manifest("noted", first.digest)
        assert left and there.blob("noted", left.layers[0]) == b"first"


@pytest.mark.network
def test_a_list_that_another_command_overwrites_gets_both(server: RegistryServer) -> None:
    """The other one reads the list, is slow, and writes it without what came in between."""
    with Registry(server.host) as there:
        image = put_image(there, "raced")
        mine, other = (note(there, "raced", image, text) for text in ("mine", "other"))
        whole, first = there.put_manifest, []

        def put(repository: str, target: str, content: Manifest) -> bool:
            if target == client.fallback_tag(image.digest) and not first:
                first.append(target)
                with Registry(server.host) as theirs:
                    referrers.attach(theirs, "raced", other)
            return whole(repository, target, content)

        there.put_manifest = put  # type: ignore[method-assign]
        referrers.attach(there, "raced", mine)
        listed = there.referrers("raced", image.digest, KIND)
    assert first
    assert {referrer.digest for referrer in listed} == {mine.digest, other.digest}


@pytest.mark.network
def test_basic_auth_with_what_docker_login_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    auth = registry_server.basic_auth(tmp_path / "registry")
    with registry_server.registry(tmp_path / "registry", auth) as closed:
        docker_config(tmp_path, {"auths": {closed.host: {"auth": coded(password="wrong")}}})
        with Registry(closed.host, QUICK) as there, pytest.raises(OutsideError) as caught:
            there.check_write("training")
        assert "refused the credentials of someone" in caught.value.message

        docker_config(tmp_path, {"auths": {closed.host: {"auth": coded()}}})
        with Registry(closed.host, QUICK) as there:
            there.check_write("training")
            assert put_image(there, "training").digest == there.head("training", "t")


@pytest.mark.parametrize(
    ("entry", "request_line", "sent"),
    [
        ({}, "GET /token?service=x&scope=repository:a:pull", ""),  # a public image, for nobody
        ({"auth": coded()}, "GET /token?service=x&scope=repository:a:pull", f"Basic {coded()}"),
        ({"auth": coded("<token>", ""), "identitytoken": "refresh"}, "POST /token", "refresh"),
    ],
)
def test_a_login_is_exchanged_for_one_token_a_right(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    entry: dict[str, str],
    request_line: str,
    sent: str,
) -> None:
    """What Docker Hub, Artifact Registry and most others ask for ("token authentication")."""
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    shown: list[str] = []
    with faulty() as proxy:
        docker_config(tmp_path, {"auths": {proxy.host: entry}})
        words = f'Bearer realm="http://{proxy.host}/token",service="x",scope="repository:a:pull"'
        digest = {"Docker-Content-Digest": DIGEST}
        proxy.faults = [
            Fault("HEAD", "/manifests/", 401, headers=challenge(words)),
            Fault(request_line.split()[0], "/token", 200, body=b'{"token": "short"}'),
            Fault("HEAD", "/manifests/", 200, times=None, headers=digest),
        ]
        with Registry(proxy.host, QUICK) as there:
            answer = there._requests._http.answer

            def noted(method: str, url: str, **how: Any) -> Any:
                form = dict(parse_qsl((how.get("body") or b"").decode()))
                shown.append(form.get("refresh_token") or how["headers"].get("Authorization", ""))
                return answer(method, url, **how)

            monkeypatch.setattr(there._requests._http, "answer", noted)
            assert there.head("a", "t") == there.head("a", "t") == DIGEST
        assert proxy.seen[1] == request_line
    assert shown == ["", sent, "Bearer short", "Bearer short"]
