"""Can another machine start the image, stop it, and open an HTTPS connection from it?

docs/proof.md names the public thread of each rule.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from builder.devicecode.dynamic import AARCH64
from builder.facts import accelerators
from builder.prove.checks import certificates
from builder.prove.image import Image
from builder.prove.receipts import Defect, Finding
from builder.prove.suite import Answer, Check

_SIGNALS: Final = ("", "SIGTERM", "TERM", "15")


def run(image: Image) -> Answer:
    """Judge the configuration; in an image of the project look for the certificates, too. One that
    others made may be for another processor, and has a check `certificates` of its own."""
    more = certificates.missing(image) if image.subject else _another_processor(image)
    stop_signal = image.config.get("StopSignal") or "SIGTERM"
    return [*judge(image.config), *more], {"stop_signal": stop_signal}


def _another_processor(image: Image) -> Iterator[Defect]:
    architecture = image.content.configuration.get("architecture")
    on_arm = image.gpu is not None and accelerators.on_arm64(image.gpu.name)
    if architecture and architecture != "amd64" and not (on_arm and architecture == "arm64"):
        where = (
            f"machines with {image.gpu.name}" if image.gpu else "Vertex AI's machines, like most,"
        )
        yield (Defect if image.gpu else Finding)(
            f"the image is for {architecture}: {where} are amd64",
            "build it with docker build --platform linux/amd64",
        )
    programs = [each for layer in image.content.layers for each in layer.programs.values()]
    if architecture == "amd64" and programs and all(each.machine == AARCH64 for each in programs):
        yield Defect(
            "the image says amd64, and its Python is for arm64: exec format error",
            "build it from a base for linux/amd64 (FROM --platform=linux/amd64)",
        )


def judge(config: Mapping[str, Any]) -> Iterator[Defect]:
    """Yield what is wrong with the configuration of an image."""
    signal = str(config.get("StopSignal") or "")
    if signal.upper() not in _SIGNALS:
        yield Defect(
            f"STOPSIGNAL {signal}: Docker and Kubernetes send that in place of SIGTERM, so "
            "the program is killed before it saves",
            "take STOPSIGNAL out of the Dockerfile, or write SIGTERM",
        )
    kind, *words = (config.get("Healthcheck") or {}).get("Test") or ["NONE"]
    if kind != "NONE":
        yield Finding(
            f"HEALTHCHECK {' '.join(words)}: Docker's swarm kills a container that does "
            "not pass it, and a training answers none; Vertex AI and Kubernetes do not ask",
            "write HEALTHCHECK NONE into the Dockerfile",
        )
    user = str(config.get("User") or "").partition(":")[0]
    if user and not user.isdecimal():
        yield Finding(
            f"USER {user} is a name: a pod with runAsNonRoot does not start, because its "
            "node cannot tell that this is not root",
            "write the number: USER 1000:1000",
        )


CHECK = Check.of("machine", 5, run)
