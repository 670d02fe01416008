"""Errors of Google's client libraries: one line of what is wrong, one of the way out."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import requests
from google.api_core import exceptions
from google.auth.exceptions import (
    DefaultCredentialsError,
    OAuthError,
    RefreshError,
    TransportError,
)

from builder import googleapi
from builder.core.errors import CheckFailed, OutsideError

ADVICE = googleapi.Advice(
    api="x.googleapis.com",
    forbidden="FORBIDDEN",
    missing="MISSING",
    quota="QUOTA",
    refused="REFUSED",
    unreachable="UNREACHABLE",
)
DISABLED = "Y API has not been used in project my-project before or y.googleapis.com is disabled"


@pytest.mark.parametrize(
    ("error", "said", "fix"),
    [
        (exceptions.Forbidden("no"), "not allowed: no", "FORBIDDEN"),
        (exceptions.NotFound("no"), "not found: no", "MISSING"),
        (exceptions.TooManyRequests("no"), "too many requests, or no quota left: no", "QUOTA"),
        (exceptions.BadRequest("no"), "refused: no", "REFUSED"),
        (exceptions.Unauthorized("no"), "the credentials are not accepted: no", googleapi.LOGIN),
        (RefreshError("no", {"e": "x"}), "the credentials are not accepted: no", googleapi.LOGIN),
        (OAuthError("no"), "the credentials are not accepted: no", googleapi.LOGIN),
        (DefaultCredentialsError("no"), "no credentials: no", googleapi.LOGIN),
        (exceptions.ServiceUnavailable("no"), "the service cannot be reached: no", "UNREACHABLE"),
        (TransportError("no"), "the service cannot be reached: no", "UNREACHABLE"),
        (requests.ConnectionError("no"), "the service cannot be reached: no", "UNREACHABLE"),
        (exceptions.Conflict("no"), "the service's error: no", "UNREACHABLE"),
    ],
)
def test_each_error_is_one_line_and_a_way_out(error: Exception, said: str, fix: str) -> None:
    found = googleapi.explained(error, "submit cats", ADVICE)
    assert isinstance(found, OutsideError)
    assert (found.message, found.fix) == (f"submit cats: {said}", fix)


@pytest.mark.parametrize("kind", [exceptions.Forbidden, exceptions.NotFound])
def test_an_api_that_is_not_enabled_is_named_with_its_project(kind: Any) -> None:
    found = googleapi.explained(kind(DISABLED), "list", ADVICE)
    assert "the API y.googleapis.com is not enabled" in found.message
    assert found.fix == "run: gcloud services enable y.googleapis.com --project my-project"
    bare = googleapi.explained(kind("SERVICE_DISABLED"), "list", ADVICE)
    assert bare.fix == "run: gcloud services enable x.googleapis.com"


def test_an_error_of_ours_stays_as_it_is() -> None:
    own = CheckFailed("no", "")
    assert googleapi.explained(own, "list", ADVICE) is own
    with pytest.raises(OutsideError, match="list: not found"), googleapi.explaining("list", ADVICE):
        raise exceptions.NotFound("no")


def test_the_first_line_of_a_message_without_its_address() -> None:
    text = "POST https://x.googleapis.com/v1/jobs: it is bad\nand more"
    assert googleapi.first_line(exceptions.BadRequest(text)) == "it is bad"
    assert googleapi.first_line(ConnectionError()) == "ConnectionError"


def test_what_may_pass_is_tried_again() -> None:
    again = googleapi.read_retry()._predicate
    assert again(exceptions.ServiceUnavailable("")) and again(requests.ConnectionError())
    assert not again(exceptions.NotFound("")) and not again(exceptions.RetryError("", None))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, "was not found"),
        ("not json", "is not a valid json file"),
        ("[]", "KEY"),
        ("{}", "does not have a valid type"),
        ('{"type": "service_account"}', "KEY"),
        ('{"type": "authorized_user"}', "KEY"),
    ],
)
def test_a_key_file_that_cannot_be_used(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, text: str | None, said: str
) -> None:
    file = tmp_path / "KEY"
    if text is not None:
        file.write_text(text)
    monkeypatch.setenv(googleapi.KEY_FILE, str(file))
    with pytest.raises(OutsideError) as caught:
        googleapi.credentials()
    assert caught.value.message.startswith(f"{googleapi.KEY_FILE}={file}: ")
    assert said in caught.value.message and "\n" not in caught.value.message
    assert googleapi.KEY_FILE in str(caught.value.fix)


@pytest.mark.parametrize("error", [RefreshError("no"), OAuthError("no"), ValueError("no")])
def test_workload_identity_that_is_refused(error: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("google.auth.default", Mock(side_effect=error))
    with pytest.raises(OutsideError, match="cannot be used: no"):
        googleapi.credentials()


@pytest.mark.parametrize(
    ("address", "project"),
    [
        ("builder@my-project.iam.gserviceaccount.com", "my-project"),
        ("builder@proj.acme.com.iam.gserviceaccount.com", "acme.com:proj"),
        ("123456-compute@developer.gserviceaccount.com", "123456"),
        ("my-project@appspot.gserviceaccount.com", "my-project"),
        ("other@somewhere.gserviceaccount.com", "-"),
    ],
)
def test_the_project_of_a_service_account(address: str, project: str) -> None:
    named = f"projects/{project}/serviceAccounts/{address}"
    assert googleapi.account_name(address) == named
