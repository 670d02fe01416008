"""The check `machine`: whether another machine can start the image, stop it, and trust a server."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from builder.audit.audited import gpu_named
from builder.prove.checks import certificates, machine
from builder.prove.image import Image
from builder.prove.receipts import Defect
from tests.devicecode.writer import linked
from tests.prove.reading import Files, layer, plain, read

BUNDLE = plain(certificates.AUTHORITIES)


@pytest.mark.parametrize(
    ("architecture", "found"), [("arm64", ["the image is for arm64"]), ("amd64", []), ("", [])]
)
def test_an_image_for_another_processor_is_a_finding(architecture: str, found: Any) -> None:
    image = read(layer(BUNDLE))
    content = replace(image.content, configuration={"architecture": architecture})
    defects, _ = machine.run(replace(image, content=content))
    assert [str(defect.message).partition(":")[0] for defect in defects] == found


ARM_PYTHON = {"usr/bin/python3.11": (linked(machine=183), 0o755, 0)}


@pytest.mark.parametrize(
    ("gpu", "architecture", "files", "kinds"),
    [
        ("v100", "arm64", BUNDLE, [Defect]),
        ("GB10", "arm64", BUNDLE, []),
        ("GB10", "amd64", BUNDLE, []),
        ("v100", "amd64", ARM_PYTHON, [Defect]),
        ("v100", "amd64", {**ARM_PYTHON, "usr/bin/python3": (linked(), 0o755, 0)}, []),
    ],
)
def test_an_image_for_another_processor_than_the_gpus_is_refused(
    gpu: str, architecture: str, files: Files, kinds: list[type]
) -> None:
    content = replace(read(layer(files)).content, configuration={"architecture": architecture})
    defects, _ = machine.run(Image(content, gpu_named(gpu)))
    assert [type(defect) for defect in defects] == kinds


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"StopSignal": "SIGINT"}, "STOPSIGNAL SIGINT: Docker and Kubernetes send that in place"),
        ({"StopSignal": "9"}, "STOPSIGNAL 9: Docker and Kubernetes send that in place"),
        ({"User": "trainer:trainer"}, "USER trainer is a name: a pod with runAsNonRoot does not"),
        (
            {"Healthcheck": {"Test": ["CMD-SHELL", "curl -f http://127.0.0.1:8080"]}},
            "HEALTHCHECK curl -f http://127.0.0.1:8080: Docker's swarm kills a container",
        ),
        ({"StopSignal": "SIGTERM", "User": "65532", "Healthcheck": {"Test": ["NONE"]}}, ""),
        ({"StopSignal": None, "Healthcheck": None}, ""),
        ({"Env": ["SSL_CERT_FILE=/mine.pem"]}, "SSL_CERT_FILE=/mine.pem names a file that is"),
    ],
)
def test_what_only_one_machine_does_is_named(config: dict[str, Any], message: str) -> None:
    defects, _ = machine.run(read(layer(BUNDLE), target="cpu", **config))
    assert [defect.message[: len(message)] for defect in defects] == ([message] if message else [])
    assert all(defect.fix for defect in defects)


def test_without_certificates_no_bucket_is_read() -> None:
    def said(files: Any, *variables: str) -> list[str]:
        defects, _ = machine.run(read(layer(files), target="cpu", Env=list(variables)))
        return [defect.message for defect in defects]

    lacks = f"the image has no {certificates.AUTHORITIES}: gs:// cannot be read (libcurl code 77)"
    assert said({}) == [lacks]
    (empty,) = said({certificates.AUTHORITIES: (b"", 0o644, 0)})
    assert empty.startswith(f"{certificates.AUTHORITIES} is empty: no HTTPS")
    assert said(plain("/mine.pem"), "CURL_CA_BUNDLE=/mine.pem") == []
