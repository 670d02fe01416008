"""Which image a job takes: by receipts on this machine, by digest in a real registry."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from builder import registry
from builder.config import image_yaml
from builder.core.errors import CheckFailed, InputError, OutsideError
from builder.core.retry import Retry
from builder.core.settings import Settings, TrustSettings
from builder.facts.cuda import OldestDriver
from builder.jobs import images, machines
from builder.jobs.request import JobRequest, prepare
from builder.pipeline import tags, verify
from builder.prove.receipts import Receipt
from builder.registry import Manifest, Registry
from tests.jobs import jobfiles
from tests.pipeline.pushing import results
from tests.prove.reading import TRAINER
from tests.prove.test_receipts import receipt as receipt_of
from tests.registry import server as registry_server
from tests.registry.making import put_image
from tests.registry.server import RegistryServer
from tests.trust import signing

BASE = "region: us-central1\nmachine: n1-standard-8\naccelerators: V100\n"
REPOSITORY = "team/training"


# --- the image on this machine --------------------------------------------------------------------


def receipt(manifest: Manifest) -> Receipt:
    """A receipt of an image that holds every check of today."""
    return receipt_of(*results(TRAINER.required("V100")), digest=manifest.digest)


def test_the_cuda_of_a_target_is_known_and_so_the_oldest_driver_for_it(here: Path) -> None:
    job = jobfiles.job(f"image: v100\n{BASE}")
    image, _ = images.local_image(here, job, Settings())
    assert image.driver == OldestDriver("525", "12") and image.one_host
    placement = machines.place("n1-standard-8", "V100", 1)
    (value,) = placement.promise(image.driver).values()
    assert value == "V100:1,capability=7.0,cuda=12,driver=525"
    foreign, _ = images.local_image(here, jobfiles.job(f"image: a.b/c:d\n{BASE}"), Settings())
    (value,) = placement.promise(foreign.driver).values()
    assert value == "V100:1,capability=7.0"


def test_an_image_is_known_by_its_tag_until_the_registry_is_asked(here: Path) -> None:
    job = jobfiles.job("image: v100\n" + BASE)
    settings = Settings(registry="us-central1-docker.pkg.dev/p-1/t/i")
    image, notes = images.local_image(here, job, settings)
    assert image.reference == f"{settings.registry}:v100" and not (image.digest or image.proven)
    assert "sends what the registry holds" in notes[0]
    image, notes = images.local_image(here, job, Settings())
    assert not image.in_registry and "builder image v100 --push" in notes[0]
    image, notes = images.local_image(here, jobfiles.job("image: team/x:1\n" + BASE), Settings())
    assert (image.reference, image.target) == ("docker.io/team/x:1", None)
    assert "sends its digest" in notes[0]
    with pytest.raises(
        InputError, match=r"cats.yaml:1: image: .* neither a target nor the reference"
    ) as caught:
        images.local_image(here, jobfiles.job("image: v10\n" + BASE), Settings())
    assert "v100" in caught.value.fix
    (here / "images" / "bad").mkdir()
    (here / "images" / "bad" / image_yaml.FILE).write_text("accelerator: X\n")
    assert images.targets(here) == {"cpu": "CPU", "v100": "V100"}


# --- the image in a registry ----------------------------------------------------------------------


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RegistryServer]:
    with registry_server.registry(tmp_path_factory.mktemp("registry")) as running:
        yield running


@pytest.mark.network
def test_a_proven_target_is_sent_by_the_digest_that_the_registry_holds(
    here: Path, server: RegistryServer
) -> None:
    job = jobfiles.job("image: v100\n" + BASE)
    settings = Settings(registry=f"{server.host}/{REPOSITORY}")
    with pytest.raises(OutsideError, match="has no such image"):
        images.pushed_image(here, job, settings)
    with Registry(server.host) as there:
        manifest = put_image(there, REPOSITORY, "proven", "v100")
        where = registry.parse(f"{server.host}/{REPOSITORY}:v100")
        with pytest.raises(CheckFailed, match="is not proven"):
            images.pushed_image(here, job, settings)
        verify.attach(there, where, manifest, receipt(manifest))
    image, notes = images.pushed_image(here, job, settings)
    assert image.reference == f"{server.host}/{REPOSITORY}@{manifest.digest}"
    assert (image.accelerator, image.proven, notes) == ("V100", True, ())
    assert image.image_id == manifest.config.digest
    assert image.compiled == receipt(manifest).result("compile") and image.compiled
    with pytest.raises(InputError, match="no registry is named"):
        images.pushed_image(here, job, Settings())


@pytest.mark.network
def test_a_tag_of_any_other_image_becomes_its_digest(here: Path, server: RegistryServer) -> None:
    with Registry(server.host) as there:
        manifest = put_image(there, "others/image", "foreign", "1.0")
    job = jobfiles.job(f"image: {server.host}/others/image:1.0\n" + BASE)
    image, notes = images.pushed_image(here, job, Settings())
    assert image.reference == f"{server.host}/others/image@{manifest.digest}"
    assert image.accelerator is None and manifest.digest in notes[0]
    for name in ("image:2.0", f"image@{jobfiles.DIGEST}"):
        gone = jobfiles.job(f"image: {server.host}/others/{name}\n" + BASE)
        with pytest.raises(OutsideError, match="has no such image"):
            images.pushed_image(here, gone, Settings())
    by_digest = jobfiles.job(f"image: {server.host}/others/image@{manifest.digest}\n" + BASE)
    assert images.pushed_image(here, by_digest, Settings())[0].digest == manifest.digest


@pytest.mark.network
def test_where_keys_are_trusted_every_image_needs_a_signed_receipt(
    here: Path, server: RegistryServer, tmp_path: Path
) -> None:
    ours, other = signing.pair(tmp_path, "ours"), signing.pair(tmp_path, "other")
    where = registry.parse(f"{server.host}/{REPOSITORY}")
    with Registry(server.host) as there:
        repository = signing.Repository(there, where)
        trusting = repository.settings(ours)
        made = repository.image()
        verify.attach(there, where, made, receipt(made))
        for name in ("v100", f"{where.name}:v100", f"{where.name}@{made.digest}"):
            job = jobfiles.job(f"image: {name}\n" + BASE)
            assert images.pushed_image(here, job, Settings(registry=where.name))[0].digest
            with pytest.raises(CheckFailed, match="no signed receipt is attached to it"):
                images.pushed_image(here, job, trusting)
        repository.sign(made, other.signer)
        with pytest.raises(CheckFailed, match="signed by none of the keys"):
            images.pushed_image(here, job, trusting)
        on_gpu = TrustSettings(on_gpu=(str(ours.public),))
        with pytest.raises(CheckFailed, match="was seen on no V100"):
            images.pushed_image(here, job, trusting.model_copy(update={"trust": on_gpu}))
        repository.sign(made, ours.signer)
        image, notes = images.pushed_image(here, job, trusting)
    assert (image.digest, image.accelerator, image.proven, notes) == (made.digest, "V100", True, ())


@pytest.mark.network
def test_a_moved_tag_sends_no_other_image_than_git_names(
    here: Path, server: RegistryServer, tmp_path: Path
) -> None:
    ours, where = signing.pair(tmp_path, "ours"), registry.parse(f"{server.host}/team/moved")
    with Registry(server.host) as there:
        repository = signing.Repository(there, where)
        settings = repository.settings(ours)
        old, new = (repository.signed(ours, text, text) for text in ("old", "new"))
        other = repository.signed(ours, "other", "other", target="v100-torch")

        def sent(name: str, how: Settings) -> tuple[str | None, bool, images.Notes]:
            job = jobfiles.job(f"image: {name}\n{BASE}")
            image, notes = images.pushed_image(here, job, how)
            assert image.reference == f"{where.name}@{image.digest}"
            return image.digest, image.proven, notes

        there.put_manifest(where.repository, "v100", other)
        for name in ("v100", f"{where.name}:v100"):
            with pytest.raises(CheckFailed, match="for the target 'v100-torch', not for v100"):
                sent(name, settings)
        for image in (old, new):
            tags.promote(image.digest, "v100", settings, here)
        assert sent("v100", settings) == (new.digest, True, ())
        for moved in (old, other):
            there.put_manifest(where.repository, "v100", moved)
            for name in ("v100", f"{where.name}:v100"):
                for how in (settings, repository.settings()):
                    digest, proven, notes = sent(name, how)
                    assert digest == new.digest
                    assert proven == (how is settings or name == "v100")
                    assert f"leads to {moved.digest} now" in notes[-1]
            there.put_manifest(where.repository, "v100-2.20.0", other)
            for how in (settings, repository.settings()):
                with pytest.raises(CheckFailed, match="knows no such image"):
                    sent(f"{where.name}:v100-2.20.0", how)


def test_a_registry_that_only_the_service_reaches_is_not_asked(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    impatient = functools.partial(Registry, retry=Retry(1))
    monkeypatch.setattr(registry, "Registry", impatient)
    job = jobfiles.job(f"image: 127.0.0.1:9/others/image@{jobfiles.DIGEST}\n" + BASE)
    image, notes = images.pushed_image(here, job, Settings())
    assert (image.digest, image.accelerator) == (jobfiles.DIGEST, None)
    assert notes == (f"127.0.0.1:9 was not asked about {job.image}",)
    by_tag = jobfiles.job("image: 127.0.0.1:9/others/image:1.0\n" + BASE)
    with pytest.raises(OutsideError):
        images.pushed_image(here, by_tag, Settings())


def test_a_program_is_checked_before_its_image_is_built(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (here / "train.py").write_text("")

    def connect(*_: Any, **__: Any) -> Any:
        raise AssertionError("the engine was asked before the check")

    monkeypatch.setattr(images, "connect", connect)
    (here / "jobs").mkdir(exist_ok=True)
    text = "image: v100\nmachine: n1-standard-8\naccelerators: T4\n"
    (here / "jobs" / "cats.yaml").write_text(text)
    flags, program = {"backend": "kubernetes"}, f"{here}:train"
    with pytest.raises(InputError, match=r"cats\.yaml:1: image"):
        prepare(JobRequest(here, "cats", flags, Settings(), program=program))
