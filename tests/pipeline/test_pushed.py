"""Who may write to a registry, and has no key, moves tags between images that were once signed."""

from __future__ import annotations

import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from builder.core.errors import CheckFailed, InputError, OutsideError
from builder.core.events import ignore
from builder.core.settings import Settings
from builder.pipeline import asked, rebuild
from builder.pipeline.tags import promote, rollback
from builder.pipeline.verify import verify
from builder.prove import suites
from builder.registry import Manifest, Reference
from builder.trust import provenance, pushed
from tests import ROOT
from tests.commands import git
from tests.pipeline.pushing import results
from tests.prove.reading import PROGRAM
from tests.trust.signing import Pair, Repository


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project with three targets, in git."""
    for name in ("v100", "v100-torch", "t4"):
        (tmp_path / "images" / name).mkdir(parents=True)
        shutil.copy(ROOT / "images" / name / "image.yaml", tmp_path / "images" / name)
    for folder in ("trainer", "examples/torch-digits"):
        shutil.copytree(ROOT / folder, tmp_path / folder)
    (tmp_path / "builder.toml").touch()
    return tmp_path


def moved(repository: Repository, tag: str, image: Manifest) -> None:
    """Move a tag, as anybody may who can write to the registry."""
    repository.client.put_manifest(repository.path, tag, image)


T4 = {"target": "t4", "accelerator": "T4"}
TORCH = {"target": "v100-torch", "suite": "torch-trainer"}


@pytest.mark.network
def test_a_tag_shows_no_image_of_another_target(
    project: Path, repository: Repository, ours: Pair
) -> None:
    settings = repository.settings(ours)
    made = repository.signed(ours)
    assert verify("v100", settings, project).digest == made.digest
    t4 = repository.signed(ours, "t4", "t4", **T4)
    other = repository.signed(ours, "other", "v100-torch", target="v100-torch")
    for image, why in ((t4, "for the target 't4', not for v100"), (other, "'v100-torch', not for")):
        for tag in ("v100", "v100-2.21.0-0123456789ab"):
            moved(repository, tag, image)
            whole = f"{repository.reference}:{tag}"
            for name in (tag, whole):
                with pytest.raises(CheckFailed, match=why):
                    verify(name, settings, project)
                with pytest.raises(CheckFailed, match=why):
                    promote(name, "production", settings, project)
    assert repository.head("production") is None
    assert not (project / pushed.FILE).exists()
    with pytest.raises(CheckFailed, match=r"cannot become .*:v100-torch"):
        promote(made.digest, "v100-torch", settings, project)
    odd = repository.signed(ours, "odd", "v100", accelerator="T4")
    assert odd.digest == repository.head("v100")
    with pytest.raises(CheckFailed, match="for T4, v100 for V100"):
        verify("v100", settings, project)


@pytest.mark.network
def test_a_target_asks_for_its_own_suite_and_a_program_on_it_for_less(
    project: Path, repository: Repository
) -> None:
    """The image's label would be content with less than image.yaml asks for."""
    less = {"suite": "program", "checks": results(PROGRAM.required("V100"))}
    made = repository.image("less", "v100", **{suites.LABEL: "program"})
    repository.attach(made, **less)
    with pytest.raises(CheckFailed, match="of the suite program, the image needs trainer"):
        verify("v100", repository.settings(), project)
    repository.attach(made, target="v100-cats", **less)
    for tag in ("v100-cats", "v100-cats-2.21.0"):
        moved(repository, tag, made)
        assert verify(tag, repository.settings(), project).receipt.target == "v100-cats"
    moved(repository, "v100-dogs", made)
    with pytest.raises(CheckFailed, match="is not proven"):
        verify("v100-dogs", repository.settings(), project)


@pytest.mark.network
def test_a_tag_leads_where_git_says(project: Path, repository: Repository, ours: Pair) -> None:
    """Two images of one target, both signed: the older one is replayed."""
    settings = repository.settings(ours)
    old, new = (repository.signed(ours, text, text) for text in ("old", "new"))
    for image in (old, new):
        assert promote(image.digest, "v100", settings, project).digest == image.digest
    assert pushed.of(project) == {f"{repository.reference}:v100": (new.digest, old.digest)}
    assert verify("v100", settings, project).digest == new.digest
    moved(repository, "v100", old)
    with pytest.raises(CheckFailed, match=f"leads to {old.digest}, .* says {new.digest}") as caught:
        verify("v100", settings, project)
    assert caught.value.exit_code == 4
    with pytest.raises(CheckFailed, match=f"leads to {old.digest}"):
        promote("v100", "production", settings, project)
    assert promote(new.digest, "v100", settings, project).moved, "as the error says"
    assert verify("v100", settings, project).digest == new.digest

    ancient = repository.signed(ours, "ancient", "v100-2.20.0")
    with pytest.raises(CheckFailed, match="knows no such image"):
        verify("v100-2.20.0", settings, project)
    moved(repository, "v100-2.20.0", old)
    assert verify("v100-2.20.0", settings, project).digest == old.digest
    assert verify(ancient.digest, settings, project).digest == ancient.digest, "named by digest"


