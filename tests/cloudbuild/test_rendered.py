"""cloudbuild.yaml as it is rendered: order, nothing secret, and only what a commit touches."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from base64 import b64decode
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest
from google.cloud.devtools import cloudbuild_v1 as api

from builder.cloudbuild import outcome
from builder.cloudbuild import rendered as cloud
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
from cloudbuild_local.runner.result import Result
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


@pytest.mark.parametrize("trigger", [False, True])
def test_the_service_would_take_it(trigger: bool, root: Path) -> None:
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
    assert [*waits] == ["builder", "changed", "base", "image", "audit", "smoke", "push"]
    assert waits["push"] == waits.keys() - {"push"}
    heavy = ["base", "image", "smoke"]
    assert all(a in waits[b] or b in waits[a] for a in heavy for b in heavy if a != b)
    assert [step.id for step in build.steps if not step.allow_failure] == [
        *("builder", "changed", "push"),
    ], "one target's failure is the build's at the end, not before the others"
    assert cloud.disk_gb(0, 0) <= build.options.disk_size_gb < cloud.disk_gb(1000, 0) == 4000


def test_the_file_does_not_grow_with_the_targets(root: Path, checkout: Path) -> None:
    def lines() -> int:
        rendered(checkout)
        return len((checkout / "cloudbuild.yaml").read_text().splitlines())

    few = lines()
    for number in range(20):
        shutil.copytree(checkout / "images/cpu", checkout / f"images/cpu{number}")
    assert lines() == few <= 150


# --- what changes it ------------------------------------------------------------------------------


def test_the_builder_image_is_named_by_what_it_is_made_from(checkout: Path) -> None:
    steps = rendered(checkout).build.steps
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
# Stands in for the factory: notes what it is asked in the step's output, and fails where it shall.
[ "$1" != cloud ] || { shift 2; printf '%s\\n' "$@"; exit 0; }
last= ; for word in "$@"; do case $word in -*) ;; *) last=$word ;; esac; done
[ "$1" != push ] || last=$2
case " $FAIL " in *" $1-$last "*) echo "$1 $last: broken" >&2; exit 1 ;; esac
printf '["%s"]\\n' "$*" >> "$BUILDER_OUTPUT/output"
[ "$1" != push ] || printf '[{"repository": "h.test/x", "digest": "d", "tags": ["%s"]}]\\n' $last
"""


@dataclass(frozen=True)
class Service:
    """A registry with a stub of the builder image, and the engine that carries builds out."""

    repository: str
    engine: Engine
    steps_image: str
    text: str

    def build(self, targets: str, fail: str = "", push: str = "true") -> tuple[Result, list[str]]:
        """Carry out the rendered file for these targets. Returns the result and the log's lines."""
        first, log = "  - BUILDER_REGISTRY", list[str]()
        text = self.text.replace(first, f"  - FAIL={fail}\n{first}")
        planned = plan.prepare(
            document.parse(text, Path("cloudbuild.yaml")),
            source=None,
            overrides={"_GPU": targets, "_REGISTRY": self.repository, "_PUSH": push},
            built_in={"PROJECT_ID": "p", "SHORT_SHA": "1234567"},
            images={"gcr.io/cloud-builders/docker": self.steps_image},
        )
        engine = engines.connect(self.engine.host)
        return run(planned, engine, log.append, host=Host(network=True)), log


@pytest.fixture
def service(checkout: Path, engine: Engine, steps_image: str, tmp_path: Path) -> Iterator[Service]:
    rendered(checkout)
    text = (checkout / "cloudbuild.yaml").read_text()
    tag = re.search("builder-[0-9a-f]{16}", text)
    assert tag
    with registry(tmp_path / "registry") as server:
        repository = f"{server.host}/team/training"
        stub = f"{repository}:{tag[0]}"
        (tmp_path / "stub").write_text(STUB)
        dockerfile = tmp_path / "Dockerfile"
        dockerfile.write_text(f"FROM {steps_image}\nCOPY --chmod=755 stub /bin/builder")
        buildx.build(engine, BuildRequest(context=tmp_path, dockerfile=dockerfile, tags=(stub,)))
        yield Service(repository, engine, steps_image, text)
        engine.client.images.remove(stub, force=True)
        pushed = Registry(server.host).head("team/training", tag[0])
    assert pushed, "the builder image is pushed, whatever becomes of the build"


