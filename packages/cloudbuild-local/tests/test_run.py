"""Builds on a real engine: what a step gets, in which order steps run, and how a build ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import urllib.request
from base64 import b64encode
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from conftest import Build, CarryOut, left_of

from cloudbuild_local import cli
from cloudbuild_local.errors import InputError, OutsideError
from cloudbuild_local.reader import document
from cloudbuild_local.runner import host, plan
from cloudbuild_local.runner.delivery import matches
from cloudbuild_local.runner.engine import Engine
from cloudbuild_local.runner.plan import mapped

pytestmark = pytest.mark.engine


def test_what_a_step_gets(carry_out: CarryOut, engine: Engine) -> None:
    build = carry_out(
        """
steps:
- name: builder
  id: first
  dir: sub
  env: [MINE=1, 'COMMON=of the step', 'P=$PROJECT_ID']
  args:
  - sh
  - -c
  - |
    echo "$$PWD $$HOME $$MINE $$COMMON $$P"
    cat file; touch made
    test -S /var/run/docker.sock && echo socket
    docker inspect --format '{{.HostConfig.Privileged}}' step_0
- name: builder
  id: second
  entrypoint: ls
  args: ['-1', sub]
- name: builder
  id: third
  script: |
    echo "$COMMON $0" | sed 's,/.*/,,'
    echo '$_NOT' "$PROJECT_ID"
    printf result > $BUILDER_OUTPUT/output
  automapSubstitutions: true
- name: builder
  id: fourth
  script: |
    #!/bin/sh -e
    echo "[$PROJECT_ID]"; false; echo never
  allowFailure: true
options:
  env: ['COMMON=of the build']
""",
        files={"sub/file": "from the source\n", ".gcloudignore": "secret\n", "secret": "no"},
    )
    assert build.result.status == "SUCCESS", build.log
    assert build.lines("first")[-4:] == [
        "/workspace/sub /builder/home 1 of the step project", "from the source", "socket", "false",
    ]  # fmt: skip
    assert build.printed("second", "made") and not build.printed("second", "secret")
    assert build.printed("third", "of the build step-2")
    assert build.printed("third", "$_NOT project")
    assert build.step("third").output == b"result"
    assert build.printed("fourth", "[]") and not build.printed("fourth", "never")


def test_empty_folders_of_the_source_reach_the_workspace(
    carry_out: CarryOut, tmp_path: Path
) -> None:
    (tmp_path / "source/results/deep").mkdir(parents=True)
    build = carry_out("steps: [{name: b, id: x, script: 'ls -d results/deep'}]", files={"a": "a"})
    assert build.printed(0, "results/deep") or "results/deep" in build.log


def test_home_and_volumes_last_as_long_as_the_build(carry_out: CarryOut) -> None:
    build = carry_out("""
steps:
- name: builder
  id: write
  script: |
    echo of home > ~/file; echo of the volume > /data/file; echo of all > /all/file
    touch /tmp/x
  volumes: [{name: vol, path: /data}]
- name: builder
  id: read
  script: cat ~/file /elsewhere/file /all/file; ls /tmp
  volumes: [{name: vol, path: /elsewhere}]
options:
  volumes: [{name: everyone, path: /all}]
""")
    assert build.lines("read")[-3:] == ["of home", "of the volume", "of all"]


def test_steps_run_side_by_side_and_after_what_they_wait_for(carry_out: CarryOut) -> None:
    # each of the two waits for the other's file: only side by side can both end
    build = carry_out("""
steps:
- {name: builder, id: a, waitFor: ['-'], script: 'touch a; until [ -e b ]; do sleep 0.05; done'}
- {name: builder, id: b, waitFor: ['-'], script: 'touch b; until [ -e a ]; do sleep 0.05; done'}
- {name: builder, id: c, waitFor: [b], script: 'test -e b && echo after b'}
- {name: builder, id: d, script: 'test -e a && test -e b && echo after all'}
timeout: 600s
""")
    assert build.result.status == "SUCCESS", build.log
    assert build.printed("c", "after b") and build.printed("d", "after all")
    assert build.step("d").started >= build.step("c").ended  # type: ignore[operator]


def test_a_failure_ends_what_runs_and_what_waits(carry_out: CarryOut) -> None:
    threads = threading.active_count()
    build = carry_out("""
