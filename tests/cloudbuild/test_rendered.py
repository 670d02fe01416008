"""cloudbuild.yaml as it is rendered: order, nothing secret, and only what a commit touches."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from builder.cloudbuild import rendered as cloud
from builder.config import image_yaml
from builder.engine import BuildRequest, Engine, buildx
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
    """What the rendering reads of the repository, with three of its targets."""
    (tmp_path / "images").mkdir()
    for lock in (root / "images").glob("*.lock"):
        shutil.copy(lock, tmp_path / "images")
    for name in ("images/a100", "images/cpu", "images/l4", "trainer"):
        shutil.copytree(root / name, tmp_path / name)
    (tmp_path / "builder").mkdir()
    (tmp_path / "requirements").mkdir()
    shutil.copy(root / "requirements/build.txt", tmp_path / "requirements")
    (tmp_path / "builder.toml").touch()
    return tmp_path


def rendered(checkout: Path) -> BuildFile:
    dockerfiles.write(checkout, cloud.texts(checkout, dockerfiles.load_all(checkout)))
    return document.read(checkout / "cloudbuild.yaml")


# --- the file of this repository, which `builder render --check` compares -------------------------


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


def test_a_target_is_pushed_after_all_that_it_needs_and_heavy_steps_take_turns(root: Path) -> None:
    build = document.read(root / "cloudbuild.yaml").build
    waits = before(build.steps)
    by_id = {step.id: step for step in build.steps}
    for target in image_yaml.targets(root):
        needed = waits[f"push-{target}"]
        assert {"builder", "changed", f"image-{target}", f"smoke-{target}"} <= needed
        audited = not target.startswith(("cpu", "tpu"))
        assert (f"audit-{target}" in needed) == audited
        proofs = [f"audit-{target}", f"smoke-{target}"] if audited else [f"smoke-{target}"]
        for proof in proofs:
            assert f"passed/{proof} ]" in by_id[f"push-{target}"].script
            assert f"passed/image-{target} ]" in by_id[proof].script
        (base,) = re.findall(r"passed/(base-\S+) \]", by_id[f"image-{target}"].script)
        assert f"-{target}-" in f"{base}-"
        assert base in needed
    assert waits["result"] == waits.keys() - {"result"}
    heavy = [name for name in waits if name.startswith(("base-", "smoke-"))]
    assert all(a in waits[b] or b in waits[a] for a in heavy for b in heavy if a != b)
    bases = sum(name.startswith("base-") for name in waits)
    assert build.options.disk_size_gb == cloud.disk_gb(bases, 0) < cloud.disk_gb(1000, 0) == 4000


# --- what changes it ------------------------------------------------------------------------------


def test_targets_share_a_base_s_step_and_the_builder_image_is_named_by_what_it_is_made_from(
    checkout: Path,
) -> None:
    shutil.copytree(checkout / "images/cpu", checkout / "images/cpu2")
    steps = rendered(checkout).build.steps
    (base,) = [step for step in steps if step.id.startswith("base-cpu")]
    assert base.id == "base-cpu-cpu2" and "grep -xE 'cpu|cpu2'" in base.script
    with (checkout / "requirements/build.txt").open("a") as file:
        file.write("# another\n")
    texts = cloud.texts(checkout, dockerfiles.load_all(checkout))
    assert dockerfiles.differences(checkout, texts) == ("cloudbuild.yaml",)
    assert rendered(checkout).build.steps[1].name != steps[1].name


def test_settings_and_a_template_of_the_project_reach_the_file(checkout: Path) -> None:
    (checkout / "builder.toml").write_text(
        'registry = "h.test/team/training"\n[cloud]\nproject = "my-project"\n'
        'service_account = "builder@my-project.iam.gserviceaccount.com"\n'
        'machine_type = "E2_HIGHCPU_32"\nregion = "us-east1"\n'
    )
    path = checkout / "templates/cloud/cloudbuild.yaml.j2"
    path.parent.mkdir(parents=True)
    template = (PACKAGED / "cloud/cloudbuild.yaml.j2").read_text()
    path.write_text(template.replace("- training-images", "- ours"))
    value = rendered(checkout).value
    assert value["serviceAccount"] == (
        "projects/my-project/serviceAccounts/builder@my-project.iam.gserviceaccount.com"
    )
    assert value["options"]["logging"] == "CLOUD_LOGGING_ONLY"
    assert value["options"]["machineType"] == "E2_HIGHCPU_32"
    assert value["substitutions"]["_REGION"] == "us-east1"
    assert value["substitutions"]["_REGISTRY"] == "h.test/team/training"
    assert "ours" in value["tags"]


STUB = """#!/bin/sh
# Stands in for the factory: prints what it is asked, and fails where it shall.
[ "$1" != cloud ] || { shift 2; printf '%s\\n' "$@"; exit 0; }
case " $FAIL " in *" $1-$2 "*) echo "$1 $2: broken"; exit 1 ;; esac
echo "asked: $*" >&2
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
        host = Host(network=True)
        result = run(planned, engines.connect(engine.host), log.append, host=host)
        engine.client.images.remove(stub, force=True)
        pushed_builder = Registry(server.host).head("team/training", tag[0])
    assert result.status == "FAILURE"
    assert result.detail.startswith(f"build step {len(planned.steps) - 1} "), "the last: result"
    for line in ("a100: smoke-a100 failed", "cpu: done", "l4: image-l4 failed"):
        assert any(text.endswith(f'"result": {line}') for text in log), log
    calls = [line.partition("asked: ")[2] for line in log]
    pushed = [line for line in calls if line.startswith("push")]
    assert pushed == ["push cpu --tag cpu-1234567 --json"]
    assert "audit a100" in calls
    assert pushed_builder, "it is pushed, whatever becomes of the build"


def test_a_repository_of_its_own_runs_the_wheel_that_it_holds_and_without_one_has_no_file(
    checkout: Path,
) -> None:
    (checkout / "builder").rmdir()
    assert cloud.texts(checkout, dockerfiles.load_all(checkout)) == {}
    wheel = checkout / "requirements/training_image_factory-1.0-py3-none-any.whl"
    wheel.write_bytes(b"first")
    first = rendered(checkout)
    dockerfile = (checkout / cloud.BUILDER_DOCKERFILE).read_text()
    assert rules.check(first, {}) == ()
    assert f"COPY {wheel.name} /opt/" in dockerfile and "PYTHONPATH" not in dockerfile
    wheel.write_bytes(b"second")
    assert rendered(checkout).build.steps[1].name != first.build.steps[1].name
    (checkout / "requirements/build.txt").unlink()
    assert cloud.texts(checkout, dockerfiles.load_all(checkout)) == {}
