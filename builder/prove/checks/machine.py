"""Does the image hold what is true of one machine only, or lack what another one relies on?

Such an image works where it was built, and fails where it is sent. docs/proof.md names the public
thread of each rule. The configuration is judged here (`judge`); files are looked for inside the
image (builder/prove/probes/environment.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from builder.facts.accelerators import Kind
from builder.prove.receipts import Defect
from builder.prove.session import Session
from builder.prove.suite import Answer, Check, probed
from builder.registry import manifests

DRIVER: Final = "/usr/local/nvidia/lib64"
"""Where Google's nodes mount the driver's libraries; they do not change the loader's cache (GKE,
"Run GPUs in Standard node pools", "CUDA libraries")."""
AUTHORITIES: Final = "/etc/ssl/certs/ca-certificates.crt"
"""Where TensorFlow looks for certificates before it reads gs:// (tensorflow#40065)."""

_BUNDLES: Final = ("CURL_CA_BUNDLE", "REQUESTS_CA_BUNDLE", "SSL_CERT_FILE")
_PROXIES: Final = ("http_proxy", "https_proxy", "all_proxy")
_INTERFACES: Final = ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "NCCL_IB_HCA", "NCCL_COMM_ID")
_SIGNALS: Final = ("", "SIGTERM", "TERM", "15")
_UNSET = "take it out of `environment` in image.yaml, or out of the Dockerfile's ENV"


def run(session: Session) -> Answer:
    """Judge the configuration, then look for the certificates."""
    kind = session.subject.stack.accelerator.kind
    environment = manifests.environment(session.config)
    defects = list(judge(session.config, kind))
    needed = certificates(environment)
    failed, seen = probed(
        session.probe(
            "builder.prove.probes.environment",
            {"paths": [], "bundles": list(needed)},
        )
    )
    defects += failed
    defects += [
        Defect(message=needed[path], fix="install ca-certificates, or correct the variable")
        for path in seen.get("missing", ())
    ]
    defects += [
        Defect(
            message=f"{path} holds no certificate: no HTTPS connection succeeds (libcurl code 77)",
            fix="run update-ca-certificates, or correct the variable",
        )
        for path in seen.get("empty", ())
    ]
    return defects, {"stop_signal": session.config.get("StopSignal") or "SIGTERM"}


def judge(config: Mapping[str, Any], kind: Kind) -> Iterator[Defect]:
    """Yield what is wrong with the configuration of an image for this kind of accelerator."""
    environment = manifests.environment(config)
    yield from _start_and_stop(config)
    if kind == "gpu":
        yield from _of_the_driver(environment)
        yield from _of_the_network(environment)
    for name, value in environment.items():
        if name.lower() in _PROXIES and value:
            yield Defect(
                message=f"{name} is set in the image: elsewhere there is no such proxy, and not "
                "even the metadata server is reached, which gives out the job's credentials",
                fix=f"{_UNSET}; a build gets the proxy as a secret or a build argument",
            )
    login = environment.get("GOOGLE_APPLICATION_CREDENTIALS")
    if login:
        yield Defect(
            message=f"GOOGLE_APPLICATION_CREDENTIALS={login} is set in the image: where that file "
            "is not mounted, Google's clients fail instead of asking the machine for its account",
            fix=f"{_UNSET}, and give the job a service account",
        )


def of_the_factory(config: Mapping[str, Any], kind: Kind) -> Iterator[Defect]:
    """Yield, of what `judge` yields, what images of others need not keep to."""
    yield from _health_check(config)
    yield from _user(config)
    if kind == "gpu":
        yield from _of_the_driver(manifests.environment(config))


def certificates(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the files that have to be in the image, each with what is wrong where it is not."""
    needed = {
        path: f"{name}={path} names a file that is not in the image: no HTTPS connection succeeds"
        for name in _BUNDLES
        if (path := environment.get(name, ""))
    }
    if not environment.get("CURL_CA_BUNDLE"):
        needed[AUTHORITIES] = (
            f"the image has no {AUTHORITIES}: TensorFlow cannot read gs:// (libcurl code 77)"
        )
    return needed


def _start_and_stop(config: Mapping[str, Any]) -> Iterator[Defect]:
    signal = str(config.get("StopSignal") or "")
    if signal.upper() not in _SIGNALS:
        yield Defect(
            message=f"STOPSIGNAL {signal}: Docker and Kubernetes send that in place of SIGTERM, so "
            "the program is killed before it saves",
            fix="take STOPSIGNAL out of the Dockerfile, or write SIGTERM",
        )
    yield from _health_check(config)
    yield from _user(config)


def _health_check(config: Mapping[str, Any]) -> Iterator[Defect]:
    kind, *words = (config.get("Healthcheck") or {}).get("Test") or ["NONE"]
    if kind != "NONE":
        yield Defect(
            message=f"HEALTHCHECK {' '.join(words)}: Docker's swarm kills a container that does "
            "not pass it, and a training answers none; Vertex AI and Kubernetes do not ask",
            fix="write HEALTHCHECK NONE into the Dockerfile",
        )


def _user(config: Mapping[str, Any]) -> Iterator[Defect]:
    user = str(config.get("User") or "").partition(":")[0]
    if user and not user.isdecimal():
        yield Defect(
            message=f"USER {user} is a name: a pod with runAsNonRoot does not start, because its "
            "node cannot tell that this is not root",
            fix="write the number: USER 1000:1000",
        )


def _of_the_driver(environment: Mapping[str, str]) -> Iterator[Defect]:
    folders = environment.get("LD_LIBRARY_PATH", "").split(":")
    if DRIVER not in [folder.rstrip("/") for folder in folders]:
        yield Defect(
            message=f"LD_LIBRARY_PATH has no {DRIVER}: Vertex AI and GKE mount the driver there, "
            "and the program finds no GPU",
            fix=f"add {DRIVER} to LD_LIBRARY_PATH in the Dockerfile's ENV, or take another base",
        )


def _of_the_network(environment: Mapping[str, str]) -> Iterator[Defect]:
    for name in _INTERFACES:
        value = environment.get(name, "")
        if value and not value.startswith("^"):
            yield Defect(
                message=f"{name}={value} in the image names a part of one machine's network: on "
                "another one NCCL finds none",
                fix=_UNSET,
            )
    left_out = environment.get("NCCL_SOCKET_IFNAME", "")
    if left_out.startswith("^") and "lo" not in left_out[1:].split(","):
        yield Defect(
            message=f"NCCL_SOCKET_IFNAME={left_out} does not leave out lo: NCCL may take the "
            "loopback, over which no other machine answers",
            fix=f"write {left_out},lo, or {_UNSET}",
        )


CHECK = Check("machine", 3, run)