steps:
- {name: builder, id: long, waitFor: ['-'], script: 'sleep 300'}
- {name: builder, id: bad, waitFor: ['-'], script: 'echo going; exit 7'}
- {name: builder, id: never, script: 'echo never'}
""")
    assert build.result.status == "FAILURE"
    assert build.result.detail == (
        'build step 1 "builder" failed: step exited with non-zero status: 7'
    )
    assert {step.id: (step.status, step.exit_code) for step in build.result.steps} == {
        "long": ("CANCELLED", 137),
        "bad": ("FAILURE", 7),
        "never": ("QUEUED", None),
    }
    assert threading.active_count() <= threads


@pytest.mark.parametrize(
    ("allow", "status"),
    [
        ("allowFailure: true", "SUCCESS"),
        ("allowExitCodes: [3]", "SUCCESS"),
        ("allowExitCodes: [4], allowFailure: true", "FAILURE"),  # the codes take precedence
    ],
)
def test_failures_that_are_allowed(carry_out: CarryOut, allow: str, status: str) -> None:
    build = carry_out(
        f"steps:\n- {{name: b, id: one, script: exit 3, {allow}}}\n"
        "- {name: b, id: two, script: echo went on}\n"
    )
    assert build.result.status == status
    assert build.step("one").status == "FAILURE"
    assert build.printed("two", "went on") == (status == "SUCCESS")


def test_a_program_that_is_not_in_the_image(carry_out: CarryOut) -> None:
    build = carry_out("""
steps:
- {name: b, id: file, entrypoint: /etc, allowFailure: true}
- {name: b, id: last, args: [/bin/also-missing]}
""")
    assert [step.status for step in build.result.steps] == ["FAILURE", "FAILURE"]
    assert "/bin/also-missing" in build.result.detail
    assert build.result.error is not None
    assert build.result.error.exit_code == 4, "the file's fault, not the engine's"


@pytest.fixture
def begun(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Hears the lines of a log. A timeout of a second is over once a step has said `begun`, however
    long it takes to start on a busy machine."""
    said = threading.Event()

    class Timer(threading.Timer):
        def run(self) -> None:
            while self.interval == 1 and not self.finished.wait(0.01):
                if said.is_set():
                    self.interval = 0
            super().run()

    monkeypatch.setattr(threading, "Timer", Timer)
    return lambda line: said.set() if line.endswith(": begun") else None


@pytest.mark.parametrize(
    ("of_step", "of_build", "detail"),
    [
        ("timeout: 1s, ", "", "failed: it took longer than its timeout, 1s"),
        ("", "timeout: 1s", "the build took longer than 1s"),
    ],
)
def test_a_step_or_a_build_out_of_time(
    carry_out: CarryOut, begun: Callable[[str], None], of_step: str, of_build: str, detail: str
) -> None:
    text = f"""
steps:
- {{name: builder, id: slow, {of_step}script: 'echo begun; sleep 300'}}
- {{name: builder, id: never, script: 'echo never'}}
{of_build}
"""
    build = carry_out(text, heard=begun)
    assert build.result.status == "TIMEOUT", (build.result, build.log)
    assert build.step("slow").status == "TIMEOUT" and build.step("never").status == "QUEUED"
    assert build.result.detail.endswith(detail)


def test_substitutions_and_secrets_reach_the_steps(carry_out: CarryOut) -> None:
    text = """
steps:
- {name: builder, id: one, args: [echo, '${_TAG}', '$$_TAG', '${_BRANCH:0:4}', '$(x)']}
- {name: builder, id: with, secretEnv: [TOKEN], args: [sh, -c, 'echo "[$$TOKEN]"']}
- {name: builder, id: without, args: [sh, -c, 'echo "[$$TOKEN]"']}
substitutions:
  _TAG: '${_BRANCH//\\//-}-${SHORT_SHA}'
  _BRANCH: default
options: {dynamicSubstitutions: true}
availableSecrets:
  secretManager: [{env: TOKEN, versionName: projects/p/secrets/s/versions/latest}]
"""
    how = {"overrides": {"_BRANCH": "feature/one"}, "built_in": {"SHORT_SHA": "1234567"}}
    build = carry_out(text, secrets={"TOKEN": "hush"}, **how)
    assert build.printed("one", "feature-one-1234567 $_TAG feat $(x)")
    assert build.printed("with", "[hush]") and build.printed("without", "[]")
    with pytest.raises(InputError, match=r"cloudbuild.yaml:4: the secret TOKEN has no value"):
        carry_out(text, **how)


