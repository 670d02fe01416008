"""cloudbuild.yaml as it is rendered: order, nothing secret, and only what a commit touches."""

from __future__ import annotations

import re
import shutil
from dataclasses import replace
from itertools import takewhile
from pathlib import Path

import pytest

from builder.config import image_yaml
from builder.engine import BuildRequest, Engine, buildx
from builder.image import cloudbuild as cloud
from builder.image import dockerfile as dockerfiles
from builder.image.dockerfile import PACKAGED
from builder.registry import Registry
from cloudbuild_local import rules
from cloudbuild_local.reader import document
from cloudbuild_local.reader.build import Step, dependencies
from cloudbuild_local.reader.document import BuildFile
from cloudbuild_local.runner import engine as engines
from cloudbuild_local.runner import plan
from cloudbuild_local.runner.run import run
from cloudbuild_local.runner.sandbox import Host
from tests.registry.server import registry


@pytest.fixture
def checkout(root: Path, tmp_path: Path) -> Path:
    """What the rendering reads of the repository."""
    for name in ("images", "trainer", "examples"):
        shutil.copytree(root / name, tmp_path / name)
    (tmp_path / "builder").mkdir()
    (tmp_path / "requirements").mkdir()
    shutil.copy(root / "requirements/build.txt", tmp_path / "requirements")
    (tmp_path / "builder.toml").touch()
    return tmp_path


def rendered(checkout: Path) -> BuildFile:
    dockerfiles.write(checkout, cloud.texts(checkout, dockerfiles.load_all(checkout)))
    return document.read(checkout / "cloudbuild.yaml")


def test_the_service_would_take_it(root: Path) -> None:
    for trigger in (False, True):
        file = document.read(root / "cloudbuild.yaml", trigger)
        for values in ({}, {"_GPU": "cpu"}, {"_REGISTRY": "h.test/a"}, {"_PUSH": "false"}):
            assert rules.check(file, values) == ()


def before(steps: tuple[Step, ...]) -> dict[str, set[str]]:
    """Return the ids of the steps that each step waits for, directly or through others."""
    waits = dependencies(steps)

    def all_before(index: int) -> set[int]:
        return waits[index].union(*(all_before(i) for i in waits[index]))

    return {step.id: {steps[i].id for i in all_before(step.index)} for step in steps}


def test_a_target_is_pushed_after_all_that_it_needs(checkout: Path) -> None:
    steps = rendered(checkout).build.steps
    waits = before(steps)
    by_id = {step.id: step for step in steps}
    for target in image_yaml.targets(checkout):
        needed = waits[f"push-{target}"]
        assert {"builder", "changed", f"image-{target}", f"smoke-{target}"} <= needed
        audited = target not in ("cpu", "tpu")
        assert (f"audit-{target}" in needed) == audited
        proofs = [f"audit-{target}", f"smoke-{target}"] if audited else [f"smoke-{target}"]
        for proof in proofs:
            assert f"passed/{proof} ]" in by_id[f"push-{target}"].script
            assert f"passed/image-{target} ]" in by_id[proof].script
        (base,) = re.findall(r"passed/(base-\S+) \]", by_id[f"image-{target}"].script)
        assert f"-{target}-" in f"{base}-"
        assert base in needed
    assert waits["result"] == {step.id for step in steps} - {"result"}


@pytest.mark.parametrize(
    ("machine", "lanes"),
    [("E2_HIGHCPU_8", 1), ("E2_MEDIUM", 1), ("E2_HIGHCPU_32", 7)],
)
def test_what_runs_side_by_side_fits_into_memory(checkout: Path, machine: str, lanes: int) -> None:
    (checkout / "builder.toml").write_text(f'[cloud]\nmachine_type = "{machine}"\n')
    assert cloud.side_by_side(machine) == lanes
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


def test_the_disk_is_reckoned_from_the_plans(checkout: Path) -> None:
    v100, t4, a100, cpu = (
        dockerfiles.load(checkout, name) for name in ("v100", "t4", "a100", "cpu")
    )
    assert v100.base and a100.base
    packages = sum(layer.download or 0 for layer in v100.base.layers) / 1e9
    alone = cloud.disk_gb([v100])
    assert alone == pytest.approx(cloud.SYSTEM_DISK_GB + (cloud.KEPT + cloud.MEANWHILE) * packages)
    assert alone > 18.7 + 10, "what was seen on a worker's engine, and the worker's own system"
    assert cloud.disk_gb([v100, t4]) == alone, "one base"
    pairs = zip(v100.base.layers, a100.base.layers, strict=True)
    shared = [layer for layer, _ in takewhile(lambda pair: pair[0] == pair[1], pairs)]
    assert len(shared) > 1, "the rootfs, and what is not pruned for one GPU"
    own = packages - sum(layer.download or 0 for layer in shared) / 1e9
    both = cloud.disk_gb([v100, a100])
    assert both == pytest.approx(alone + cloud.KEPT * own, rel=0.01), "shared layers count once"
    assert cloud.disk_gb([v100, a100], lanes=2) == pytest.approx(
        both + cloud.MEANWHILE * packages, rel=0.01
    )
    assert cloud.disk_gb([cpu]) < 25


