"""Builds on a real engine: what a step sees, in which order steps run, and how a build ends."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from base64 import b64encode
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from docker.errors import NotFound
from typer.testing import CliRunner

from builder.cli import cloud_local
from builder.cli.cloud import cloud_app
from builder.cloudbuild import runner
from builder.cloudbuild.reader import buildfile
from builder.cloudbuild.runner.plan import mapped
from builder.cloudbuild.runner.sandbox import LABEL, Sandbox
from builder.cloudbuild.runner.workspace import matches
from builder.core.errors import CheckFailed, InputError, OutsideError
from builder.engine import Engine
from builder.registry import Registry
from tests.cloudbuild.conftest import Carry, left_of
from tests.registry.server import registry

pytestmark = pytest.mark.engine


def test_what_a_step_sees(carry_out: Carry) -> None:
    ran = carry_out(
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
    #!/bin/bash
    words=(a b); echo "${words[1]} [$PROJECT_ID]"
options:
  env: ['COMMON=of the build']
""",
        files={"sub/file": "from the source\n", ".gcloudignore": "secret\n", "secret": "no"},
    )
    assert ran.result.status == "SUCCESS", ran.log
    assert ran.said("first", "/workspace/sub /builder/home 1 of the step project")
    assert ran.said("first", "from the source")
    assert ran.said("first", "socket")
    assert ran.said("second", "made")
    assert not ran.said("second", "secret")
    assert ran.said("third", "of the build step-2")
    assert ran.said("third", "$_NOT project")
    assert ran.step("third").output == b"result"
    assert ran.said("fourth", "b []")


