"""cloudbuild.yaml as it is rendered: order, nothing secret, and only what a commit touches."""

from __future__ import annotations

import re
import shutil
from dataclasses import replace
from itertools import takewhile
from pathlib import Path

import pytest

from builder.cloudbuild.reader import buildfile, validation
from builder.cloudbuild.reader.build import Step
from builder.cloudbuild.reader.order import dependencies
from builder.cloudbuild.runner import host_access
from builder.engine import BuildRequest, Engine
from builder.registry import Registry
from builder.render import cloud, dockerfiles
from builder.spec import catalogue
from tests.cloudbuild.conftest import Carry
from tests.registry.server import registry


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


def before(steps: tuple[Step, ...]) -> dict[str, set[str]]:
    """The ids of the steps that each step waits for, at once or through others."""
    waits = dependencies(steps)

    def all_before(index: int) -> set[int]:
        return waits[index].union(*(all_before(i) for i in waits[index]))

    return {one.id: {steps[i].id for i in all_before(one.index)} for one in steps}


def test_a_target_is_pushed_after_all_that_it_needs(checkout: Path) -> None:
    steps = rendered(checkout).build.steps
    waits = before(steps)
    by_id = {one.id: one for one in steps}
    for target in catalogue.targets(checkout):
        needed = waits[f"push-{target}"]
        assert {"builder", "changed", f"image-{target}", f"smoke-{target}"} <= needed
        audited = target not in ("cpu", "tpu")
        assert (f"audit-{target}" in needed) == audited
        proofs = [f"audit-{target}", f"smoke-{target}"] if audited else [f"smoke-{target}"]
        for proof in proofs:
            assert f"passed/{proof} ]" in by_id[f"push-{target}"].script
            assert f"passed/image-{target} ]" in by_id[proof].script
        (base,) = re.findall(r"passed/(base-\S+) \]", by_id[f"image-{target}"].script)
        assert target in base.split("-")
        assert base in needed
    assert waits["result"] == {one.id for one in steps} - {"result"}


@pytest.mark.parametrize(
    ("machine", "lanes"),
    [("E2_HIGHCPU_8", 1), ("E2_MEDIUM", 1), ("E2_HIGHCPU_32", 7)],
)
def test_what_runs_side_by_side_fits_into_memory(checkout: Path, machine: str, lanes: int) -> None:
    (checkout / "builder.toml").write_text(f'[cloud]\nmachine_type = "{machine}"\n')
    assert cloud.side_by_side(machine) == lanes
    assert cloud.memory_gb(machine) == 1 + 4 * lanes
    waits = before(rendered(checkout).build.steps)
    heavy = [name for name in waits if name.startswith(("base-", "smoke-"))]
    together = [
        {a, b} for a in heavy for b in heavy if a < b and a not in waits[b] and b not in waits[a]
    ]
    if lanes == 1:
        assert together == []
    else:
        assert {"smoke-a100", "smoke-h100"} in together
        assert {"smoke-t4", "smoke-v100"} not in together, "one lane: they have the same base"


def test_targets_with_the_same_base_share_its_step(checkout: Path) -> None:
    shutil.copytree(checkout / "images/cpu", checkout / "images/cpu2")
    for step in rendered(checkout).build.steps:
        if step.id.startswith("base-cpu"):
            assert step.id == "base-cpu-cpu2"
            assert "grep -xE 'cpu|cpu2'" in step.script


def test_disk_and_time_grow_with_what_is_built(
    checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cloud, "KEPT", 30)  # as if there were ten times as many bases
    whole = rendered(checkout).build
    for target in catalogue.targets(checkout):
        if target != "cpu":
            shutil.rmtree(checkout / "images" / target)
    small = rendered(checkout).build
    assert small.options.disk_size_gb == 100, "what the service gives anyway"
    assert whole.options.disk_size_gb > small.options.disk_size_gb
    assert whole.timeout > small.timeout


