"""The receipt of an image that anybody made lies beside it, and counts where it is asked for."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from builder import registry
from builder.cli.group import app
from builder.core.errors import CheckFailed
from builder.core.settings import Settings
from builder.pipeline.prove_any import Judgement
from builder.pipeline.verify import RECEIPT_TYPE
from builder.prove.image import Image
from builder.prove.receipts import CheckResult
from builder.reading.images import ImageContent
from builder.registry import Manifest
from tests.trust.signing import Pair, Repository

DIGEST = b"sha256:" + b"1" * 64
UNSEEN = CheckResult(
    name="loader", version=4, passed=True, seconds=0, seen={"not_followed": "musl"}
)


def test_what_was_not_followed_is_not_signed() -> None:
    manifest = Manifest(b'{"layers": [], "config": {"digest": "%b", "size": 1}}' % DIGEST, "")
    image = registry.parse("127.0.0.1:1/a/b:c").at(manifest.digest)
    read = Image(ImageContent(()))
    with pytest.raises(CheckFailed, match="the check loader could not follow musl"):
        Judgement(str(image), read, None, (UNSEEN,), (), (), manifest).push_receipt(Settings())


@pytest.mark.network
def test_a_receipt_lies_beside_an_image_of_others_and_is_asked_for_by_name(
    repository: Repository, ours: Pair, other: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It never stands for the proof that an image of ours, or a job, asks for."""
    monkeypatch.setenv("BUILDER_ENGINE", "machine")
    made, name = repository.image("theirs", "theirs"), f"{repository.reference}:theirs"
    pinned = str(repository.reference.at(made.digest))
    run = CliRunner()
    assert "is not proven" in str(run.invoke(app, ["verify", pinned, "--suite", "image"]).exception)
    result = run.invoke(app, ["prove", name, "--push-receipt", "--key", str(ours.path), "--json"])
    assert (result.exit_code, json.loads(result.stdout)["image"]) == (0, pinned), result.exception
    for pair, problem in ((ours, ""), (other, "is not proven")):
        options = ["--suite", "image", "--key", str(pair.public), "--json"]
        result = run.invoke(app, ["verify", pinned, *options])
        assert problem in str(result.exception or "")
        if not problem:
            verified = json.loads(result.stdout)
            assert verified["receipt"]["suite"] == "image"
            assert verified["signer"] == str(pair.public)
    refused = str(run.invoke(app, ["verify", pinned]).exception)
    assert "of the suite image, the image needs trainer" in refused
    listed = repository.client.referrers(repository.path, made.digest, RECEIPT_TYPE)
    assert len(listed) == 1
