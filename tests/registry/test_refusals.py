"""What a refusal means: one line, and what to do about it."""

from __future__ import annotations

import pytest

from builder.registry import Credentials, Reference, refused

AR = Reference("europe-west4-docker.pkg.dev", "project/images/training")
HUB = Reference("docker.io", "someone/training")
KNOWN = Credentials("someone", "secret", source="config.json")


@pytest.mark.parametrize(
    ("where", "status", "answer", "known", "message", "fix"),
    [
        (
            AR,
            401,
            "",
            None,
            "not logged in to europe-west4-docker.pkg.dev",
            "run: gcloud auth configure-docker europe-west4-docker.pkg.dev",
        ),
        (AR, 403, "DENIED", None, "not logged in", "run: gcloud auth configure-docker"),
        (HUB, 401, "", None, "not logged in to docker.io", "run: docker login"),
        (
            Reference("10.0.0.1:5000", "x"),
            401,
            "",
            None,
            "not logged in to 10.0.0.1:5000",
            "run: docker login 10.0.0.1:5000",
        ),
        (
            AR,
            404,
            'NAME_UNKNOWN Repository "images" not found',
            KNOWN,
            "project project has no repository images",
            "run: gcloud artifacts repositories create images --repository-format=docker"
            " --location=europe-west4 --project=project",
        ),
        (
            AR,
            403,
            "DENIED Permission uploadArtifacts denied",
            KNOWN,
            "someone may not write project/images/training",
            "roles/artifactregistry.writer",
        ),
        (
            HUB,
            401,
            "UNAUTHORIZED",
            KNOWN,
            "someone may not write someone/training",
            "ask the owner",
        ),
        (
            AR,
            400,
            "UNKNOWN cannot update tag v100. The repository has enabled tag immutability",
            KNOWN,
            "tags are immutable",
            "push under a new tag",
        ),
        (AR, 403, "DENIED Quota exceeded", KNOWN, "over the quota", "larger quota"),
        (HUB, 405, "UNSUPPORTED", KNOWN, "answered 405: UNSUPPORTED", "log"),
    ],
)
def test_a_permanent_refusal_is_one_line_with_what_to_do(
    where: Reference, status: int, answer: str, known: Credentials | None, message: str, fix: str
) -> None:
    error = refused(where, status, answer, "write", known)
    assert error.exit_code == 3
    assert message in error.message
    assert fix in error.fix
    assert "\n" not in error.message + error.fix