def test_a_step_builds_an_image_that_a_later_step_runs_and_the_build_pushes(
    carry_out: CarryOut, engine: Engine, steps_image: str, registry: str
) -> None:
    image = f"{registry}/team/app:one"
    build = carry_out(
        f"""
steps:
- name: gcr.io/cloud-builders/docker
  id: build
  args: [build, -t, '{image}', --network=cloudbuild, .]
  env: [DOCKER_BUILDKIT=0]
- name: '{image}'
  id: use
images: ['{image}']
""",
        files={
            "Dockerfile": f'FROM {steps_image}\nCOPY x /x\nCMD ["cat", "/x"]\n',
            "x": "hello\n",
        },
        images={"gcr.io/cloud-builders/*": steps_image},
    )
    try:
        assert build.result.status == "SUCCESS", build.log
        assert build.printed("use", "hello")
        assert build.result.images == ((image, digest_of(registry, "team/app", "one")),)
        text = f"steps: [{{name: b, script: 'true'}}]\nimages: ['{image}']\n"
        kept = carry_out(text, push=False)
        assert kept.result.not_done == (f"not pushed (--no-push): {image}",)
        engine.api.tag(image, "127.0.0.1:1/team/app", "one")  # where no registry answers
        refused = carry_out(text.replace(registry, "127.0.0.1:1"))
        assert refused.result.status == "FAILURE"
        assert isinstance(refused.result.error, OutsideError)
        assert sum("Pushing" in line for line in refused.log) == 3, "it was tried again"
    finally:
        engine.api.remove_image("127.0.0.1:1/team/app:one", force=True)
        engine.api.remove_image(image, force=True)


def digest_of(registry: str, repository: str, tag: str) -> str:
    """Return what a registry has under a tag."""
    kinds = ("oci.image.manifest.v1", "docker.distribution.manifest.v2", "oci.image.index.v1")
    accept = ", ".join(f"application/vnd.{kind}+json" for kind in kinds)
    address = f"http://{registry}/v2/{repository}/manifests/{tag}"
    request = urllib.request.Request(address, headers={"Accept": accept}, method="HEAD")
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(request) as answer:
        return str(answer.headers["Docker-Content-Digest"])


def test_an_image_that_nobody_has(carry_out: CarryOut) -> None:
    build = carry_out("steps: [{name: b, script: 'true'}]\nimages: [127.0.0.1:1/team/gone]\n")
    assert build.result.detail.startswith("failed to find one or more images")
    build = carry_out("steps: [{name: 127.0.0.1:1/team/gone:2, script: 'true'}]", images={})
    assert build.result.status == "FAILURE"
    assert isinstance(build.result.error, OutsideError)
    assert "--map 127.0.0.1:1/team/gone=LOCAL" in build.result.error.fix


def test_artifacts(carry_out: CarryOut, tmp_path: Path) -> None:
    text = """
steps:
- name: b
  script: |
    mkdir -p out/deep; echo 1 > out/a.txt; echo 2 > out/deep/b.txt; echo 3 > c.bin
    chmod +x c.bin
artifacts: {objects: {location: 'gs://bucket/$BUILD_ID', paths: ['out/**.txt', '*.bin']}}
"""
    build = carry_out(text, artifacts=tmp_path / "artifacts")
    folder = tmp_path / "artifacts/bucket" / build.result.build_id
    names = {"a.txt": "1\n", "b.txt": "2\n", "c.bin": "3\n"}
    assert {path.name: path.read_text() for path in folder.iterdir()} == names
    assert {copy["location"] for copy in build.result.artifacts} == {
        f"gs://bucket/{build.result.build_id}/{name}" for name in names
    }
    assert os.access(folder / "c.bin", os.X_OK)
    build = carry_out(text.replace("*.bin", "*.gone"), artifacts=tmp_path / "artifacts")
    assert "nothing in the workspace matches '*.gone'" in build.result.detail


def test_one_step_alone(carry_out: CarryOut) -> None:
    text = """
steps:
- {name: b, id: one, script: echo 1}
- {name: b, id: two, script: echo 2, waitFor: [one]}
- {name: b, id: three, script: echo 3, waitFor: ['-']}
images: [127.0.0.1:1/team/gone]
"""
    alone = carry_out(text, only=("two",))
    assert [step.id for step in alone.result.steps] == ["two"]
    assert alone.result.not_done == ("images and artifacts: only some steps were run",)
    with pytest.raises(InputError, match="no step 'four'"):
        carry_out(text, only=("four",))


def test_a_log_of_one_step_has_no_prefix_and_every_line(carry_out: CarryOut) -> None:
    build = carry_out(
        "steps: [{name: b, script: 'seq 5000; printf \"10%%\\r50%%\\r100%%\\n\"; printf end'}]"
    )
    begin = build.log.index("1")
    assert build.log[begin : begin + 5002] == [*map(str, range(1, 5001)), "100%", "end"]


