"""In a step, the engine has the names of Cloud Build. Each case is a small build."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest
from conftest import CarryOut

from cloudbuild_local.runner import sandbox
from cloudbuild_local.runner.engine import Engine, connect
from cloudbuild_local.runner.names import Names
from cloudbuild_local.runner.proxy import Proxy

pytestmark = pytest.mark.engine


def test_the_workspace_is_a_folder_of_that_name(carry_out: CarryOut, steps_image: str) -> None:
    # cloud-builders#323: `docker run -v /workspace:/workspace` in a step sees the sources
    build = carry_out(
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
    assert build.result.status == "SUCCESS", build.log
    assert build.printed("inside", "of the source")
    assert build.printed("inside", "below")
    assert build.printed("after", "made")
    assert build.printed("after", "at-home")


def test_another_folder_of_the_worker_lasts_as_long_as_the_build(
    carry_out: CarryOut, steps_image: str
) -> None:
    folder = f"/cloudbuild-{uuid.uuid4().hex[:8]}"
    build = carry_out(f"""
steps:
- name: b
  script: docker run --rm -v {folder}:/cache {steps_image} sh -c 'echo kept > /cache/it'
- name: b
  id: read
  script: docker run --rm -v {folder}:/cache {steps_image} cat /cache/it
""")
    assert build.printed("read", "kept")
    assert not Path(folder).exists(), "it is the worker's, not this machine's"


def test_volumes_have_their_own_names(carry_out: CarryOut, steps_image: str) -> None:
    # cloud-builders#372: the volume of a step is the engine's volume of that name
    build = carry_out(f"""
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
    assert build.result.status == "SUCCESS", build.log
    assert build.lines("use")[-4:] == ["in the volume", "step_1", "vol1", "vol1"]


def test_the_network_is_called_cloudbuild(carry_out: CarryOut, steps_image: str) -> None:
    build = carry_out(f"""
steps:
- name: b
  script: |
    docker run -d --name db --network cloudbuild {steps_image} \\
      sh -c 'while true; do printf "HTTP/1.0 200 OK\\r\\n\\r\\nfrom the db\\n" | nc -l -p 80; done'
- name: b
  id: client
  script: |
    until wget -qO- http://db/it; do sleep 0.2; done
    docker run --rm --network=cloudbuild {steps_image} wget -qO- http://db/it
    docker network inspect cloudbuild --format '{{{{.Name}}}}'
    docker network ls --filter name=cloudbuild --format '{{{{.Name}}}}'
timeout: 600s
""")
    assert build.result.status == "SUCCESS", build.log
    assert build.lines("client")[-4:] == ["from the db", "from the db", "cloudbuild", "cloudbuild"]


def test_steps_are_containers_called_by_their_number(carry_out: CarryOut, steps_image: str) -> None:
    build = carry_out(f"""
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
    docker exec -w / step_1 echo executed
    docker rm nobody
""", files={"file": "seen\n"})  # fmt: skip
    assert build.lines("self")[-6:] == [
        "step_1",
        "seen",
        "seen",
        "through stdin",
        "executed",
        "Error response from daemon: No such container: nobody",
    ]


def test_a_build_in_a_step_reaches_the_network(carry_out: CarryOut, steps_image: str) -> None:
    tag = f"cloudbuild-test:{uuid.uuid4().hex[:8]}"
    build = carry_out(
        f"""
steps:
- name: b
  script: |
    docker run -d --name server --network=cloudbuild {steps_image} \\
      sh -c 'while true; do printf "HTTP/1.0 200 OK\\r\\n\\r\\nserved\\n" | nc -l -p 80; done'
- name: b
  script: |
    docker build --network=cloudbuild --tag {tag} .
    docker rmi {tag}
  env: [DOCKER_BUILDKIT=0]
timeout: 600s
""",
        files={"Dockerfile": f"FROM {steps_image}\nRUN wget -qO- http://server/it | grep served\n"},
    )
    assert build.result.status == "SUCCESS", build.log


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
    carry_out: CarryOut, engine: Engine, steps_image: str
) -> None:
    first = carry_out(TAKES_NAMES.format(image=steps_image))
    second = carry_out(TAKES_NAMES.format(image=steps_image))
    for build in (first, second):
        assert build.result.status == "SUCCESS", build.log
        assert build.lines("seen")[-3:] == ["own-db own-net", "implied", "/own-db"]
        assert build.result.not_done == ()


def test_a_step_sees_and_prunes_only_what_is_the_build_s(
    carry_out: CarryOut, engine: Engine, steps_image: str
) -> None:
    name, api = f"of-somebody-{uuid.uuid4().hex[:8]}", engine.api
    api.create_volume(name)
    api.create_network(name)
    api.create_container(steps_image, "true", name=name)
    try:
        build = carry_out(f"""
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
        assert build.result.status == "SUCCESS", build.log
        assert build.printed("clean", "step_1")
        assert not any(name in line or line.endswith("stopped") for line in build.log)
        assert api.inspect_container(name)
        assert api.inspect_volume(name)
        assert api.inspect_network(name)
        assert engine.image(steps_image), "images are the engine's, and stay"
    finally:
        api.remove_container(name)
        api.remove_network(name)
        api.remove_volume(name)


def test_an_engine_that_does_not_see_our_files_is_reported(
    carry_out: CarryOut, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Elsewhere(Proxy):
        """As if this program ran in a container: the engine has no such path."""

        def __init__(self, socket: str, engine: str, names: Names) -> None:
            super().__init__(socket, engine, names)
            Path(socket).unlink()

    monkeypatch.setattr(sandbox, "Proxy", Elsewhere)
    build = carry_out("steps: [{name: b, id: x, script: 'docker ps -q | grep -c .'}]")
    assert build.result.status == "SUCCESS", build.log
    assert build.result.not_done == (
        "steps got the engine's own socket: the names of the service do not work",
    )


def test_a_worker_s_engine_builds_without_buildkit_unless_told(
    engine: Engine, tmp_path: Path
) -> None:
    names = Names("cloudbuild-test-", "of=nobody", worker="/nowhere")
    proxy = Proxy(str(tmp_path / "s"), engine.socket, names)
    try:
        api = connect(f"unix://{proxy.socket}").api
        answer = api.get("http+docker://localhost/_ping")
        api.close()
    finally:
        proxy.close()
    assert answer.headers["Builder-Version"] == "1"
    assert not Path(proxy.socket).exists()
