"""The audit: what names lead to, what is refused, and how it is told."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from inline_snapshot import snapshot

from builder.audit import report, sources
from builder.audit.audited import gpu_named, require
from builder.core.errors import CheckFailed, InputError, OutsideError
from builder.core.events import ignore
from builder.core.settings import Settings
from builder.devicecode import inventory
from builder.devicecode.verdict import Audit, Support
from builder.engine import BuildRequest, Engine, buildx
from builder.prove import audit as auditing
from builder.prove.audit import audit
from builder.prove.checks import device_code
from builder.prove.image import Image
from builder.prove.receipts import Defect
from builder.reading.images import ImageContent
from tests.conftest import Run
from tests.devicecode.writer import container, library, ptx, sass
from tests.prove.installed import site
from tests.prove.reading import layer, read
from tests.shown import shown

VOLTA = library(container(sass(70)))
HOPPER = library(container(sass(90)))


def no_engine(start: bool) -> Engine:
    """Nothing but a target's image is worth the start of an engine."""
    assert not start
    raise OutsideError("no engine", "builder engine start")


# --- what names lead to ---------------------------------------------------------------------------


def test_a_folder_is_judged_for_every_gpu_and_refused_for_none(tmp_path: Path) -> None:
    site(tmp_path)
    (source,) = audit(None, {}, Settings(), no_engine, [str(tmp_path)])
    status = {gpu.name: verdict.status for gpu, verdict in source.verdicts}
    assert (status["V100"], status["H100"]) == (Support.NATIVE, Support.NATIVE)
    assert (status["L4"], status["B200"]) == (Support.OLDER_MINOR, Support.PTX)
    require([source])
    with pytest.raises(CheckFailed, match="K80 3") as caught:
        require(audit(None, {}, Settings(), no_engine, [str(tmp_path)], gpus=["K80"]))
    assert caught.value.fix.startswith("take a release whose libraries hold code for this GPU")


def test_a_name_that_leads_nowhere_is_refused(root: Path, project: Path) -> None:
    with pytest.raises(OutsideError, match="no-such may be an image, but no engine runs") as told:
        audit(project, {}, Settings(), no_engine, ["no-such"])
    assert told.value.fix.startswith("builder engine start; or write HOST/")
    for name in ("no-such.whl", "../image.tar", "/libm.so.6"):
        with pytest.raises(InputError, match="no such file or folder"):
            audit(None, {}, Settings(), no_engine, [name])
    with pytest.raises(InputError, match="nothing to audit"):
        audit(project, {}, Settings(), no_engine, [])
    with pytest.raises(InputError, match="CPU is no GPU"):
        audit(project, {}, Settings(), no_engine, ["."], gpus=["CPU"])
    with pytest.raises(InputError, match="cpu is for CPU"):
        audit(root, {"cpu": ""}, Settings(), no_engine, ["cpu"])


def test_an_image_in_a_registry_needs_no_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    key = b"-----BEGIN " + b"PRIVATE KEY-----\nMIIEvQIBADANBgkqhkiG9w0BAQEFAASC\n"
    content = read(layer({"k.pem": (key, 0o600, 0)})).content
    monkeypatch.setattr("builder.reading.images.of_registry", lambda *_, **__: content)
    (source,) = audit(None, {}, Settings(), no_engine, ["127.0.0.1:1/team/x:v1"])
    (secret,) = source.secrets
    assert f"{source.name}: {secret}" in report.table([source])
    assert report.as_dict(source)["secrets"] == [secret]
    with pytest.raises(CheckFailed, match="holds a private key"):
        require([source])


