"""cloudbuild.yaml as it is rendered: order, nothing secret, and only what a commit touches."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from builder.cloudbuild.reader import buildfile, validation
from builder.cloudbuild.reader.order import dependencies
from builder.render import cloud
from builder.spec import catalogue


@pytest.fixture
def checkout(root: Path, tmp_path: Path) -> Path:
    """What the rendering reads of the repository."""
    for name in ("images", "templates", "trainer"):
        shutil.copytree(root / name, tmp_path / name)
    (tmp_path / "builder").mkdir()
    (tmp_path / "requirements").mkdir()
    shutil.copy(root / "requirements/build.txt", tmp_path / "requirements")
    (tmp_path / "builder.toml").touch()
    return tmp_path


def rendered(checkout: Path) -> buildfile.BuildFile:
    cloud.write_cloud(checkout)
    return buildfile.load(checkout / "cloudbuild.yaml")


def test_the_service_would_take_it(root: Path) -> None:
    read = buildfile.load(root / "cloudbuild.yaml")
    for given in ({}, {"_GPU": "cpu"}, {"_REGISTRY": "h.test/a"}, {"_PUSH": "false"}):
        assert validation.check(read, given) == ()
        assert validation.check(read, given, trigger=True) == ()


def test_targets_do_not_wait_for_each_other(checkout: Path) -> None:
    steps = rendered(checkout).build.steps
    waits = dependencies(steps)
    names = {step.index: step.id for step in steps}

    def all_before(index: int) -> set[str]:
        return {names[i] for i in waits[index]}.union(*(all_before(i) for i in waits[index]))

    for target in catalogue.targets(checkout):
        (push,) = [step.index for step in steps if step.id == f"push-{target}"]
        before = all_before(push)
        assert {"builder", "changed", f"image-{target}", f"smoke-{target}"} <= before
        bases = [name for name in before if name.startswith("base-")]
        assert len(bases) == 1
        assert target in bases[0].split("-")
        assert (f"audit-{target}" in before) == (target not in ("cpu", "tpu"))
        others = before - {"builder", "changed", bases[0]}
        assert {name.split("-")[1] for name in others} == {target}


def test_targets_with_the_same_base_share_its_step(checkout: Path) -> None:
    shutil.copytree(checkout / "images/cpu", checkout / "images/cpu2")
    for step in rendered(checkout).build.steps:
        if step.id.startswith("base-cpu"):
            assert step.id == "base-cpu-cpu2"
            assert "grep -xE 'cpu|cpu2'" in step.script


def test_disk_and_time_grow_with_what_is_built(checkout: Path) -> None:
    file = checkout / "images/v100/image.yaml"
    file.write_text(re.sub("(?m)^size_budget: .*", "size_budget: 20 GB", file.read_text()))
    whole = rendered(checkout).build
    for target in catalogue.targets(checkout):
        if target != "cpu":
            shutil.rmtree(checkout / "images" / target)
    small = rendered(checkout).build
    assert small.options.disk_size_gb == 100, "what the service gives anyway"
    assert whole.options.disk_size_gb > small.options.disk_size_gb
    assert whole.timeout > small.timeout


def test_the_builder_image_s_tag_is_a_hash_of_what_it_is_made_from(checkout: Path) -> None:
    first = rendered(checkout).build.images
    assert cloud.check_cloud(checkout) == ()
    with (checkout / "requirements/build.txt").open("a") as file:
        file.write("# another\n")
    (drift,) = cloud.check_cloud(checkout)
    assert drift.file == "cloudbuild.yaml"
    assert f"-  name: {first[0]}" in drift.diff
    assert rendered(checkout).build.images != first


def test_settings_reach_the_file(checkout: Path) -> None:
    (checkout / "builder.toml").write_text(
        'registry = "h.test/team/training"\n[cloud]\nproject = "my-project"\n'
        'service_account = "builder@my-project.iam.gserviceaccount.com"\nlogging = "GCS_ONLY"\n'
        'logs_bucket = "gs://logs-of-builds"\nmachine_type = "E2_HIGHCPU_32"\nregion = "us-east1"\n'
    )
    build = rendered(checkout).build
    assert build.service_account == (
        "projects/my-project/serviceAccounts/builder@my-project.iam.gserviceaccount.com"
    )
    assert (build.options.logging, build.logs_bucket) == ("GCS_ONLY", "gs://logs-of-builds")
    assert build.options.machine_type == "E2_HIGHCPU_32"
    assert build.substitutions["_REGION"] == "us-east1"
    assert build.substitutions["_REGISTRY"] == "h.test/team/training"


def test_a_project_without_the_factory_s_source_gets_no_cloudbuild_yaml(checkout: Path) -> None:
    (checkout / "requirements/build.txt").unlink()
    assert cloud.check_cloud(checkout) == ()
    assert cloud.write_cloud(checkout) == ()
    assert not (checkout / "cloudbuild.yaml").exists()


def test_a_template_of_the_project_wins(checkout: Path) -> None:
    path = checkout / "templates/cloud/cloudbuild.yaml.j2"
    path.write_text(path.read_text().replace("- training-images", "- ours"))
    assert "ours" in rendered(checkout).build.tags