def test_home_and_volumes_last_as_long_as_the_build(carry_out: Carry) -> None:
    ran = carry_out("""
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
    assert [one.partition('": ')[2] for one in ran.log if '"read": of' in one] == [
        "of home",
        "of the volume",
        "of all",
    ]
    assert not ran.said("read", "x")


def test_steps_run_side_by_side_and_after_what_they_wait_for(carry_out: Carry) -> None:
    # each of the two waits for the other's file: only side by side can both end
    ran = carry_out("""
steps:
- {name: builder, id: a, waitFor: ['-'], script: 'touch a; until [ -e b ]; do sleep 0.05; done'}
- {name: builder, id: b, waitFor: ['-'], script: 'touch b; until [ -e a ]; do sleep 0.05; done'}
- {name: builder, id: c, waitFor: [b], script: 'test -e b && echo after b'}
- {name: builder, id: d, script: 'test -e a && test -e b && echo after all'}
timeout: 60s
""")
    assert ran.result.status == "SUCCESS", ran.log
    assert ran.said("c", "after b")
    assert ran.said("d", "after all")
    assert ran.step("d").started >= ran.step("c").ended  # type: ignore[operator]


def test_a_failure_ends_what_runs_and_what_waits(carry_out: Carry) -> None:
    began = time.monotonic()
    ran = carry_out("""
steps:
- {name: builder, id: long, waitFor: ['-'], script: 'sleep 300'}
- {name: builder, id: bad, waitFor: ['-'], script: 'echo going; exit 7'}
- {name: builder, id: never, script: 'echo never'}
""")
    assert time.monotonic() - began < 100
    assert ran.result.status == "FAILURE"
    assert ran.result.detail == (
        'build step 1 "builder" failed: step exited with non-zero status: 7'
    )
    assert ran.log[-2:] == ["ERROR", f"ERROR: {ran.result.detail}"]
    assert {one.id: (one.status, one.exit_code) for one in ran.result.steps} == {
        "long": ("CANCELLED", 137),
        "bad": ("FAILURE", 7),
        "never": ("QUEUED", None),
    }


@pytest.mark.parametrize(
    ("allow", "status"),
    [
        ("allowFailure: true", "SUCCESS"),
        ("allowExitCodes: [3]", "SUCCESS"),
        ("allowExitCodes: [4]", "FAILURE"),
        ("{allowExitCodes: [4], allowFailure: true}", "FAILURE"),  # the codes take precedence
    ],
)
def test_failures_that_are_allowed(carry_out: Carry, allow: str, status: str) -> None:
    more = allow.strip("{}")
    ran = carry_out(
        f"steps:\n- {{name: b, id: one, script: exit 3, {more}}}\n"
        "- {name: b, id: two, script: echo went on}\n"
    )
    assert ran.result.status == status
    assert ran.step("one").status == "FAILURE"
    assert ran.said("two", "went on") == (status == "SUCCESS")


def test_a_program_that_is_not_there(carry_out: Carry) -> None:
    ran = carry_out("""
steps:
- {name: b, id: missing, entrypoint: no-such-program, allowExitCodes: [127]}
- {name: b, id: file, entrypoint: /etc, allowFailure: true}
- {name: b, id: last, args: [/bin/also-missing]}
""")
    codes = {one.id: one.exit_code for one in ran.result.steps}
    assert codes == {"missing": 127, "file": 126, "last": 127}, ran.log
    assert any("executable file not found" in line for line in ran.log)
    assert ran.result.status == "FAILURE"
    assert ran.result.error is None  # the file's fault, not the engine's


def test_a_step_and_a_build_out_of_time(carry_out: Carry) -> None:
    ran = carry_out("""
steps:
- {name: builder, id: slow, timeout: 1s, script: 'echo begun; sleep 300'}
- {name: builder, id: never, script: 'echo never'}
""")
    assert (ran.result.status, ran.step("slow").status) == ("TIMEOUT", "TIMEOUT")
    assert "its timeout, 1s" in ran.result.detail
    assert ran.said("slow", "begun")
    ran = carry_out("steps: [{name: builder, id: slow, script: sleep 300}]\ntimeout: 3s\n")
    assert ran.result.status == "TIMEOUT"
    assert ran.result.detail == "the build took longer than 3s"


def test_substitutions_reach_the_steps(carry_out: Carry) -> None:
    ran = carry_out(
        """
steps:
- {name: builder, id: one, args: [echo, '${_TAG}', '$$_TAG', '${_BRANCH:0:4}', '$(x)']}
substitutions:
  _TAG: '${_BRANCH//\\//-}-${SHORT_SHA}'
  _BRANCH: default
options: {dynamicSubstitutions: true}
""",
        given={"_BRANCH": "feature/one"},
        builds_in={"SHORT_SHA": "1234567"},
    )
    assert "feature-one-1234567 $_TAG feat $(x)" in ran.log


def test_secrets(carry_out: Carry) -> None:
    text = """
steps:
- {name: builder, id: with, secretEnv: [TOKEN], args: [sh, -c, 'echo "[$$TOKEN]"']}
- {name: builder, id: without, args: [sh, -c, 'echo "[$$TOKEN]"']}
availableSecrets:
  secretManager: [{env: TOKEN, versionName: projects/p/secrets/s/versions/latest}]
"""
    ran = carry_out(text, secrets={"TOKEN": "hush"})
    assert ran.said("with", "[hush]")
    assert ran.said("without", "[]")
    with pytest.raises(InputError, match=r"cloudbuild.yaml:3: the secret TOKEN has no value"):
        carry_out(text)


def test_a_step_builds_an_image_that_a_later_step_runs_and_the_build_pushes(
    carry_out: Carry,
    engine: Engine,
    steps_image: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with registry(tmp_path / "registry") as server:
        image = f"{server.host}/team/app:one"
        ran = carry_out(
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
            assert ran.result.status == "SUCCESS", ran.log
            assert ran.said("use", "hello")
            pushed = ran.result.images[0]
            assert server.tags("team/app") == {"one": pushed.digest}
            # the tag holds something else when it is read back: no such digest is reported
            tampered = f"steps: [{{name: b, script: 'true'}}]\nimages: ['{image}']\n"
            with monkeypatch.context() as patched:
                patched.setattr(Registry, "head", lambda *_: "sha256:" + "0" * 64)
                lied = carry_out(tampered)
            assert (lied.result.status, lied.result.images) == ("FAILURE", ())
            assert f"the registry has sha256:{'0' * 64}" in lied.result.detail
            # a further build: the registry refuses, and the build fails with its words
            server.kill()
            refused = carry_out(f"steps: [{{name: b, script: 'true'}}]\nimages: ['{image}']\n")
            assert refused.result.status == "FAILURE"
            assert isinstance(refused.result.error, OutsideError)
            assert "not pushed" in refused.result.detail
            kept = carry_out(
                f"steps: [{{name: b, script: 'true'}}]\nimages: ['{image}']\n", push=False
            )
            assert kept.result.status == "SUCCESS"
            assert kept.result.not_done == (f"not pushed (--no-push): {image}",)
        finally:
            engine.client.images.remove(image, force=True)


def test_an_image_that_no_step_made(carry_out: Carry) -> None:
    ran = carry_out("steps: [{name: b, script: 'true'}]\nimages: [127.0.0.1:1/team/gone]\n")
    assert ran.result.status == "FAILURE"
    assert ran.result.detail.startswith("failed to find one or more images")


def test_an_image_that_cannot_be_had(carry_out: Carry) -> None:
    ran = carry_out("steps: [{name: 127.0.0.1:1/team/gone:2, script: 'true'}]", images={})
    assert ran.result.status == "FAILURE"
    assert isinstance(ran.result.error, OutsideError)
    assert ran.result.error.exit_code == 3
    assert "--map 127.0.0.1:1/team/gone=LOCAL" in ran.result.error.fix


def test_artifacts_and_workspace(carry_out: Carry, tmp_path: Path) -> None:
    text = """
steps:
- name: b
  script: |
    mkdir -p out/deep; echo 1 > out/a.txt; echo 2 > out/deep/b.txt; echo 3 > c.bin
    chmod +x c.bin
artifacts: {objects: {location: 'gs://bucket/$BUILD_ID', paths: ['out/**.txt', '*.bin']}}
"""
    ran = carry_out(text, artifacts=tmp_path / "artifacts", workspace=tmp_path / "workspace")
    folder = tmp_path / "artifacts/bucket" / ran.result.build_id
    assert {p.name: p.read_text() for p in folder.iterdir() if p.suffix != ".json"} == {
        "a.txt": "1\n",
        "b.txt": "2\n",
        "c.bin": "3\n",
    }
    lines = (folder / f"artifacts-{ran.result.build_id}.json").read_text().splitlines()
    assert {json.loads(line)["location"] for line in lines} == {
        f"gs://bucket/{ran.result.build_id}/{name}" for name in ("a.txt", "b.txt", "c.bin")
    }
    assert (tmp_path / "workspace/out/deep/b.txt").read_text() == "2\n"
    assert os.access(tmp_path / "workspace/c.bin", os.X_OK)
    ran = carry_out(text.replace("*.bin", "*.gone"), artifacts=tmp_path / "artifacts")
    assert ran.result.status == "FAILURE"
    assert "nothing in the workspace matches '*.gone'" in ran.result.detail


def test_one_step_alone(carry_out: Carry) -> None:
    text = """
steps:
- {name: b, id: one, script: echo 1}
- {name: b, id: two, script: echo 2, waitFor: [one]}
- {name: b, id: three, script: echo 3, waitFor: ['-']}
images: [127.0.0.1:1/team/gone]
"""
    alone = carry_out(text, only=("two",))
    assert [one.id for one in alone.result.steps] == ["two"]
    assert alone.result.not_done == ("images and artifacts: only some steps were run",)
    needed = carry_out(text, only=("two",), with_needed=True)
    assert [one.id for one in needed.result.steps] == ["one", "two"]
    with pytest.raises(InputError, match="no step 'four'"):
        carry_out(text, only=("four",))


def test_a_log_of_one_step_has_no_prefix_and_every_line(carry_out: Carry) -> None:
    ran = carry_out(
        "steps: [{name: b, script: 'seq 5000; printf \"10%%\\r50%%\\r100%%\\n\"; printf end'}]"
    )
    begin = ran.log.index("1")
    assert ran.log[begin : begin + 5002] == [*map(str, range(1, 5001)), "100%", "end"]


def test_several_builds_at_once(carry_out: Carry) -> None:
    text = """
steps:
- {name: b, id: one, script: 'echo $BUILD_ID > mine; sleep 1; cat mine', automapSubstitutions: true}
- {name: b, id: two, script: cat mine}
"""
    with ThreadPoolExecutor(3) as pool:
        every = [future.result() for future in [pool.submit(carry_out, text) for _ in range(3)]]
    assert len({ran.result.build_id for ran in every}) == 3
    for ran in every:
        assert ran.said("one", ran.result.build_id)
        assert ran.said("two", ran.result.build_id)


COMMAND = """
import sys
from builder.cli import main
sys.argv = ["builder", "cloud", "run-local", *sys.argv[1:]]
main()
"""


def _command(folder: Path, *words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", COMMAND, *words],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_command_leaves_nothing(
    engine: Engine, steps_image: str, tmp_path: Path, number: signal.Signals
) -> None:
    (tmp_path / "cloudbuild.yaml").write_text(
        "steps:\n- {name: b, id: one, script: 'echo begun; sleep 300'}\n"
        "- {name: b, id: two, script: 'echo never'}\n"
    )
    process = _command(tmp_path, "--map", f"b={steps_image}")
    assert process.stdout is not None
    build_id = ""
    for line in process.stdout:
        build_id = build_id or line.split('"')[1]
        if line.endswith(": begun\n"):
            break
    assert left_of(engine, build_id)
    process.send_signal(number)
    rest, said = process.communicate(timeout=60)
    assert process.returncode == 130, said
    assert "ERROR: interrupted" in rest
    assert "CANCELLED" in said
    assert left_of(engine, build_id) == []


def test_what_a_killed_run_left_is_removed_by_the_next(
    engine: Engine, steps_image: str, tmp_path: Path, carry_out: Carry
) -> None:
    (tmp_path / "cloudbuild.yaml").write_text("steps: [{name: b, script: 'echo begun; sleep 300'}]")
    process = _command(tmp_path, "--map", f"b={steps_image}")
    assert process.stdout is not None
    build_id = process.stdout.readline().split('"')[1]
    for line in process.stdout:
        if line == "begun\n":
            break
    process.kill()
    process.wait()
    assert left_of(engine, build_id)
    carry_out("steps: [{name: b, script: 'true'}]")
    assert left_of(engine, build_id) == []


def test_a_container_that_a_step_started_ends_with_the_build(
    engine: Engine, steps_image: str, carry_out: Carry
) -> None:
    ran = carry_out(
        "steps: [{name: b, id: x, args: [docker, run, -d, --name, left-by-a-step, "
        f"--network=cloudbuild, '{steps_image}', sleep, '300']}}]"
    )
    assert ran.result.status == "SUCCESS", ran.log
    assert ran.result.not_done == ()
    container = ran.log[-2].rpartition(" ")[2]
    assert re.fullmatch("[0-9a-f]{64}", container), ran.log
    with pytest.raises(NotFound):
        engine.client.containers.get(container)


def test_without_the_socket(carry_out: Carry) -> None:
    ran = carry_out("steps: [{name: b, script: 'test -e /var/run/docker.sock'}]", with_socket=False)
    assert ran.result.status == "FAILURE"


def test_what_steps_get_of_this_machine(
    carry_out: Carry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = """
steps:
- name: b
  script: |
    cat /run/secrets/network
    cat ~/.docker/config.json
    readlink /proc/self/ns/net
- {name: '127.0.0.1:5999/a/b', script: 'true'}
"""
    config = {
        "auths": {
            "127.0.0.1:5999": {"auth": b64encode(b"me:hush").decode()},
            "elsewhere.example.com": {"auth": b64encode(b"me:other").decode()},
        }
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy.example.com:3128")
    read = buildfile.parse(text, tmp_path / "cloudbuild.yaml")
    hosts, logins = runner.logins(runner.prepare(read, source=None))
    assert hosts == ("127.0.0.1:5999",)
    ran = carry_out(text, host=runner.host_access(True, True, logins))
    assert ran.result.status == "SUCCESS", ran.log
    assert any("HTTPS_PROXY=http://proxy.example.com:3128" in line for line in ran.log)
    assert any(b64encode(b"me:hush").decode() in line for line in ran.log)
    assert not any("elsewhere" in line for line in ran.log)
    assert any(line.endswith(str(Path("/proc/self/ns/net").readlink())) for line in ran.log)


def test_nothing_is_privileged(
    engine: Engine, steps_image: str, carry_out: Carry, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[dict[str, Any]] = []
    create = Sandbox.create

    def looking(sandbox: Sandbox, spec: Any) -> str:
        made = create(sandbox, spec)
        seen.append(sandbox.api.inspect_container(made))
        return made

    monkeypatch.setattr(Sandbox, "create", looking)
    carry_out("steps: [{name: b, script: 'true'}]")
    assert [one["HostConfig"]["Privileged"] for one in seen] == [False]
    assert seen[0]["Config"]["Labels"][LABEL]


def test_the_command_json_and_exit_codes(
    steps_image: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(cloud_local, "_end_on_signals", lambda: None)  # pytest's own signals stay

    def call(text: str, *words: str) -> Result:
        Path("cloudbuild.yaml").write_text(text)
        mapped = ["--map", f"b={steps_image}"]
        return CliRunner().invoke(cloud_app, ["run-local", *mapped, *words])

    done = call("steps: [{name: b, id: x, script: echo hi}]", "--json")
    assert done.exit_code == 0, done.stderr
    assert json.loads(done.stdout)["steps"][0]["status"] == "SUCCESS"
    assert "\nhi\n" in done.stderr
    assert re.search(r"^ +x +SUCCESS +[0-9.]+ s +\|.*=", done.stderr, re.M)
    done = call("steps: [{name: b, script: exit 5}]")
    assert isinstance(done.exception, CheckFailed)  # exit code 4
    assert "non-zero status: 5" in done.exception.message
    done = call("steps: [{name: b, skript: exit 5}]")
    assert isinstance(done.exception, InputError)  # exit code 2
    assert done.exception.message == (
        "cloudbuild.yaml:1: steps[0].skript: unknown field of BuildStep"
    )
    done = call("steps: [{name: b, args: [echo, $PROJECT_ID]}]", "--dry-run", "--project", "mine")
    assert done.exit_code == 0
    assert 'args: ["echo", "mine"]' in done.stdout
    assert "standsInFor: b" in done.stdout


def test_what_only_the_service_has_is_said(carry_out: Carry) -> None:
    ran = carry_out(
        "steps: [{name: b, script: 'true'}]\nqueueTtl: 60s\ndependencies: [{empty: true}]\n"
        "options: {requestedVerifyOption: VERIFIED, pubsubTopic: projects/p/topics/t}\n"
        "artifacts: {npmPackages: [{repository: r, packagePath: p}]}"
    )
    assert [line.partition(":")[0] for line in ran.result.not_done] == [
        "artifacts.npmPackages",
        "queueTtl",
        "dependencies",
        "provenance and attestations",
        "pubsubTopic",
    ]


def test_threads_are_gone_after_a_build(carry_out: Carry) -> None:
    before = threading.active_count()
    carry_out("steps: [{name: b, script: 'true'}, {name: b, script: exit 1}]\ntimeout: 600s")
    assert threading.active_count() <= before


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


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--map", "ubuntu"], "--map: 'ubuntu' is not IMAGE=LOCAL"),
        (["--secret", "NOT_THERE"], "--secret NOT_THERE: this shell has no variable NOT_THERE"),
        (["--secret", "T=gone"], "--secret T: gone cannot be read"),
        (["--source", "gone"], "--source: gone is not a folder"),
        (["--substitutions", "A"], "--substitutions: 'A' has no value"),
        (["--step", "nine"], "no step 'nine'"),
        (["other.yaml"], "other.yaml: no such file"),
    ],
)
def test_a_call_that_cannot_be_right(
    words: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("cloudbuild.yaml").write_text("steps: [{name: a}]")
    done = CliRunner().invoke(cloud_app, ["run-local", *words])
    assert isinstance(done.exception, InputError)
    assert message in done.exception.message
    assert done.exception.fix


def test_a_document_of_another_project_needs_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "b.json").write_text('{\n\t"steps": [{"name": "ubuntu", "args": ["ls"]}]\n}')
    read = buildfile.load(tmp_path / "b.json")
    assert runner.prepare(read, source=None).steps[0].image == "ubuntu"