def asked(result: Result, command: str = "") -> list[str]:
    """Return what the factory was asked in a build, of one of its commands. It is in files: a busy
    engine may lose what a quick step prints. A build keeps none of the step that made it fail."""
    noted = [json.loads(line) for step in result.steps for line in step.output.splitlines()]
    return [call for [call] in noted if isinstance(call, str) and call.startswith(command)]


@pytest.mark.engine
def test_of_several_targets_one_that_fails_stops_no_other(service: Service) -> None:
    result, log = service.build("a100,l4,v100,cpu", fail="smoke-a100 build-l4 push-v100")
    assert (result.status, result.detail.startswith("build step 6 ")) == ("FAILURE", True), log
    assert asked(result, "audit") == ["audit a100", "audit v100"], "a CPU has no device code"
    statuses = {step["id"]: step["status"] for step in result.json()["steps"]}
    assert [name for name, status in statuses.items() if status == "FAILURE"] == [
        *("base", "smoke", "push"),
    ]


@pytest.mark.engine
def test_two_targets_at_once_know_nothing_of_each_other(service: Service) -> None:
    with ThreadPoolExecutor(2) as workers:
        both = [*workers.map(service.build, ("a100", "cpu"), ("", "smoke-cpu"))]
    (gpu, _), (cpu, _) = both
    assert (gpu.status, cpu.status) == ("SUCCESS", "FAILURE"), both
    assert asked(gpu) == [
        *("build --base-only a100", "build a100", "audit a100", "smoke a100"),
        "push a100 --tag a100-1234567 --json",
    ], both
    assert asked(cpu) == ["build --base-only cpu", "build cpu"], both


@pytest.mark.engine
def test_what_several_targets_pushed_is_the_build_s_result(service: Service) -> None:
    result, _ = service.build("a100,cpu")
    outputs = [b64decode(text) for text in result.json()["results"]["buildStepOutputs"]]
    build = api.Build(results=api.Results(build_step_outputs=outputs))
    pushed = outcome.outcome(build).images
    assert [image.name for image in pushed] == ["h.test/x:a100", "h.test/x:cpu"]
    proven, log = service.build("cpu", push="false")
    assert (proven.status, asked(proven, "push")) == ("SUCCESS", []), log


@pytest.mark.parametrize(
    ("push", "v100", "cpu", "pushed"),
    [
        ("true", "push failed", "done", ["push cpu --tag cpu-1234567 --json"]),
        ("false", *["proven, and not pushed: _PUSH=false"] * 2, []),
    ],
)
def test_the_last_step_says_what_became_of_each_target(
    checkout: Path, push: str, v100: str, cpu: str, pushed: list[str]
) -> None:
    script = rendered(checkout).build.steps[-1].script
    (checkout / "build/cloud").mkdir(parents=True)
    passed = {"changed": "a100\nl4\nv100\ncpu\n", "base": "a100\nv100\ncpu\n"}
    passed |= dict.fromkeys(("image", "audit"), passed["base"]) | {"smoke": "v100\ncpu\n"}
    for name, targets in passed.items():
        (checkout / "build/cloud" / name).write_text(targets)
    (checkout / "output").touch()
    (checkout / "bin").mkdir()
    (checkout / "bin/builder").write_text(STUB)
    (checkout / "bin/builder").chmod(0o755)
    given = {"PUSH": push, "SHORT_SHA": "1234567", "FAIL": "push-v100"}
    given |= {"BUILDER_OUTPUT": str(checkout), "PATH": f"{checkout}/bin:{os.environ['PATH']}"}
    done = subprocess.run(
        ["sh", "-c", script], cwd=checkout, env=given, capture_output=True, text=True, check=False
    )
    assert done.stdout.splitlines() == [
        *("a100: smoke failed", "l4: base failed", f"v100: {v100}", f"cpu: {cpu}")
    ]
    assert done.returncode == 1
    assert re.findall('"(push .*)"', (checkout / "output").read_text()) == pushed


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
