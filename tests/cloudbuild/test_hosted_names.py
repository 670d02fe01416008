"""What a step asks the engine has the names of the hosted service. Each case is a small build."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import uuid
from pathlib import Path
from typing import Any

import docker
import pytest

from builder.cloudbuild.runner import sandbox
from builder.cloudbuild.runner.names import Names
from builder.engine import Engine, containers
from tests.cloudbuild.conftest import Carry, left_of

pytestmark = pytest.mark.engine


def test_the_workspace_is_a_folder_of_that_name(carry_out: Carry, steps_image: str) -> None:
    # cloud-builders#323: `docker run -v /workspace:/workspace` in a step sees the sources
    ran = carry_out(
        f"""
steps:
- name: b
  id: inside
  script: |
    docker run --rm -v /workspace:/workspace -w /workspace {steps_image} \\
      sh -c 'cat file; echo made > new'
    docker run --rm --mount type=bind,source=/workspace/sub,target=/x {steps_image} cat /x/deep
    docker run --rm -v /builder/home:/root {steps_image} touch /root/at-home
- {{name: b, id: after, script: 'cat new; ls ~'}}
""",
        files={"file": "of the source\n", "sub/deep": "below\n"},
    )
    assert ran.result.status == "SUCCESS", ran.log
    assert ran.said("inside", "of the source")
    assert ran.said("inside", "below")
    assert ran.said("after", "made")
    assert ran.said("after", "at-home")


def test_another_folder_of_the_worker_lasts_as_long_as_the_build(
    carry_out: Carry, steps_image: str
) -> None:
    folder = f"/cloudbuild-{uuid.uuid4().hex[:8]}"
    ran = carry_out(f"""
steps:
- name: b
  script: docker run --rm -v {folder}:/cache {steps_image} sh -c 'echo kept > /cache/it'
- name: b
  id: read
  script: docker run --rm -v {folder}:/cache {steps_image} cat /cache/it
""")
    assert ran.said("read", "kept")
    assert not Path(folder).exists(), "it is the worker's, not this machine's"


def test_volumes_have_their_own_names(carry_out: Carry, steps_image: str) -> None:
    # cloud-builders#372: the volume of a step is the engine's volume of that name
    ran = carry_out(f"""
steps:
- name: b
  script: echo in the volume > /data/it
  volumes: [{{name: vol1, path: /data}}]
- name: b
  id: use
  script: |
    docker run --rm -v vol1:/elsewhere:ro {steps_image} cat /elsewhere/it
    docker ps --filter volume=vol1 --format '{{{{.Names}}}}'
    docker volume inspect vol1 --format '{{{{.Name}}}}'
    docker volume ls --quiet --filter name=vol1
  volumes: [{{name: vol1, path: /data}}]
""")
    assert ran.result.status == "SUCCESS", ran.log
    said = [line.partition('"use": ')[2] for line in ran.log if '"use": ' in line]
    assert said[-4:] == ["in the volume", "step_1", "vol1", "vol1"]


def test_the_network_is_called_cloudbuild(carry_out: Carry, steps_image: str) -> None:
    ran = carry_out(f"""
steps:
- name: b
  script: |
    docker run -d --name db --network cloudbuild {steps_image} \\
      sh -c 'echo from the db > /tmp/it; httpd -f -h /tmp'
- name: b
  id: client
  script: |
    until wget -qO- http://db/it; do sleep 0.2; done
    docker run --rm --network=cloudbuild {steps_image} wget -qO- http://db/it
    docker network inspect cloudbuild --format '{{{{.Name}}}}'
    docker network ls --filter name=cloudbuild --format '{{{{.Name}}}}'
timeout: 60s
""")
    assert ran.result.status == "SUCCESS", ran.log
    said = [line.partition('"client": ')[2] for line in ran.log if '"client": ' in line]
    assert said[-4:] == ["from the db", "from the db", "cloudbuild", "cloudbuild"]


def test_steps_are_containers_called_by_their_number(carry_out: Carry, steps_image: str) -> None:
    ran = carry_out(f"""
steps:
- name: b
  script: 'true'
- name: b
  id: self
  script: |
    docker ps --format '{{{{.Names}}}}'
    docker run --rm --volumes-from step_1 {steps_image} cat /workspace/file
    docker run --rm --volumes-from "$(hostname)" {steps_image} cat /workspace/file
    echo through stdin | docker run --rm -i {steps_image} cat
    docker exec step_1 echo executed
    docker rm nobody
""", files={"file": "seen\n"})  # fmt: skip
    said = [line.partition('"self": ')[2] for line in ran.log if '"self": ' in line]
    assert said[-6:] == [
        "step_1",
        "seen",
        "seen",
        "through stdin",
        "executed",
        "Error response from daemon: No such container: nobody",
    ]


def test_a_build_in_a_step_reaches_the_network(carry_out: Carry, steps_image: str) -> None:
    tag = f"cloudbuild-test:{uuid.uuid4().hex[:8]}"
    ran = carry_out(
        f"""
steps:
- name: b
  script: |
    docker run -d --name server --network=cloudbuild {steps_image} \\
      sh -c 'echo served > /tmp/it; httpd -f -h /tmp'
