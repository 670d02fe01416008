"""Builds on a real engine: what comes out, what must not, and every way in which they end."""

import json
import os
import secrets
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from builder.core.errors import OutsideError
from builder.core.events import Event, StepDone, StepLog
from builder.core.settings import Settings
from builder.engine import BuildRequest, Engine, buildx, discovery, private
from builder.reading import tars
from tests import ROOT, containers
from tests.clock import until
from tests.pipeline.pushing import other_engine
from tests.registry import server as registry_server

pytestmark = pytest.mark.engine
Context = Callable[..., Path]


@pytest.fixture
def tag(engine: Engine) -> Iterator[str]:
    """A name for an image that goes away with the test."""
    name = f"factory-test:{secrets.token_hex(6)}"
    yield name
    for left in (name, f"{name}-2"):
        if engine.image(left):
            engine.client.images.remove(left, force=True)


def request(folder: Path, *tags: str, **more: object) -> BuildRequest:
    return BuildRequest(folder / "Dockerfile", folder, tags, **more)  # type: ignore[arg-type]


def fresh() -> str:
    """A step that no cache holds."""
    return f"echo {secrets.token_hex(8)} > /fresh"


# --- what comes out -------------------------------------------------------------------------------


def test_a_build_gives_an_image_that_the_engine_knows(
    engine: Engine, context: Context, tag: str
) -> None:
    folder = context(
        f"RUN {fresh()}; dd if=/dev/zero of=/zeros bs=1M count=20\n"
        'ENV A=1\nLABEL made="here"\nUSER 1000:1000\nENTRYPOINT ["/bin/sh", "-c"]\n'
    )
    seen: list[Event] = []
    built = buildx.build(engine, request(folder, tag, f"{tag}-2"), seen.append)
    image = engine.image(tag)
    assert image is not None
    assert (image.image_id, image.digest) == (built.image_id, built.digest)
    assert image.labels == {"made": "here"}
    second = engine.image(f"{tag}-2")
    assert second is not None and second.image_id == image.image_id
    assert built.unpacked_bytes is not None
    assert 20_000_000 < built.unpacked_bytes < 30_000_000
    if engine.containerd_store:
        assert built.compressed_bytes is not None
        assert 500_000 < built.compressed_bytes < 3_000_000
    assert isinstance(seen[-1], StepDone) and seen[-1].name == f"build {tag}"
    assert any("RUN echo" in line for line in printed(seen)), "buildx's own lines"
    ran = containers.output(engine.client, tag, ["echo $A"])
    assert ran == b"1\n"
    assert engine.image("factory-test:no-such-thing") is None
    disk = engine.disk()
    assert disk is not None and 0 < disk.free < disk.total and disk.path.is_dir()


def printed(events: list[Event]) -> list[str]:
    """Return what buildx printed."""
    return [event.line for event in events if isinstance(event, StepLog)]


def test_the_same_inputs_give_the_same_digest(engine: Engine, context: Context, tag: str) -> None:
    # What a Dockerfile has to do: one date on what it writes. What the engine does: the rest.
    folder = context(
        "RUN echo made > /etc/made && mkdir /opt && touch -d @315532800 /etc /etc/made /opt /\n"
        "COPY --link app /app\nWORKDIR /app\nLABEL a=b\n",
        {"app/trainer/task.py": "print(1)\n"},
    )
    for path in [*folder.glob("app/**/*"), folder / "app"]:
        os.utime(path, (315532800, 315532800))
    first = buildx.build(engine, request(folder, tag, no_cache=True))
    time.sleep(1.1)
    second = buildx.build(engine, request(folder, f"{tag}-2", no_cache=True))
    assert first.image_id == second.image_id


# --- a registry -----------------------------------------------------------------------------------


