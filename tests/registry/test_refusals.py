"""What a refusal means: one line, and what to do about it."""

from __future__ import annotations

import pytest

from builder.registry import Reference, refusal
from builder.registry.credentials import Credentials

AR = Reference("europe-west4-docker.pkg.dev", "project/images/training")
HUB = Reference("docker.io", "someone/training")
OWN = Reference("10.0.0.1:5000", "x")
MAY_NOT = "someone may not write project/images/training"
KNOWN = Credentials("someone", "secret", source="config.json")


LOGIN = "run: gcloud auth configure-docker europe-west4-docker.pkg.dev"
CREATE = (
    "run: gcloud artifacts repositories create images --repository-format=docker"
    " --location=europe-west4 --project=project"
)
GONE = 'NAME_UNKNOWN Repository "images" not found'
FIXED = "UNKNOWN cannot update tag v100. The repository has enabled tag immutability"


@pytest.mark.parametrize(
    ("where", "status", "answer", "known", "message", "fix"),
    [
        (AR, 401, "", None, "not logged in to europe-west4-docker.pkg.dev", LOGIN),
        (AR, 403, "DENIED", None, "not logged in", LOGIN),
        (HUB, 401, "", None, "not logged in to docker.io", "run: docker login"),
        (OWN, 401, "", None, "not logged in to 10.0.0.1:5000", "run: docker login 10.0.0.1:5000"),
        (AR, 404, GONE, KNOWN, "project project has no repository images", CREATE),
        (AR, 403, "DENIED Permission denied", KNOWN, MAY_NOT, "roles/artifactregistry.writer"),
        (HUB, 401, "UNAUTHORIZED", KNOWN, "someone may not write someone/", "ask the owner"),
        (AR, 400, FIXED, KNOWN, "tags are immutable", "push under a new tag"),
        (AR, 403, "DENIED Quota exceeded", KNOWN, "over the quota", "larger quota"),
        (HUB, 405, "UNSUPPORTED", KNOWN, "answered 405: UNSUPPORTED", "log"),
    ],
)
def test_a_permanent_refusal_is_one_line_with_what_to_do(
    where: Reference, status: int, answer: str, known: Credentials | None, message: str, fix: str
) -> None:
    error = refusal(where, status, answer, "write", known)
    assert error.exit_code == 3
    assert message in error.message
    assert fix in error.fix
    assert "\n" not in error.message + error.fix