- name: b
  script: |
    docker build --network=cloudbuild --tag {tag} .
    docker rmi {tag}
  env: [DOCKER_BUILDKIT=0]
timeout: 120s
""",
        files={"Dockerfile": f"FROM {steps_image}\nRUN wget -qO- http://server/it | grep served\n"},
    )
    assert ran.result.status == "SUCCESS", ran.log


TAKES_NAMES = """
steps:
- name: b
  script: |
    docker network create own-net
    docker volume create own-volume
    docker run -d --name own-db --network own-net -v own-volume:/data -v implied:/i {image} \\
      sleep 300
- name: b
  id: seen
  script: |
    docker ps --filter name=^/?own --format '{{{{.Names}}}} {{{{.Networks}}}}'
    docker volume ls --quiet --filter name=^implied$
    docker inspect own-db --format '{{{{.Name}}}}'
"""


def test_a_name_is_free_again_in_the_next_run(
    carry_out: Carry, engine: Engine, steps_image: str
) -> None:
    first = carry_out(TAKES_NAMES.format(image=steps_image))
    second = carry_out(TAKES_NAMES.format(image=steps_image))
    for ran in (first, second):
        assert ran.result.status == "SUCCESS", ran.log
        assert ran.said("seen", "own-db own-net")
        assert ran.said("seen", "implied")
        assert ran.said("seen", "/own-db")
        assert ran.result.not_done == ()


def test_what_a_killed_run_s_steps_made_is_removed_by_the_next(
    engine: Engine, steps_image: str, tmp_path: Path, carry_out: Carry
) -> None:
    text = TAKES_NAMES.format(image=steps_image) + "- {name: b, script: 'echo begun; sleep 300'}\n"
    (tmp_path / "cloudbuild.yaml").write_text(text)
    command = [sys.executable, "-m", "builder", "cloud", "run-local", "--map", f"b={steps_image}"]
    process = subprocess.Popen(
        [*command, "--no-source"], cwd=tmp_path, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    build_id = process.stdout.readline().split('"')[1]
    assert any(line.endswith(": begun\n") for line in process.stdout)
    process.send_signal(signal.SIGKILL)
    process.wait()
    left = left_of(engine, build_id)
    prefix = f"cloudbuild-{build_id[:8]}-"
    assert {f"['/{prefix}own-db']", f"{prefix}own-net", f"{prefix}own-volume"} < set(left)
    ran = carry_out(TAKES_NAMES.format(image=steps_image))
    assert ran.result.status == "SUCCESS", ran.log
    assert left_of(engine, build_id) == []


def test_a_step_sees_and_prunes_only_what_is_the_build_s(
    carry_out: Carry, engine: Engine, steps_image: str
) -> None:
    name = f"of-somebody-{uuid.uuid4().hex[:8]}"
    api: Any = engine.client.api
    api.create_volume(name)
    api.create_network(name)
    api.create_container(steps_image, "true", name=name)
    try:
        ran = carry_out(f"""
steps:
- {{name: b, script: 'true'}}
- name: b
  id: clean
  script: |
    docker volume create of-the-build
    docker create --name stopped {steps_image} true
    docker system prune --force --volumes --all
    docker ps --all --format '{{{{.Names}}}}'; docker network ls; docker volume ls
""")
        assert ran.result.status == "SUCCESS", ran.log
        assert ran.said("clean", "step_1")
        assert not any(name in line or line.endswith("stopped") for line in ran.log)
        assert api.inspect_container(name)
        assert api.inspect_volume(name)
        assert api.inspect_network(name)
        assert engine.image(steps_image), "images are the engine's, and stay"
    finally:
        api.remove_container(name)
        api.remove_network(name)
        api.remove_volume(name)


def test_an_engine_that_does_not_see_our_files_is_said(
    carry_out: Carry, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Elsewhere(sandbox.Proxy):
        """As if this program ran in a container: the engine has no such path."""

        def __init__(self, engine: str, owner: str) -> None:
            super().__init__(engine, owner)
            self.real, self.socket = self.socket, f"{self.socket}-elsewhere"

        def serve(self, names: Any) -> None:
            shown, self.socket = self.socket, self.real
            super().serve(names)
            self.socket = shown

    monkeypatch.setattr(sandbox, "Proxy", Elsewhere)
    ran = carry_out("steps: [{name: b, id: x, script: 'docker ps -q | grep -c .'}]")
    assert ran.result.status == "SUCCESS", ran.log
    assert ran.result.not_done == (
        "steps asked the engine itself: the names of the service were not there",
    )


def test_a_worker_s_engine_builds_without_buildkit_unless_told(engine: Engine) -> None:
    proxy = sandbox.Proxy(engine.host.removeprefix("unix://"), containers.owner(os.getpid()))
    proxy.serve(Names("cloudbuild-test-", {}, "of=nobody", worker="/nowhere"))
    try:
        asked = docker.DockerClient(base_url=f"unix://{proxy.socket}")
        answer = asked.api.get("http+docker://localhost/_ping")
        asked.close()
    finally:
        proxy.close()
    assert answer.headers["Builder-Version"] == "1"
    assert not Path(proxy.socket).exists()