@pytest.mark.root
def test_a_push_onto_a_base_that_lies_in_the_registry(
    engine: Engine, context: Context, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with registry_server.registry(tmp_path / "registry") as registry:
        base = f"{registry.host}/team/training:base"
        folder = context("RUN dd if=/dev/urandom of=/large bs=1M count=50\n")
        pushed = buildx.build(engine, request(folder, base, destination="registry"))
        assert registry.tags("team/training") == {"base": pushed.digest}
        assert engine.image(base) is None

        thin = tmp_path / "thin"
        (thin / "app").mkdir(parents=True)
        (thin / "app/task.py").write_text("print(1)\n")
        (thin / "Dockerfile").write_text(f"FROM {base}\nCOPY --link app /app\nUSER 1000\n")
        with other_engine(tmp_path / "engine", monkeypatch) as other:
            built = buildx.build(
                other, request(thin, f"{registry.host}/team/training:thin", destination="registry")
            )
            assert registry.tags("team/training")["thin"] == built.digest
            fetched = sum(
                path.stat().st_size for path in other.data.glob("containerd/**/*") if path.is_file()
            )
            assert fetched < 5_000_000  # the base's 50 MB were never fetched
        layers = json.loads(
            registry_server.skopeo(
                "inspect", "--tls-verify=false", f"docker://{registry.host}/team/training:thin"
            )
        )["Layers"]
        assert len(layers) == 3


# --- secrets --------------------------------------------------------------------------------------


def everything_in(engine: Engine, reference: str) -> bytes:
    """All bytes of an image: layers unpacked, configuration, history, manifest."""
    contents = [json.dumps(engine.client.api.history(reference)).encode()]
    contents.append(json.dumps(engine.client.api.inspect_image(reference)).encode())
    with tempfile.TemporaryDirectory() as folder:
        saved = Path(folder) / "image.tar"
        with saved.open("wb") as file:
            for chunk in engine.client.images.get(reference).save():
                file.write(chunk)
        with tarfile.open(saved) as tar:
            for member in tar:
                blob = tar.extractfile(member)
                content = tars.unpacked(blob).read() if blob else b""
                contents += [member.name.encode(), content]
    return b"\0".join(contents)


USE = "--mount=type=secret,id=network --mount=type=secret,id=ca"


def test_secrets_reach_a_step_and_stay_out_of_the_image(
    engine: Engine, context: Context, tag: str
) -> None:
    marker = f"marker-{secrets.token_hex(8)}"
    given = {"network": f"export TOKEN={marker}\n".encode(), "ca": f"# {marker}".encode() * 5000}
    folder = context(
        f"RUN {USE} {fresh()}; . /run/secrets/network; "
        'test -n "$TOKEN" && wc -c < /run/secrets/ca > /seen\n'
        "RUN ls /run > /run-is\n"
    )
    buildx.build(engine, request(folder, tag, secrets=given))
    content = everything_in(engine, tag)
    assert str(len(given["ca"])).encode() in content  # the step did read it
    assert marker.encode() not in content
    leaking = context(f"RUN {USE} {fresh()}; cp /run/secrets/network /leaked\n", name="leaking")
    buildx.build(engine, request(leaking, f"{tag}-2", secrets=given))
    assert marker.encode() in everything_in(engine, f"{tag}-2")  # the search would find it


# --- how builds end -------------------------------------------------------------------------------


def test_a_step_that_fails_is_named_with_its_line_and_its_log(
    engine: Engine, context: Context
) -> None:
    folder = context("# a comment\nRUN exec 2>&1; echo one; \\\n    echo two; ls /nowhere\n")
    with pytest.raises(OutsideError) as error:
        buildx.build(engine, request(folder, "factory-test:failed"))
    message = error.value.message
    assert message.startswith(f"{folder / 'Dockerfile'}:4: [2/2] RUN exec 2>&1; echo one;")
    assert message.endswith("exit code: 1: ls: /nowhere: No such file or directory")
    assert "\n" not in message


def test_a_base_a_dockerfile_or_a_registry_that_is_not_there(
    engine: Engine, context: Context, tmp_path: Path
) -> None:
    with pytest.raises(OutsideError, match="connection refused") as error:
        buildx.build(engine, request(context(""), "127.0.0.1:1/team/x:1", destination="registry"))
    assert "reaches this registry" in error.value.fix
    with pytest.raises(OutsideError, match="failed to read dockerfile"):
        buildx.build(engine, request(tmp_path, "factory-test:x"))
    (tmp_path / "Dockerfile").write_text("FROM factory-test:never-built\n")
    with pytest.raises(OutsideError, match="never-built"):
        buildx.build(engine, request(tmp_path, "factory-test:x"))


def test_a_callback_that_raises_ends_the_build(engine: Engine, context: Context) -> None:
    folder = context(f"RUN {fresh()}; echo begun; sleep 1000\n")

    def stop(event: Event) -> None:
        if isinstance(event, StepLog) and event.line.endswith(" begun"):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        buildx.build(engine, request(folder, "factory-test:x"), stop)


BUILD_AND_WAIT = """
import sys
from pathlib import Path
from builder.engine import discovery
from builder.engine import BuildRequest, buildx
from builder.core.events import StepLog
from builder.core.settings import Settings
folder = Path(sys.argv[1])
def show(event):
    if isinstance(event, StepLog) and event.line.endswith(" begun"): print("begun", flush=True)
request = BuildRequest(folder / "Dockerfile", folder, ("factory-test:x",))
buildx.build(discovery.connect(Settings()), request, show)
"""


def running(word: str) -> bool:
    """Whether a process of this machine was started with this word."""
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if word.encode() in path.read_bytes().split(b"\0"):
                return True
        except OSError:
            continue
    return False


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_whatever_ends_the_factory_ends_the_build(context: Context, number: signal.Signals) -> None:
    seconds = str(100_000 + secrets.randbelow(100_000))
    folder = context(f'RUN {fresh()}\nRUN ["/bin/sh", "-c", "echo begun; exec sleep {seconds}"]\n')
    child = subprocess.Popen(
        [sys.executable, "-c", BUILD_AND_WAIT, folder], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    assert child.stdout is not None
    assert child.stdout.readline() == "begun\n"
    until(lambda: running(seconds))
    child.send_signal(number)
    child.wait(30)
    until(lambda: not running(seconds))


@pytest.mark.long
def test_an_engine_killed_in_the_middle_and_the_next_run_goes_on(
    context: Context, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = context(f"RUN {fresh()}; echo first done\nRUN echo second; sleep 5; echo end\n")
    with other_engine(tmp_path / "engine", monkeypatch) as mine:

        def kill(event: Event) -> None:
            if isinstance(event, StepLog) and event.line.endswith(" second"):
                pid = private.status().pid
                assert pid is not None
                os.kill(pid, signal.SIGKILL)

        with pytest.raises(OutsideError, match="the engine ended in the middle") as error:
            buildx.build(mine, request(folder, "factory-test:killed"), kill)
        assert error.value.exit_code == 3
        assert "it goes on from BuildKit's cache" in error.value.fix

        again = discovery.connect(Settings(engine="private"))
        events: list[Event] = []
        buildx.build(again, request(folder, "factory-test:killed"), events.append)
        assert any(line.endswith(" CACHED") for line in printed(events))


@pytest.mark.root
def test_a_full_disk_is_one_line_that_says_where(
    context: Context, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=96m", "tmpfs", disk], check=True)
    try:
        with other_engine(disk / "engine", monkeypatch) as mine:
            folder = context("RUN dd if=/dev/zero of=/large bs=1M count=200\n")
            with pytest.raises(
                OutsideError, match=r"the engine's disk is full: .* GB free"
            ) as error:
                buildx.build(mine, request(folder, "factory-test:large"))
            assert str(disk) in error.value.message
            assert "prune" in error.value.fix
    finally:
        subprocess.run(["umount", "--lazy", disk], check=True)


def test_the_machines_own_engine_is_the_one_that_docker_talks_to(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {**engine.environment, "DOCKER_HOST": engine.host}.items():
        monkeypatch.setenv(name, value)
    for choice in ("machine", "auto"):
        own = discovery.connect(Settings(engine=choice))
        assert (own.origin, own.version) == ("machine", engine.version)