@pytest.mark.network
def test_a_moved_tag_is_not_built_again(copy: Path, repository: Repository) -> None:
    old, new = (repository.proven(text, text) for text in ("old", "new"))
    promote(new.digest, "v100", repository.settings(), copy)
    moved(repository, "v100", old)
    with pytest.raises(CheckFailed, match=f"leads to {old.digest}"):
        rebuild.rebuild(copy, "v100", None, repository.settings(), pytest.fail, ignore)


@pytest.mark.network
def test_a_tag_goes_back_where_git_says(project: Path, repository: Repository, ours: Pair) -> None:
    """And not where `<tag>-previous` leads, which moves like any tag; nor to an old receipt."""
    settings = repository.settings(ours)
    a, b, c, evil = (repository.signed(ours, name, name) for name in ("a", "b", "c", "evil"))
    for image in (a, b, c):
        promote(image.digest, "production", settings, project)
    moved(repository, "production-previous", evil)
    young = settings.trust.model_copy(update={"max_age": "1h"})
    aged = Settings(registry=settings.registry, trust=young)
    for back in (b, c, b):  # the second undoes the first
        assert rollback("production", aged, project).digest == back.digest
        assert repository.head("production") == back.digest
    with pytest.raises(CheckFailed, match="older than"):
        rollback("production", aged)
    promote(a.digest, "staging", settings, project)
    moved(repository, "staging-previous", evil)
    with pytest.raises(OutsideError, match="nothing says where it led before"):
        rollback("staging", settings, project)


@pytest.mark.network
def test_no_way_back_leads_to_less_than_the_image_needs(
    project: Path, repository: Repository, ours: Pair
) -> None:
    """What `builder prove --push-receipt` signed is no proof of a target."""
    settings = repository.settings(ours)
    repository.signed(ours, "now", "v100")
    theirs = repository.signed(ours, "x", "v100-previous", suite=suites.IMAGE.name)
    with pytest.raises(CheckFailed, match="of the suite image, not trainer"):
        rollback("v100", settings, project)
    t4 = repository.signed(ours, "t4", "v100-previous", **T4)
    with pytest.raises(CheckFailed, match="for the target 't4'"):
        rollback("v100", settings, project)
    assert repository.head("v100") not in (theirs.digest, t4.digest)


@pytest.mark.network
def test_an_old_receipt_does_not_count(repository: Repository, ours: Pair) -> None:
    settings = repository.settings(ours)
    trust = settings.trust.model_copy(update={"max_age": "30d"})
    aged = Settings(registry=settings.registry, trust=trust)
    for days, counts in ((29, True), (31, False)):
        made_at = (datetime.now(UTC) - timedelta(days=days)).isoformat()
        made = repository.signed(ours, str(days), "v100", made_at=made_at)
        assert verify("v100", settings).digest == made.digest
        if counts:
            assert promote("v100", "production", aged).digest == made.digest
            continue
        for call in (verify, lambda name, how: promote(name, "production", how)):
            with pytest.raises(CheckFailed, match=r"is older than .* max_age, 30 days"):
                call("v100", aged)


def test_the_file_keeps_the_last_images_of_each_tag(project: Path) -> None:
    digests = [f"sha256:{number:064x}" for number in range(12)]
    for tag in ("v100", "production"):
        to = Reference("h.example.com", "team/training", tag)
        for digest in (*digests, digests[5], digests[5]):
            pushed.record(project, to, digest)
    wanted = (digests[5], *(d for d in reversed(digests) if d != digests[5]))[: pushed.KEPT]
    assert set(pushed.of(project).values()) == {wanted} and len(pushed.of(project)) == 2
    path = project / pushed.FILE
    path.write_text("\ufeff" + path.read_text() + "\n", encoding="utf-8")
    assert len(pushed.of(project)) == 2, "a byte order mark and an empty line say nothing"
    for line in (
        "v100 sha256:1",
        f"h/p:t {digests[0]} x",
        f"h.example.com/team/training:v100 {digests[0]}",
    ):
        path.write_text(f"h.example.com/team/training:v100 {digests[1]}\n{line}\n")
        with pytest.raises(InputError, match=r"pushed\.lock:2: no line of a tag"):
            pushed.of(project)


def test_what_a_push_writes_down_is_no_change_of_the_sources(project: Path) -> None:
    git(project, "init", "-q")
    git(project, "add", ".")
    git(project, "commit", "-qm", "x")
    pushed.record(project, Reference("h.example.com", "t", "v100"), f"sha256:{'a' * 64}")
    assert provenance.is_clean(project)
    (project / "builder.toml").write_text("# changed\n")
    assert not provenance.is_clean(project)


def test_only_a_tag_of_the_projects_own_repository_names_a_target(project: Path) -> None:
    settings = Settings(registry="h.example.com/team/training")
    digest = f"@sha256:{'a' * 64}"
    for name, target in (
        ("v100", "v100"),
        ("v100-torch-2.10-ab", "v100-torch"),
        ("h.example.com/team/training:t4", "t4"),
        ("production", ""),
        ("v1000", ""),
        ("h.example.com/team/other:t4", ""),
        (f"h.example.com/team/training:t4{digest}", ""),
    ):
        assert asked.of(project, name, settings).target == target
        assert asked.of(None, name, settings).target == ""
