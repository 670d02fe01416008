"""The metadata server of `--metadata`, asked by Google's own library and by steps."""

from __future__ import annotations

import http.client
import ipaddress
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import CarryOut

from cloudbuild_local import cli
from cloudbuild_local.errors import OutsideError
from cloudbuild_local.runner.metadata import HOST, Caller, MetadataServer, answer
from cloudbuild_local.runner.sandbox import Host

ME = Caller("my-project", "123", "me@example.com", lambda: ("a-token", 3000))
ACCOUNTS = "/computeMetadata/v1/instance/service-accounts"


@pytest.fixture
def served() -> Iterator[MetadataServer]:
    # a program of this machine that asks 127.0.0.2 comes from 127.0.0.1, as a container would
    server = MetadataServer(ME, "127.0.0.0/8", "127.0.0.2")
    yield server
    server.close()


def get(
    server: MetadataServer, path: str, flavor: str = "Google", address: str | None = None
) -> tuple[int, str]:
    source = (address, 0) if address else None
    connection = http.client.HTTPConnection(
        server.gateway, server.server_port, source_address=source
    )
    connection.request("GET", path, headers={"Metadata-Flavor": flavor} if flavor else {})
    answer = connection.getresponse()
    result = answer.status, answer.read().decode()
    connection.close()
    return result


def test_google_s_own_library_gets_the_caller_s_token(
    served: MetadataServer, tmp_path: Path
) -> None:
    script = (
        "import google.auth, google.auth.transport.requests as transport\n"
        "login, project = google.auth.default()\n"
        "login.refresh(transport.Request())\n"
        "print(type(login).__module__, project, login.token, login.service_account_email)\n"
    )
    variables = (text.split("=", 1) for text in served.environment)
    clean = {name: value for name, value in os.environ.items() if not name.startswith("GOOGLE_")}
    environment = {
        **{name: value for name, value in clean.items() if "proxy" not in name.lower()},
        **{name: value.replace(HOST, "127.0.0.2") for name, value in variables},
        "HOME": str(tmp_path),
        "CLOUDSDK_CONFIG": str(tmp_path),
    }
    ran = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True
    )
    assert ran.stdout.split() == [
        "google.auth.compute_engine.credentials",
        "my-project",
        "a-token",
        "me@example.com",
    ], ran.stderr


def test_only_who_asks_as_a_container_of_the_build_is_answered(served: MetadataServer) -> None:
    path = f"{ACCOUNTS}/default/email"
    assert get(served, path) == (200, "me@example.com")
    assert get(served, path, flavor="")[0] == 403
    assert get(served, path, address="127.0.0.2")[0] == 403, "this machine itself"
    served.network = ipaddress.ip_network("10.1.0.0/16")
    assert get(served, path)[0] == 403, "another network"


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("/computeMetadata/v1/project/project-id", "my-project"),
        ("/computeMetadata/v1/project/numeric-project-id", "123"),
        (f"{ACCOUNTS}/", "default/\nme@example.com/\n"),
        (f"{ACCOUNTS}/me@example.com/aliases", "default\n"),
        (f"{ACCOUNTS}/default/identity", None),
        (f"{ACCOUNTS}/other@example.com/token", None),
        ("/computeMetadata/v1/instance/zone", None),
    ],
)
def test_what_it_knows(path: str, value: str | None) -> None:
    assert answer(ME, path, {}) == value


def test_a_login_that_ended_is_the_step_s_error(served: MetadataServer) -> None:
    def gone() -> tuple[str, int]:
        raise OutsideError("no token for the steps: reauthentication is needed", "log in")

    served.caller = Caller("p", "1", "me", gone)
    status, text = get(served, f"{ACCOUNTS}/default/token")
    assert (status, "reauthentication" in text) == (503, True)


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [([], 3, "none.json"), (["--host-network"], 2, "--metadata and --host-network exclude")],
)
def test_it_needs_a_login_and_a_network_of_its_own(
    words: list[str],
    code: int,
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "cloudbuild.yaml").write_text("steps: [{name: b}]")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "none.json"))
    assert cli.main(["run", "--metadata", *words]) == code
    assert message in capsys.readouterr().err


@pytest.mark.engine
def test_steps_and_their_containers_reach_it(carry_out: CarryOut, steps_image: str) -> None:
    get = f'wget -qO- --header "Metadata-Flavor: Google" "http://$GCE_METADATA_HOST{ACCOUNTS}'
    text = f"""
steps:
- {{name: b, id: step, script: '{get}/default/token"'}}
- name: b
  id: within
  script: >-
    docker run --rm --network=cloudbuild {steps_image} sh -c '{get}/default/email"'
"""
    build = carry_out(text, host=Host(caller=ME))
    assert build.result.status == "SUCCESS", build.log
    assert any('"access_token": "a-token"' in line for line in build.log), build.log
    assert any("me@example.com" in line for line in build.log), build.log
    off = carry_out("steps: [{name: b, script: 'env; cat /etc/hosts'}]")
    assert not any("metadata" in line.lower() for line in off.log)
