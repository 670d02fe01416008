"""The check `machine`: what an image says that is true of one machine only."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from builder.bases.settings import settings
from builder.facts.accelerators import Kind
from builder.lock import model
from builder.prove.run import Run
from builder.tensorflow.checks import machine

ROOT = Path(__file__).parents[2]
GOOD = {"LD_LIBRARY_PATH": "/usr/local/nvidia/lib:/usr/local/nvidia/lib64"}


def messages(kind: Kind = "gpu", variables: dict[str, str] | None = None, **more: Any) -> list[str]:
    environment = {**GOOD, **(variables or {})}
    config = {"Env": [f"{name}={value}" for name, value in environment.items()], **more}
    found = list(machine.judge(config, kind))
    assert all(one.fix for one in found)
    return [one.message for one in found]


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({"LD_LIBRARY_PATH": "/usr/local/cuda/lib64"}, "LD_LIBRARY_PATH has no /usr/local/nvidia/"),
        ({"NCCL_SOCKET_IFNAME": "eno1"}, "NCCL_SOCKET_IFNAME=eno1 in the image names a part of on"),
        ({"NCCL_SOCKET_IFNAME": "^docker0"}, "NCCL_SOCKET_IFNAME=^docker0 does not leave out lo"),
        ({"NCCL_IB_HCA": "mlx5_0"}, "NCCL_IB_HCA=mlx5_0 in the image names a part of one machine"),
        ({"HTTPS_PROXY": "http://proxy:3128"}, "HTTPS_PROXY is set in the image: elsewhere there"),
        ({"http_proxy": "http://proxy:3128"}, "http_proxy is set in the image: elsewhere there"),
        (
            {"GOOGLE_APPLICATION_CREDENTIALS": "/key.json"},
            "GOOGLE_APPLICATION_CREDENTIALS=/key.json is set in the image",
        ),
    ],
)
def test_what_only_one_machine_has_is_named(variables: dict[str, str], message: str) -> None:
    (found,) = messages(variables=variables)
    assert found.startswith(message)


@pytest.mark.parametrize("signal", ["SIGINT", "SIGKILL", "9", "SIGQUIT"])
def test_another_stop_signal_is_named(signal: str) -> None:
    (found,) = messages(StopSignal=signal)
    assert found.startswith(f"STOPSIGNAL {signal}: Docker and Kubernetes send that in place")


def test_a_user_by_name_is_no_number_for_a_node() -> None:
    (found,) = messages(User="trainer:trainer")
    assert found.startswith("USER trainer is a name: a pod with runAsNonRoot does not start")


def test_our_own_bases_and_what_is_usual_are_let_through() -> None:
    for target in ("v100", "tpu", "cpu"):
        kind: Any = {"v100": "gpu"}.get(target, target)
        config = {**settings(model.read(ROOT, target)), "User": "1000:1000"}
        assert list(machine.judge(config, kind)) == []
    usual = {
        "NCCL_SOCKET_IFNAME": "^docker0,lo",
        "NCCL_DEBUG": "WARN",
        "no_proxy": "localhost",
        "HTTP_PROXY": "",
    }
    assert messages(variables=usual, StopSignal="SIGTERM", User="65532") == []
    assert messages("cpu", {"LD_LIBRARY_PATH": "", "NCCL_SOCKET_IFNAME": "eth0"}) == []


def checked(missing: list[str], **variables: str) -> tuple[list[str], list[str]]:
    """The whole check in an image that lacks these files: messages, and what was looked for."""
    asked: list[str] = []

    def probe(name: str, request: dict[str, Any]) -> Run:
        asked.extend(request["paths"])
        there = {"problems": [], "seen": {"missing": [p for p in missing if p in asked]}}
        return Run(0, 0.1, answer=there)

    environment = {**GOOD, **variables}
    bench: Any = SimpleNamespace(
        config={"Env": [f"{name}={value}" for name, value in environment.items()]},
        subject=SimpleNamespace(stack=SimpleNamespace(accelerator=SimpleNamespace(kind="gpu"))),
        probe=probe,
    )
    answer = machine.CHECK.run(bench)
    assert answer is not None
    return [one.message for one in answer[0]], asked


def test_without_certificates_no_bucket_is_read() -> None:
    (found,), _ = checked([machine.AUTHORITIES])
    assert found.endswith("TensorFlow cannot read gs:// (libcurl code 77)")
    assert checked([]) == ([], [machine.AUTHORITIES])
    own = {"CURL_CA_BUNDLE": "/etc/pki/tls/cert.pem"}
    assert checked([machine.AUTHORITIES], **own) == ([], ["/etc/pki/tls/cert.pem"])
    (found,), _ = checked(["/mine.pem"], SSL_CERT_FILE="/mine.pem")
    assert found.startswith("SSL_CERT_FILE=/mine.pem names a file that is not in the image")