def test_the_disk_is_reckoned_from_the_plans(checkout: Path) -> None:
    v100, t4, a100, cpu = (
        dockerfiles.load(checkout, name) for name in ("v100", "t4", "a100", "cpu")
    )
    assert v100.rendered.base and a100.rendered.base
    packages = sum(layer.download or 0 for layer in v100.rendered.base.layers) / 1e9
    alone = cloud.disk_gb([v100])
    assert alone == pytest.approx(cloud.SYSTEM_DISK_GB + (cloud.KEPT + cloud.MEANWHILE) * packages)
    assert alone > 18.7 + 10, "what was seen on a worker's engine, and the worker's own system"
    assert cloud.disk_gb([v100, t4]) == alone, "one base"
    pairs = zip(v100.rendered.base.layers, a100.rendered.base.layers, strict=True)
    shared = [one for one, _ in takewhile(lambda pair: pair[0] == pair[1], pairs)]
    assert len(shared) > 1, "the OS root, and what is not pruned for one GPU"
    own = packages - sum(layer.download or 0 for layer in shared) / 1e9
    both = cloud.disk_gb([v100, a100])
    assert both == pytest.approx(alone + cloud.KEPT * own, rel=0.01), "shared layers count once"
    assert cloud.disk_gb([v100, a100], lanes=2) == pytest.approx(
        both + cloud.MEANWHILE * packages, rel=0.01
    )
    assert cloud.disk_gb([cpu]) < 25


@pytest.mark.parametrize("published", [True, False])
def test_the_budget_stands_in_for_a_size_that_nobody_knows(checkout: Path, published: bool) -> None:
    one = dockerfiles.load(checkout, "v100")
    base = None
    if not published:
        assert one.rendered.base
        wheels = list(one.rendered.base.wheels)
        wheels[0] = replace(wheels[0], plan=replace(wheels[0].plan, download=None))
        base = replace(one.rendered.base, wheels=tuple(wheels))
    unknown = replace(one, rendered=replace(one.rendered, base=base))
    expected = cloud.SYSTEM_DISK_GB + (cloud.KEPT + cloud.MEANWHILE) * one.spec.size_budget / 1e9
    assert cloud.disk_gb([unknown]) == pytest.approx(expected)


def test_the_builder_image_s_tag_is_a_hash_of_what_it_is_made_from(checkout: Path) -> None:
    first = rendered(checkout).build.steps[1].name
    assert cloud.check_cloud(checkout) == ()
    with (checkout / "requirements/build.txt").open("a") as file:
        file.write("# another\n")
    (drift,) = cloud.check_cloud(checkout)
    assert drift.file == "cloudbuild.yaml"
    assert f"-  name: {first}" in drift.diff
    assert rendered(checkout).build.steps[1].name != first


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


STUB = """#!/bin/sh
# Stands in for the factory: writes down what it is asked, and fails where it shall.
[ "$1" != cloud ] || { shift 2; printf '%s\\n' "$@"; exit 0; }
case " $FAIL " in *" $1-$2 "*) echo "$1 $2: broken"; exit 1 ;; esac
echo "$@" >> asked
"""


@pytest.mark.engine
@pytest.mark.parametrize("push", ["true", "false"])
def test_a_target_that_fails_stops_no_other(
    checkout: Path, carry_out: Carry, engine: Engine, steps_image: str, tmp_path: Path, push: str
) -> None:
    rendered(checkout)
    text = (checkout / "cloudbuild.yaml").read_text()
    with registry(tmp_path / "registry") as server:
        where = f"{server.host}/team/training"
        tag = re.search("builder-[0-9a-f]{16}", text)
        assert tag
        stub = f"{where}:{tag[0]}"
        (tmp_path / "stub").write_text(STUB)
        dockerfile = tmp_path / "Dockerfile"
        dockerfile.write_text(f"FROM {steps_image}\nCOPY --chmod=755 stub /bin/builder")
        engine.build(BuildRequest(context=tmp_path, dockerfile=dockerfile, tags=(stub,)))
        first = "  - BUILDER_REGISTRY"
        ran = carry_out(
            text.replace(first, f"  - FAIL=smoke-a100 build-l4\n{first}"),
            given={"_GPU": "a100,l4,cpu", "_REGISTRY": where, "_PUSH": push},
            builds_in={"PROJECT_ID": "p", "SHORT_SHA": "1234567"},
            images={"gcr.io/cloud-builders/docker": steps_image},
            host=host_access(network=True, configuration=False),
            workspace=tmp_path / "left",
        )
        engine.client.images.remove(stub, force=True)
        there = Registry(server.host).head("team/training", tag[0])
    assert ran.result.status == "FAILURE"
    assert ran.result.detail.startswith("build step 34 ")
    for line in ("a100: smoke-a100 failed", "cpu: done", "l4: image-l4 failed"):
        assert ran.said("result", line), ran.log
    asked = (tmp_path / "left" / "asked").read_text().splitlines()
    pushed = [line for line in asked if line.startswith("push")]
    assert pushed == (["push cpu --tag cpu-1234567 --json"] if push == "true" else [])
    assert "audit a100" in asked
    assert bool(there) == (push == "true"), "the builder's image is pushed, whatever becomes of it"