def test_several_builds_at_once(carry_out: CarryOut) -> None:
    text = """
steps:
- {name: b, id: one, script: 'echo $BUILD_ID > mine; sleep 1', automapSubstitutions: true}
- {name: b, id: two, script: cat mine}
"""
    with ThreadPoolExecutor(3) as pool:
        builds: list[Build] = list(pool.map(carry_out, [text] * 3))
    assert len({build.result.build_id for build in builds}) == 3
    assert all(build.printed("two", build.result.build_id) for build in builds)


def started(
    folder: Path, engine: Engine, image: str, text: str
) -> tuple[subprocess.Popen[str], str]:
    """Start the command in a process of its own, up to the step's word. Return the build's id."""
    (folder / "cloudbuild.yaml").write_text(text)
    command = [sys.executable, "-m", "cloudbuild_local", "run", "--map", f"b={image}"]
    command += ["--engine", engine.host]
    path = os.pathsep.join([str(Path(cli.__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    process = subprocess.Popen(
        command, cwd=folder, env={**os.environ, "PYTHONPATH": path}, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    assert process.stdout
    build_id = process.stdout.readline().split('"')[1]
    assert any(line.endswith("begun\n") for line in process.stdout)
    return process, build_id


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_command_leaves_nothing(
    engine: Engine, steps_image: str, tmp_path: Path, number: signal.Signals
) -> None:
    text = "steps:\n- {name: b, script: 'echo begun; sleep 300'}\n- {name: b, script: 'true'}\n"
    process, build_id = started(tmp_path, engine, steps_image, text)
    assert left_of(engine, build_id)
    process.send_signal(number)
    rest, summary = process.communicate(timeout=60)
    assert process.returncode == 130, summary
    assert "ERROR: interrupted" in rest and "CANCELLED" in summary
    assert left_of(engine, build_id) == []


def test_what_a_killed_run_left_is_removed_by_the_next(
    engine: Engine, steps_image: str, tmp_path: Path, carry_out: CarryOut
) -> None:
    text = f"""
steps:
- name: b
  script: |
    docker network create own-net
    docker run -d --name own-db --network own-net -v own-volume:/data {steps_image} sleep 300
    echo begun; sleep 300
"""
    process, build_id = started(tmp_path, engine, steps_image, text)
    process.kill()
    process.communicate()
    prefix = f"cloudbuild-{build_id[:8]}-"
    left = set(left_of(engine, build_id))
    assert {f"/{prefix}own-db", f"{prefix}own-net", f"{prefix}own-volume"} < left
    carry_out("steps: [{name: b, script: 'true'}]")
    assert left_of(engine, build_id) == []


def test_what_steps_get_of_this_machine(
    carry_out: CarryOut, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = """
steps:
- name: b
  script: |
    cat /run/secrets/network
    cat ~/.docker/config.json; echo
    readlink /proc/self/ns/net
    test ! -e /var/run/docker.sock
- {name: '127.0.0.1:5999/a/b', script: 'true'}
"""
    logins = {"127.0.0.1:5999": b"me:hush", "elsewhere.example.com": b"me:other"}
    auths = {name: {"auth": b64encode(login).decode()} for name, login in logins.items()}
    (tmp_path / "config.json").write_text(json.dumps({"auths": auths}))
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    (tmp_path / "secrets").mkdir()
    (tmp_path / "secrets/network").write_text("export HTTPS_PROXY=http://proxy.example.com\n")
    planned = plan.prepare(document.parse(text, tmp_path / "c.yaml"), source=None)
    messages: list[str] = []
    access = host.access(planned, True, tmp_path / "secrets", True, messages.append)
    assert messages == ["logins for the steps: 127.0.0.1:5999"]
    build = carry_out(text, host=access, with_socket=False)
    assert build.result.status == "SUCCESS", build.log
    lines = build.lines(0)
    assert "export HTTPS_PROXY=http://proxy.example.com" in lines
    assert any(b64encode(b"me:hush").decode() in line for line in lines)
    assert not any("elsewhere" in line for line in lines)
    assert str(Path("/proc/self/ns/net").readlink()) in lines


def test_matching_of_artifacts() -> None:
    assert matches("a.txt", "*.txt")
    assert not matches("sub/a.txt", "*.txt")
    assert matches("sub/deep/a.txt", "**/*.txt")
    assert matches("sub/deep/a.txt", "/workspace/sub/")
    assert not matches("subs/a.txt", "sub/")


def test_stand_ins_for_builders() -> None:
    images = {"gcr.io/cloud-builders/*": "mine", "ubuntu": "other", "debian:12": "third"}
    assert mapped("gcr.io/cloud-builders/docker:24", images) == "mine"
    assert mapped("ubuntu:24.04", images) == "other"
    assert mapped("debian:12", images) == "third"
    assert mapped("debian:13", images) == "debian:13"
