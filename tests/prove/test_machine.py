"""The check `machine`: what an image says that is true of one machine only."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from builder.config import image_yaml
from builder.facts.accelerators import Kind
from builder.image import dockerfile
from builder.prove.checks import environment, machine
from builder.prove.probes import environment as inside
from builder.prove.run import Run

ROOT = Path(__file__).parents[2]
GOOD = {"LD_LIBRARY_PATH": "/usr/local/nvidia/lib:/usr/local/nvidia/lib64"}


def messages(kind: Kind = "gpu", variables: dict[str, str] | None = None, **more: Any) -> list[str]:
    given = {**GOOD, **(variables or {})}
    config = {"Env": [f"{name}={value}" for name, value in given.items()], **more}
    defects = list(machine.judge(config, kind))
    assert all(defect.fix for defect in defects)
    return [defect.message for defect in defects]


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
    (line,) = messages(variables=variables)
    assert line.startswith(message)


@pytest.mark.parametrize("signal", ["SIGINT", "SIGKILL", "9", "SIGQUIT"])
def test_another_stop_signal_is_named(signal: str) -> None:
    (line,) = messages(StopSignal=signal)
    assert line.startswith(f"STOPSIGNAL {signal}: Docker and Kubernetes send that in place")


def test_a_user_by_name_is_no_number_for_a_node() -> None:
    (line,) = messages(User="trainer:trainer")
    assert line.startswith("USER trainer is a name: a pod with runAsNonRoot does not start")


def test_a_health_check_is_named() -> None:
    (line,) = messages(Healthcheck={"Test": ["CMD-SHELL", "curl -f http://127.0.0.1:8080"]})
    assert line.startswith("HEALTHCHECK curl -f http://127.0.0.1:8080: Docker's swarm kills a con")
    assert messages(Healthcheck={"Test": ["NONE"]}) == messages(Healthcheck=None) == []


def judged(config: dict[str, Any], kind: Kind) -> list[str]:
    """What both checks of the configuration say, without what needs the image's files."""
    pairs = (entry.partition("=") for entry in config["Env"])
    defects = list(environment.judge({name: value for name, _, value in pairs}, kind))
    return [defect.message for defect in (*defects, *machine.judge(config, kind))]


@pytest.mark.parametrize("target", image_yaml.targets(ROOT))
def test_no_alarm_on_our_images(target: str) -> None:
    """Each image as it is planned, with what it expects."""
    rendered = dockerfile.load(ROOT, target)
    assert rendered.base and rendered.config
    config = rendered.config.on(rendered.base.config)
    assert judged(config, rendered.stack.accelerator.kind) == []


NVIDIA = "/usr/local/nvidia/lib:/usr/local/nvidia/lib64"
FOREIGN = {
    "nvidia/cuda 12": {
        "NVIDIA_VISIBLE_DEVICES": "all",
        "NVIDIA_DRIVER_CAPABILITIES": "compute,utility",
        "NVIDIA_REQUIRE_CUDA": "cuda>=12.5 brand=tesla,driver>=470,driver<471",
        "LD_LIBRARY_PATH": NVIDIA,
        "NCCL_VERSION": "2.21.5-1",
    },
    "tensorflow/tensorflow:latest-gpu": {
        "NVIDIA_VISIBLE_DEVICES": "all",
        "NVIDIA_DRIVER_CAPABILITIES": "compute,utility",
        "LD_LIBRARY_PATH": f"/usr/local/cuda/extras/CUPTI/lib64:/usr/local/cuda/lib64:{NVIDIA}",
        "LANG": "C.UTF-8",
    },
    "AWS's TensorFlow 2.16 for training": {
        "NVIDIA_VISIBLE_DEVICES": "all",
        "NVIDIA_DRIVER_CAPABILITIES": "compute,utility",
        "LD_LIBRARY_PATH": f"/usr/local/lib:/opt/amazon/openmpi/lib/:{NVIDIA}:/usr/local/lib",
        "KMP_AFFINITY": "granularity=fine,compact,1,0",
        "RDMAV_FORK_SAFE": "1",
        "TF_AUTOTUNE_THRESHOLD": "2",
        "TF_VERSION": "2.16",
    },
}
"""What three published bases set, by their Dockerfiles: NVIDIA's, TensorFlow's
(tensorflow/tools/dockerfiles), AWS's (aws/deep-learning-containers, cu123/Dockerfile.gpu)."""


@pytest.mark.parametrize("base", FOREIGN)
def test_no_alarm_on_published_bases(base: str) -> None:
    config = {"Env": [f"{name}={value}" for name, value in FOREIGN[base].items()]}
    assert judged(config, "gpu") == []


def test_what_is_usual_is_let_through() -> None:
    usual = {
        "NCCL_SOCKET_IFNAME": "^docker0,lo",
        "NCCL_DEBUG": "WARN",
        "no_proxy": "localhost",
        "HTTP_PROXY": "",
    }
    assert messages(variables=usual, StopSignal="SIGTERM", User="65532") == []
    assert messages("cpu", {"LD_LIBRARY_PATH": "", "NCCL_SOCKET_IFNAME": "eth0"}) == []


def checked(
    missing: list[str], empty: list[str] | None = None, **variables: str
) -> tuple[list[str], list[str]]:
    """The whole check in an image that lacks these files: messages, and what was looked for."""
    bundles: list[str] = []

    def probe(name: str, request: dict[str, Any]) -> Run:
        bundles.extend(request["bundles"])
        seen = {"missing": [p for p in missing if p in bundles], "empty": empty or []}
        there = {"problems": [], "seen": seen}
        return Run(0, 0.1, answer=there)

    given = {**GOOD, **variables}
    session: Any = SimpleNamespace(
        config={"Env": [f"{name}={value}" for name, value in given.items()]},
        subject=SimpleNamespace(stack=SimpleNamespace(accelerator=SimpleNamespace(kind="gpu"))),
        probe=probe,
    )
    answer = machine.CHECK.run(session)
    assert answer is not None
    return [defect.message for defect in answer[0]], bundles


def test_without_certificates_no_bucket_is_read() -> None:
    (line,), _ = checked([machine.AUTHORITIES])
    assert line.endswith("TensorFlow cannot read gs:// (libcurl code 77)")
    assert checked([]) == ([], [machine.AUTHORITIES])
    own = {"CURL_CA_BUNDLE": "/etc/pki/tls/cert.pem"}
    assert checked([machine.AUTHORITIES], **own) == ([], ["/etc/pki/tls/cert.pem"])
    (message,), _ = checked([], [machine.AUTHORITIES])
    assert message.startswith(f"{machine.AUTHORITIES} holds no certificate: no HTTPS connection")
    (line,), _ = checked(["/mine.pem"], SSL_CERT_FILE="/mine.pem")
    assert line.startswith("SSL_CERT_FILE=/mine.pem names a file that is not in the image")


def test_an_empty_bundle_is_seen(tmp_path: Path) -> None:
    full, empty = tmp_path / "full.pem", tmp_path / "empty.pem"
    full.write_text("-----BEGIN " + "CERTIFICATE-----\n")
    empty.touch()
    bundles = [str(full), str(empty), str(tmp_path / "gone")]
    seen = inside.probe({"paths": [], "bundles": bundles})["seen"]
    assert seen == {"missing": bundles[2:], "empty": bundles[1:2]}