def test_a_target_is_an_image_of_the_engine_with_a_gpu_of_its_own(root: Path) -> None:
    assert auditing.gpu_of(root, "cpu", None) is None
    own, other = auditing.gpu_of(root, "v100", None), auditing.gpu_of(root, "v100", "t4")
    assert own and other and (own.name, other.name) == ("V100", "T4")
    assert auditing.gpu_of(None, "v100", None) is None
    asked: list[str] = []
    engine = SimpleNamespace(image=asked.append)
    started: list[bool] = []

    def connect(start: bool) -> Any:
        started.append(start)
        return engine

    for built, names in (("", []), ("sha256:7", ["sha256:7"])):  # never by a tag that may move
        asked.clear()
        with pytest.raises(InputError, match="v100: the engine holds no image of it") as told:
            auditing.image_content(Settings(), connect, "v100", ignore, {"v100": built})
        assert (started.pop(), told.value.fix) == (True, "run builder build v100")
        assert asked == names
    with pytest.raises(InputError, match="v200 is no target, no file or folder, and no image on"):
        auditing.image_content(Settings(), connect, "v200", ignore, {"v100": ""})


TAG = "audit-test:latest"


@pytest.fixture
def image(engine: Engine, context: Callable[..., Path]) -> Iterator[str]:
    """Two layers: the upper one removes one library of the lower one and replaces another."""
    folder = context("COPY lower /opt/\nRUN rm /opt/removed.so\nCOPY upper /opt/\n")
    for name, data in {
        "lower/removed.so": HOPPER,
        "lower/replaced.so": HOPPER,
        "upper/replaced.so": VOLTA,
    }.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(data)
    buildx.build(engine, BuildRequest(folder / "Dockerfile", folder, (TAG,)))
    yield TAG
    engine.client.images.remove(TAG, force=True)


@pytest.mark.engine
def test_of_an_image_on_the_engine_only_what_a_container_sees_is_judged(
    engine: Engine, image: str
) -> None:
    (source,) = audit(None, {}, Settings(), lambda start: engine, [image], gpus=["V100", "H100"])
    assert [library.path for library in source.libraries.libraries] == ["/opt/replaced.so"]
    assert [gpu.name for gpu, _ in source.refused] == ["H100"]
    with pytest.raises(OutsideError, match="the engine has no image"):
        sources.of_engine(engine.client, "no-such-image:ever")


@pytest.mark.engine
def test_all_says_which_targets_are_not_built(
    engine: Engine, image: str, project: Path, write_target: Callable[..., Path]
) -> None:
    """They are named below the table of those that are; where none is, nothing was audited."""
    write_target("accelerator: V100\nsize_budget: 3 GB\n", "never-built")
    write_target("accelerator: CPU\nsize_budget: 1 GB\n", "without-gpu")
    targets = {"never-built": "", "without-gpu": ""}
    sources = audit(project, targets, Settings(), lambda start: engine, [image], True, ["V100"])
    assert report.table(sources)[-1] == "never-built: not read (run builder build never-built)"
    require(sources)
    with pytest.raises(InputError, match=r"no image of a GPU target \(never-built\)") as caught:
        audit(project, targets, Settings(), lambda start: engine, [], True)
    assert caught.value.fix.startswith("run builder build never-built")


# --- how it is told -------------------------------------------------------------------------------