@pytest.mark.parametrize("published", [True, False])
def test_the_budget_stands_in_for_a_size_that_nobody_knows(checkout: Path, published: bool) -> None:
    image = dockerfiles.load(checkout, "v100")
    base = None
    if not published:
        assert image.base
        wheels = list(image.base.wheels)
        wheels[0] = replace(wheels[0], plan=replace(wheels[0].plan, download=None))
        base = replace(image.base, wheels=tuple(wheels))
    unknown = replace(image, base=base)
    expected = cloud.SYSTEM_DISK_GB + (cloud.KEPT + cloud.MEANWHILE) * image.spec.size_budget / 1e9
    assert cloud.disk_gb([unknown]) == pytest.approx(expected)


def test_the_builder_image_s_tag_is_a_hash_of_what_it_is_made_from(checkout: Path) -> None:
    first = rendered(checkout).build.steps[1].name
    with (checkout / "requirements/build.txt").open("a") as file:
        file.write("# another\n")
    texts = cloud.texts(checkout, dockerfiles.load_all(checkout))
    assert dockerfiles.differences(checkout, texts) == ("cloudbuild.yaml",)
    assert rendered(checkout).build.steps[1].name != first


def test_settings_reach_the_file(checkout: Path) -> None:
    (checkout / "builder.toml").write_text(
        'registry = "h.test/team/training"\n[cloud]\nproject = "my-project"\n'
        'service_account = "builder@my-project.iam.gserviceaccount.com"\nlogging = "GCS_ONLY"\n'
        'logs_bucket = "gs://logs-of-builds"\nmachine_type = "E2_HIGHCPU_32"\nregion = "us-east1"\n'
    )
    value = rendered(checkout).value
    assert value["serviceAccount"] == (
        "projects/my-project/serviceAccounts/builder@my-project.iam.gserviceaccount.com"
    )
    assert (value["options"]["logging"], value["logsBucket"]) == ("GCS_ONLY", "gs://logs-of-builds")
    assert value["options"]["machineType"] == "E2_HIGHCPU_32"
    assert value["substitutions"]["_REGION"] == "us-east1"
    assert value["substitutions"]["_REGISTRY"] == "h.test/team/training"


def test_a_template_of_the_project_wins_and_one_without_the_source_gets_no_file(
    checkout: Path,
) -> None:
    path = checkout / "templates/cloud/cloudbuild.yaml.j2"
    path.parent.mkdir(parents=True)
    template = (PACKAGED / "cloud/cloudbuild.yaml.j2").read_text()
    path.write_text(template.replace("- training-images", "- ours"))
    assert "ours" in rendered(checkout).value["tags"]
    (checkout / "requirements/build.txt").unlink()
    assert cloud.texts(checkout, dockerfiles.load_all(checkout)) == {}


STUB = """#!/bin/sh
# Stands in for the factory: writes down what it is asked, and fails where it shall.
[ "$1" != cloud ] || { shift 2; printf '%s\\n' "$@"; exit 0; }
case " $FAIL " in *" $1-$2 "*) echo "$1 $2: broken"; exit 1 ;; esac
echo "$@" >> asked
"""


@pytest.mark.engine
def test_a_target_that_fails_stops_no_other(
    checkout: Path, engine: Engine, steps_image: str, tmp_path: Path
) -> None:
    rendered(checkout)
    text = (checkout / "cloudbuild.yaml").read_text()
    with registry(tmp_path / "registry") as server:
        repository = f"{server.host}/team/training"
        tag = re.search("builder-[0-9a-f]{16}", text)
        assert tag
        stub = f"{repository}:{tag[0]}"
        (tmp_path / "stub").write_text(STUB)
        dockerfile = tmp_path / "Dockerfile"
        dockerfile.write_text(f"FROM {steps_image}\nCOPY --chmod=755 stub /bin/builder")
        buildx.build(engine, BuildRequest(context=tmp_path, dockerfile=dockerfile, tags=(stub,)))
        first = "  - BUILDER_REGISTRY"
        file = document.parse(
            text.replace(first, f"  - FAIL=smoke-a100 build-l4\n{first}"), Path("cloudbuild.yaml")
        )
        planned = plan.prepare(
            file,
            source=None,
            overrides={"_GPU": "a100,l4,cpu", "_REGISTRY": repository, "_PUSH": "true"},
            built_in={"PROJECT_ID": "p", "SHORT_SHA": "1234567"},
            images={"gcr.io/cloud-builders/docker": steps_image},
        )
        log: list[str] = []
        result = run(
            planned, engines.connect(engine.host), log.append,
            host=Host(network=True), workspace=tmp_path / "left",
        )  # fmt: skip
        engine.client.images.remove(stub, force=True)
        pushed_builder = Registry(server.host).head("team/training", tag[0])
    assert result.status == "FAILURE"
    assert result.detail.startswith(f"build step {len(planned.steps) - 1} "), "the last: result"
    for line in ("a100: smoke-a100 failed", "cpu: done", "l4: image-l4 failed"):
        assert any(text.endswith(f'"result": {line}') for text in log), log
    calls = (tmp_path / "left" / "asked").read_text().splitlines()
    pushed = [line for line in calls if line.startswith("push")]
    assert pushed == ["push cpu --tag cpu-1234567 --json"]
    assert "audit a100" in calls
    assert pushed_builder, "it is pushed, whatever becomes of the build"