def test_the_command_outside_of_a_project(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, builder: Run
) -> None:
    site(tmp_path / "site-packages", cudnn=HOPPER)
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path)
    ask = lambda *words: shown(builder("-q", "audit", *words))  # noqa: E731
    assert ask("site-packages", "--gpu", "H100") == snapshot("""\
                       H100
libcudnn_ops.so.9      native
libtensorflow_cc.so.2  native
H100 9.0: native
""")
    assert ask("site-packages", "--gpu", "H100", "--gpu", "7.0") == snapshot("""\
                       H100    7.0
libcudnn_ops.so.9      native  missing
libtensorflow_cc.so.2  native  native
H100 9.0: native
7.0 7.0: missing, because of libcudnn_ops.so.9 (nvidia-cudnn-cu12 9.10.2.21):
.. missing: .nv_fatbin carries sm_90
    instead: nvidia-cudnn-cu12 9.10.2.21 or older
| error: site-packages: 7.0 7.0: missing, because of libcudnn_ops.so.9
| .. (nvidia-cudnn-cu12 9.10.2.21): missing: .nv_fatbin carries sm_90
| fix:   take nvidia-cudnn-cu12 9.10.2.21 or older
exit code 4
""")
    assert ask("site-packages", "--gpu", "7.0", "--github") == snapshot("""\
::error file=site-packages/nvidia/cudnn/lib/libcudnn_ops.so.9,title=device code for
.. 7.0::libcudnn_ops.so.9: missing: .nv_fatbin carries sm_90; instead:
.. nvidia-cudnn-cu12 9.10.2.21 or older
| error: site-packages: 7.0 7.0: missing, because of libcudnn_ops.so.9
| .. (nvidia-cudnn-cu12 9.10.2.21): missing: .nv_fatbin carries sm_90
| fix:   take nvidia-cudnn-cu12 9.10.2.21 or older
exit code 4
""")
    assert ask("site-packages", "--gpu", "9.0", "--github") == snapshot("")
    assert ask("empty", "--gpu", "7.0", "--github") == snapshot("""\
::error title=device code for 7.0::no library holds device code
| error: empty: 7.0 7.0: no device code
| fix:   no library holds device code: check that the CUDA packages are among these
| .. files
exit code 4
""")
    assert ask("site-packages", "--all") == snapshot("""\
| error: no builder.toml in HERE or in any folder above it
| fix:   run this inside a project, or create an empty builder.toml where the
| .. project begins
exit code 2
""")
    bad = builder("-q", "audit", "site-packages", "--gpu", "H100", "--gpu", "7.0", "--json")
    (data,) = json.loads(bad[1])
    assert data["refused"] == ["7.0"]
    assert [verdict["status"] for verdict in data["verdicts"]] == ["native", "missing"]
    assert {library["version"] for library in data["libraries"]} == {"2.21.0", "9.10.2.21"}
    line = report.annotation("error", "50%\nof it", file="a:b,c")
    assert line == "::error file=a%3Ab%2Cc::50%25%0Aof it"


# --- the check ------------------------------------------------------------------------------------


def judged(root: Path, target: str, libraries: Audit) -> tuple[list[Defect], dict[str, Any]]:
    """What the check `device-code` says of a target's image with these libraries."""
    subject = read(target=target, root=root).subject
    assert subject
    content = ImageContent(libraries.libraries)
    image = Image(content, gpu_named(subject.spec.accelerator), subject)
    defects, seen = device_code.run(image)
    return list(defects), dict(seen)


@pytest.mark.parametrize("allowed", ["false", "true"])
def test_a_receipt_says_how_each_library_runs_and_what_spoils(
    allowed: str, root: Path, project: Path, tmp_path: Path, write_target: Callable[..., Path]
) -> None:
    fine = site(tmp_path / "fine").libraries  # of wheels that nobody has read
    unread = Audit(tuple(replace(each, version=f"{each.version}.99") for each in fine))
    defects, seen = judged(root, "v100", unread)
    assert not defects
    (first, _), _ = judged(root, "v100", Audit(fine))
    assert "containers for 7.0 are there; nvidia-cudnn-cu12 9.10.2.21 has them all" in first.message
    assert (seen["status"], len(seen["libraries"])) == ("native", 2)
    (defect,), _ = judged(root, "v100", site(tmp_path / "spoiled", cudnn=HOPPER))
    assert "V100 7.0: missing, because of libcudnn_ops.so.9" in defect.message
    assert "nvidia-cudnn-cu12 9.10.2.21 or older" in defect.fix
    (defect,), _ = judged(root, "v100", Audit(()))
    assert defect.fix.startswith("no library holds device code")
    slow = library(container(ptx(80, code_size=90_000_000)))
    compiled = Audit(inventory.of_stream([("tensorflow/a.so", io.BytesIO(slow))]).compared())
    write_target(f"accelerator: H100\nsize_budget: 3 GB\nallow_ptx: {allowed}\n")
    defects, seen = judged(project, "v100", compiled)
    assert (not defects) == (allowed == "true"), "PTX passes only where it is allowed"
    assert seen["status"] == "PTX"
